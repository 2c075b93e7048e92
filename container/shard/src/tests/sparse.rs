//! Sparse tables: rows that appear, snapshots, rollback, room.

use heddle_optimizer::Initialiser;
use heddle_protocol::job_spec::position::{POSITIONS, key_of_position};
use heddle_protocol::job_spec::{TableFull, TableKind, TableSpec};
use proptest::prelude::*;

use super::*;
use crate::SparseLimits;

const COLS: u32 = 2;
const SEED: u64 = 7;
const NORMAL: Initialiser = Initialiser::Normal(0.0, 0.05);

fn sparse(rows_max: u32, when_full: TableFull, optimizer: Optimizer) -> ShardConfig {
    let table = dense_table(0, "w", 0, COLS, optimizer);
    let table = TableSpec { kind: TableKind::Sparse, init: NORMAL, ..table };
    let sparse = SparseLimits { rows_max, when_full, ..SparseLimits::default() };
    ShardConfig { tables: vec![table], seed: SEED, sparse, ..config(optimizer) }
}

fn words(positions: &[u64]) -> Vec<u32> {
    positions.iter().flat_map(|p| [*p as u32, (p >> 32) as u32]).collect()
}

/// The initial values of the row at a position.
fn initial(position: u64) -> Vec<f32> {
    let mut values = vec![0.0; COLS as usize];
    NORMAL.fill(SEED, 0, key_of_position(position), COLS as usize, &mut values);
    values
}

impl Node {
    /// Pushes one value to all columns of these positions.
    fn push_positions(
        &mut self,
        conn: Conn,
        at: At,
        positions: &[u64],
        value: f32,
    ) -> Option<Status> {
        let values = vec![value; positions.len() * COLS as usize];
        let mut header = self.header(Kind::Push, at);
        let last = if at.last { flags::LAST } else { 0 };
        header.flags = flags::KEYS | flags::POSITIONS | last;
        (header.count, header.rows) = (positions.len() as u32, 1);
        (header.key_bytes, header.value_bytes) = (8 * header.count, 4 * header.count * COLS);
        self.send(conn, &header, &words(positions), &values).map(|reply| reply.status)
    }

    /// The values at these positions.
    fn at(&self, positions: &[u64]) -> Vec<f32> {
        let mut header = self.header(Kind::Pull, whole(0, 0));
        header.flags = flags::KEYS | flags::POSITIONS | flags::FREE;
        header.count = positions.len() as u32;
        let mut values = Vec::new();
        let shard = self.host.shard(ShardId(0)).expect("it is here");
        shard.gather(&header, &words(positions), &mut values).expect("it is served");
        values
    }

    /// Rows of the table.
    fn rows(&self) -> usize {
        self.values().len() / COLS as usize
    }
}

#[test]
fn pull_stores_nothing_and_push_begins_with_initial_values() {
    let mut node = Node::with(Sharing::Queue, sparse(100, TableFull::Fail, SGD));
    let conn = node.connect(0);
    let wanted = [3, 1 << 40, u64::MAX];
    let expected: Vec<f32> = wanted.iter().flat_map(|p| initial(*p)).collect();
    assert_eq!(node.at(&wanted), expected);
    assert_eq!(node.rows(), 0);
    assert_eq!(node.push_positions(conn, whole(0, 0), &wanted[1..], -1.0), Some(Status::Ok));
    assert_eq!(node.rows(), 2);
    let moved = |p: u64| initial(p).into_iter().map(|value| value + 1.0);
    let expected: Vec<f32> =
        initial(3).into_iter().chain(moved(1 << 40)).chain(moved(u64::MAX)).collect();
    assert_eq!(node.at(&wanted), expected);
}

#[test]
fn wrong_positions_are_refused_and_create_nothing() {
    let mut config = sparse(100, TableFull::Fail, SGD);
    config.shards = 2;
    let mut node = Node::with(Sharing::Queue, config);
    let conn = node.connect(0);
    for positions in [&[5, 5][..], &[6, 5], &[1 << 63], &[5, u64::MAX]] {
        let status = node.push_positions(conn, whole(0, 0), positions, 1.0);
        assert_eq!(status, Some(Status::BadRange), "{positions:?}");
    }
    assert_eq!(node.push_keys(conn, whole(0, 0), &[1], &[1.0, 1.0]), Some(Status::BadRange));
    assert_eq!(node.push(conn, whole(0, 0), &[1.0, 1.0]), Some(Status::BadRange));
    assert_eq!(node.rows(), 0);
    let mut dense = Node::asp();
    let conn = dense.connect(0);
    let status = dense.push_positions(conn, whole(0, 0), &[1], 1.0);
    assert_eq!(status, Some(Status::BadRange), "a dense table has no positions");
}

#[test]
fn rows_without_room_are_dropped_and_counted_or_fail_the_job() {
    let mut node = Node::with(Sharing::Queue, sparse(3, TableFull::Drop, SGD));
    let conn = node.connect(0);
    node.push_positions(conn, whole(0, 0), &[10, 20], -1.0);
    assert_eq!(node.push_positions(conn, whole(0, 1), &[5, 10, 30, 40], -1.0), Some(Status::Ok));
    assert_eq!(node.rows(), 3);
    let expected: Vec<f32> = [(5, 1.0), (10, 2.0), (20, 1.0), (30, 0.0), (40, 0.0)]
        .into_iter()
        .flat_map(|(p, sum)| initial(p).into_iter().map(move |value| value + sum))
        .collect();
    assert_eq!(node.at(&[5, 10, 20, 30, 40]), expected);
    let shard = node.host.shard(ShardId(0)).expect("it is here");
    assert_eq!(shard.sparse_tables()[0].dropped, 2);

    let mut node = Node::with(Sharing::Lanes { lanes: 1 }, sparse(3, TableFull::Fail, SGD));
    let conn = node.connect(0);
    assert_eq!(node.push_positions(conn, whole(0, 0), &[1, 2, 3, 4], -1.0), Some(Status::Ok));
    assert_eq!(node.done(conn, 0, 0), Some(Status::Ok));
    assert_eq!(node.rows(), 0, "all or nothing");
    let full = LocalReport::TableFull { shard: ShardId(0), table: TableId(0), rows: 0 };
    assert_eq!(node.local, [full]);
}

#[test]
fn rollback_removes_younger_rows() {
    for optimizer in [SGD, Optimizer::ftrl(0.5, 1.0, 0.0, 0.0)] {
        let mut node = Node::with(Sharing::Queue, sparse(5000, TableFull::Fail, optimizer));
        let conn = node.connect(0);
        let old: Vec<u64> = (0..1000).map(|n| n << 50).collect();
        let young: Vec<u64> = (0..2000).map(|n| (n << 49) + 1).collect();
        let all = |node: &Node| (node.at(&old), node.at(&young), node.rows());
        node.push_positions(conn, whole(0, 0), &old, -1.0);
        node.cut(1, CutAt::Barriers(vec![]));
        let saved = node.saved(1);
        node.cut_end(1, true);
        let at_cut = all(&node);
        let further = |node: &mut Node, conn| {
            node.push_positions(conn, whole(0, 1), &young, 3.0);
            node.push_positions(conn, whole(0, 2), &old[100..], 0.5);
            all(node)
        };
        let expected = further(&mut node, conn);
        assert_eq!(expected.2, 3000);
        assert!(!node.load(2, Sharing::Queue, 0, Some(cut(1))), "from memory");
        assert_eq!(all(&node), at_cut);
        assert_eq!(further(&mut node, conn), expected);
        let mut other = Node::from_saved(saved, Sharing::Queue, 0);
        other.config = node.config.clone();
        let conn = other.connect(0);
        assert_eq!(all(&other), at_cut);
        assert_eq!(further(&mut other, conn), expected);
    }
}

#[test]
fn positions_of_a_file_are_checked() {
    let config = sparse(10, TableFull::Fail, SGD);
    let mut node = Node::with(Sharing::Queue, config.clone());
    let conn = node.connect(0);
    node.push_positions(conn, whole(0, 0), &[1, 2], 1.0);
    node.cut(1, CutAt::Barriers(vec![]));
    let head = node.host.snapshot_head(ShardId(0), cut(1)).expect("the cut is open");
    assert_eq!(head.sparse_rows, [2]);
    let sections = config.sections(&head.sparse_rows);
    let positions = sections.iter().position(|s| s.plane == POSITIONS).expect("one");
    assert_eq!(sections[positions].count(), 2);
    let load = |positions_of: [u64; 2]| {
        let mut shard = Shard::new(&config);
        let into = shard.section_mut(positions).expect("it is there");
        for (cell, word) in into.iter_mut().zip(words(&positions_of)) {
            *cell = f32::from_bits(word);
        }
        shard.load_head(&head)
    };
    load([9, 3]).expect("in any order");
    let twice = load([9, 9]).expect_err("a row twice").to_string();
    assert!(twice.contains("row 1 is at 0x9, as another one"), "{twice}");
    let too_many = crate::SnapshotHead { sparse_rows: vec![11], ..head.clone() };
    assert!(Shard::new(&config).load_head(&too_many).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Any pushes, cuts and rollbacks leave what a map would hold; and BSP's sums by position are those of ASP in order.
    #[test]
    fn rows_agree_with_a_map(
        pushes in prop::collection::vec(
            (prop::collection::btree_set(0u64..60, 1..20), 0u8..10),
            1..40,
        ),
    ) {
        use std::collections::BTreeMap;
        let mut node = Node::with(Sharing::Queue, sparse(100, TableFull::Fail, SGD));
        let mut conn = node.connect(0);
        let mut model: BTreeMap<u64, Vec<f32>> = BTreeMap::new();
        let (mut cuts, mut epochs, mut step) = (0, 1, 0);
        let mut kept = None;
        for (positions, kind) in pushes {
            let positions: Vec<u64> = positions.into_iter().map(|n| n << 57 | n).collect();
            let mut positions = positions;
            positions.sort_unstable();
            match kind {
                0 => {
                    cuts += 1;
                    node.cut(cuts, CutAt::Barriers(vec![]));
                    node.cut_end(cuts, true);
                    kept = Some((cuts, model.clone(), step));
                }
                1 if kept.is_some() => {
                    let (number, rows, at) = kept.clone().expect("checked");
                    epochs += 1;
                    let is_missing = node.load(epochs, Sharing::Queue, 0, Some(cut(number)));
                    prop_assert!(!is_missing, "from memory");
                    conn = node.connect(0);
                    (model, step) = (rows, at);
                }
                _ => {
                    let pushed = node.push_positions(conn, whole(0, step), &positions, -0.25);
                    prop_assert_eq!(pushed, Some(Status::Ok));
                    step += 1;
                    for position in positions {
                        let row = model.entry(position).or_insert_with(|| initial(position));
                        row.iter_mut().for_each(|value| *value -= 1.0 * -0.25);
                    }
                }
            }
            prop_assert_eq!(node.rows(), model.len());
        }
        let positions: Vec<u64> = model.keys().copied().collect();
        let values: Vec<f32> = model.into_values().flatten().collect();
        prop_assert_eq!(node.at(&positions), values);
    }
}
