//! The ApplicationMaster of a local run, from its run directory to its exit code.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use heddle_am_core::{Limits, Outcome};
use heddle_protocol::control::Operation;
use heddle_protocol::environment::{
    AM_FILE, AmAddress, DATA_THREADS, DEAD_MS, PORTS, PROTECTION, RUN, SECRET_FILE,
};
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::handshake::Mechanism;
use heddle_protocol::ids::{Attempt, RunId};
use heddle_protocol::job_spec::{JobSpec, LivenessTimes};
use heddle_protocol::view::{self, JobState, JobView, WarningCode};
use heddle_storage::checkpoint::Owner;
use tokio::net::TcpStream;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tracing::Instrument as _;
use uuid::Uuid;

use super::listen::bind;
use super::prepare::{PreparationInputs, Prepared, prepare};
use super::run_job::{JobContext, run_job};
use super::start_failure::StartFailure;
use crate::claim;
use crate::cluster::local::{LocalCluster, LocalLaunch};
use crate::driver::job_span;
use crate::event_log::{EventLog, EventOutput};
use crate::lease::Lease;
use crate::run_dir::{RunDir, RunFile};

/// A local run has one ApplicationMaster; the next one is another run.
const ATTEMPT: Attempt = Attempt(1);
/// For `network.protection = "auto"`: this machine has no cluster whose setting counts.
const NO_CLUSTER: bool = false;
/// Timeout of a connection to this process's own port.
const REACH_LIMIT: Duration = Duration::from_secs(3);
/// How long the owner of a checkpoint directory may take to end, and the time between two checks.
const OWNER_TIMEOUT: Duration = Duration::from_secs(1);
const OWNER_RETRY_WAIT: Duration = Duration::from_millis(100);

/// Runs the job of this directory to its end.
pub(super) async fn lead(dir: &RunDir, program: &Path) -> (Outcome, JobView) {
    let events = EventLog::new(ATTEMPT, EventOutput::StandardOutput);
    match try_to_lead(dir, program, &events).await {
        Ok(ended) => ended,
        Err(refusal) => refused(dir, refusal, &events),
    }
}

fn refused(dir: &RunDir, refusal: StartFailure, events: &EventLog) -> (Outcome, JobView) {
    tracing::error!(exit_code = %refusal.exit_code, message = refusal.message, "run_not_started");
    let file = dir.run_file().ok();
    let outcome = refusal.outcome();
    let view = empty_view(file.as_ref(), refusal.message);
    // Otherwise the core reports the end; this job ended before the core began.
    let ended = view::JobEvent::Ended {
        state: outcome.state,
        exit_code: outcome.exit_code,
        message: outcome.message.clone(),
        model: None,
        view: Box::new(view.clone()),
    };
    events.publish(ended, |_, _| None);
    (outcome, view)
}

/// The view of a run that did not start.
fn empty_view(file: Option<&RunFile>, message: String) -> JobView {
    let (run, name, started_ms) = file.map_or((RunId(Uuid::nil()), "", 0), |file| {
        (file.run, file.name.as_str(), file.started_ms)
    });
    JobView {
        state: JobState::Failed,
        message,
        ..JobView::starting(run, name, ATTEMPT, started_ms)
    }
}

async fn try_to_lead(
    dir: &RunDir,
    program: &Path,
    log: &EventLog,
) -> Result<(Outcome, JobView), StartFailure> {
    let file = dir.run_file()?;
    let span = job_span(&file.name, ATTEMPT, None);
    lead_run(dir, program, log, file).instrument(span).await
}

async fn lead_run(
    dir: &RunDir,
    program: &Path,
    log: &EventLog,
    file: RunFile,
) -> Result<(Outcome, JobView), StartFailure> {
    for warning in &file.warnings {
        log.warn(WarningCode::CheckpointDirLost, warning.clone());
    }
    let spec = dir.spec()?;
    let secret = dir.secret()?;
    let owner = claim::local_owner().map_err(|error| {
        StartFailure::new(
            ExitCode::Internal,
            format!("cannot determine the start time of this process: {error}"),
        )
    })?;
    let (listener, address) = bind(IpAddr::V4(Ipv4Addr::LOCALHOST), &spec).await?;
    reach_myself(address).await?;
    let run_dir = dir.url()?;
    let prepared = prepare_with_retries(&file, &spec, &owner, &run_dir, log).await?;
    let attempt = ATTEMPT;
    dir.write("am.json", &AmAddress { address, attempt, pid: std::process::id() })?;
    let (events, receiver) = mpsc::unbounded_channel();
    let (stops, stopped) = mpsc::unbounded_channel();
    let cluster = LocalCluster::start(local_launch(dir, &file, &spec, program), events.clone())
        .map_err(|error| {
            StartFailure::new(
                ExitCode::Internal,
                format!("cannot start the thread that starts containers: {error}"),
            )
        })?;
    watch_for_stops(stops);
    let context = JobContext {
        file: &file,
        spec: &spec,
        run_dir: &run_dir,
        secret,
        mechanism: spec.network.protection.mechanism(NO_CLUSTER),
        attempt,
        listener,
        gate: None,
        address: format!("http://{address}/"),
        limits: Limits::of_job(&spec, spec.run.orphan_timeout().0),
        cluster_lease_ms: None,
        application: None,
        cluster,
        kept: Vec::new(),
        placement: None,
        past: None,
        events: (events, receiver),
        log: log.clone(),
        stops: stopped,
    };
    Ok(run_job(prepared, context).await)
}

/// Checks loopback, over which local containers connect. A machine may lack it (`unshare -n`, some sandboxes), and each
/// container would retry for minutes.
async fn reach_myself(address: SocketAddr) -> Result<(), StartFailure> {
    let tried = tokio::time::timeout(REACH_LIMIT, TcpStream::connect(address)).await;
    let cause = match tried {
        Ok(Ok(_stream)) => return Ok(()),
        Ok(Err(error)) => error.to_string(),
        Err(_) => format!("no answer within {} s", REACH_LIMIT.as_secs()),
    };
    Err(StartFailure::new(
        ExitCode::Input,
        format!(
            "cannot connect to this process at {address}: {cause}; a local run needs the loopback interface (ip link set lo up)"
        ),
    ))
}

/// Prepares the job, and retries shortly while another run owns the checkpoint directory: a process that was just
/// killed takes some milliseconds to end.
async fn prepare_with_retries(
    file: &RunFile,
    spec: &JobSpec,
    owner: &Owner,
    run_dir: &str,
    events: &EventLog,
) -> Result<Prepared, StartFailure> {
    let begun = Instant::now();
    loop {
        let announce = std::future::ready(Ok(()));
        let (owner, lease) = (owner.clone(), Lease::default());
        let inputs = PreparationInputs { file, spec, owner, lease, run_dir, events };
        match prepare(inputs, &claim::liveness, announce).await {
            // With --take-over, a new owner has superseded this process.
            Err(refusal)
                if refusal.exit_code == ExitCode::Fenced
                    && !file.take_over
                    && begun.elapsed() < OWNER_TIMEOUT =>
            {
                tracing::debug!(message = refusal.message, "claim_retried");
                tokio::time::sleep(OWNER_RETRY_WAIT).await;
            }
            done => return done,
        }
    }
}

fn local_launch(dir: &RunDir, file: &RunFile, spec: &JobSpec, program: &Path) -> LocalLaunch {
    let text = |path: PathBuf| path.to_string_lossy().into_owned();
    let mut variables = vec![
        (RUN.to_owned(), file.run.to_string()),
        (AM_FILE.to_owned(), text(dir.am_file())),
        (SECRET_FILE.to_owned(), text(dir.secret_file())),
        (DATA_THREADS.to_owned(), spec.pservers.vcores.to_string()),
        (DEAD_MS.to_owned(), LivenessTimes::of(spec).dead_ms.to_string()),
    ];
    if spec.network.protection.mechanism(NO_CLUSTER) == Mechanism::Noise {
        variables.push((PROTECTION.to_owned(), "on".to_owned()));
    }
    if let Some(ports) = spec.network.ports {
        variables.push((PORTS.to_owned(), ports.to_string()));
    }
    LocalLaunch {
        program: program.to_owned(),
        trainer_command: spec.trainers.command.clone(),
        job_dir: file.job_dir.clone(),
        run_dir: dir.path().to_owned(),
        variables,
    }
}

/// Both the end of the command line (standard input closes) and SIGTERM request an orderly stop.
fn watch_for_stops(stops: mpsc::UnboundedSender<Operation>) {
    let on_signal = stops.clone();
    tokio::spawn(async move {
        let Ok(mut terminate) = signal(SignalKind::terminate()) else {
            return;
        };
        while terminate.recv().await.is_some() {
            tracing::info!("sigterm_received");
            let _ending = on_signal.send(Operation::Stop { checkpoint: true });
        }
    });
    // A separate thread: reading standard input cannot be cancelled, and must not delay the end of the runtime.
    let reading =
        std::thread::Builder::new().name("stdin".into()).stack_size(64 * 1024).spawn(move || {
            let mut byte = [0u8; 64];
            loop {
                match std::io::Read::read(&mut std::io::stdin(), &mut byte) {
                    Ok(0) | Err(_) => break,
                    Ok(_) => {}
                }
            }
            tracing::info!("command_line_ended");
            let _ending = stops.send(Operation::Stop { checkpoint: true });
        });
    if let Err(error) = reading {
        tracing::warn!(%error, "command_line_not_watched");
    }
}
