//! The memory that a parameter server needs, computed before it runs: a job that cannot fit is refused at submission.

use super::{Bytes, Consistency, JobSpec, TableSpec};

/// Code, stacks and the saver's buffers.
const BASE: Bytes = Bytes::mib(16);
/// Bytes that a data thread buffers for each connection at the least. A connection that sends larger frames takes more.
const CONNECTION: Bytes = Bytes(64 << 10);
/// Part of the memory for frames that wait: pulls ahead of their step, and what is held back in a cut. Beyond it trainers
/// receive `Later`, or are not read.
const WAITING_SHARE: u64 = 8;

/// The terms, for the pserver that holds most shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PserverMemory {
    /// Parameters and optimizer state.
    pub tables: Bytes,
    /// BSP: sums of a step's gradients, one number for each parameter.
    pub sums: Bytes,
    /// Copies of rows that change while a snapshot is saved (`checkpoint.memory`).
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

    fn terms(&self) -> [(&'static str, Bytes); 6] {
        [
            (
                "tables and optimizer state on the fullest pserver (model.features, model.tables, pservers.count)",
                self.tables,
            ),
            (
                "sums of gradients (as many numbers as parameters; none with training.consistency = \"asp\")",
                self.sums,
            ),
            ("snapshot copies (checkpoint.memory)", self.copies),
            (
                "connection buffers (trainers.max times the data threads, pservers.vcores)",
                self.connections,
            ),
            ("frames that wait (an eighth of pservers.memory)", self.waiting),
            ("code and buffers", self.base),
        ]
    }
}

impl JobSpec {
    /// What a pserver with most shards needs.
    #[must_use]
    pub fn pserver_memory(&self) -> PserverMemory {
        let (shards, count) = (self.pservers.shards.max(1), self.pservers.count.max(1));
        self.pserver_memory_of(shards.div_ceil(count))
    }

    /// The memory that a pserver with this number of shards needs.
    #[must_use]
    pub fn pserver_memory_of(&self, held: u32) -> PserverMemory {
        let memory = self.pservers.memory;
        let values = |per_value: &dyn Fn(&TableSpec) -> u64| {
            let tables = self.tables();
            let bytes = tables
                .iter()
                .map(|table| self.values_of(table, held).saturating_mul(4 * per_value(table)));
            Bytes(bytes.fold(0, u64::saturating_add))
        };
        let threads = u64::from(self.pservers.vcores.min(held).max(1));
        PserverMemory {
            tables: values(&|table| 1 + u64::from(table.optimizer.state_per_value())),
            sums: match self.training.consistency {
                Consistency::Bsp => values(&|_| 1),
                Consistency::Asp => Bytes(0),
            },
            copies: self.checkpoint.memory.of(memory),
            connections: Bytes(
                CONNECTION.0.saturating_mul(u64::from(self.trainers.max)).saturating_mul(threads),
            ),
            waiting: Self::pserver_waiting(memory),
            base: BASE,
        }
    }

    /// The least memory that [`PserverMemory::total`] fits into; some terms are parts of the memory and grow with it.
    #[must_use]
    pub fn pserver_memory_that_suffices(&self) -> Bytes {
        let mut spec = self.clone();
        spec.pservers.memory = Bytes(0);
        // Each round adds the part of what the last one added. Where the parts are all of the memory there is no end.
        for _ in 0..200 {
            let need = spec.pserver_memory().total();
            if need <= spec.pservers.memory {
                break;
            }
            spec.pservers.memory = need;
        }
        spec.pservers.memory
    }

    /// Bytes of frames that may wait in a pserver, by its memory; see [`PserverMemory::waiting`].
    #[must_use]
    pub fn pserver_waiting(memory: Bytes) -> Bytes {
        Bytes(memory.0 / WAITING_SHARE)
    }

    /// Parameters of a table in this number of shards; shards differ by at most one row.
    fn values_of(&self, table: &TableSpec, held: u32) -> u64 {
        table
            .rows
            .div_ceil(u64::from(self.pservers.shards.max(1)))
            .saturating_mul(u64::from(held))
            .min(table.rows)
            .saturating_mul(u64::from(table.cols))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::job::sample;

    fn job(change: impl FnOnce(&mut JobSpec)) -> JobSpec {
        let mut spec = sample();
        change(&mut spec);
        spec
    }

    fn refused(spec: &JobSpec) -> String {
        spec.check().expect_err("refused").to_string()
    }

    #[test]
    fn sums_of_gradients_are_memory_too() {
        // 64 MiB of parameters in one pserver, 64 MiB of sums, a quarter for copies, an eighth for frames.
        let bsp = job(|spec| {
            spec.model.features = 16 << 20;
            spec.pservers.count = 1;
            spec.pservers.memory = Bytes::mib(180);
        });
        let terms = bsp.pserver_memory();
        assert_eq!(terms.sums, terms.tables, "SGD has no state");
        assert!(refused(&bsp).contains("MiB of sums of gradients"), "{}", refused(&bsp));
        let mut asp = bsp;
        asp.training.consistency = Consistency::Asp;
        assert_eq!(asp.pserver_memory().sums, Bytes(0));
        asp.check().expect("it fits without sums");
    }

    #[test]
    fn buffers_of_many_connections_are_named_as_what_is_large() {
        let wide = job(|spec| {
            spec.trainers.max = 1_000;
            spec.pservers.shards = 16;
            spec.pservers.vcores = 8;
            spec.pservers.memory = Bytes::mib(512);
        });
        assert_eq!(wide.pserver_memory().connections, Bytes::mib(500));
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
        assert_eq!(spec.pserver_memory().connections, Bytes::mib(8));
    }
}
