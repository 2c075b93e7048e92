//! The memory that a parameter server needs, computed before it runs: a job that cannot fit is refused at submission.

use super::job::JobSpec;
use super::limits::ROWS_MAX;
use super::options::Consistency;
use super::table::{TableKind, TableSpec};
use super::value::Bytes;

/// Of each this many bytes of tables, the shards note where their copy is: container/shard/src/copy_on_write.rs.
const UNITS: u64 = 512;
/// Bytes of these notes, for four units and two snapshots.
const NOTES: u64 = 33;
/// Code, stacks and the saver's buffers.
const BASE: Bytes = Bytes::mib(16);
/// Bytes that a data thread buffers for each connection at the least. A connection that sends larger frames takes more.
const CONNECTION: Bytes = Bytes(64 << 10);
/// Bytes that a data thread keeps for its backups at the most.
const UNCONFIRMED: Bytes = Bytes::mib(32);
/// Part of the memory for frames that wait: pulls ahead of their step, and what is held back in a cut. Beyond it trainers
/// receive `Later`, or are not read.
const WAITING_SHARE: u64 = 8;

/// The terms, for the pserver that holds most shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PserverMemory {
    /// Parameters and optimizer state of dense tables; sparse tables take what is left.
    pub tables: Bytes,
    /// BSP: sums of a step's gradients, one number for each parameter.
    pub sums: Bytes,
    /// Tables, optimizer state and sums of the backups of other pservers' shards (`pservers.replicas`).
    pub backups: Bytes,
    /// What backups have not confirmed yet, kept until they do.
    pub unconfirmed: Bytes,
    /// Copies of rows that change while a snapshot is saved (`checkpoint.memory`), or what notes their places if that is more.
    /// A pserver with more than its own shards has more: those that are there keep their parts.
    pub copies: Bytes,
    /// Buffers of connections: one for each trainer and data thread.
    pub connections: Bytes,
    /// Frames that wait.
    pub waiting: Bytes,
    /// Code, stacks, the saver's buffers.
    pub base: Bytes,
}

impl PserverMemory {
    /// All of them.
    #[must_use]
    pub fn total(&self) -> Bytes {
        let terms = self.terms().map(|(_, bytes)| bytes.0);
        Bytes(terms.into_iter().fold(0, u64::saturating_add))
    }

    /// The terms in words, the largest first, with the keys that change them.
    #[must_use]
    pub fn in_words(&self) -> String {
        let mut terms = self.terms();
        terms.sort_by_key(|(_, bytes)| std::cmp::Reverse(bytes.0));
        let words: Vec<String> = terms
            .iter()
            .filter(|(_, bytes)| bytes.0 > 0)
            .map(|(what, bytes)| format!("{} MiB of {what}", bytes.0.div_ceil(1 << 20)))
            .collect();
        words.join(", ")
    }

    fn terms(&self) -> [(&'static str, Bytes); 8] {
        [
            (
                "tables and optimizer state on the fullest pserver (model.features, model.tables, pservers.count or min)",
                self.tables,
            ),
            (
                "sums of gradients (as many numbers as parameters; only with training.consistency = \"bsp\")",
                self.sums,
            ),
            ("backups of other pservers' shards (pservers.replicas)", self.backups),
            (
                "updates that other copies have not confirmed (pservers.replicas, min and max)",
                self.unconfirmed,
            ),
            ("snapshot copies (checkpoint.memory)", self.copies),
            (
                "connection buffers (trainers.max and trainers.extra times the data threads, pservers.vcores)",
                self.connections,
            ),
            ("frames that wait (an eighth of pservers.memory)", self.waiting),
            ("code and buffers", self.base),
        ]
    }

    /// What a pserver with most shards needs.
    #[must_use]
    pub fn of(spec: &JobSpec) -> Self {
        Self::of_shards(spec, own_shards(spec))
    }

    /// The memory that a pserver with this number of shards needs.
    #[must_use]
    pub fn of_shards(spec: &JobSpec, held: u32) -> Self {
        let memory = spec.pservers.memory;
        let values = |per_value: &dyn Fn(&TableSpec) -> u64| {
            let tables = spec.tables();
            let bytes = tables
                .iter()
                .map(|table| values_of(spec, table, held).saturating_mul(4 * per_value(table)));
            Bytes(bytes.fold(0, u64::saturating_add))
        };
        let threads = u64::from(spec.pservers.vcores.min(held).max(1));
        let tables = values(&|table| 1 + u64::from(table.optimizer.state_per_value()));
        let sums = match spec.training.consistency {
            Consistency::Bsp => values(&|_| 1),
            Consistency::Ssp | Consistency::Asp => Bytes(0),
        };
        let replicas = u64::from(spec.pservers.replicas);
        let notes = notes_of(tables.0.saturating_mul(1 + replicas));
        Self {
            tables,
            sums,
            // As many backups for each own shard as a shard has.
            backups: Bytes(replicas.saturating_mul(tables.0.saturating_add(sums.0))),
            unconfirmed: Self::unconfirmed_of(spec, memory, threads),
            copies: Bytes(snapshot_copies(spec, held).max(notes)),
            connections: Bytes(
                CONNECTION
                    .0
                    .saturating_mul(u64::from(spec.trainers.workers()))
                    .saturating_mul(threads),
            ),
            waiting: Self::waiting_of(memory),
            base: BASE,
        }
    }

    /// Copies of shards that a pserver holds if none is lost, its own shards and backups of others: its memory for snapshots
    /// has as many equal parts. At least 1.
    #[must_use]
    pub fn own_copies(spec: &JobSpec) -> u64 {
        u64::from(own_shards(spec)).saturating_mul(1 + u64::from(spec.pservers.replicas))
    }

    /// Rows for which each shard has room in every sparse table, the same number in all of them; `None` without sparse tables.
    /// It follows from the job alone, so that a job that drops rows drops the same ones in each run.
    #[must_use]
    pub fn sparse_rows(spec: &JobSpec) -> Option<u64> {
        let tables = spec.tables();
        let sparse = tables.iter().filter(|table| table.kind == TableKind::Sparse);
        let row_bytes: u64 = sparse.map(TableSpec::row_bytes).sum();
        if row_bytes == 0 {
            return None;
        }
        let need = Self::of(spec);
        let room = spec.pservers.memory.0.saturating_sub(need.total().0);
        // The notes on their rows come out of the memory for copies as far as it has room for them.
        let dense = notes_of(need.tables.0.saturating_mul(1 + u64::from(spec.pservers.replicas)));
        let with_notes = room.saturating_add(need.copies.0.saturating_sub(dense));
        let room = room.min(with_notes / (UNITS + NOTES) * UNITS);
        let room = match spec.training.consistency {
            // The sums of a step are as large as the step.
            Consistency::Bsp => room - room / 8,
            Consistency::Ssp | Consistency::Asp => room,
        };
        // The last row number marks an empty place.
        Some((room / Self::own_copies(spec) / row_bytes).min(ROWS_MAX - 1))
    }

    /// The least memory that [`PserverMemory::total`] fits into; some terms are parts of the memory and grow with it.
    #[must_use]
    pub fn sufficient(spec: &JobSpec) -> Bytes {
        let mut spec = spec.clone();
        spec.pservers.memory = Bytes(0);
        // Each round adds the share of the bytes that the last one added. With shares of the whole memory it does not converge.
        for _ in 0..200 {
            let need = Self::of(&spec).total();
            if need <= spec.pservers.memory {
                break;
            }
            spec.pservers.memory = need;
        }
        spec.pservers.memory
    }

    /// Bytes of frames that may wait in a pserver, by its memory; see [`PserverMemory::waiting`].
    #[must_use]
    pub fn waiting_of(memory: Bytes) -> Bytes {
        Bytes(memory.0 / WAITING_SHARE)
    }

    /// Bytes of updates that a pserver keeps until its backups have confirmed them; see [`PserverMemory::unconfirmed`].
    #[must_use]
    pub fn unconfirmed_of(spec: &JobSpec, memory: Bytes, threads: u64) -> Bytes {
        let most = Bytes(UNCONFIRMED.0.saturating_mul(threads).min(memory.0 / WAITING_SHARE));
        if spec.pservers.moves_shards() { most } else { Bytes(0) }
    }

    /// Number of shards that fit into `memory` of a pserver together with as many backups for each, copies and buffers; at most all of the job.
    #[must_use]
    pub fn shards_that_fit(spec: &JobSpec, memory: Bytes) -> u32 {
        // Copies and frames that wait take a part of the memory, so they grow with it.
        let mut spec = spec.clone();
        spec.pservers.memory = memory;
        // The bytes grow with the shards: the first that is too many.
        let (mut fit, mut too_many) = (0, spec.pservers.shards + 1);
        while fit + 1 < too_many {
            let middle = fit + (too_many - fit) / 2;
            match Self::of_shards(&spec, middle).total() <= memory {
                true => fit = middle,
                false => too_many = middle,
            }
        }
        // Sparse tables take what is left of the memory of a pserver with its own shards.
        match Self::sparse_rows(&spec) {
            Some(_) => fit.min(own_shards(&spec)),
            None => fit,
        }
    }

    /// Bytes that a pserver needs for one more shard, with as many backups as a shard has and parts of the memory for copies. Sparse tables: with all rows for which it
    /// would have room.
    #[must_use]
    pub fn for_one_more_shard(spec: &JobSpec) -> Bytes {
        let own = own_shards(spec);
        let total = |held| Self::of_shards(spec, held).total().0;
        let dense = total(own + 1).saturating_sub(total(own));
        let row_bytes: u64 = spec
            .tables()
            .iter()
            .filter(|table| table.kind == TableKind::Sparse)
            .map(TableSpec::row_bytes)
            .sum();
        let copies = 1 + u64::from(spec.pservers.replicas);
        let rows = Self::sparse_rows(spec).unwrap_or(0).saturating_mul(copies);
        Bytes(dense.saturating_add(rows.saturating_mul(row_bytes)))
    }
}

/// Shards of the pserver with most of them, if no pserver is lost.
fn own_shards(spec: &JobSpec) -> u32 {
    spec.pservers.shards.max(1).div_ceil(spec.pservers.least().max(1))
}

/// Bytes of notes on the places of copies.
fn notes_of(table_bytes: u64) -> u64 {
    table_bytes.div_ceil(UNITS).saturating_mul(NOTES)
}

/// `checkpoint.memory` of a pserver with `held` shards. A shard that comes later gets an equal part among those that are there
/// then, and these keep theirs: their snapshots are in use.
fn snapshot_copies(spec: &JobSpec, held: u32) -> u64 {
    let all = spec.checkpoint.memory.of(spec.pservers.memory).0;
    let held = u64::from(held).saturating_mul(1 + u64::from(spec.pservers.replicas));
    (PserverMemory::own_copies(spec) + 1..=held)
        .fold(all, |sum, copies| sum.saturating_add(all / copies))
}

/// Parameters of a table in this number of shards; shards differ by at most one row.
fn values_of(spec: &JobSpec, table: &TableSpec, held: u32) -> u64 {
    table
        .rows
        .div_ceil(u64::from(spec.pservers.shards.max(1)))
        .saturating_mul(u64::from(held))
        .min(table.rows)
        .saturating_mul(u64::from(table.cols))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job_spec::check::check;
    use crate::job_spec::job::sample;
    use crate::job_spec::limits::ANY_FEATURES;

    fn job(change: impl FnOnce(&mut JobSpec)) -> JobSpec {
        let mut spec = sample();
        change(&mut spec);
        spec
    }

    fn refused(spec: &JobSpec) -> String {
        check(spec).expect_err("refused").to_string()
    }

    #[test]
    fn one_more_shard_needs_its_values_sums_and_backups() {
        let bytes = |replicas| {
            PserverMemory::for_one_more_shard(&job(|spec| {
                spec.model.features = 16 << 20;
                (spec.pservers.count, spec.pservers.shards) = (2, 4);
                spec.pservers.replicas = replicas;
            }))
            .0
        };
        // A quarter of 64 MiB of parameters and as much of sums; shards differ by a row. Parts of 64 MiB for copies.
        let copies = |count: u64| (64 << 20) / count;
        let (one, two) = ((32 << 20) + copies(3), (64 << 20) + copies(5) + copies(6));
        assert!(bytes(0).abs_diff(one) < 64, "{}", bytes(0));
        assert!(bytes(1).abs_diff(two) < 64, "{}", bytes(1));
    }

    #[test]
    fn sums_of_gradients_are_memory_too() {
        // 64 MiB of parameters in one pserver, 64 MiB of sums, a quarter for copies, an eighth for frames.
        let bsp = job(|spec| {
            spec.model.features = 16 << 20;
            spec.pservers.count = 1;
            spec.pservers.memory = Bytes::mib(180);
        });
        let terms = PserverMemory::of(&bsp);
        assert_eq!(terms.sums, terms.tables, "SGD has no state");
        assert!(refused(&bsp).contains("MiB of sums of gradients"), "{}", refused(&bsp));
        let mut asp = bsp;
        asp.training.consistency = Consistency::Asp;
        assert_eq!(PserverMemory::of(&asp).sums, Bytes(0));
        check(&asp).expect("it fits without sums");
    }

    #[test]
    fn notes_on_copies_count_where_they_exceed_checkpoint_memory() {
        let spec = |sparse: bool, share: &str| {
            job(|spec| {
                spec.model.features = if sparse { ANY_FEATURES } else { 16 << 20 };
                spec.training.consistency = Consistency::Asp;
                spec.pservers.count = 1;
                spec.pservers.memory = Bytes::mib(256);
                spec.checkpoint.memory = share.parse().expect("a share");
            })
        };
        for (share, bytes) in [("25%", 64.0), ("1MiB", 64.0 * 33.0 / 512.0)] {
            let copies = PserverMemory::of(&spec(false, share)).copies.0;
            assert!((copies as f64 / f64::from(1 << 20) - bytes).abs() < 0.01, "{share}: {copies}");
        }
        let rows = |share| PserverMemory::sparse_rows(&spec(true, share)).expect("sparse") as f64;
        let few = spec(true, "1KiB");
        assert!((rows("1MiB") / rows("1KiB") - 1.0).abs() < 0.01, "notes are more than 1 MiB");
        let bytes = few.tables()[0].row_bytes() * PserverMemory::own_copies(&few);
        let with_notes = rows("1KiB") * bytes as f64 * (1.0 + 33.0 / 512.0);
        let taken = with_notes + PserverMemory::of(&few).total().0 as f64;
        assert!((taken / few.pservers.memory.0 as f64 - 1.0).abs() < 0.01, "{taken}");
    }

    #[test]
    fn buffers_of_many_connections_are_the_first_term() {
        let wide = job(|spec| {
            spec.trainers.max = 1_000;
            spec.pservers.shards = 16;
            spec.pservers.vcores = 8;
            spec.pservers.memory = Bytes::mib(512);
        });
        assert_eq!(PserverMemory::of(&wide).connections, Bytes::mib(500));
        let error = refused(&wide);
        let (_, terms) = error.split_once(": 500 MiB of connection buffers").expect("first");
        assert!(terms.contains("trainers.max"), "{error}");
    }

    #[test]
    fn a_thread_without_a_shard_has_no_connections() {
        let spec = job(|spec| {
            spec.trainers.max = 64;
            spec.pservers.vcores = 8;
        });
        // Two shards on each pserver.
        assert_eq!(PserverMemory::of(&spec).connections, Bytes::mib(8));
    }
}
