//! Snapshots of backups: taken where the primary took them, saved, kept at a promotion, given up when they hold changes up.

use super::*;
use crate::SnapshotHead;

fn asp(config: ShardConfig) -> Copies {
    Copies::new(2, Sharing::Queue, config)
}

/// Shards whose snapshots have no room for copies.
fn tight() -> ShardConfig {
    let mut small = config(SGD);
    small.tables[0].rows = 2048;
    small.copy_bytes_max = 0;
    small
}

impl Copies {
    fn cut(&mut self, number: u32) {
        let command = take(cut(number), epoch(1), CutAt::Barriers(Vec::new()));
        for host in 0..self.hosts.len() {
            self.act(host, |set, now, out| set.cut(&command, now, out)).expect("this epoch");
        }
    }

    fn cut_end(&mut self, host: usize, number: u32) {
        let end = EndCut { cut: cut(number), committed: false };
        self.act(host, |set, _, out| set.cut_end(end, out));
    }

    /// Reads a snapshot as a saver does.
    fn saved(&mut self, host: usize, number: u32) -> (SnapshotHead, Vec<Vec<u32>>) {
        let head = self.hosts[host].snapshot_head(ShardId(0), cut(number)).expect("it is there");
        let sections = self.config.sections(&head.sparse_rows);
        let read = |(index, of): (usize, &crate::ShardSection)| {
            let mut piece = vec![0.0; of.values()];
            self.hosts[host]
                .save(ShardId(0), cut(number), index, 0, &mut piece)
                .expect("the cut is open");
            piece.iter().map(|value| value.to_bits()).collect()
        };
        let sections: Vec<Vec<u32>> = sections.iter().enumerate().map(read).collect();
        self.act(host, |set, _, out| set.pump(out));
        (head, sections)
    }

    fn copies_snapped(&self, host: usize) -> Vec<CutId> {
        let snapped = |report: &&LocalReport| match report {
            LocalReport::CopySnapped { cut, .. } => Some(*cut),
            _ => None,
        };
        self.local_of(host).iter().filter_map(snapped).collect()
    }

    fn has_snapshot(&mut self, host: usize, number: u32) -> bool {
        self.hosts[host].snapshot_head(ShardId(0), cut(number)).is_ok()
    }
}

#[test]
fn r16_backup_saves_the_bytes_of_its_primary() {
    let mut copies = asp(config(SGD));
    copies.push(0, 1, whole(0, 0), -1.0);
    copies.cut(1);
    copies.push(0, 2, whole(0, 1), -0.3);
    copies.replicate(0, 1);
    assert_eq!(copies.copies_snapped(1), [cut(1)], "reported once");
    assert_eq!(copies.copies_snapped(0), []);
    assert_eq!(copies.saved(1, 1), copies.saved(0, 1));
    assert_eq!(copies.hosts[1].highest_cut(), cut(1));
}

#[test]
fn repeated_snapshot_entry_is_reported_once() {
    let mut copies = asp(config(SGD));
    copies.cut(1);
    let entries = copies.entries(0, 1, 1);
    for _ in 0..2 {
        assert_eq!(copies.give(0, 1, &entries[0]), Flow::Taken);
    }
    assert_eq!(copies.copies_snapped(1), [cut(1)]);
}

#[test]
fn end_of_a_cut_that_overtakes_the_stream_ends_the_snapshot() {
    let mut copies = asp(config(SGD));
    copies.cut(1);
    copies.cut_end(1, 1);
    copies.replicate(0, 1);
    assert_eq!(copies.copies_snapped(1), []);
    assert!(!copies.has_snapshot(1, 1));
    assert!(copies.has_snapshot(0, 1));
}

#[test]
fn r18_promoted_backup_keeps_the_snapshot_until_the_cut_ends() {
    let mut copies = asp(tight());
    copies.push(0, 1, whole(0, 0), -1.0);
    copies.cut(1);
    copies.replicate(0, 1);
    copies.promote(1, 2);
    copies.push(1, 2, whole(0, 1), -1.0);
    assert_eq!(copies.answer(1, 2), None, "it waits for the saver");
    let before = copies.saved(0, 1);
    assert_eq!(copies.saved(1, 1), before);
    assert!(copies.answer(1, 2).is_some());
    copies.cut_end(1, 1);
    assert!(!copies.has_snapshot(1, 1));
}

/// The snapshot of a cut whose command has not come would never end.
#[test]
fn promotion_drops_a_snapshot_without_a_command_of_its_cut() {
    let mut copies = asp(tight());
    let command = take(cut(1), epoch(1), CutAt::Barriers(Vec::new()));
    copies.act(0, |set, now, out| set.cut(&command, now, out)).expect("this epoch");
    copies.replicate(0, 1);
    assert_eq!(copies.hosts[1].highest_cut(), cut(1), "a registration has it");
    copies.promote(1, 2);
    copies.push(1, 1, whole(0, 0), -1.0);
    assert!(copies.answer(1, 1).is_some());
}

#[test]
fn later_end_ends_an_older_snapshot() {
    let mut copies = asp(tight());
    copies.cut(1);
    copies.replicate(0, 1);
    copies.promote(1, 2);
    copies.push(1, 1, whole(0, 0), -1.0);
    assert_eq!(copies.answer(1, 1), None);
    // The command that ended the first cut was lost with its connection.
    copies.cut_end(1, 2);
    assert!(copies.answer(1, 1).is_some());
}

#[test]
fn s35_backup_drops_a_snapshot_whose_saver_is_slow() {
    let mut copies = asp(tight());
    copies.cut(1);
    copies.replicate(0, 1);
    copies.saved(0, 1);
    assert!(copies.has_snapshot(1, 1), "a saver begins to read it");
    copies.push(0, 1, whole(0, 0), -1.0);
    let entries = copies.entries(0, 1, 1);
    assert_eq!(copies.give(0, 1, &entries[0]), Flow::Wait);
    let deadline = copies.hosts[1].deadline().expect("the wait is bounded");
    assert_eq!(deadline, copies.now + Duration::from_secs(1));
    assert!(deadline < copies.now + LAG);
    copies.now = deadline;
    copies.act(1, |set, now, out| set.tick(now, out));
    assert!(!copies.has_snapshot(1, 1));
    let conn = copies.streams[0].2;
    let change = Frame { conn, ..entries[0].change.frame() };
    assert_eq!(copies.act(1, |set, _, out| set.on_frame(&change, out)), Flow::Taken);
    copies.acknowledge();
    assert!(copies.answer(0, 1).is_some(), "it never left the set");
    assert_eq!(copies.hosts[1].deadline(), None);
}

/// Shards 0 and 1 on one thread, both backups. Shard 1 has room for copies.
fn two_backups() -> (ShardSet, [Conn; 2]) {
    let shards = [ShardId(0), ShardId(1)];
    let views = shards.map(|shard| ShardView { shard, ..view(1, 1, &[0, 1]) });
    let load = LoadShards {
        shards: shards.to_vec(),
        views: views.to_vec(),
        ..load(1, (0, Sharing::Queue), 0, None)
    };
    let (mut host, mut out) = (ShardSet::new(pserver(1), 0), Vec::new());
    assert_eq!(host.load(&load, &shards, &mut out), Ok(shards.to_vec()));
    for (shard, copy_bytes_max) in shards.into_iter().zip([0, 1 << 20]) {
        let config = ShardConfig { shard, shards: 2, copy_bytes_max, ..tight() };
        host.install(epoch(1), Shard::initial(&config), &mut out).expect("initial values fit");
    }
    let conns = shards.map(|_| host.connect(pserver(0), &mut out).expect("replicas are on"));
    (host, conns)
}

/// The stream of another primary goes on meanwhile, and its snapshot is kept.
#[test]
fn slow_saver_of_one_shard_is_given_up_beside_a_stream() {
    let mut primary = asp(ShardConfig { shards: 2, copy_bytes_max: 1 << 20, ..tight() });
    primary.cut(1);
    (0..6).for_each(|step| primary.push(0, step, whole(0, step), -1.0));
    let entries = primary.entries(0, 1, 7);
    let (mut host, conns) = two_backups();
    let mut out = Vec::new();
    // The entries of shard 0 are those of the other shard too.
    let change = |shard: usize, at: usize| {
        let frame = entries[at].change.frame();
        let header = Header { shard: ShardId(shard as u32), ..frame.header };
        Frame { conn: conns[shard], header, ..frame }
    };
    let head = |shard: usize, at: usize| {
        let header = Header { shard: ShardId(shard as u32), ..entries[at].head };
        Frame { conn: conns[shard], header, keys: &[], values: &[] }
    };
    for shard in 0..2 {
        assert_eq!(host.on_frame(&head(shard, 0), &mut out), Flow::Taken);
        assert_eq!(host.on_frame(&change(shard, 0), &mut out), Flow::Taken);
        assert!(host.snapshot_head(ShardId(shard as u32), cut(1)).is_ok(), "a saver reads it");
    }
    assert_eq!(host.on_frame(&head(0, 1), &mut out), Flow::Taken);
    for (at, quarter) in (1..5).zip(0..) {
        host.advance(primary.now + LAG / 8 * quarter);
        assert_eq!(host.on_frame(&change(0, 1), &mut out), Flow::Wait);
        assert_eq!(host.on_frame(&head(1, at), &mut out), Flow::Taken);
        assert_eq!(host.on_frame(&change(1, at), &mut out), Flow::Taken);
    }
    assert_eq!(host.deadline(), Some(primary.now + LAG / 2), "the other stream changes nothing");
    host.tick(primary.now + LAG / 2, &mut out);
    let kept = [0, 1].map(|shard| host.snapshot_head(ShardId(shard), cut(1)).is_ok());
    assert_eq!(kept, [false, true]);
    assert_eq!(host.on_frame(&change(0, 1), &mut out), Flow::Taken);
    assert_eq!(host.deadline(), None);
}

#[test]
fn snapshot_that_no_saver_reads_gives_way_at_once() {
    let mut copies = asp(tight());
    copies.cut(1);
    copies.replicate(0, 1);
    copies.saved(0, 1);
    copies.push(0, 1, whole(0, 0), -1.0);
    copies.replicate(0, 1);
    assert!(copies.answer(0, 1).is_some());
    assert!(!copies.has_snapshot(1, 1));
}
