//! What the end of an attempt by the ResourceManager means: another attempt leads, or the application is over.
//!
//! **Intuition.** The ResourceManager refuses the heartbeat of an attempt that it has ended, and the refusal is the same for a
//! killed application and a replaced attempt. Containers of a killed application whose NodeManagers are gone would live until
//! their orphan timeout, while those of a replaced attempt belong to the next one.
//!
//! **Rule.** The report of the application decides: a final state means that it is over; another current attempt, or no such
//! report within two seconds, means that this one was replaced. While an application is being killed its report has the state
//! before.

use std::time::Duration;

use heddle_am_core::Event;
use heddle_storage::chain;
use heddle_yarn::{ApplicationAttemptId, ApplicationState, Cluster, YarnClient};
use tokio::time::{Instant, sleep, timeout_at};

/// For the question. The containers go on without an answer, as those of a replaced attempt.
const ASK_LIMIT: Duration = Duration::from_secs(2);
/// Between two questions.
const ASK_EVERY: Duration = Duration::from_millis(200);

/// What a report of the application shows about an attempt that was ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AttemptEnd {
    /// No attempt follows.
    ApplicationOver(ApplicationState),
    /// Another attempt leads.
    Replaced,
    /// Neither is certain yet.
    Open,
}

fn classify(
    own: ApplicationAttemptId,
    state: Option<ApplicationState>,
    current: Option<ApplicationAttemptId>,
) -> AttemptEnd {
    match state {
        Some(state) if state.is_final() => AttemptEnd::ApplicationOver(state),
        _ if current.is_some_and(|current| current.attempt > own.attempt) => AttemptEnd::Replaced,
        Some(_) | None => AttemptEnd::Open,
    }
}

/// The core's event for an attempt that the ResourceManager has ended for `reason`.
pub(super) async fn event(cluster: &Cluster, own: ApplicationAttemptId, reason: String) -> Event {
    let client = YarnClient::new(cluster);
    match timeout_at(Instant::now() + ASK_LIMIT, asked(&client, own)).await {
        Ok(AttemptEnd::ApplicationOver(state)) => {
            tracing::warn!(?state, "application_over");
            Event::ApplicationOver { reason: format!("it is {state:?} ({reason})") }
        }
        Ok(AttemptEnd::Replaced | AttemptEnd::Open) | Err(_) => Event::Fenced { reason },
    }
}

async fn asked(client: &YarnClient, own: ApplicationAttemptId) -> AttemptEnd {
    loop {
        match client.report(own.application).await {
            Ok(report) => match classify(own, report.state, report.attempt) {
                AttemptEnd::Open => {}
                certain => return certain,
            },
            Err(error) if error.is_retryable() => {}
            Err(error) => {
                tracing::info!(error = chain(&error), "application_state_unknown");
                return AttemptEnd::Open;
            }
        }
        sleep(ASK_EVERY).await;
    }
}

#[cfg(test)]
mod tests {
    use heddle_yarn::ApplicationId;

    use super::*;

    #[test]
    fn only_a_final_state_of_the_application_dismisses_containers() {
        use ApplicationState as State;
        let application = ApplicationId { cluster_timestamp: 1, id: 1 };
        let attempt = |attempt| ApplicationAttemptId { application, attempt };
        for (state, current, expected) in [
            (Some(State::Killed), Some(1), AttemptEnd::ApplicationOver(State::Killed)),
            (Some(State::Failed), Some(1), AttemptEnd::ApplicationOver(State::Failed)),
            (Some(State::Finished), Some(2), AttemptEnd::ApplicationOver(State::Finished)),
            // Attempt 2 waits for its container, or leads.
            (Some(State::Accepted), Some(2), AttemptEnd::Replaced),
            (Some(State::Running), Some(2), AttemptEnd::Replaced),
            // It is being killed, or the next attempt is not there yet.
            (Some(State::Running), Some(1), AttemptEnd::Open),
            (Some(State::Accepted), None, AttemptEnd::Open),
            (None, None, AttemptEnd::Open),
        ] {
            let found = classify(attempt(1), state, current.map(attempt));
            assert_eq!(found, expected, "{state:?} {current:?}");
        }
    }
}
