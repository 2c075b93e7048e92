//! Why a login by Kerberos fails, with the next step of its user.

use std::path::PathBuf;
use std::time::Duration;

/// Why a login by Kerberos fails. Another try with the same input fails again, except where a network was away.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum KerberosError {
    /// The library is not installed.
    #[error("the Kerberos library is missing: {cause}")]
    Library {
        /// The loader's text.
        cause: String,
    },
    /// The cache has no tickets, or does not exist.
    #[error("no Kerberos ticket in the cache {cache}")]
    NoTicket {
        /// Name of the cache.
        cache: String,
    },
    /// The file is not a ticket cache.
    #[error("the Kerberos ticket cache {cache} is corrupt")]
    CorruptCache {
        /// Name of the cache.
        cache: String,
    },
    /// The file cannot be read.
    #[error("cannot read the Kerberos ticket cache {cache}: {cause}")]
    UnreadableCache {
        /// Name of the cache.
        cache: String,
        /// The system's text.
        cause: String,
    },
    /// The ticket has ended.
    #[error("the Kerberos ticket in the cache {cache} has ended{}", at(*ended_s))]
    TicketEnded {
        /// Name of the cache.
        cache: String,
        /// When it ended, seconds since 1970; known for caches in files.
        ended_s: Option<u32>,
    },
    /// The keytab cannot be read.
    #[error("cannot read the keytab {}: {cause}", path.display())]
    UnreadableKeytab {
        /// The file.
        path: PathBuf,
        /// The system's text.
        cause: String,
    },
    /// The file is not a keytab.
    #[error("the file {} is not a keytab", path.display())]
    NotAKeytab {
        /// The file.
        path: PathBuf,
    },
    /// The keytab has no key of the principal.
    #[error("the keytab {} has no key of {principal} (it has {})", path.display(), list(present))]
    NotInKeytab {
        /// The file.
        path: PathBuf,
        /// The requested principal.
        principal: String,
        /// The principals of the file.
        present: Vec<String>,
    },
    /// The configuration does not name the server's principal.
    #[error("{key} is not set: the principal of the server {server} is unknown")]
    NoServerPrincipal {
        /// The missing key.
        key: &'static str,
        /// The server.
        server: String,
    },
    /// No Key Distribution Center answered in time.
    #[error("no Key Distribution Center (KDC) answered within {waited:?}")]
    Silent {
        /// The waiting time.
        waited: Duration,
    },
    /// krb5.conf cannot be parsed.
    #[error("the Kerberos configuration {}:{line} is malformed: {fault}", path.display())]
    MalformedConfiguration {
        /// The file.
        path: PathBuf,
        /// Number of the line, from 1.
        line: usize,
        /// What is wrong with it.
        fault: &'static str,
    },
    /// The library's, or the Key Distribution Center's, refusal.
    #[error("Kerberos login failed: {text}{}", server.as_ref().map(|s| format!(
        " (server {s})"
    )).unwrap_or_default())]
    Refused {
        /// Kerberos' code, [`KerberosError::code_of`] a number of RFC 4120.
        code: i32,
        /// The library's text.
        text: String,
        /// The principal of the server, if a ticket for it was requested.
        server: Option<String>,
    },
}

/// `ERROR_TABLE_BASE_krb5`: Kerberos' codes are this number plus the code of RFC 4120 §7.5.9.
const TABLE: i32 = -1_765_328_384;

impl KerberosError {
    /// The library's code of an error number.
    #[must_use]
    pub const fn code_of(number: i32) -> i32 {
        TABLE + number
    }

    /// The next step of the user.
    #[must_use]
    pub fn next_step(&self) -> &'static str {
        match self {
            Self::Library { .. } => {
                "install MIT Kerberos: the package libgssapi-krb5-2 (Debian, Ubuntu) or krb5-libs (Red Hat, Fedora)"
            }
            Self::NoTicket { .. } | Self::TicketEnded { .. } => {
                "get a ticket with kinit, or use --principal and --keytab"
            }
            Self::CorruptCache { .. } => "remove it with kdestroy, then get a ticket with kinit",
            Self::UnreadableCache { .. } => {
                "check KRB5CCNAME and the permissions of the file, or get a ticket with kinit"
            }
            Self::UnreadableKeytab { .. } | Self::NotAKeytab { .. } => {
                "check --keytab and the permissions of the file"
            }
            Self::NotInKeytab { .. } => "check --principal and --keytab; `klist -k` lists a keytab",
            Self::NoServerPrincipal { .. } => {
                "check that HADOOP_CONF_DIR is that of the cluster and set the key there"
            }
            Self::Silent { .. } => "check the network, and the kdc of the realm in krb5.conf",
            Self::MalformedConfiguration { .. } => "correct krb5.conf (KRB5_CONFIG)",
            Self::Refused { code, .. } => refusal_step(*code),
        }
    }
}

fn refusal_step(code: i32) -> &'static str {
    match code - TABLE {
        // The numbers of RFC 4120 §7.5.9.
        1 | 2 | 6 | 18 => "check the principal with the administrator of the realm",
        7 => "check that the principal of the server in the configuration is that of the cluster",
        23 => "the password has ended: change it with kpasswd",
        24 | 31 => "the key is out of date: get a new keytab, or a ticket with kinit",
        32 => "get a ticket with kinit, or use --principal and --keytab",
        33 | 37 | 148 => "set the clock of this machine by the network (NTP)",
        // KRB5_KDC_UNREACH, KRB5_REALM_UNKNOWN, KRB5_REALM_CANT_RESOLVE.
        156 | 154 | 153 => "check the network, and the kdc of the realm in krb5.conf",
        // KRB5_CONFIG_BADFORMAT and its neighbours.
        134..=137 => "correct krb5.conf (KRB5_CONFIG)",
        _ => "check the ticket with klist, and krb5.conf",
    }
}

/// ` at 2026-01-31T10:00:00Z`, or nothing.
fn at(seconds: Option<u32>) -> String {
    let time = seconds.and_then(|seconds| jiff::Timestamp::from_second(seconds.into()).ok());
    time.map(|time| format!(" at {time}")).unwrap_or_default()
}

fn list(present: &[String]) -> String {
    if present.is_empty() { "no entries".to_owned() } else { present.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_ticket_is_in_the_message_where_it_is_known() {
        let text = |ended_s| KerberosError::TicketEnded { cache: "c".into(), ended_s }.to_string();
        assert_eq!(
            text(Some(1_700_000_000)),
            "the Kerberos ticket in the cache c has ended at 2023-11-14T22:13:20Z"
        );
        assert_eq!(text(None), "the Kerberos ticket in the cache c has ended");
    }

    #[test]
    fn refusals_have_next_steps_by_their_cause() {
        let step =
            |code| KerberosError::Refused { code, text: String::new(), server: None }.next_step();
        // Codes as the library returns them.
        for (code, part) in [
            (-1_765_328_347, "clock"),
            (-1_765_328_351, "clock"),
            (-1_765_328_236, "clock"),
            (-1_765_328_228, "network"),
            (-1_765_328_353, "keytab"),
            (-1_765_328_378, "administrator"),
            (-1_765_328_377, "configuration"),
            (-1_765_328_248, "krb5.conf"),
            (-1_765_328_352, "kinit"),
        ] {
            assert!(step(code).contains(part), "{code}: {}", step(code));
        }
    }
}
