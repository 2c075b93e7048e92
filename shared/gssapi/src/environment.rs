//! Changes of this process's environment, which C libraries read without a lock.

use std::ffi::OsStr;

/// The process has threads already, which may read the environment at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the environment can be changed only before the first thread starts")]
pub struct NotSingleThreaded;

/// Sets variables, such as `KRB5CCNAME`, for this process and the libraries that it loads. For the start of `main`.
///
/// # Errors
/// The process has more than one thread, or their number is unknown. Nothing is changed then.
#[expect(unsafe_code, reason = "changes the environment")]
pub fn set_variables<N, V>(
    variables: impl IntoIterator<Item = (N, V)>,
) -> Result<(), NotSingleThreaded>
where
    N: AsRef<OsStr>,
    V: AsRef<OsStr>,
{
    // The iterator is the caller's code and runs before the check.
    let variables: Vec<(N, V)> = variables.into_iter().collect();
    let threads = std::fs::read_dir("/proc/self/task").map_err(|_| NotSingleThreaded)?.count();
    if threads != 1 {
        return Err(NotSingleThreaded);
    }
    for (name, value) in variables {
        // SAFETY: this is the only thread of the process, so nothing reads the environment during the change.
        unsafe { std::env::set_var(name, value) };
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_threads_keeps_its_environment() {
        // The harness of the tests has a thread for each test.
        let set = set_variables([("HEDDLE_GSSAPI_TEST", "1")]);
        assert_eq!(set, Err(NotSingleThreaded));
        assert_eq!(std::env::var_os("HEDDLE_GSSAPI_TEST"), None);
    }
}
