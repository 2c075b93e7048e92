//! The number of rows of one update, as commands show it.

use heddle_protocol::spec::{Consistency, JobSpec};

/// The number of rows of one update, as text.
#[must_use]
pub fn effective_batch(spec: &JobSpec) -> String {
    let training = &spec.training;
    let (Some(batch), Some(rows)) = (training.batch.rows(), training.effective_batch()) else {
        return "effective batch: by the number of records, when the job starts".to_owned();
    };
    match training.consistency {
        Consistency::Bsp => {
            format!("effective batch: {rows} rows an update ({} lanes × {})", training.lanes, batch)
        }
        Consistency::Ssp | Consistency::Asp => format!("effective batch: {rows} rows an update"),
    }
}
