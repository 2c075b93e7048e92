//! Values of the keys that are `"auto"`, by the data: what makes a good model where the job file is silent.
//!
//! **Intuition.** Sparse binary data needs one pass and no scaling; columns and labels that are numbers need scales, and small
//! data needs more passes, ended by the test data. **Rule.** One sample, the beginning of the training data, and
//! about how many records R there are decide all of them, once, before a job begins. **Measured** on 13 data sets of
//! 180 to 2,000,000 records beside converged models of scikit-learn: see docs/algorithms.md.

use std::ops::RangeInclusive;

use heddle_protocol::job_spec::{
    AlgorithmKind, Consistency, JobSpec, KeptPass, LabelScale, LabelScaling, LossFunction,
};
use serde::Serialize;

use crate::batch_size::auto_batch;
use crate::plan::workers;

/// Features up to which columns are scaled: each step then computes with all weights.
const SCALED_FEATURES_MAX: u64 = 4096;
/// Passes times records, with test data to end by.
const RECORDS_WITH_TEST: u64 = 2_500_000;
/// The same without test data.
const RECORDS_WITHOUT_TEST: u64 = 500_000;
const PASSES_WITH_TEST: u32 = 40;
const PASSES_WITHOUT_TEST: u32 = 20;
/// Passes of k-means, which ends by its tolerance.
const PASSES_OF_KMEANS: u32 = 20;
/// Passes times records without a lower figure after which training ends: the figure of few records rises by chance before it
/// falls on.
const RECORDS_WITHOUT_GAIN: u64 = 20_000;
/// Fewest and most of these passes.
const EARLY_STOP: RangeInclusive<u32> = 2..=6;

/// What the beginning of the training data shows.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sample {
    /// Records of the training data, about.
    pub all_records: u64,
    /// Records of the sample that could be read.
    pub records: u64,
    /// Features that are written in them.
    pub cells: u64,
    /// Whether a value is neither 0 nor 1.
    pub has_numbers: bool,
    /// Mean and deviation of the labels, by weight; deviation 0 if they are equal.
    pub label_mean: f64,
    /// See `label_mean`.
    pub label_deviation: f64,
}

/// The job whose values this one begins with (`model.init`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct InitialJob {
    /// Whether its columns are scaled.
    pub standardise: bool,
    /// By what its labels are scaled, if they are.
    pub label_scale: Option<LabelScale>,
}

/// The value of a key that was `"auto"`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ValueDecision {
    /// `section.key`.
    pub key: &'static str,
    /// As the job file would state it.
    pub value: String,
    /// The figures behind it, in words.
    pub reason: String,
}

/// Decides every key of a job that is undecided.
pub fn decide(
    spec: &mut JobSpec,
    sample: &Sample,
    init: Option<&InitialJob>,
) -> Vec<ValueDecision> {
    let mut decided = Decided { decisions: Vec::new(), records: sample.all_records.max(1) };
    decided.standardise(spec, sample, init);
    decided.scale_labels(spec, sample, init);
    decided.passes(spec);
    decided.l2(spec);
    decided.batch(spec);
    decided.decisions
}

struct Decided {
    decisions: Vec<ValueDecision>,
    /// About how many records a pass has, at least 1.
    records: u64,
}

impl Decided {
    /// Notes a decision if the key is undecided, and decides it. Returns whether it was.
    fn note(
        &mut self,
        spec: &mut JobSpec,
        key: &'static str,
        value: impl ToString,
        reason: impl Into<String>,
    ) -> bool {
        let is_undecided = spec.undecided.remove(key);
        if is_undecided {
            let (value, reason) = (value.to_string(), reason.into());
            self.decisions.push(ValueDecision { key, value, reason });
        }
        is_undecided
    }

    fn standardise(&mut self, spec: &mut JobSpec, sample: &Sample, init: Option<&InitialJob>) {
        let (value, reason) = match init {
            Some(init) => (init.standardise, "as in the job of model.init".to_owned()),
            None => suits_scaling(spec, sample),
        };
        if self.note(spec, "model.standardise", value, reason) {
            spec.model.standardise = value;
        }
    }

    fn scale_labels(&mut self, spec: &mut JobSpec, sample: &Sample, init: Option<&InitialJob>) {
        const KEY: &str = "model.scale-labels";
        let is_custom = spec.model.algorithm == AlgorithmKind::Custom;
        let (scaling, reason) = if is_custom || spec.model.objective() != LossFunction::Squared {
            spec.undecided.remove(KEY);
            return;
        } else if let Some(init) = init {
            let scaling = init.label_scale.map_or(LabelScaling::Off, LabelScaling::By);
            (scaling, "as in the job of model.init".to_owned())
        } else if spec.model.standardise {
            (LabelScaling::Measured, "measured with the columns".to_owned())
        } else if sample.records == 0 {
            (LabelScaling::Off, NO_SAMPLE.to_owned())
        } else {
            let deviation = match short(sample.label_deviation, 6) {
                deviation if deviation > 0.0 => deviation,
                _ => 1.0,
            };
            let mean = short(sample.label_mean, 6);
            let reason = format!("labels of the first {} records", sample.records);
            (LabelScaling::By(LabelScale { mean, deviation }), reason)
        };
        let value = match scaling {
            LabelScaling::Off => "false".to_owned(),
            LabelScaling::Measured => "mean and deviation".to_owned(),
            LabelScaling::By(by) => format!("mean {}, deviation {}", by.mean, by.deviation),
        };
        if self.note(spec, KEY, value, reason) {
            spec.model.scale_labels = scaling;
        }
    }

    /// The passes, and what ends them.
    fn passes(&mut self, spec: &mut JobSpec) {
        let about = self.about();
        let of = |records: u64, most: u32| {
            (records / self.records).clamp(1, u64::from(most)).try_into().unwrap_or(most)
        };
        let has_test = !spec.data.test.is_empty();
        let (passes, reason) = match spec.model.algorithm {
            AlgorithmKind::Custom => (1, "the program's own".to_owned()),
            AlgorithmKind::Kmeans => (PASSES_OF_KMEANS, "at most, see model.tolerance".to_owned()),
            _ if has_test => {
                let passes = of(RECORDS_WITH_TEST, PASSES_WITH_TEST);
                (passes, format!("at most: {about}, and test data to end by"))
            }
            _ if spec.is_scaled() => {
                let passes = of(RECORDS_WITHOUT_TEST, PASSES_WITHOUT_TEST);
                (passes, format!("{about}, standardised"))
            }
            _ => (1, "not standardised, and no test data to end by".to_owned()),
        };
        let is_auto = self.note(spec, "data.passes", passes, reason);
        if is_auto {
            spec.data.passes = passes;
        }
        let (ends_by_test, reason) = match spec.model.algorithm {
            _ if !has_test => (false, "there is no test data"),
            AlgorithmKind::Custom | AlgorithmKind::Kmeans => (false, "not with this algorithm"),
            _ if !is_auto => (false, "data.passes is stated"),
            _ if passes == 1 => (false, "there is one pass"),
            _ => (true, "by the test data, with data.passes"),
        };
        let (early_stop, keep, word) = match ends_by_test {
            true => (self.early_stop(), KeptPass::Best, "best"),
            false => (0, KeptPass::Last, "last"),
        };
        let figures = match ends_by_test {
            true => format!("{about}, and test data to end by"),
            false => reason.to_owned(),
        };
        if self.note(spec, "training.early-stop", early_stop, figures) {
            spec.training.early_stop = early_stop;
        }
        if self.note(spec, "training.keep", word, reason) {
            spec.training.keep = keep;
        }
    }

    fn early_stop(&self) -> u32 {
        let passes = RECORDS_WITHOUT_GAIN.div_ceil(self.records);
        let (fewest, most) = EARLY_STOP.into_inner();
        u32::try_from(passes).unwrap_or(most).clamp(fewest, most)
    }

    fn l2(&mut self, spec: &mut JobSpec) {
        let has_l2 = !matches!(spec.model.algorithm, AlgorithmKind::Custom | AlgorithmKind::Kmeans);
        let (l2, reason) = match spec.is_scaled() && has_l2 {
            true => (short(1.0 / self.records as f64, 4), format!("1 / {}", self.records)),
            false => (0.0, "not standardised".to_owned()),
        };
        if self.note(spec, "model.l2", l2, reason) {
            spec.model.l2 = l2;
        }
    }

    fn batch(&mut self, spec: &mut JobSpec) {
        let workers = workers(spec);
        let batch = auto_batch(self.records, workers, spec.training.consistency);
        let each = match spec.training.consistency {
            Consistency::Bsp => "lanes",
            Consistency::Ssp | Consistency::Asp => "trainers",
        };
        let reason = format!("{}, {workers} {each}", self.about());
        if self.note(spec, "training.batch", batch, reason) {
            spec.training.batch = batch;
        }
    }

    fn about(&self) -> String {
        format!("about {} records", self.records)
    }
}

const NO_SAMPLE: &str = "no record could be read at the beginning of the training data";

/// Whether the columns of this data should be scaled, and why.
fn suits_scaling(spec: &JobSpec, sample: &Sample) -> (bool, String) {
    let features = spec.model.features;
    if spec.model.algorithm == AlgorithmKind::Custom {
        return (false, "the program's own".to_owned());
    }
    if spec.data.format.has_columns() {
        return (false, "numbers have the scales of data.columns".to_owned());
    }
    if spec.model.any_features() {
        return (false, "model.features is \"any\"".to_owned());
    }
    if features > SCALED_FEATURES_MAX {
        return (false, format!("{features} features, more than {SCALED_FEATURES_MAX}"));
    }
    if sample.records == 0 {
        return (false, NO_SAMPLE.to_owned());
    }
    let share = sample.cells as f64 / (sample.records as f64 * features as f64);
    let values = match sample.has_numbers {
        true => "with values other than 0 and 1",
        false => "all values 0 or 1",
    };
    let reason = format!(
        "in the first {} records {:.1} % of the cells are present, {values}",
        sample.records,
        100.0 * share
    );
    (share >= 0.1 && sample.has_numbers, reason)
}

/// The number with this many significant digits, so that the job's identity is short to read.
fn short(number: f64, digits: usize) -> f64 {
    format!("{number:.*e}", digits.saturating_sub(1)).parse().unwrap_or(number)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use heddle_protocol::job_spec::identity::decided_keys;
    use heddle_protocol::job_spec::job::sample;

    use super::*;

    /// A job of 10 features whose automatic keys are all undecided.
    fn undecided(change: impl FnOnce(&mut JobSpec)) -> JobSpec {
        let mut spec = sample();
        spec.undecided = decided_keys();
        change(&mut spec);
        spec
    }

    fn decided(change: impl FnOnce(&mut JobSpec), sample: Sample) -> JobSpec {
        let mut spec = undecided(change);
        decide(&mut spec, &sample, None);
        assert_eq!(spec.undecided, BTreeSet::new());
        spec
    }

    fn dense(all_records: u64) -> Sample {
        let (label_mean, label_deviation) = (152.133_48, 77.005_746);
        let (records, cells, has_numbers) = (100, 1000, true);
        Sample { all_records, records, cells, has_numbers, label_mean, label_deviation }
    }

    fn with_test(spec: &mut JobSpec) {
        spec.data.test = spec.data.train.clone();
    }

    #[test]
    fn columns_are_scaled_if_few_present_and_not_binary() {
        let scaled = |features, sample| decided(|spec| spec.model.features = features, sample);
        let dense = dense(180);
        for (features, sample, expected) in [
            (10, dense, true),
            (4096, Sample { cells: 40_960, ..dense }, true),
            (4097, Sample { cells: 409_700, ..dense }, false),
            (10, Sample { cells: 100, ..dense }, true),
            (10, Sample { cells: 99, ..dense }, false),
            (10, Sample { has_numbers: false, ..dense }, false),
            (10, Sample { records: 0, cells: 0, ..dense }, false),
            (heddle_protocol::job_spec::limits::ANY_FEATURES, dense, false),
        ] {
            assert_eq!(
                scaled(features, sample).model.standardise,
                expected,
                "{features} {sample:?}"
            );
        }
        let custom = |spec: &mut JobSpec| spec.model.algorithm = AlgorithmKind::Custom;
        assert!(!decided(custom, dense).model.standardise);
    }

    #[test]
    fn passes_follow_the_records_and_the_test_data() {
        let few = decided(with_test, dense(180));
        assert_eq!((few.data.passes, few.training.early_stop), (40, 6));
        assert_eq!(few.training.keep, KeptPass::Best);
        assert_eq!(few.model.l2, 0.005556);
        let many = decided(with_test, dense(2_000_000));
        assert_eq!((many.data.passes, many.training.early_stop), (1, 0));
        assert_eq!(many.training.keep, KeptPass::Last);
        assert_eq!(decided(with_test, dense(100_000)).data.passes, 25);
        for (records, early_stop) in
            [(1, 6), (3_601, 6), (5_000, 4), (6_667, 3), (10_000, 2), (1_000_000, 2)]
        {
            let training = decided(with_test, dense(records)).training;
            assert_eq!(training.early_stop, early_stop, "{records}");
        }
        assert_eq!(decided(|_| {}, dense(180)).data.passes, 20);
        assert_eq!(decided(|_| {}, dense(100_000)).data.passes, 5);
        let binary = Sample { has_numbers: false, ..dense(180) };
        let plain = decided(|_| {}, binary);
        assert_eq!((plain.data.passes, plain.model.l2), (1, 0.0));
        let clusters = |spec: &mut JobSpec| spec.model.algorithm = AlgorithmKind::Kmeans;
        let clusters = decided(clusters, binary);
        assert_eq!((clusters.data.passes, clusters.training.early_stop), (20, 0));
    }

    #[test]
    fn stated_keys_win() {
        let stated = decided(
            |spec| {
                with_test(spec);
                spec.undecided.remove("data.passes");
                spec.undecided.remove("model.l2");
                (spec.data.passes, spec.model.l2) = (7, 0.5);
            },
            dense(180),
        );
        assert_eq!((stated.data.passes, stated.model.l2), (7, 0.5));
        assert_eq!((stated.training.early_stop, stated.training.keep), (0, KeptPass::Last));
        let ends = decided(
            |spec| {
                with_test(spec);
                spec.undecided.remove("training.early-stop");
                spec.training.early_stop = 5;
            },
            dense(180),
        );
        assert_eq!((ends.training.early_stop, ends.training.keep), (5, KeptPass::Best));
    }

    #[test]
    fn labels_of_squared_losses_are_scaled() {
        let regression =
            |spec: &mut JobSpec| spec.model.algorithm = AlgorithmKind::LinearRegression;
        assert_eq!(decided(regression, dense(180)).model.scale_labels, LabelScaling::Measured);
        let sparse = Sample { cells: 20, ..dense(180) };
        let by = |mean, deviation| LabelScaling::By(LabelScale { mean, deviation });
        assert_eq!(decided(regression, sparse).model.scale_labels, by(152.133, 77.0057));
        let equal = Sample { label_deviation: 0.0, ..sparse };
        assert_eq!(decided(regression, equal).model.scale_labels, by(152.133, 1.0));
        assert_eq!(decided(|_| {}, dense(180)).model.scale_labels, LabelScaling::Off);
    }

    #[test]
    fn scales_are_those_of_the_job_that_it_begins_with() {
        let regression =
            |spec: &mut JobSpec| spec.model.algorithm = AlgorithmKind::LinearRegression;
        let scale = LabelScale { mean: 3.0, deviation: 2.0 };
        for (standardise, label_scale, expected) in
            [(true, Some(scale), LabelScaling::By(scale)), (false, None, LabelScaling::Off)]
        {
            let mut spec = undecided(regression);
            let decisions =
                decide(&mut spec, &dense(180), Some(&InitialJob { standardise, label_scale }));
            assert_eq!(spec.model.standardise, standardise);
            assert_eq!(spec.model.scale_labels, expected);
            assert_eq!(decisions[0].reason, "as in the job of model.init");
        }
    }

    #[test]
    fn each_answer_names_its_figures() {
        let mut spec = undecided(with_test);
        let decisions = decide(&mut spec, &dense(180), None);
        let lines: Vec<String> = decisions
            .iter()
            .map(|decision| format!("{} = {}: {}", decision.key, decision.value, decision.reason))
            .collect();
        assert_eq!(
            lines,
            [
                "model.standardise = true: in the first 100 records 100.0 % of the cells are present, with values other than 0 and 1",
                "data.passes = 40: at most: about 180 records, and test data to end by",
                "training.early-stop = 6: about 180 records, and test data to end by",
                "training.keep = best: by the test data, with data.passes",
                "model.l2 = 0.005556: 1 / 180",
                "training.batch = 4: about 180 records, 2 lanes",
            ]
        );
    }
}
