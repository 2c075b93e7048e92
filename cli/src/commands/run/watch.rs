//! Checks whether the ApplicationMaster of a local run responds.
//!
//! Its events arrive by a pipe, where silence is normal: a pass may take hours. This module therefore reads its view
//! periodically, and reports an ApplicationMaster that does not respond (SIGSTOP, a machine out of memory) with the
//! next step.

use std::time::{Duration, Instant};

use crate::output;
use crate::runs::LocalRun;

/// Poll interval.
const ASK_EVERY: Duration = Duration::from_secs(5);
/// Silence that is reported. A healthy ApplicationMaster of this machine responds in milliseconds. It does not listen
/// during its preparation, which reads the directory listings of the input.
const SILENCE_MAX: Duration = Duration::from_secs(15);

/// The responses so far; pure.
#[derive(Debug, Default)]
struct Silence {
    /// Whether it has responded once; before that it prepares.
    answered: bool,
    since: Option<Instant>,
    reported: bool,
}

#[derive(Debug, PartialEq, Eq)]
enum SilenceChange {
    Silent(Duration),
    Back,
}

impl Silence {
    fn note(&mut self, answers: bool, now: Instant) -> Option<SilenceChange> {
        if answers {
            self.answered = true;
            self.since = None;
            return std::mem::take(&mut self.reported).then_some(SilenceChange::Back);
        }
        if !self.answered {
            return None;
        }
        let since = now.saturating_duration_since(*self.since.get_or_insert(now));
        if since < SILENCE_MAX || self.reported {
            return None;
        }
        self.reported = true;
        Some(SilenceChange::Silent(since))
    }
}

/// Polls without end and reports changes.
pub(super) async fn watch(run: &LocalRun) {
    let mut silence = Silence::default();
    loop {
        tokio::time::sleep(ASK_EVERY).await;
        let Some(am) = run.am() else { continue };
        let answers = run.view().await.is_ok();
        match silence.note(answers, Instant::now()) {
            Some(SilenceChange::Silent(since)) => output::note(&format!(
                "warning: the ApplicationMaster (process {}) has not responded for {} s; it may be stopped \
                 (kill -CONT {} resumes it) or the machine overloaded. Ctrl-C twice ends the run, which can be continued",
                am.pid,
                since.as_secs(),
                am.pid
            )),
            Some(SilenceChange::Back) => output::note("the ApplicationMaster responds again"),
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_is_reported_once_and_so_is_its_end() {
        let mut silence = Silence::default();
        let start = Instant::now();
        let at = |s| start + Duration::from_secs(s);
        assert_eq!(silence.note(false, at(0)), None);
        assert_eq!(silence.note(false, at(100)), None, "it prepares");
        assert_eq!(silence.note(true, at(101)), None);
        assert_eq!(silence.note(false, at(110)), None);
        assert_eq!(silence.note(false, at(120)), None);
        let news = Some(SilenceChange::Silent(Duration::from_secs(15)));
        assert_eq!(silence.note(false, at(125)), news);
        assert_eq!(silence.note(false, at(130)), None);
        assert_eq!(silence.note(true, at(200)), Some(SilenceChange::Back));
        assert_eq!(silence.note(true, at(205)), None);
    }
}
