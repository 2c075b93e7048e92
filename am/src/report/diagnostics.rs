//! The diagnostics for the ResourceManager: at most 8 KiB. The first line is sufficient by itself, because many
//! pages and commands show no more.

use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::view::JobState;

use super::{JobReport, format};

/// Most bytes of the diagnostics. The ResourceManager keeps 64 KiB by default (`yarn.app.attempt.diagnostics.limit.kc`),
/// which all attempts of the application share.
pub const BYTES_MAX: usize = 8 * 1024;
/// Most bytes of the first line, so that `yarn application -status` and lists of applications show all of it.
const FIRST_LINE_BYTES_MAX: usize = 1024;

/// The diagnostics for the ResourceManager: fact, cause and next step on the first line, the rest of the message
/// below. `report_url`: the URL of the report, empty if it could not be written.
#[must_use]
pub fn diagnostics(of: &JobReport, report_url: &str) -> String {
    let mut lines = of.message.lines().filter(|line| !line.trim().is_empty());
    let fact = lines.next().unwrap_or_default();
    let mut first = match (of.state, fact) {
        (JobState::Finished, "") => "Heddle: finished".to_owned(),
        (_, "") => {
            format!("Heddle: {} with exit code {}", format::word(&of.state), of.exit_code)
        }
        (_, fact) => format!("Heddle: {} (exit code {})", fact.trim(), of.exit_code),
    };
    if let Some(test) = &of.test
        && of.state == JobState::Finished
    {
        first.push_str(": ");
        first.push_str(test);
    }
    let next = match (&of.model, report_url) {
        (Some(model), "") => format!("; model in {model}"),
        (Some(model), report) => format!("; model in {model}, report in {report}"),
        (None, "") => format!("; {}", next_step(of)),
        (None, report) => format!("; {}; report in {report}", next_step(of)),
    };
    // The fact may be truncated, the next step must not be.
    let room = FIRST_LINE_BYTES_MAX.saturating_sub(next.len());
    let mut text = cut(&format::plain(&first).replace('\t', " "), room).to_owned();
    text.push_str(&format::plain(&next).replace(['\n', '\t'], " "));
    for line in lines {
        text.push('\n');
        text.push_str(&format::plain(line));
    }
    cut(&text, BYTES_MAX).to_owned()
}

/// The user's next step.
fn next_step(of: &JobReport) -> String {
    let application =
        of.application.as_ref().map_or("APPLICATION", |application| application.id.as_str());
    match of.exit_code {
        ExitCode::Ok => "no action is needed".to_owned(),
        ExitCode::Killed => {
            "submit the job again to continue from its newest checkpoint".to_owned()
        }
        ExitCode::Refused => "request fewer or smaller containers, or another queue".to_owned(),
        ExitCode::Busy => {
            "submit the job again later; or request fewer or smaller containers, another queue, or \
             a longer yarn.allocation-timeout"
                .to_owned()
        }
        ExitCode::Denied => "check the permissions of the user on the paths named, their room and \
            quotas"
            .to_owned(),
        ExitCode::Unreachable => "submit the job again when the service named answers".to_owned(),
        ExitCode::Input => "correct the job file or the paths named".to_owned(),
        ExitCode::Checkpoint => "run `heddle checkpoint verify`".to_owned(),
        ExitCode::Fenced => {
            "wait until the run or attempt that owns the checkpoint directory ends".to_owned()
        }
        _ => format!("see `heddle logs --failed-first {application}`"),
    }
}

/// At most the first `bytes_max` bytes of a text, in whole characters.
fn cut(text: &str, bytes_max: usize) -> &str {
    let mut end = bytes_max.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::samples::{failed, finished};
    use super::*;

    #[test]
    fn first_line_has_fact_and_next_step() {
        let report =
            failed(ExitCode::JobFailed, "trainer-0 fails repeatedly\nfinal output: no such file");
        let text = diagnostics(&report, "http://nn:9870/r");
        assert_eq!(
            text,
            "Heddle: trainer-0 fails repeatedly (exit code 1); see `heddle logs --failed-first \
             application_1700000000000_0005`; report in http://nn:9870/r\n\
             final output: no such file"
        );
        assert_eq!(
            diagnostics(&finished(), ""),
            "Heddle: finished: test  log-loss 0.2118  auc 0.9729  accuracy 0.9250; model in \
             hdfs://nn/user/alice/model"
        );
        assert!(
            diagnostics(&failed(ExitCode::Killed, ""), "")
                .starts_with("Heddle: failed with exit code 3; submit")
        );
    }

    proptest! {
        #[test]
        fn diagnostics_fit_for_any_message(
            message in "\\PC{0,3}(ü|\n|\u{1b}|x|漢){0,9000}",
            url in "[a-z/]{0,200}",
        ) {
            let text = diagnostics(&failed(ExitCode::JobFailed, &message), &url);
            prop_assert!(text.len() <= BYTES_MAX);
            let first = text.lines().next().unwrap_or_default();
            prop_assert!(first.len() <= FIRST_LINE_BYTES_MAX);
            prop_assert!(first.ends_with(&url), "the next step is never cut");
            prop_assert!(text.chars().all(|c| c != '\x1b'));
        }
    }
}
