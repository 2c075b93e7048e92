//! Malformed frames: refused, and nothing of them is applied.
use super::*;

/// A push of `keys` for `shard`.
fn push_to(node: &mut Node, conn: Conn, shard: u32, keys: &[u32]) -> Option<Status> {
    let mut header = node.header(Kind::Push, whole(0, 0));
    header.shard = ShardId(shard);
    header.flags |= flags::KEYS;
    (header.count, header.rows) = (keys.len() as u32, 1);
    (header.key_bytes, header.value_bytes) = (4 * keys.len() as u32, 4 * keys.len() as u32);
    let values = vec![1.0; keys.len()];
    node.send(conn, &header, keys, &values).map(|reply| reply.status)
}

#[test]
fn refused_keys_and_shards_leave_no_trace_in_any_sharing() {
    let ssp = Sharing::ClockedQueue { staleness: 1 };
    for sharing in [Sharing::Lanes { lanes: 1 }, Sharing::Queue, ssp] {
        let mut node = Node::new(sharing);
        let conn = node.connect(0);
        for keys in [[2, 1], [3, 3], [7, 8]] {
            assert_eq!(push_to(&mut node, conn, 0, &keys), Some(Status::BadRange), "{keys:?}");
        }
        assert_eq!(push_to(&mut node, conn, 1, &[0, 1]), Some(Status::WrongShard));
        assert_eq!(node.query(conn, 0).0, 0, "{sharing:?}: the step is not begun");
        assert_eq!(node.push(conn, whole(0, 0), &[-1.0]), Some(Status::Ok));
        if let Sharing::Lanes { .. } = sharing {
            assert_eq!(node.done(conn, 0, 0), Some(Status::Ok));
        }
        let mut expected = vec![0.0; ROWS as usize];
        expected[0] = 1.0;
        assert_eq!(node.values(), expected, "{sharing:?}");
    }
}
