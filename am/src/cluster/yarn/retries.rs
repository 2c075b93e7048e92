//! Retries of an attempt's first and last calls to the ResourceManager, so that its restart does not cost the attempt.

use std::time::Duration;

use heddle_storage::chain;
use heddle_yarn::{AmError, ApplicationMaster};
use tokio::time::Instant;

use super::order::Finish;

/// Pause after a failed call, to limit the load on a ResourceManager that restarts.
pub(super) const FAILED_PAUSE: Duration = Duration::from_millis(500);

/// Makes a call. Retries for as long as the ResourceManager would wait for this attempt.
pub(super) async fn with_retries<T>(
    silence_max: Duration,
    what: &'static str,
    mut call: impl AsyncFnMut() -> Result<T, AmError>,
) -> Result<T, AmError> {
    let since = Instant::now();
    loop {
        match call().await {
            Err(error) if error.is_retryable() && since.elapsed() < silence_max => {
                tracing::warn!(error = chain(&error), what, "resource_manager_call_failed");
                tokio::time::sleep(FAILED_PAUSE).await;
            }
            answer => return answer,
        }
    }
}

/// Unregisters the attempt. (A loop of its own: the future of an asynchronous closure that borrows cannot be spawned.)
pub(super) async fn unregister(mut am: ApplicationMaster, finish: Finish, silence_max: Duration) {
    let Finish { status, diagnostics, tracking_url, reply } = finish;
    let since = Instant::now();
    let ended = loop {
        match am.finish(status, &diagnostics, &tracking_url).await {
            Err(error) if error.is_retryable() && since.elapsed() < silence_max => {
                tracing::warn!(error = chain(&error), "unregister_failed");
                tokio::time::sleep(FAILED_PAUSE).await;
            }
            ended => break ended,
        }
    };
    let _gone = reply.send(ended);
}

#[cfg(test)]
mod tests {
    use heddle_hadoop::rpc::RpcError;

    use super::*;

    fn no_server() -> RpcError {
        RpcError::NoServer { protocol: "the test's".into() }
    }

    #[tokio::test]
    async fn first_calls_outlast_a_restart_of_the_resourcemanager() {
        let mut calls = 0;
        let answer = with_retries(Duration::from_secs(60), "a call", async || {
            calls += 1;
            match calls {
                1 => Err(AmError::Unreachable(no_server())),
                2 => Err(AmError::Failed(no_server())),
                _ => Ok(calls),
            }
        });
        assert_eq!(answer.await.expect("an answer after the restart"), 3);
    }

    #[tokio::test]
    async fn first_calls_end_with_the_attempt() {
        let refused = |error: fn() -> AmError, limit| {
            with_retries(limit, "a call", async move || Err::<(), _>(error()))
        };
        let long = Duration::from_secs(60);
        let fenced = refused(|| AmError::Shutdown, long).await;
        assert!(fenced.is_err_and(|error| error.is_fenced()));
        let silent = refused(|| AmError::Unreachable(no_server()), Duration::ZERO);
        assert!(silent.await.is_err());
    }
}
