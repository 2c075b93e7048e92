//! Figures of a phase: tasks merged as they finish, mean loss, accuracy, area under the ROC curve.
//!
//! Merging is exact and independent of the order in which tasks finish: counts are integers, and sums of losses are kept
//! per task and added in the order of task numbers. The area comes from counts per bin of the score; the error that binning
//! can cause is known exactly and reported with it.
//!
//! ```
//! use heddle_metrics::PhaseMetrics;
//! use heddle_protocol::{ids::TaskId, metrics::TaskMetrics};
//!
//! let mut phase = PhaseMetrics::default();
//! phase.add(TaskId(0), TaskMetrics { rows: 4, loss_sum: 2.0, ..TaskMetrics::default() });
//! assert_eq!(phase.summary().mean_loss(), Some(0.5));
//! ```

mod auc;
mod phase;

pub use auc::Auc;
pub use phase::{PhaseMetrics, ResumedSums, Summary};
