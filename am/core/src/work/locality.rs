//! Data locality: the hosts that store each task's input.
//!
//! Reading from a disk of the same host saves the network what it has least of, and reading within a rack saves the links
//! between racks. It is a wish, never a condition: a trainer gets tasks that lie on its host first, then those
//! of its rack, then any others. Lanes have no such wish: their tasks are drawn by lot over all of the input.
//!
//! Racks are those of the NameNode's block locations, so the rack of a host without input is unknown. The nodes of the
//! cluster are not listed for it: on large clusters that is a long answer for each job.

use std::collections::BTreeMap;

use heddle_protocol::ids::TaskId;

use crate::config::{InputHost, Locality};

/// Hosts that an ask names at the most: the ResourceManager keeps a line for each of every ask.
const HOSTS_PER_ASK: usize = 3;

/// Tasks among which those of a trainer's rack are looked for: enough to find some, few enough for each hand-out. The order
/// of tasks is drawn by lot.
const RACK_WINDOW: usize = 64;

/// The same turned over: by host and by rack, what lies there.
#[derive(Clone, Debug, Default)]
pub(crate) struct LocalityIndex {
    numbers: BTreeMap<String, usize>,
    /// By host: its rack's number, with several racks.
    racks: Vec<usize>,
    train: TasksByPlace,
    test: TasksByPlace,
    /// Hosts with training data, those with most of it first.
    best: Vec<InputHost>,
}

/// Tasks by host and by rack, ascending.
#[derive(Clone, Debug, Default)]
struct TasksByPlace {
    host: Vec<Vec<TaskId>>,
    rack: Vec<Vec<TaskId>>,
}

/// Tasks that lie near a trainer, ascending.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TaskLocality<'a> {
    /// Those on its host.
    pub(crate) host: &'a [TaskId],
    /// Those in its rack, also on its host. Empty where all tasks are in one rack.
    pub(crate) rack: &'a [TaskId],
}

impl LocalityIndex {
    pub(crate) fn of(locality: &Locality) -> Self {
        let hosts = &locality.hosts;
        let racks = racks(hosts);
        let train = TasksByPlace::of(&locality.train, hosts.len(), &racks);
        let by_host = train.host.iter().map(Vec::len);
        let mut best: Vec<(usize, &InputHost)> = by_host.zip(hosts).collect();
        best.retain(|(tasks, _)| *tasks > 0);
        best.sort_by_key(|(tasks, host)| (std::cmp::Reverse(*tasks), &host.name));
        Self {
            numbers: hosts.iter().map(|host| host.name.clone()).zip(0..).collect(),
            best: best.into_iter().map(|(_, host)| host.clone()).collect(),
            test: TasksByPlace::of(&locality.test, hosts.len(), &racks),
            train,
            racks,
        }
    }

    /// Tasks near a node; none where nothing is known of it.
    pub(crate) fn tasks_for(&self, training: bool, node: &str) -> TaskLocality<'_> {
        let tasks = if training { &self.train } else { &self.test };
        let Some(host) = self.numbers.get(node) else {
            return TaskLocality::default();
        };
        let rack = self.racks.get(*host).and_then(|rack| tasks.rack.get(*rack));
        TaskLocality {
            host: tasks.host.get(*host).map_or(&[], Vec::as_slice),
            rack: rack.map_or(&[], Vec::as_slice),
        }
    }

    /// Whether it is known where the input of a phase is stored.
    pub(crate) fn is_known(&self, training: bool) -> bool {
        let tasks = if training { &self.train } else { &self.test };
        tasks.host.iter().any(|tasks| !tasks.is_empty())
    }

    /// Hosts that a trainer had best run on. Each one names others first, so that they spread.
    pub(crate) fn hosts_for(&self, trainer: u32) -> Vec<InputHost> {
        let hosts = self.best.len();
        (0..hosts.min(HOSTS_PER_ASK))
            .filter_map(|n| self.best.get((trainer as usize + n) % hosts))
            .cloned()
            .collect()
    }
}

impl TaskLocality<'_> {
    /// The first `room` places of tasks in this order, those in the rack before others.
    pub(crate) fn rack_first(
        self,
        places: impl Iterator<Item = u32>,
        room: usize,
        task: impl Fn(u32) -> Option<TaskId>,
    ) -> Vec<u32> {
        if self.rack.is_empty() || room == 0 {
            return places.take(room).collect();
        }
        let mut seen: Vec<u32> = places.take(room + RACK_WINDOW).collect();
        // Stable: among those of the rack the order stays.
        seen.sort_by_key(|place| {
            task(*place).is_none_or(|task| self.rack.binary_search(&task).is_err())
        });
        seen.truncate(room);
        seen
    }
}

impl TasksByPlace {
    fn of(tasks: &[Vec<u32>], hosts: usize, racks: &[usize]) -> Self {
        let mut host = vec![Vec::new(); hosts];
        let mut rack: Vec<Vec<TaskId>> =
            vec![Vec::new(); racks.iter().max().map_or(0, |rack| rack + 1)];
        for (task, holders) in (0..).map(TaskId).zip(tasks) {
            for holder in holders {
                if let Some(tasks) = host.get_mut(*holder as usize) {
                    tasks.push(task);
                }
                let in_rack = racks.get(*holder as usize).and_then(|number| rack.get_mut(*number));
                if let Some(tasks) = in_rack
                    && tasks.last() != Some(&task)
                {
                    tasks.push(task);
                }
            }
        }
        Self { host, rack }
    }
}

/// The rack of each host as a number; empty if there is only one, since then it decides nothing.
fn racks(hosts: &[InputHost]) -> Vec<usize> {
    let mut numbers = BTreeMap::new();
    let mut rack = |host: &InputHost| {
        let next = numbers.len();
        *numbers.entry(host.rack.clone()).or_insert(next)
    };
    let racks: Vec<usize> = hosts.iter().map(&mut rack).collect();
    if numbers.len() < 2 { Vec::new() } else { racks }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index(racks: [&str; 4]) -> LocalityIndex {
        let host = |(name, rack): (&str, &str)| InputHost { name: name.into(), rack: rack.into() };
        LocalityIndex::of(&Locality {
            hosts: ["a", "b", "c", "empty"].into_iter().zip(racks).map(host).collect(),
            train: vec![vec![0, 1], vec![1], vec![1, 2], vec![99]],
            test: vec![vec![2]],
        })
    }

    #[test]
    fn what_lies_on_a_host_is_known_by_its_name() {
        let index = index(["/r"; 4]);
        assert_eq!(index.tasks_for(true, "b").host, [TaskId(0), TaskId(1), TaskId(2)]);
        assert!(index.tasks_for(false, "b").host.is_empty());
        assert!(index.tasks_for(true, "elsewhere").host.is_empty());
        assert!(index.tasks_for(true, "b").rack.is_empty(), "one rack decides nothing");
    }

    #[test]
    fn tasks_in_the_rack_of_a_host_are_known() {
        let index = index(["/r1", "/r1", "/r2", "/r2"]);
        let rack = |node| index.tasks_for(true, node).rack.to_vec();
        assert_eq!(rack("a"), [TaskId(0), TaskId(1), TaskId(2)], "each once");
        assert_eq!(rack("empty"), [TaskId(2)]);
        assert_eq!(rack("elsewhere"), []);
        assert_eq!(index.tasks_for(false, "empty").rack, [TaskId(0)]);
    }

    #[test]
    fn trainers_ask_for_different_hosts_that_hold_data() {
        let index = index(["/r"; 4]);
        let names = |trainer| -> Vec<String> {
            index.hosts_for(trainer).into_iter().map(|host| host.name).collect()
        };
        assert_eq!(names(0), ["b", "a", "c"]);
        assert_eq!(names(1), ["a", "c", "b"]);
        assert_eq!(names(3), names(0));
        assert!(LocalityIndex::default().hosts_for(0).is_empty());
    }
}
