//! The flags that state how a command waits for an application.

/// Set what Ctrl-C does to a job that a command waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum OnInterrupt {
    /// Save a checkpoint and end the job; a second Ctrl-C ends it at once
    Kill,
    /// Leave the job running
    Detach,
}

/// How a command waits for a job.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct WaitArgs {
    /// Set what Ctrl-C does
    #[arg(long, value_enum, default_value = "kill", value_name = "WHAT")]
    pub on_interrupt: OnInterrupt,
    /// Stop waiting after this time (exit code 124); the job continues to run
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub wait_timeout: Option<std::time::Duration>,
}

/// Parses a time with its unit, `60s`.
///
/// # Errors
/// The expected form.
pub fn duration(text: &str) -> Result<std::time::Duration, String> {
    let parsed = text.parse::<heddle_protocol::job_spec::DurationMs>();
    parsed
        .map(heddle_protocol::job_spec::DurationMs::as_duration)
        .map_err(|error| error.to_string())
}
