//! The trainer process: task loop, readers, algorithms, export and predict.
