//! Files and checkpoints over file:// and hdfs://, with every outcome known.
