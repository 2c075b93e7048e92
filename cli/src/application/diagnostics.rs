//! Parses the ResourceManager's diagnostics. They are free text of the ResourceManager, a NodeManager or our
//! ApplicationMaster.

use heddle_protocol::exit_code::ExitCode;
use heddle_yarn::client::{refuses_for_now, refuses_tokens};

/// The exit code in diagnostics: our ApplicationMaster writes `(exit code 7)`, a NodeManager `exited with  exitCode:
/// 7`.
#[must_use]
pub fn exit_of(diagnostics: &str) -> Option<ExitCode> {
    let after = |mark: &str| {
        let (_, rest) = diagnostics.rsplit_once(mark)?;
        let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
        digits.parse::<u8>().ok()
    };
    if refuses_tokens(diagnostics) {
        return Some(ExitCode::Denied);
    }
    if refuses_for_now(diagnostics) {
        return Some(ExitCode::Busy);
    }
    let code = after("(exit code ").or_else(|| after("exitCode: "))?;
    // Signals and YARN's own numbers are not exit codes of this program.
    match code {
        2 => Some(ExitCode::Internal),
        1..=10 | 75 => Some(ExitCode::from(code)),
        // An ApplicationMaster of an older version, whose job an operator stopped.
        130 => Some(ExitCode::Killed),
        _ => None,
    }
}

/// The ResourceManager's diagnostics without the time of day at their front, `[Sat Nov 21 …] `.
#[must_use]
pub fn without_time(text: &str) -> &str {
    let text = text.trim();
    match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((time, rest)) if time.contains(':') => rest.trim(),
        _ if text == "N/A" => "",
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_removed_from_diagnostics() {
        let said = "[Sat Nov 21 15:00:00 +0000 2026] Application is added to the scheduler and is \
            not yet activated. ";
        assert_eq!(
            without_time(said),
            "Application is added to the scheduler and is not yet activated."
        );
        assert_eq!(without_time("N/A"), "");
        assert_eq!(without_time("[x] y"), "[x] y");
    }

    #[test]
    fn exit_code_is_found_in_diagnostics() {
        let ours = "Heddle: data.train: no file (exit code 7); see …";
        assert_eq!(exit_of(ours), Some(ExitCode::Input));
        let timeout = "not enough containers came in 600 s: … (exit code 75); see …";
        assert_eq!(exit_of(timeout), Some(ExitCode::Busy));
        let node = "AM Container for appattempt_1 exited with  exitCode: 9\nFailing this attempt";
        assert_eq!(exit_of(node), Some(ExitCode::Fenced));
        let ordered = "stopped by an operator (exit code 130)";
        assert_eq!(exit_of(ordered), Some(ExitCode::Killed));
        assert_eq!(exit_of("exited with  exitCode: 137"), None);
        assert_eq!(exit_of("Failed to renew token: Kind: …"), Some(ExitCode::Denied));
        let full =
            "Queue root.x already has 1 applications, cannot accept submission of application: a";
        assert_eq!(exit_of(full), Some(ExitCode::Busy));
        assert_eq!(exit_of("timed out"), None);
    }
}
