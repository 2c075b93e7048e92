//! Statistics of the data: records that were evaluated, records left out, labels.
//!
//! Tasks are read many times: in each pass, by each measurement, by speculative attempts, again after a rollback. The
//! figures here do not depend on it. A record that cannot be read is one bad record, in however many phases it was met:
//! the phase that found most of a data set counts.

use std::collections::BTreeMap;

/// DataStatistics of this run.
#[derive(Clone, Debug, Default)]
pub(crate) struct DataStatistics {
    /// Records of evaluation tasks, each task counted once in its phase.
    pub(crate) evaluated_rows: u64,
    /// Bad records of the test data and of the training data.
    bad: [u64; 2],
    /// Bad records in the checkpoint that this run continues.
    bad_before: u64,
    /// First places of the labels `0` and `-1`, in the test data and in the training data.
    negatives: [BTreeMap<String, String>; 2],
}

impl DataStatistics {
    /// Continues from a checkpoint that counted this number of bad records.
    pub(crate) fn go_on(&mut self, bad_records: u64) {
        self.bad_before = bad_records;
    }

    /// A phase has this number of bad records so far.
    pub(crate) fn met_bad(&mut self, training: bool, in_phase: u64) {
        let most = &mut self.bad[usize::from(training)];
        *most = in_phase.max(*most);
    }

    /// Records that cannot be read, each counted once.
    pub(crate) fn bad_records(&self) -> u64 {
        self.bad_before.max(self.bad[0].saturating_add(self.bad[1]))
    }

    /// Adds the places where a task has the negative class, see `TaskMetrics::negatives`. Returns an error text once the
    /// data has a third class.
    pub(crate) fn third_class(
        &mut self,
        training: bool,
        negatives: BTreeMap<String, String>,
    ) -> Option<String> {
        let known = &mut self.negatives[usize::from(training)];
        for (label, place) in negatives {
            known.entry(label).or_insert(place);
        }
        let (zero, minus) = (known.get("0")?, known.get("-1")?);
        Some(format!(
            "{minus}: label -1, but {zero}: label 0: the algorithm has two classes, labels are 0 and 1, or -1 and +1, not all \
             three"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(label: &str, place: &str) -> BTreeMap<String, String> {
        [(label.to_owned(), place.to_owned())].into()
    }

    #[test]
    fn a_bad_record_counts_once_in_however_many_phases() {
        let mut figures = DataStatistics::default();
        for _phase in 0..4 {
            figures.met_bad(true, 1);
            figures.met_bad(true, 4);
            figures.met_bad(false, 2);
        }
        assert_eq!(figures.bad_records(), 6);
        let mut figures = DataStatistics::default();
        figures.go_on(6);
        figures.met_bad(false, 2);
        assert_eq!(figures.bad_records(), 6);
    }

    #[test]
    fn both_negative_labels_in_one_data_set_are_a_third_class() {
        let mut figures = DataStatistics::default();
        assert_eq!(figures.third_class(true, at("0", "a:3")), None);
        assert_eq!(figures.third_class(false, at("-1", "t:1")), None);
        assert_eq!(figures.third_class(true, BTreeMap::new()), None);
        let message = figures.third_class(true, at("-1", "b:7")).expect("three");
        assert!(message.starts_with("b:7: label -1, but a:3: label 0"), "{message}");
    }
}
