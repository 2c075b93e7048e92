//! Data locality: the hosts that store each task's input.
//!
//! Reading from a disk of the same host saves the network what it has least of. It is a wish, never a
//! condition: a trainer gets tasks that lie on its host first and then any others. Lanes have no
//! such wish: their tasks are drawn by lot over all of the input.

use std::collections::BTreeMap;

use heddle_protocol::ids::TaskId;

use crate::config::Locality;

/// Hosts that an ask names at the most: the ResourceManager keeps a line for each of every ask.
const HOSTS_PER_ASK: usize = 3;

/// The same turned over: by host, what lies there.
#[derive(Clone, Debug, Default)]
pub(crate) struct LocalityIndex {
    numbers: BTreeMap<String, usize>,
    train: Vec<Vec<TaskId>>,
    test: Vec<Vec<TaskId>>,
    /// Hosts with training data, those with most of it first.
    best: Vec<String>,
}

impl LocalityIndex {
    pub(crate) fn of(locality: &Locality) -> Self {
        let hosts = &locality.hosts;
        let turned = |tasks: &[Vec<u32>]| {
            let mut by_host = vec![Vec::new(); hosts.len()];
            for (task, holders) in (0..).map(TaskId).zip(tasks) {
                for host in holders {
                    if let Some(tasks) = by_host.get_mut(*host as usize) {
                        tasks.push(task);
                    }
                }
            }
            by_host
        };
        let train = turned(&locality.train);
        let mut best: Vec<(usize, &String)> = train.iter().map(Vec::len).zip(hosts).collect();
        best.retain(|(tasks, _)| *tasks > 0);
        best.sort_by_key(|(tasks, host)| (std::cmp::Reverse(*tasks), *host));
        Self {
            numbers: hosts.iter().cloned().zip(0..).collect(),
            best: best.into_iter().map(|(_, host)| host.clone()).collect(),
            test: turned(&locality.test),
            train,
        }
    }

    /// A host's number; none where no data lies.
    pub(crate) fn host(&self, node: &str) -> Option<usize> {
        self.numbers.get(node).copied()
    }

    /// Tasks that lie on a host, ascending.
    pub(crate) fn tasks(&self, training: bool, host: usize) -> &[TaskId] {
        let by_host = if training { &self.train } else { &self.test };
        by_host.get(host).map_or(&[], Vec::as_slice)
    }

    /// Whether it is known where the input of a phase is stored.
    pub(crate) fn knows(&self, training: bool) -> bool {
        let by_host = if training { &self.train } else { &self.test };
        by_host.iter().any(|tasks| !tasks.is_empty())
    }

    /// Hosts that a trainer had best run on. Each one names others first, so that they spread.
    pub(crate) fn hosts_for(&self, trainer: u32) -> Vec<String> {
        let hosts = self.best.len();
        (0..hosts.min(HOSTS_PER_ASK))
            .filter_map(|n| self.best.get((trainer as usize + n) % hosts))
            .cloned()
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index() -> LocalityIndex {
        LocalityIndex::of(&Locality {
            hosts: ["a", "b", "c", "empty"].map(str::to_owned).to_vec(),
            train: vec![vec![0, 1], vec![1], vec![1, 2], vec![99]],
            test: vec![vec![2]],
        })
    }

    #[test]
    fn what_lies_on_a_host_is_known_by_its_name() {
        let index = index();
        let host = index.host("b").expect("it holds data");
        assert_eq!(index.tasks(true, host), [TaskId(0), TaskId(1), TaskId(2)]);
        assert!(index.tasks(false, host).is_empty());
        assert_eq!(index.host("elsewhere"), None);
    }

    #[test]
    fn trainers_ask_for_different_hosts_that_hold_data() {
        let index = index();
        assert_eq!(index.hosts_for(0), ["b", "a", "c"]);
        assert_eq!(index.hosts_for(1), ["a", "c", "b"]);
        assert_eq!(index.hosts_for(3), index.hosts_for(0));
        assert!(LocalityIndex::default().hosts_for(0).is_empty());
    }
}
