//! The trainer process: reads data, computes gradients, writes models.
//!
//! [`run()`] is the built-in trainer; [`main_with`] is the `main` of a program with its own [`Algorithm`]. Parser threads
//! ([`reader`], [`feed`]) pass minibatches ([`batch`]) to the training loop. The loop pulls parameters and pushes gradients
//! through `heddle-client`, and reports to the ApplicationMaster through `heddle-agent`. [`export`] writes the model of a
//! checkpoint, [`sample`] looks at the beginning of data, [`first_record`] for the first record, [`ModelSaver`] lets a program
//! ask for one while training goes on, [`predict`] scores records with one. A step does not depend on the trainer that computes
//! it: [`heddle_protocol::lanes`] defines the order of tasks.
//!
//! The trainer does not place shards, assign work, or handle failures, except that it repeats a step on request.
//!
//! ```
//! use heddle_trainer::{Batch, reader::{Labels, RecordFormat}};
//! use heddle_protocol::spec::{DataFormat, LabelRange};
//!
//! let format = RecordFormat { format: DataFormat::Libsvm, index_base: 1, features: 10, labels: Labels::Within(LabelRange::TwoClasses) };
//! let mut batch = Batch::default();
//! format.read_line(b"1 3:0.5 7:2\n", &mut batch).expect("a record");
//! assert_eq!((batch.rows(), &batch.indices[..]), (1, &[2, 6][..]));
//! ```

pub mod algorithm;
pub mod batch;
pub mod class_weights;
pub mod export;
pub mod feed;
mod first_bad;
pub mod first_record;
mod input_plan;
mod model_saver;
pub mod predict;
pub mod reader;
pub mod run;
pub mod sample;
pub mod storage_wait;

pub use algorithm::{Algorithm, StepWork};
pub use batch::Batch;
pub use model_saver::{ModelSaver, PendingSave};
pub use run::{TrainerError, main_with, main_with_saver, run};
