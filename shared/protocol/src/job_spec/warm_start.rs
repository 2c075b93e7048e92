//! A job that begins with the values of another job's checkpoint (`model.init`): what it takes over from each table.
//!
//! Tables are matched by name. Columns must be equal. Further rows of the new job begin with the table's initialiser.
//! Optimizer state is taken over where the optimizer is the same: kind, parameters and gradient. Otherwise the state begins
//! with that of the plain values. Applied steps are taken over if all state is: corrections of a rule by the number of the step
//! belong to its state.
//!
//! The table of measured means and spreads is not taken over. The job measures its own data, and adding to the other job's
//! sums would count both. Labels are scaled by the mean and the deviation of the other job, so that scores begin as they were
//! there.

use serde::Deserialize as _;

use super::algorithm::AlgorithmKind;
use super::job::JobSpec;
use super::location::Location;
use super::options::LabelScaling;
use super::table::{STATS, TableKind, TableSpec};
use crate::ids::{CutId, Generation};

/// What a job takes over.
#[derive(Clone, Debug, PartialEq)]
pub struct WarmStart {
    /// By the tables of the job. `None`: the table begins with its initialiser.
    pub tables: Vec<Option<InheritedTable>>,
    /// Whether the applied steps are counted on.
    pub keeps_steps: bool,
}

/// A table of the other job.
#[derive(Clone, Debug, PartialEq)]
pub struct InheritedTable {
    /// As the other job had it.
    pub spec: TableSpec,
    /// Whether its optimizer state is taken over too.
    pub keeps_state: bool,
}

/// Why a job cannot begin with a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WarmStartError {
    /// The spec in the manifest is of another version.
    #[error("cannot read the job in its manifest: {0}")]
    Spec(String),
    /// A table of the job has no counterpart.
    #[error(
        "it has no table \"{table}\" (it has {has}); name a checkpoint of a job with this table"
    )]
    MissingTable {
        /// The job's table.
        table: String,
        /// Names of the checkpoint's tables.
        has: String,
    },
    /// Rows of another length.
    #[error(
        "table \"{table}\" has {found} columns there and {expected} in this job; they must be equal"
    )]
    Columns {
        /// The table.
        table: String,
        /// Of the job.
        expected: u32,
        /// Of the checkpoint.
        found: u32,
    },
    /// Rows would be lost.
    #[error(
        "table \"{table}\" has {found} rows there and {expected} in this job; a job may have more rows, not fewer"
    )]
    Rows {
        /// The table.
        table: String,
        /// Of the job.
        expected: u64,
        /// Of the checkpoint.
        found: u64,
    },
    /// Values of scaled columns beside values of raw ones.
    #[error(
        "its job has model.standardise = {0}, and its values are on that scale; set the same here"
    )]
    Standardise(bool),
    /// Values of scaled labels beside values of labels as they are.
    #[error(
        "its job {}, and its values are on that scale; leave model.scale-labels out",
        if *.0 { "scales its labels" } else { "does not scale its labels" }
    )]
    ScaleLabels(bool),
    /// FTRL cannot represent a value without gradients.
    #[error(
        "table \"{0}\": ftrl with beta = 0 cannot begin with plain values; set beta above 0, or the optimizer of that job"
    )]
    Beta(String),
    /// Rows are named by index there and by key here, or the reverse.
    #[error(
        "table \"{table}\" is {found} there and {expected} in this job; set the same model.features or kind"
    )]
    Kind {
        /// The table.
        table: String,
        /// Of the job.
        expected: &'static str,
        /// Of the checkpoint.
        found: &'static str,
    },
}

/// The job in the manifest of a checkpoint.
///
/// # Errors
/// A version wrote it whose specs this one cannot read.
pub fn job_of(spec: &serde_json::Value) -> Result<JobSpec, WarmStartError> {
    JobSpec::deserialize(spec).map_err(|error| WarmStartError::Spec(error.to_string()))
}

/// What `spec` takes over from a checkpoint of `before`.
///
/// # Errors
/// The first table that does not fit.
pub fn warm_start(spec: &JobSpec, before: &JobSpec) -> Result<WarmStart, WarmStartError> {
    let built_in = |spec: &JobSpec| spec.model.algorithm != AlgorithmKind::Custom;
    if built_in(spec) && built_in(before) {
        let (model, other) = (&spec.model, &before.model);
        // A value that is not decided yet will be the other job's.
        let is_decided = |key: &str| !spec.undecided.contains(key);
        if is_decided("model.standardise") && model.standardise != other.standardise {
            return Err(WarmStartError::Standardise(other.standardise));
        }
        let is_scaled = |scaling| scaling != LabelScaling::Off;
        if is_decided("model.scale-labels")
            && is_scaled(model.scale_labels) != is_scaled(other.scale_labels)
        {
            return Err(WarmStartError::ScaleLabels(is_scaled(other.scale_labels)));
        }
    }
    let found = before.tables();
    let tables = spec.tables();
    let inherited = tables.iter().map(|table| match built_in(spec) && table.name == STATS {
        true => Ok(None),
        false => inherited(table, &found).map(Some),
    });
    let tables = inherited.collect::<Result<Vec<_>, _>>()?;
    let keeps_steps = tables.iter().flatten().all(|table| table.keeps_state);
    Ok(WarmStart { tables, keeps_steps })
}

fn inherited(table: &TableSpec, found: &[TableSpec]) -> Result<InheritedTable, WarmStartError> {
    let name = || table.name.clone();
    let Some(other) = found.iter().find(|other| other.name == table.name) else {
        let has: Vec<&str> = found.iter().map(|other| other.name.as_str()).collect();
        return Err(WarmStartError::MissingTable { table: name(), has: has.join(", ") });
    };
    if table.kind != other.kind {
        let named = |kind| if kind == TableKind::Sparse { "sparse" } else { "dense" };
        let (expected, found) = (named(table.kind), named(other.kind));
        return Err(WarmStartError::Kind { table: name(), expected, found });
    }
    if table.cols != other.cols {
        let (expected, found) = (table.cols, other.cols);
        return Err(WarmStartError::Columns { table: name(), expected, found });
    }
    if table.rows < other.rows {
        let (expected, found) = (table.rows, other.rows);
        return Err(WarmStartError::Rows { table: name(), expected, found });
    }
    let keeps_state = table.optimizer == other.optimizer;
    if !keeps_state && !table.optimizer.begins_with_any_value() {
        return Err(WarmStartError::Beta(name()));
    }
    Ok(InheritedTable { spec: other.clone(), keeps_state })
}

/// The folder of checkpoints that a value of `model.init` names, itself or one checkpoint in it.
#[must_use]
pub fn folder(init: &Location) -> Location {
    match init.parent_and_name() {
        Some((folder, name)) if is_checkpoint(name) => folder,
        _ => init.clone(),
    }
}

/// Whether a name is that of a checkpoint, such as `g1-c4`.
fn is_checkpoint(name: &str) -> bool {
    let parts = name.strip_prefix('g').and_then(|rest| rest.split_once("-c"));
    parts.is_some_and(|(generation, number)| {
        let cut = generation.parse().ok().zip(number.parse().ok());
        let cut =
            cut.map(|(generation, number)| CutId { generation: Generation(generation), number });
        cut.is_some_and(|cut| cut.to_string() == name)
    })
}

/// Whether `model.init` is the job's own checkpoint directory, or below it.
pub(super) fn is_own(spec: &JobSpec) -> bool {
    let own = spec.checkpoint.dir.url();
    spec.model.init.as_ref().is_some_and(|init| {
        init.url().strip_prefix(&own).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    })
}

#[cfg(test)]
mod tests {
    use heddle_optimizer::{GradientKind, Optimizer};

    use super::*;
    use crate::job_spec::check;
    use crate::job_spec::job::sample;

    fn job(change: impl FnOnce(&mut JobSpec)) -> JobSpec {
        let mut spec = sample();
        change(&mut spec);
        spec
    }

    fn refused(change: impl FnOnce(&mut JobSpec)) -> String {
        warm_start(&job(change), &sample()).expect_err("it does not fit").to_string()
    }

    #[test]
    fn same_optimizer_keeps_state_and_steps() {
        let start = warm_start(&sample(), &sample()).expect("it fits");
        assert!(start.keeps_steps && start.tables.iter().flatten().all(|table| table.keeps_state));
        let wider = job(|spec| spec.model.features = 11);
        assert!(warm_start(&wider, &sample()).expect("more rows fit").keeps_steps);
    }

    #[test]
    fn other_parameters_or_gradient_keep_values_alone() {
        for optimizer in [
            Optimizer::sgd(0.5),
            Optimizer::sgd(1.0).with_gradient(GradientKind::Sum),
            Optimizer::ftrl(0.1, 1.0, 0.0, 0.0),
        ] {
            let other = job(|spec| spec.model.optimizer = optimizer);
            let start = warm_start(&other, &sample()).expect("it fits");
            assert!(!start.keeps_steps, "{optimizer:?}");
            assert!(start.tables.iter().flatten().all(|table| !table.keeps_state));
        }
    }

    #[test]
    fn measured_scales_are_not_taken_over() {
        let standardised = || job(|spec| spec.model.standardise = true);
        let start = warm_start(&standardised(), &standardised()).expect("it fits");
        let taken: Vec<_> = start.tables.iter().map(Option::is_some).collect();
        assert_eq!(taken, [true, true, false]);
        assert!(start.keeps_steps, "the table of sums has no part in it");
        assert_eq!(
            refused(|spec| spec.model.standardise = true),
            "its job has model.standardise = false, and its values are on that scale; set the same here"
        );
    }

    #[test]
    fn tables_that_do_not_fit_are_refused_by_name() {
        assert_eq!(
            refused(|spec| {
                spec.model.algorithm = AlgorithmKind::FactorizationMachine;
                spec.model.rank = 2;
            }),
            "it has no table \"factors\" (it has weights, bias); name a checkpoint of a job with this table"
        );
        assert_eq!(
            refused(|spec| {
                spec.model.algorithm = AlgorithmKind::SoftmaxRegression;
                spec.model.classes = 3;
            }),
            "table \"weights\" has 1 columns there and 3 in this job; they must be equal"
        );
        assert_eq!(
            refused(|spec| spec.model.features = 9),
            "table \"weights\" has 10 rows there and 9 in this job; a job may have more rows, not fewer"
        );
        assert_eq!(
            refused(|spec| spec.model.features = crate::job_spec::limits::ANY_FEATURES),
            "table \"weights\" is dense there and sparse in this job; set the same model.features or kind"
        );
        assert_eq!(
            refused(|spec| spec.model.optimizer = Optimizer::ftrl(0.1, 0.0, 0.0, 0.0)),
            "table \"weights\": ftrl with beta = 0 cannot begin with plain values; set beta above 0, or the optimizer of that job"
        );
    }

    #[test]
    fn own_checkpoints_are_refused() {
        for own in ["/out/checkpoints", "/out/checkpoints/g1-c4", "/out/checkpoints/damaged/x"] {
            let spec = job(|spec| spec.model.init = Some(own.parse().expect("a location")));
            let text = check(&spec).expect_err("its own").to_string();
            assert!(text.starts_with("model.init: is the job's own checkpoint.dir"), "{text}");
        }
        let beside = job(|spec| spec.model.init = Some("/out/checkpoints-2".parse().expect("one")));
        check(&beside).expect("another folder");
    }

    #[test]
    fn folder_of_a_checkpoint_is_its_parent() {
        let folder = |text: &str| folder(&text.parse().expect("a location")).to_string();
        assert_eq!(folder("/c/g1-c4"), "/c");
        assert_eq!(folder("hdfs://nn/c/g12-c30"), "hdfs://nn/c");
        for other in ["/c", "/c/g01-c4", "/c/g1-c4-copy", "/"] {
            assert_eq!(folder(other), other);
        }
    }
}
