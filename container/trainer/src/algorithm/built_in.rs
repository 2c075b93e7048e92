//! The algorithms that a job file selects by name.

use heddle_protocol::job_spec::{AlgorithmKind, JobSpec};

use super::{Algorithm, FactorizationMachine, Kmeans, LinearAlgorithm, MeasuredColumns};

/// The built-in algorithm of a job; `None` for `custom`, whose program provides the algorithm.
#[must_use]
pub fn built_in(spec: &JobSpec) -> Option<Box<dyn Algorithm>> {
    let algorithm = of_values(spec)?;
    Some(match spec.measured_columns() {
        0 => algorithm,
        _ => Box::new(MeasuredColumns::new(spec, algorithm)),
    })
}

fn of_values(spec: &JobSpec) -> Option<Box<dyn Algorithm>> {
    match spec.model.algorithm {
        AlgorithmKind::LogisticRegression
        | AlgorithmKind::LinearRegression
        | AlgorithmKind::Svm
        | AlgorithmKind::SoftmaxRegression => Some(Box::new(LinearAlgorithm::new(spec))),
        AlgorithmKind::FactorizationMachine => Some(Box::new(FactorizationMachine::new(spec))),
        AlgorithmKind::Kmeans => Some(Box::new(Kmeans::new(spec))),
        AlgorithmKind::Custom => None,
    }
}
