//! Runs the ApplicationMaster of a run as a child process: starts it, prints its events, stops it.
//!
//! Its standard input ties it to this process: if this process dies, the ApplicationMaster reads the end of the pipe
//! and stops.

use std::os::unix::process::ExitStatusExt;
use std::process::{ExitStatus, Stdio};

use heddle_protocol::control::Operation;
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::job_spec::JobSpec;
use heddle_protocol::view::JobEvent;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;

use super::watch::watch;
use crate::am_client;
use crate::event_printer::EventPrinter;
use crate::failure::{CommandFailure, CommandResult, OrFail};
use crate::job_file::short_path;
use crate::runs::LocalRun;
use crate::stop_signals::StopSignals;

/// Starts the ApplicationMaster, with pipes to it and its standard error in a file.
fn start(run: &LocalRun) -> Result<Child, CommandFailure> {
    let of_system = CommandFailure::of_system;
    let program = std::env::current_exe()
        .or_fail_with(of_system, "cannot determine the path of this program")?;
    let logs = run.dir.logs().join("am");
    std::fs::create_dir_all(&logs).or_fail_with(of_system, "cannot create the folder for logs")?;
    let stderr = std::fs::File::create(logs.join("stderr"))
        .or_fail_with(of_system, "cannot create the file for the ApplicationMaster's messages")?;
    Command::new(program)
        .arg("am")
        .arg("--run-dir")
        .arg(run.dir.path())
        .env(heddle_protocol::environment::LOG_DIR, &logs)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(stderr)
        // The terminal's Ctrl-C is for this process, which sends a stop operation.
        .process_group(0)
        .spawn()
        .or_fail_with(of_system, "cannot start the ApplicationMaster")
}

/// Starts the ApplicationMaster, prints its events until it ends, and passes Ctrl-C on. `checkpoint`: whether it takes
/// a last checkpoint when stopped.
///
/// # Errors
/// It cannot be started, died without an outcome, or the output cannot be written.
pub async fn follow(run: &LocalRun, spec: &JobSpec, checkpoint: bool, json: bool) -> CommandResult {
    let mut signals = StopSignals::register()?;
    let mut child = start(run)?;
    // Held to the end: the ApplicationMaster stops when the pipe closes.
    let _leash = child.stdin.take();
    let Some(stdout) = child.stdout.take() else {
        let fact = "the ApplicationMaster has no standard output";
        return Err(CommandFailure::new(ExitCode::Internal, fact));
    };
    let mut lines = BufReader::new(stdout).lines();
    let mut printer = EventPrinter::new(json, spec, run);
    let mut stopped_by = None;
    let mut order = None;
    let mut watching = std::pin::pin!(watch(run));
    loop {
        let signalled = tokio::select! {
            line = lines.next_line() => match line {
                // On a failure nothing reads the pipe any more; closing it stops the job.
                Ok(Some(line)) => {
                    printer.line(&line)?;
                    continue;
                }
                Ok(None) | Err(_) => break,
            },
            failure = refused(&mut order) => {
                if failure.exit == am_client::REFUSED {
                    // The ApplicationMaster responds, so it ends by itself without a new checkpoint.
                    eprintln!("{}", failure.fact);
                    continue;
                }
                eprintln!("{}; killed", failure.fact);
                let _ended = child.kill().await;
                break;
            }
            () = &mut watching => continue,
            signalled = signals.next() => signalled,
        };
        if stopped_by.is_some() {
            eprintln!("killed; run the job again to continue it from its last checkpoint");
            let _ended = child.kill().await;
            return Ok(signalled);
        }
        stopped_by = Some(signalled);
        order = Some(send_stop(run, checkpoint));
    }
    let status = child.wait().await;
    print_missing_end(run, &mut printer)?;
    match (printer.ended(), stopped_by) {
        (Some(ended), None) => Ok(ended),
        // The job may have ended before the operation arrived.
        (Some(ExitCode::Ok), Some(_)) => Ok(ExitCode::Ok),
        (_, Some(signalled)) => Ok(signalled),
        (None, None) => Err(died(run, status.ok())),
    }
}

/// Prints the end of the job from the outcome file, which was written before, where its line did not arrive: the pipe
/// was full for long.
fn print_missing_end(run: &LocalRun, printer: &mut EventPrinter) -> Result<(), CommandFailure> {
    if printer.ended().is_none()
        && let (Some(outcome), Some(view)) = (run.outcome(), run.last_view())
    {
        printer.take(JobEvent::Ended {
            state: outcome.state,
            exit_code: outcome.exit_code,
            message: outcome.message,
            model: outcome.model,
            view: Box::new(view),
        })?;
    }
    Ok(())
}

/// A stop operation in progress; it is answered when the last checkpoint exists.
type StopRequest = JoinHandle<Result<(), CommandFailure>>;

/// Sends the stop operation from a task, so that the loop continues to print events and to handle a second Ctrl-C.
fn send_stop(run: &LocalRun, checkpoint: bool) -> StopRequest {
    let what = match checkpoint {
        true => "saving a checkpoint and stopping",
        false => "stopping",
    };
    eprintln!("{what}; press Ctrl-C again to stop at once");
    let run = run.clone();
    tokio::spawn(async move { run.operate(&Operation::Stop { checkpoint }).await })
}

/// The failure of the stop operation; never returns without one.
///
/// # Cancel safety
/// A running operation continues.
async fn refused(order: &mut Option<StopRequest>) -> CommandFailure {
    if let Some(sent) = order {
        let answer = sent.await;
        *order = None;
        // A task that panicked has reported it; its operation counts as failed.
        if let Err(failure) = answer.unwrap_or_else(|error| {
            Err(CommandFailure::caused(
                ExitCode::Internal,
                "cannot send the stop operation",
                &error,
            ))
        }) {
            return failure;
        }
    }
    std::future::pending().await
}

/// The failure of an ApplicationMaster that ended without an outcome: its final output and the folder of its logs. A
/// kill by a signal is not an internal error.
fn died(run: &LocalRun, status: Option<ExitStatus>) -> CommandFailure {
    let logs = run.dir.logs().join("am");
    let text = std::fs::read_to_string(logs.join("stderr")).unwrap_or_default();
    let (exit, how) = how_it_ended(status);
    let mut failure =
        CommandFailure::new(exit, format!("the ApplicationMaster {how}")).next(format!(
            "see {}; run the job again to continue it from its last checkpoint",
            short_path(&logs)
        ));
    let last: Vec<&str> = text.lines().rev().take(5).collect();
    failure.causes = last.into_iter().rev().map(str::to_owned).collect();
    failure
}

fn how_it_ended(status: Option<ExitStatus>) -> (ExitCode, String) {
    match status.map(|status| (status.code(), status.signal())) {
        Some((_, Some(9))) => (
            ExitCode::Killed,
            "was killed by signal 9 (by an operator, or by the kernel for memory)".to_owned(),
        ),
        Some((_, Some(signal @ (1 | 2 | 15)))) => {
            (ExitCode::Killed, format!("was ended by signal {signal}"))
        }
        Some((_, Some(signal))) => (ExitCode::Internal, format!("crashed with signal {signal}")),
        Some((Some(code), _)) => {
            (ExitCode::Internal, format!("ended with exit code {code} and without an outcome"))
        }
        Some((None, None)) | None => (ExitCode::Internal, "ended without an outcome".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn end_of_the_applicationmaster_is_described() {
        let killed = how_it_ended(Some(ExitStatus::from_raw(9)));
        assert_eq!(killed.0, ExitCode::Killed);
        assert!(killed.1.starts_with("was killed by signal 9"), "{killed:?}");
        let crashed = how_it_ended(Some(ExitStatus::from_raw(11)));
        assert_eq!(crashed, (ExitCode::Internal, "crashed with signal 11".to_owned()));
        let ended = how_it_ended(Some(ExitStatus::from_raw(101 << 8)));
        assert!(ended.1.contains("exit code 101"), "{ended:?}");
    }
}
