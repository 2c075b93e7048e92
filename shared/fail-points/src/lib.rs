//! Fail points: places in product code where a test makes a process exit, stop or wait.
//!
//! The crate `fail` holds the configuration, the variable `FAILPOINTS` with entries `name=action` and `;` between them.
//! Its own actions such as `sleep(25)` work at every fail point. `return(effect,condition,…)` adds:
//!
//! | effect | meaning |
//! | --- | --- |
//! | `exit` | the process exits at once with code 137, as after signal 9 |
//! | `stop` | the process stops (SIGSTOP) until it receives SIGCONT |
//! | `sleep=MS` | the thread sleeps for MS milliseconds |
//! | a value | [`fail_value!`] returns it |
//!
//! | condition | holds |
//! | --- | --- |
//! | `NAME=VALUE` | this fact of the place or of the process ([`setup`]) has this value |
//! | `while=FILE` | the file exists |
//! | `changed=NAME` | the fact differs from its value at the first check in this process; must be the last condition |
//!
//! Fail points are compiled in with the feature `failpoints` alone. The tests of the whole system turn it on; a release
//! build has it off, and then a fail point compiles to nothing.
//!
//! ```
//! let cut = "g1-c3";
//! heddle_fail_points::fail_point!("before-rename", cut = cut);
//! ```

#[cfg(feature = "failpoints")]
mod enabled;

#[cfg(feature = "failpoints")]
pub use enabled::{hit, setup, value};

/// Reads `FAILPOINTS` and keeps facts of this process, such as its incarnation. Call it once, when the process starts.
#[cfg(not(feature = "failpoints"))]
pub fn setup(_facts: &[(&'static str, u32)]) {}

/// A place where a test can inject a failure: `fail_point!("name", fact = value, …)`. Facts are evaluated only if
/// fail points are compiled in.
#[cfg(feature = "failpoints")]
#[macro_export]
macro_rules! fail_point {
    ($name:literal $(, $fact:ident = $value:expr)* $(,)?) => {
        $crate::hit($name, &[$((stringify!($fact), &$value)),*])
    };
}

/// A place where a test can inject a value: `fail_value!("name", fact = value, …)` is an `Option<String>`.
#[cfg(feature = "failpoints")]
#[macro_export]
macro_rules! fail_value {
    ($name:literal $(, $fact:ident = $value:expr)* $(,)?) => {
        $crate::value($name, &[$((stringify!($fact), &$value)),*])
    };
}

/// A place where a test can inject a failure; no code. The facts are only checked as types are.
#[cfg(not(feature = "failpoints"))]
#[macro_export]
macro_rules! fail_point {
    ($name:literal $(, $fact:ident = $value:expr)* $(,)?) => {
        let _never_called = || { $(let _ = &$value;)* };
    };
}

/// A place where a test can inject a value; always `None`.
#[cfg(not(feature = "failpoints"))]
#[macro_export]
macro_rules! fail_value {
    ($name:literal $(, $fact:ident = $value:expr)* $(,)?) => {{
        let _never_called = || { $(let _ = &$value;)* };
        None::<String>
    }};
}
