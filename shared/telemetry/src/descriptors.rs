//! The limit of open files (RLIMIT_NOFILE, getrlimit(2)): raised once at the start of a process of a job.
//!
//! The usual soft limit is 1,024, a default for programs that call select(2). Heddle's processes use epoll and hold a
//! connection per container (ApplicationMaster) or per trainer and data thread (parameter server). The
//! operator sets the hard limit; [`Limit::check`] returns an error if a job needs more.

use std::sync::OnceLock;

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Soft and hard limit before [`Limit::raise`].
static INHERITED: OnceLock<(u64, u64)> = OnceLock::new();

/// Descriptors reserved for logs, libraries, HDFS and the ResourceManager where the limit allows it.
pub const RESERVED: u64 = 256;
/// Descriptors that every process of a job needs.
const LEAST: u64 = 32;

/// Number of files that this process may open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit(pub u64);

/// A job needs more files than a process may open.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{what} needs {needed} open files, but the hard limit here is {limit}; raise nofile (ulimit -Hn, \
     LimitNOFILE= of the service that starts it) or use fewer containers"
)]
pub struct TooFew {
    /// The process, and its purpose.
    pub what: String,
    /// Descriptors it needs at least.
    pub needed: u64,
    /// Descriptors it may have.
    pub limit: u64,
}

impl Limit {
    /// The present soft limit; unlimited if the system does not report it.
    #[must_use]
    pub fn now() -> Self {
        Self(getrlimit(Resource::RLIMIT_NOFILE).map_or(u64::MAX, |(soft, _)| soft))
    }

    /// What a process of a job that this one starts can raise it to.
    #[must_use]
    pub fn hard() -> Self {
        Self(getrlimit(Resource::RLIMIT_NOFILE).map_or(u64::MAX, |(_, hard)| hard))
    }

    /// Raises the soft limit to the hard one and returns it. A failure is logged, and the old limit stays.
    pub fn raise() -> Self {
        match getrlimit(Resource::RLIMIT_NOFILE) {
            Ok((soft, hard)) if soft < hard => {
                let _kept = INHERITED.set((soft, hard));
                if let Err(error) = setrlimit(Resource::RLIMIT_NOFILE, hard, hard) {
                    tracing::warn!(soft, hard, %error, "open_files_limit_not_raised");
                }
            }
            Ok(_) => {}
            Err(error) => tracing::warn!(%error, "open_files_limit_unknown"),
        }
        let limit = Self::now();
        tracing::debug!(limit = limit.0, "open_files_limit_set");
        limit
    }

    /// Restores the inherited soft limit in a child process: a user's program may call select(2), which fails above 1,024.
    /// Called between fork and exec; it makes one system call and allocates nothing.
    ///
    /// # Errors
    /// The system rejects the limit.
    pub fn restore_in_child() -> std::io::Result<()> {
        if let Some((soft, hard)) = INHERITED.get() {
            setrlimit(Resource::RLIMIT_NOFILE, *soft, *hard)?;
        }
        Ok(())
    }

    /// Checks that `connections` of `what` fit beside the descriptors that every process needs. It rejects only what
    /// certainly fails.
    ///
    /// # Errors
    /// They do not fit.
    pub fn check(self, what: &str, connections: u64) -> Result<(), TooFew> {
        let needed = connections.saturating_add(LEAST);
        if needed > self.0 {
            return Err(TooFew { what: what.to_owned(), needed, limit: self.0 });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn soft_limit_is_raised_to_the_hard_one() {
        let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("limits");
        assert_eq!(Limit::raise(), Limit(hard));
        assert_eq!(Limit::now(), Limit(hard));
    }

    #[test]
    fn error_names_the_limit_to_raise() {
        assert_eq!(Limit(1024).check("the ApplicationMaster", 992), Ok(()));
        let error = Limit(1024)
            .check("the ApplicationMaster of 1,100 containers", 1100)
            .expect_err("too few");
        let text = error.to_string();
        for part in ["1,100 containers", "1132", "1024", "nofile"] {
            assert!(text.contains(part), "{part} is missing in {text}");
        }
    }
}
