//! Classifies hdfs-native's errors: the reason of a failure, and its effect. Pure.
//!
//! The client sends a changing call at most once (since 0.14.8). Therefore an error from the NameNode means that the call
//! had no effect, and a connection that broke after sending means that the effect is unknown.

use hdfs_native::HdfsError;
use heddle_hadoop::rpc::RpcError;

use crate::error::{Op, Reason, StorageError, WriteError, chain};

/// Whether the call may have taken effect although it failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ErrorEffect {
    None,
    Unknown,
}

/// Classifies an error.
pub(super) fn meaning(error: &HdfsError) -> (Reason, ErrorEffect) {
    use HdfsError as E;
    match error {
        E::AlreadyExists(_) => (Reason::Exists, ErrorEffect::None),
        E::FileNotFound(_) => (Reason::NotFound, ErrorEffect::None),
        E::IsADirectoryError(_) => (Reason::IsADirectory, ErrorEffect::None),
        E::RPCError(class, message) => (of_exception(class, message), ErrorEffect::None),
        // The NameNode closed the connection: because of this client's identity, or for reasons of its own.
        E::FatalRPCError(class, message) => match of_exception(class, message) {
            Reason::Denied => (Reason::Denied, ErrorEffect::None),
            _ => (Reason::Unavailable, ErrorEffect::Unknown),
        },
        E::SASLError(_) | E::GSSAPIError(..) | E::NoSASLMechanism => {
            (Reason::Denied, ErrorEffect::None)
        }
        // The library of Kerberos is missing. No wait installs it.
        E::OperationFailed(what) if what.contains("libgssapi") => {
            (Reason::Denied, ErrorEffect::None)
        }
        E::IOError(error) => (Reason::Unavailable, of_io(error.kind())),
        // An error of a DataNode. A block that could not be written or read has no effect on names.
        E::DataTransferError(_) | E::ChecksumError | E::BlocksNotFound(_) => {
            (Reason::Unavailable, ErrorEffect::None)
        }
        E::OperationFailed(what) if what.contains("not supported") => {
            (Reason::Unsupported(what.clone()), ErrorEffect::None)
        }
        // In `close`: too few DataNodes have confirmed the last block, after 15 s. The NameNode has rejected each
        // request, so the file is not closed.
        E::OperationFailed(_) => (Reason::Unavailable, ErrorEffect::None),
        // The client's text names a feature of its build.
        E::UnsupportedFeature(what) if what.contains("encryption zone") => {
            (Reason::Unsupported(in_encryption_zone(None)), ErrorEffect::None)
        }
        E::UnsupportedFeature(what) | E::UnsupportedErasureCodingPolicy(what) => {
            (Reason::Unsupported(what.clone()), ErrorEffect::None)
        }
        E::InvalidPath(_)
        | E::InvalidArgument(_)
        | E::UrlParseError(_)
        | E::XmlParseError(_)
        | E::TrashNotEnabled
        | E::ErasureCodingError(_) => (Reason::Other, ErrorEffect::None),
        // A response arrived and could not be decoded.
        E::InternalError(_) | E::InvalidRPCResponse(_) => (Reason::Other, ErrorEffect::Unknown),
    }
}

/// Why a path in an encryption zone cannot be used; `zone` is the zone's root directory, if it is known.
pub(super) fn in_encryption_zone(zone: Option<&str>) -> String {
    let zone = zone.map_or_else(
        || "an encryption zone".to_owned(),
        |zone| format!("the encryption zone {zone}"),
    );
    format!(
        "it lies in {zone}, which Heddle can neither read nor write: choose a directory outside of encryption zones \
         (hdfs crypto -listZones)"
    )
}

/// A connection that was not established has carried no request.
fn of_io(kind: std::io::ErrorKind) -> ErrorEffect {
    use std::io::ErrorKind as K;
    match kind {
        K::ConnectionRefused | K::HostUnreachable | K::NetworkUnreachable | K::AddrNotAvailable => {
            ErrorEffect::None
        }
        _ => ErrorEffect::Unknown,
    }
}

/// Classifies the class of a Java exception, as the NameNode sends it.
fn of_exception(class: &str, message: &str) -> Reason {
    let first = || message.lines().next().unwrap_or_default().to_owned();
    match class.rsplit(['.', '$']).next().unwrap_or(class) {
        "FileNotFoundException" | "PathNotFoundException" => Reason::NotFound,
        "FileAlreadyExistsException" | "AlreadyBeingCreatedException" => Reason::Exists,
        "PathIsNotEmptyDirectoryException" => Reason::NotEmpty,
        "ParentNotDirectoryException" | "PathIsNotDirectoryException" => Reason::NotADirectory,
        "AccessControlException" | "AuthorizationException" | "InvalidToken" | "SaslException" => {
            Reason::Denied
        }
        "NSQuotaExceededException"
        | "DSQuotaExceededException"
        | "QuotaByStorageTypeExceededException"
        | "QuotaExceededException" => Reason::Quota(first()),
        "SafeModeException"
        | "StandbyException"
        | "RetriableException"
        | "ObserverRetryOnActiveException"
        | "RetryStartFileException"
        | "NotReplicatedYetException"
        | "ServerTooBusyException" => Reason::Unavailable,
        // Rename of a file to the name of a directory, or the reverse: the name is taken.
        "IOException" if message.contains("must both be directories") => Reason::Exists,
        // No DataNode to write to, or none with space: the NameNode does not distinguish them.
        "IOException" if message.contains("could only be written to") => Reason::Unavailable,
        "UnsupportedOperationException" | "SnapshotAccessControlException" => {
            Reason::Unsupported(first())
        }
        _ => Reason::Other,
    }
}

/// The cause of an error in one line: of a Java exception its class and first line without the trace,
/// of others their text without the dump of DataNodes that some contain.
fn cause(error: &HdfsError) -> String {
    let text = match error {
        HdfsError::RPCError(class, message) | HdfsError::FatalRPCError(class, message) => {
            let class = class.rsplit(['.', '$']).next().unwrap_or(class);
            format!("{class}: {message}")
        }
        _ => error.to_string(),
    };
    let line = text.lines().next().unwrap_or_default();
    let line = line.split(": [DatanodeInfo").next().unwrap_or(line);
    line.strip_suffix(": []").unwrap_or(line).to_owned()
}

/// A failure by its reason, and its cause if that adds to the reason.
fn failure(op: Op, place: &str, reason: Reason, cause: String) -> StorageError {
    let repeats = match &reason {
        Reason::Unsupported(words) if cause.contains("encryption zone") => {
            words.contains("encryption zone")
        }
        Reason::Quota(words) | Reason::Unsupported(words) => cause.ends_with(words.as_str()),
        _ => false,
    };
    let error = StorageError::new(op, place, reason);
    if repeats { error } else { error.because(cause) }
}

/// A failed read.
pub(super) fn read_error(op: Op, place: &str, error: &HdfsError) -> StorageError {
    let (reason, _) = meaning(error);
    failure(op, place, reason, cause(error))
}

/// A failed write.
pub(super) fn write_error(op: Op, place: &str, error: &HdfsError) -> WriteError {
    let (reason, effect) = meaning(error);
    let error = failure(op, place, reason, cause(error));
    match effect {
        ErrorEffect::None => WriteError::NotDone(error),
        ErrorEffect::Unknown => WriteError::Unknown(error),
    }
}

/// A failed reading call without hdfs-native.
pub(super) fn rpc_error(op: Op, place: &str, error: &RpcError) -> StorageError {
    let reason = match error.remote() {
        Some(exception) => of_exception(exception.class(), exception.message()),
        None if matches!(error, RpcError::Auth { .. }) => Reason::Denied,
        None if error.is_retryable() => Reason::Unavailable,
        None => Reason::Other,
    };
    failure(op, place, reason, chain(error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Error, ErrorKind};

    fn rpc(class: &str, message: &str) -> (Reason, ErrorEffect) {
        meaning(&HdfsError::RPCError(class.to_owned(), message.to_owned()))
    }

    #[test]
    fn a_refusal_of_the_namenode_means_that_nothing_happened() {
        let hdfs = "org.apache.hadoop.hdfs";
        for (class, reason) in [
            ("java.io.FileNotFoundException", Reason::NotFound),
            ("org.apache.hadoop.fs.ParentNotDirectoryException", Reason::NotADirectory),
            ("org.apache.hadoop.security.AccessControlException", Reason::Denied),
            ("org.apache.hadoop.security.token.SecretManager$InvalidToken", Reason::Denied),
            (&format!("{hdfs}.server.namenode.SafeModeException"), Reason::Unavailable),
            ("org.apache.hadoop.ipc.StandbyException", Reason::Unavailable),
            (&format!("{hdfs}.protocol.UnheardOfException"), Reason::Other),
        ] {
            assert_eq!(rpc(class, "…"), (reason, ErrorEffect::None), "{class}");
        }
    }

    #[test]
    fn a_quota_error_has_the_namenodes_text() {
        let class = "org.apache.hadoop.hdfs.protocol.DSQuotaExceededException";
        let (reason, _) =
            rpc(class, "The DiskSpace quota of /x is exceeded: quota = 1 B\n\tat java…");
        assert_eq!(
            reason,
            Reason::Quota("The DiskSpace quota of /x is exceeded: quota = 1 B".to_owned())
        );
    }

    #[test]
    fn only_a_broken_connection_leaves_the_outcome_open() {
        let io = |kind| meaning(&HdfsError::IOError(Error::from(kind)));
        assert_eq!(io(ErrorKind::ConnectionReset), (Reason::Unavailable, ErrorEffect::Unknown));
        assert_eq!(io(ErrorKind::UnexpectedEof), (Reason::Unavailable, ErrorEffect::Unknown));
        assert_eq!(io(ErrorKind::ConnectionRefused), (Reason::Unavailable, ErrorEffect::None));
    }

    #[test]
    fn a_name_that_is_taken_by_something_of_another_kind_is_taken() {
        let message = "Source /a and destination /b must both be directories\n\tat …";
        assert_eq!(rpc("java.io.IOException", message).0, Reason::Exists);
    }

    #[test]
    fn the_cause_is_shown_without_javas_trace() {
        let error = HdfsError::RPCError(
            "java.io.IOException".to_owned(),
            "no\n\tat a.b(C.java)".to_owned(),
        );
        let error = read_error(Op::Stat, "hdfs://nn/x", &error);
        let cause = std::error::Error::source(&error).map(ToString::to_string);
        assert_eq!(cause.as_deref(), Some("IOException: no"));
    }

    #[test]
    fn a_quota_is_reported_once_without_a_dump_of_datanodes() {
        let class = "org.apache.hadoop.hdfs.protocol.NSQuotaExceededException";
        let quota = HdfsError::RPCError(class.to_owned(), "quota=4 file count=5".to_owned());
        let text = chain(&read_error(Op::Create, "hdfs://nn/x", &quota));
        assert_eq!(text, "cannot create hdfs://nn/x: quota exceeded: quota=4 file count=5");
        let dump = "All DataNodes failed: [DatanodeInfoProto { id: … }]".to_owned();
        let text = chain(&read_error(Op::Read, "hdfs://nn/x", &HdfsError::DataTransferError(dump)));
        assert!(text.ends_with("All DataNodes failed"), "{text}");
    }

    #[test]
    fn encryption_zone_is_named_without_the_clients_build_feature() {
        let words = "file is in an HDFS encryption zone; reading or writing it requires building \
            hdfs-native with the `kms` cargo feature";
        let error = HdfsError::UnsupportedFeature(words.to_owned());
        let text = chain(&read_error(Op::Open, "hdfs://nn/x", &error));
        assert!(
            text.contains("it lies in an encryption zone") && !text.contains("cargo"),
            "{text}"
        );
        assert!(in_encryption_zone(Some("/secret")).contains("zone /secret, which"));
    }

    #[test]
    fn missing_kerberos_library_is_no_outage() {
        let error = HdfsError::OperationFailed("Failed to load libgssapi_krb".to_owned());
        assert_eq!(meaning(&error).0, Reason::Denied);
        let other = HdfsError::OperationFailed("the last block is not confirmed".to_owned());
        assert_eq!(meaning(&other).0, Reason::Unavailable);
    }

    #[test]
    fn damaged_replicas_are_no_proof_of_a_damaged_file() {
        assert_eq!(meaning(&HdfsError::ChecksumError).0, Reason::Unavailable);
        assert_eq!(meaning(&HdfsError::BlocksNotFound(String::new())).0, Reason::Unavailable);
    }
}
