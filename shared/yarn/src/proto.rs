//! Messages on the wire, generated from `proto/*.proto` by the program `generate_protos` of heddle-hadoop:
//!
//! ```text
//! cargo run -p heddle-hadoop --example generate_protos -- shared/yarn/proto shared/yarn/src/proto \
//!     --include shared/hadoop/proto --extern .hadoop.common=::heddle_hadoop::proto::common \
//!     --skip-debug .hadoop.yarn.ContainerLaunchContextProto
//! ```
//!
//! Names and numbers are Hadoop's. Enum fields are `i32`. An unknown value of a newer server becomes `None` or the type's own
//! unknown variant, and never an error. `Debug` of a launch context shows the length of its credentials alone. The messages are
//! public for fields that the typed records lack.

#![expect(
    missing_docs,
    reason = "generated; the .proto files say what a field means where its name does not"
)]
#![allow(clippy::all, clippy::pedantic, reason = "generated")]

include!("proto/hadoop_yarn.rs");

impl std::fmt::Debug for ContainerLaunchContextProto {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let services: Vec<_> = self.service_data.iter().map(|entry| &entry.key).collect();
        f.debug_struct("ContainerLaunchContextProto")
            .field("local_resources", &self.local_resources)
            .field(
                "tokens",
                &self.tokens.as_ref().map(|tokens| format!("[{} bytes]", tokens.len())),
            )
            .field("service_data", &services)
            .field("environment", &self.environment)
            .field("command", &self.command)
            .field("application_ac_ls", &self.application_ac_ls)
            .field("container_retry_context", &self.container_retry_context)
            .field("tokens_conf", &self.tokens_conf.as_ref().map(|conf| conf.len()))
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_output_of_a_launch_context_has_no_credentials() {
        let context = ContainerLaunchContextProto {
            tokens: Some(b"canary".as_slice().into()),
            service_data: vec![StringBytesMapProto {
                key: Some("shuffle".to_owned()),
                value: Some(b"canary".as_slice().into()),
            }],
            ..ContainerLaunchContextProto::default()
        };
        let shown = format!("{context:?}");
        assert!(shown.contains("[6 bytes]") && shown.contains("shuffle"), "{shown}");
        // Bytes print as numbers or as an escaped string. Neither form may appear.
        assert!(!shown.contains("canary") && !shown.contains("99, 97"), "{shown}");
    }
}
