//! Messages on the wire, generated from `proto/*.proto` by the program `generate_protos` of heddle-hadoop:
//!
//! ```text
//! cargo run -p heddle-hadoop --example generate_protos -- shared/yarn/proto shared/yarn/src/proto \
//!     --include shared/hadoop/proto --extern .hadoop.common=::heddle_hadoop::proto::common
//! ```
//!
//! Names and numbers are Hadoop's. Enum fields are `i32`. An unknown value of a newer server becomes `None` or the type's
//! own unknown variant, and never an error. The messages are public for fields that the typed records lack.

#![expect(
    missing_docs,
    reason = "generated; the .proto files say what a field means where its name does not"
)]
#![allow(clippy::all, clippy::pedantic, reason = "generated")]

include!("proto/hadoop_yarn.rs");
