//! Rules that take values from the sums of a pass: once when the next phase begins, whatever happens between.

use super::*;

const LANES: Sharing = Sharing::Lanes { lanes: 1 };

/// A row of two sums and a count for each of four clusters.
fn means() -> ShardConfig {
    let mut config = config(SGD);
    config.tables = vec![dense_table(0, "w", 4, 3, Optimizer::mean())];
    config
}

fn push_row(node: &mut Node, conn: Conn, step: u64, row: u32, values: [f32; 3]) {
    let status = node.push_keys(conn, whole(0, step), &[row], &values);
    assert_eq!(status, Some(Status::Ok));
    if node.host.shard(ShardId(0)).is_some_and(|shard| shard.progress().lanes().is_some()) {
        assert_eq!(node.done(conn, 0, step), Some(Status::Ok));
    }
}

/// Two steps of a pass: row 1 has sums of three records.
fn pass(node: &mut Node, conn: Conn) {
    push_row(node, conn, 0, 1, [2.0, 4.0, 2.0]);
    push_row(node, conn, 1, 1, [1.0, -1.0, 1.0]);
}

const NEW: [f32; 12] = [0.0, 0.0, 0.0, 1.0, 1.0, 3.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0];

#[test]
fn means_are_taken_once_when_the_next_phase_begins() {
    for sharing in [LANES, Sharing::Queue] {
        let mut node = Node::with(sharing, means());
        let conn = node.connect(0);
        pass(&mut node, conn);
        assert_eq!(node.values(), [0.0; 12], "values rest during the pass");
        node.begin(1, Sharing::ReadOnly);
        assert_eq!(node.values(), NEW);
        node.begin(1, Sharing::ReadOnly);
        node.begin(2, sharing);
        assert_eq!(node.values(), NEW, "an evaluation has no sums");
        push_row(&mut node, conn, 0, 2, [6.0, 0.0, 2.0]);
        node.begin(3, sharing);
        let mut expected = NEW;
        expected[5] = 0.0;
        expected[6..9].copy_from_slice(&[3.0, 0.0, 2.0]);
        assert_eq!(node.values(), expected, "row 1 keeps its values, without records");
    }
}

#[test]
fn measuring_phases_leave_values_alone() {
    let mut config = means();
    config.training_from = PhaseNo(1);
    let mut node = Node::with(LANES, config);
    let conn = node.connect(0);
    pass(&mut node, conn);
    node.begin(1, LANES);
    assert_eq!(node.values(), [0.0; 12]);
}

/// A cut at the end of the pass is saved before the means are taken: a rollback takes them again, from memory and from a file.
#[test]
fn rollback_to_the_end_of_a_pass_takes_means_again() {
    for sharing in [LANES, Sharing::Queue] {
        let mut node = Node::with(sharing, means());
        let conn = node.connect(0);
        pass(&mut node, conn);
        let at = if sharing == LANES { CutAt::Steps(Step(2)) } else { CutAt::Barriers(vec![]) };
        node.cut(1, at);
        let saved = node.saved(1);
        node.cut_end(1, true);
        node.begin(1, sharing);
        push_row(&mut node, conn, 0, 0, [5.0, 5.0, 1.0]);
        let load = load(2, (1, sharing), 0, Some(cut(1)));
        let missing = node.act(|host, _, out| host.load(&load, &load.shards, out));
        assert_eq!(missing, Ok(vec![]), "from memory");
        assert_eq!(node.values(), NEW);

        let mut other = Node::with(sharing, means());
        let missing = other.act(|host, _, out| host.load(&load, &load.shards, out));
        assert_eq!(missing, Ok(vec![ShardId(0)]));
        other.act(|host, _, out| host.install(epoch(2), saved, out)).expect("it fits");
        assert_eq!(other.values(), NEW);
    }
}

/// A cut after the means were taken is of the next phase: they are not taken again.
#[test]
fn rollback_to_the_next_phase_keeps_its_means() {
    let mut node = Node::with(Sharing::Queue, means());
    let conn = node.connect(0);
    pass(&mut node, conn);
    node.begin(1, Sharing::Queue);
    let command = TakeCut { phase: PhaseNo(1), ..take(cut(1), epoch(1), CutAt::Barriers(vec![])) };
    node.act(|host, now, out| host.cut(&command, now, out)).expect("this epoch");
    push_row(&mut node, conn, 0, 1, [9.0, 9.0, 1.0]);
    let load = load(2, (1, Sharing::Queue), 0, Some(cut(1)));
    assert_eq!(node.act(|host, _, out| host.load(&load, &load.shards, out)), Ok(vec![]));
    assert_eq!(node.values(), NEW);
    node.begin(2, Sharing::Queue);
    let mut without = NEW;
    without[5] = 0.0;
    assert_eq!(node.values(), without, "sums after the cut are gone");
}

/// Without room for copies the end of the pass waits for the saver; until then no frame is served and no cut is taken.
#[test]
fn end_of_a_pass_waits_for_the_saver() {
    let mut config = means();
    config.copy_bytes_max = 0;
    let mut node = Node::with(Sharing::Queue, config);
    let conn = node.connect(0);
    pass(&mut node, conn);
    node.cut(1, CutAt::Barriers(vec![]));
    node.begin(1, Sharing::ReadOnly);
    assert_eq!(node.values(), [0.0; 12]);
    assert_eq!(node.pull(conn, 0), Some(Status::NotReady));
    let command = TakeCut { phase: PhaseNo(1), ..take(cut(2), epoch(1), CutAt::Barriers(vec![])) };
    node.act(|host, now, out| host.cut(&command, now, out)).expect("this epoch");
    assert_eq!(node.aborted(), [2]);
    let saved = node.saved(1);
    assert_eq!(saved.table_values(TableId(0)), Some(&[0.0; 12][..]));
    node.act(|host, _, out| host.pump(out));
    assert_eq!(node.values(), NEW);
}
