//! Exceptions that a server returns.
//!
//! Java re-creates the exception from its class name by reflection; this crate keeps and compares the name. Forks of
//! Hadoop repackage classes, so a comparison of the last part of the name suffices.

use std::fmt;

use crate::proto::common::RpcResponseHeaderProto;
use crate::proto::common::rpc_response_header_proto::{RpcErrorCodeProto, RpcStatusProto};

/// An exception of the server (`exceptionClassName`, `errorMsg`, `errorDetail` of `RpcResponseHeaderProto`).
#[derive(Clone, PartialEq, Eq)]
pub struct RemoteException {
    class: String,
    text: String,
    code: Option<RpcErrorCodeProto>,
    is_fatal: bool,
}

impl RemoteException {
    /// An exception by its Java class name and `errorMsg`: message, newline, stack trace.
    pub fn new(class: impl Into<String>, text: impl Into<String>) -> Self {
        Self { class: class.into(), text: text.into(), code: None, is_fatal: false }
    }

    /// The exception in the header of an unsuccessful reply.
    pub fn from_header(header: &RpcResponseHeaderProto) -> Self {
        Self {
            class: header.exception_class_name.clone().unwrap_or_default(),
            text: header.error_msg.clone().unwrap_or_default(),
            code: header.error_detail.and_then(|code| RpcErrorCodeProto::try_from(code).ok()),
            is_fatal: header.status == RpcStatusProto::Fatal as i32,
        }
    }

    /// Java's binary class name, such as `org.apache.hadoop.security.token.SecretManager$InvalidToken`.
    pub fn class(&self) -> &str {
        &self.class
    }

    /// The class name without package and outer classes: `InvalidToken`.
    pub fn simple_class(&self) -> &str {
        self.class.rsplit(['.', '$']).next().unwrap_or_default()
    }

    /// Whether the class has this full or simple name.
    pub fn is(&self, name: &str) -> bool {
        self.class == name || self.simple_class() == name
    }

    /// First line of the message, for users. Java puts the stack trace after the first newline. A message of several
    /// lines is cut too; [`RemoteException::text`] has all of it.
    pub fn message(&self) -> &str {
        self.text.lines().next().unwrap_or_default()
    }

    /// Message and stack trace as received.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The RPC layer's error code, if the server sent a known one.
    pub fn code(&self) -> Option<RpcErrorCodeProto> {
        self.code
    }

    /// Whether the server closes the connection after this exception.
    pub fn is_fatal(&self) -> bool {
        self.is_fatal
    }

    /// Whether the server is not the active one of an HA group (`ipc.StandbyException`, `ObserverRetryOnActiveException`).
    pub fn is_standby(&self) -> bool {
        self.is("StandbyException") || self.is("ObserverRetryOnActiveException")
    }

    /// Whether the server asks for the same call later (`ipc.RetriableException`, `NMNotYetReadyException`).
    pub fn is_try_again(&self) -> bool {
        self.is("RetriableException") || self.is("NMNotYetReadyException")
    }

    /// Whether the token is unknown, expired or superseded (`SecretManager$InvalidToken`).
    pub fn is_invalid_token(&self) -> bool {
        self.is("InvalidToken")
    }

    /// Whether the server lacks the method, because it is older or another implementation of the protocol
    /// (`ERROR_NO_SUCH_METHOD`, `RpcNoSuchMethodException`).
    pub fn is_no_such_method(&self) -> bool {
        self.code == Some(RpcErrorCodeProto::ErrorNoSuchMethod)
            || self.is("RpcNoSuchMethodException")
    }

    /// Whether the caller lacks the permission (`AccessControlException`, `AuthorizationException`).
    pub fn is_denied(&self) -> bool {
        self.is("AccessControlException") || self.is("AuthorizationException")
    }
}

impl fmt::Display for RemoteException {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.simple_class(), self.message()) {
            ("", message) => write!(f, "unnamed exception: {message}"),
            (class, "") => f.write_str(class),
            (class, message) => write!(f, "{class}: {message}"),
        }
    }
}

/// Without the stack trace, which would flood a log line.
impl fmt::Debug for RemoteException {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteException")
            .field("class", &self.class)
            .field("message", &self.message())
            .field("code", &self.code)
            .field("is_fatal", &self.is_fatal)
            .finish()
    }
}

impl std::error::Error for RemoteException {}

#[cfg(test)]
mod tests {
    use super::RemoteException;

    #[test]
    fn an_inner_class_matches_its_full_and_simple_name() {
        let exception = RemoteException::new(
            "org.apache.hadoop.security.token.SecretManager$InvalidToken",
            "Invalid AMRMToken from appattempt_1\n\tat Foo.bar(Foo.java:1)",
        );
        assert!(exception.is("InvalidToken"));
        assert!(exception.is("org.apache.hadoop.security.token.SecretManager$InvalidToken"));
        assert!(!exception.is("SecretManager"));
        assert!(exception.is_invalid_token());
        assert_eq!(exception.to_string(), "InvalidToken: Invalid AMRMToken from appattempt_1");
    }

    #[test]
    fn a_repackaged_standby_exception_is_recognised() {
        assert!(RemoteException::new("com.vendor.ipc.StandbyException", "").is_standby());
    }

    #[test]
    fn an_exception_without_class_or_message_prints() {
        assert_eq!(RemoteException::new("", "").to_string(), "unnamed exception: ");
        assert_eq!(RemoteException::new("java.io.IOException", "").to_string(), "IOException");
    }
}
