//! The ApplicationMaster of a local run, from its run directory to its exit code.
//!
//! ```text
//! run directory → checkpoint directory → claim → journal → input plan → server → core and driver
//! ```
//!
//! Whatever goes wrong on the way ends the run with one sentence and the exit code of the command
//! line; nothing is started before all of it holds.

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use heddle_am_core::{Config, Core, Event, Limits, Outcome, Record, Recovered};
use heddle_protocol::control::Operation;
use heddle_protocol::environment::{AM_FILE, AmAddress, DATA_THREADS, PORTS, RUN, SECRET_FILE};
use heddle_protocol::ids::{Attempt, CutId, RunId};
use heddle_protocol::manifest::{InputPlan, Manifest, Salt};
use heddle_protocol::spec::{self, JobSpec};
use heddle_protocol::view::{self, JobState, JobView};
use heddle_storage::checkpoint::{CheckpointDir, CheckpointError, Depth, Health};
use heddle_storage::{Location, Reason, StorageError, chain, connect};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};
use uuid::Uuid;

use crate::api::{self, Shared};
use crate::claim::{self, ClaimError, Claimed};
use crate::cluster::local::{LocalCluster, LocalLaunch};
use crate::driver::{Driver, Sources, Workers, notice, wall_ms};
use crate::input::{self, InputError};
use crate::journal::{self, Journal, JournalError};
use crate::run_dir::{Earlier, RunDir, RunDirError, RunFile};
use crate::store::Store;

/// Inputs on their way to the driver. Containers that report faster than it takes them in are held up by TCP.
const INPUTS_IN_FLIGHT: usize = 4096;

/// Why a run did not start: the sentence for people and the exit code.
#[derive(Debug)]
struct Refusal {
    exit_code: u8,
    message: String,
}

impl Refusal {
    fn new(exit_code: u8, message: impl Into<String>) -> Self {
        Self {
            exit_code,
            message: message.into(),
        }
    }
}

impl From<RunDirError> for Refusal {
    fn from(error: RunDirError) -> Self {
        Self::new(7, chain(&error))
    }
}

impl From<InputError> for Refusal {
    fn from(error: InputError) -> Self {
        let code = match &error {
            InputError::Storage { source, .. } => code_of(source),
            InputError::Location { .. } | InputError::Empty { .. } => 7,
        };
        Self::new(code, chain(&error))
    }
}

impl From<CheckpointError> for Refusal {
    fn from(error: CheckpointError) -> Self {
        let code = match &error {
            CheckpointError::Storage(source) => code_of(source),
            CheckpointError::Foreign { .. } | CheckpointError::NotOurs { .. } => 7,
            error if error.is_fenced() => 9,
            _ => 8,
        };
        Self::new(code, format!("checkpoint.dir: {}", chain(&error)))
    }
}

impl From<ClaimError> for Refusal {
    fn from(error: ClaimError) -> Self {
        match error {
            ClaimError::Checkpoint(error) => error.into(),
            error => Self::new(9, chain(&error)),
        }
    }
}

impl From<JournalError> for Refusal {
    fn from(error: JournalError) -> Self {
        let code = if error.is_fenced() {
            9
        } else if error.is_retryable() {
            6
        } else {
            8
        };
        Self::new(code, chain(&error))
    }
}

fn code_of(error: &StorageError) -> u8 {
    match &error.reason {
        Reason::Denied | Reason::Quota(_) => 5,
        Reason::Unavailable => 6,
        _ => 7,
    }
}

/// Runs the ApplicationMaster of the run in this directory; returns the process's exit code.
///
/// # Errors
/// When the system gives no runtime.
pub fn run(run_dir: &Path, program: &Path) -> std::io::Result<u8> {
    let dir = RunDir::open(run_dir);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let (outcome, view) = runtime.block_on(async {
        match lead(&dir, program).await {
            Ok(ended) => ended,
            Err(refusal) => refused(&dir, refusal),
        }
    });
    for (name, result) in [
        ("outcome.json", dir.write("outcome.json", &outcome)),
        ("view.json", dir.write("view.json", &view)),
    ] {
        if let Err(error) = result {
            tracing::warn!(
                error = chain(&error),
                name,
                "the end could not be written down"
            );
        }
    }
    // Children of this process are killed by the kernel with it; storage tasks that hang are not waited for.
    runtime.shutdown_background();
    Ok(outcome.exit_code)
}

/// Runs the ApplicationMaster of an application on YARN, in its container's work directory; returns the process's exit code.
///
/// # Errors
/// When the system gives no runtime.
pub fn run_on_yarn() -> std::io::Result<u8> {
    Err(std::io::ErrorKind::Unsupported.into())
}

fn refused(dir: &RunDir, refusal: Refusal) -> (Outcome, JobView) {
    tracing::error!(
        exit_code = refusal.exit_code,
        message = refusal.message,
        "the run did not start"
    );
    let file = dir.run_file().ok();
    let outcome = Outcome {
        state: JobState::Failed,
        exit_code: refusal.exit_code,
        message: refusal.message.clone(),
        model: None,
    };
    let view = empty_view(file.as_ref(), refusal.message);
    // The core says how a job ended; this one never came to it.
    notice(&view::Event::Ended {
        state: outcome.state,
        exit_code: outcome.exit_code,
        message: outcome.message.clone(),
        model: None,
        view: Box::new(view.clone()),
    });
    (outcome, view)
}

fn empty_view(file: Option<&RunFile>, message: String) -> JobView {
    let (run, name, started_ms) = file.map_or((RunId(Uuid::nil()), "", 0), |file| {
        (file.run, file.name.as_str(), file.started_ms)
    });
    JobView {
        state: JobState::Failed,
        message,
        ..JobView::starting(run, name, Attempt(1), started_ms)
    }
}

async fn lead(dir: &RunDir, program: &Path) -> Result<(Outcome, JobView), Refusal> {
    let file = dir.run_file()?;
    let spec = dir.spec()?;
    let secret = dir.secret()?;

    let place = spec.checkpoint.dir.url();
    let location = Location::parse(&place)
        .map_err(|error| Refusal::new(7, format!("checkpoint.dir = {place}: {error}")))?;
    let storage =
        connect(&location).map_err(|error| Refusal::from(CheckpointError::from(error)))?;
    let checkpoints =
        CheckpointDir::open_or_create(Arc::clone(&storage), location.path().clone()).await?;
    let salt = Salt(Uuid::new_v4());
    let claimed = take_claim(&checkpoints, &file, &spec, salt).await?;
    let history = match file.earlier {
        Earlier::Fresh => Vec::new(),
        Earlier::ContinueSame | Earlier::Resume => {
            journal::read(&checkpoints, claimed.generation).await?
        }
    };
    let base_cut = claimed.base.as_ref().map(|base| base.manifest.cut);
    journal::check_base(&checkpoints, &history, base_cut)?;
    let carried = may_continue(
        &file,
        &spec,
        claimed.base.as_ref().map(|base| &base.manifest),
        history,
    )?;
    let plan = match &claimed.base {
        // Names of tasks mean what they meant when the checkpoint was made.
        Some(base) => unchanged(base.manifest.plan.clone(), &input::plan(&spec).await?)?,
        None => input::plan(&spec).await?,
    };
    let journal = Journal::open(checkpoints.clone(), claimed.generation, &carried).await?;

    let ports: Vec<u16> = spec
        .network
        .ports
        .map_or_else(Vec::new, |range| range.ports().collect());
    let listener = api::bind(IpAddr::V4(Ipv4Addr::LOCALHOST), &ports)
        .await
        .map_err(|error| {
            Refusal::new(
                7,
                format!("network.ports: none can be listened on: {error}"),
            )
        })?;
    let address = listener
        .local_addr()
        .map_err(|error| Refusal::new(10, format!("the listening port has no address: {error}")))?;
    let attempt = Attempt(1);
    dir.write(
        "am.json",
        &AmAddress {
            address,
            attempt,
            pid: std::process::id(),
        },
    )?;

    let store = Store {
        dir: checkpoints.clone(),
        location,
        salt,
        run: file.run,
        job: spec.name.clone(),
        overwrite: file.overwrite,
    };
    let recovered = Recovered {
        attempt,
        generation: claimed.generation,
        journal: carried,
        base: claimed.base.clone().map(|base| store.checkpoint(base)),
        checkpoints: known(&checkpoints, &store).await?,
        kept: Vec::new(),
    };
    let output = spec.output.model.url();
    let core = Core::new(Config {
        run: file.run,
        spec: Arc::new(spec.clone()),
        plan: Arc::new(plan),
        address: format!("http://{address}/"),
        started_ms: file.started_ms,
        limits: Limits {
            orphan_ms: spec.run.orphan_timeout().0,
            ..Limits::default()
        },
        cluster_lease_ms: None,
        locality: Arc::default(),
        output: Some(output),
    });

    let (events, receiver) = mpsc::unbounded_channel();
    let (inputs, incoming) = mpsc::channel(INPUTS_IN_FLIGHT);
    let (stops, stopped) = mpsc::unbounded_channel();
    let (records, journaled) = mpsc::unbounded_channel();
    let (calls, called) = mpsc::unbounded_channel();
    let (viewer, view) = watch::channel(Arc::new(JobView::starting(
        file.run,
        &file.name,
        attempt,
        file.started_ms,
    )));
    let cluster = LocalCluster::start(local_launch(dir, &file, &spec, program), events.clone())
        .map_err(|error| Refusal::new(10, format!("no thread to start containers: {error}")))?;
    watch_for_stops(stops);
    tokio::spawn(journal.run(journaled, events.clone()));
    tokio::spawn(store.run(called, events.clone()));
    let shared = Shared {
        run: file.run,
        secret,
        inputs,
        view,
    };
    tokio::spawn(api::serve(listener, Arc::new(shared)));
    let driver = Driver::new(
        core,
        cluster,
        attempt,
        Workers {
            journal: records,
            store: calls,
        },
        Sources {
            inputs: incoming,
            events: receiver,
            sender: events,
            stops: stopped,
        },
        viewer,
    );
    Ok(driver.run(Event::Recovered(Box::new(recovered))).await)
}

async fn take_claim(
    dir: &CheckpointDir,
    file: &RunFile,
    spec: &JobSpec,
    salt: Salt,
) -> Result<Claimed, Refusal> {
    let owner = claim::local_owner().map_err(|error| {
        Refusal::new(
            10,
            format!("the system does not tell who this process is: {error}"),
        )
    })?;
    let request = claim::Request {
        run: file.run,
        owner,
        salt,
        at_ms: wall_ms(),
        take_over: file.take_over,
        fresh: file.earlier == Earlier::Fresh,
        on_corrupt: match spec.checkpoint.on_corrupt {
            spec::OnCorrupt::Previous => heddle_storage::checkpoint::OnCorrupt::Previous,
            spec::OnCorrupt::Fail => heddle_storage::checkpoint::OnCorrupt::Fail,
        },
    };
    Ok(claim::claim(dir, &request, &claim::liveness).await?)
}

/// Whether this spec may go on from what is there; the records to carry over if so.
fn may_continue(
    file: &RunFile,
    spec: &JobSpec,
    base: Option<&Manifest>,
    history: Vec<Record>,
) -> Result<Vec<Record>, Refusal> {
    let mut longer = false;
    if let Some(base) = base
        && base.spec_digest != spec.digest().0
    {
        let before: JobSpec = serde_json::from_value(base.spec.clone()).map_err(|error| {
            Refusal::new(
                8,
                format!(
                    "checkpoint {}: its job spec is not readable: {error}",
                    base.cut
                ),
            )
        })?;
        let differences = spec.differences(&before.keys());
        let told: Vec<_> = differences
            .iter()
            .map(|difference| {
                format!(
                    "{} was {} and is {}",
                    difference.key, difference.before, difference.now
                )
            })
            .collect();
        if let Some(never) = differences
            .iter()
            .find(|difference| !difference.allowed_on_resume)
        {
            return Err(Refusal::new(
                7,
                format!(
                    "checkpoint.dir holds a run of another spec ({}); {} cannot change under a run: use --fresh to train anew, or another checkpoint.dir",
                    told.join(", "),
                    never.key
                ),
            ));
        }
        if !differences.is_empty() && file.earlier != Earlier::Resume {
            return Err(Refusal::new(
                7,
                format!(
                    "checkpoint.dir holds a run of another spec ({}): use --resume to go on with the new values, or --fresh to train anew",
                    told.join(", ")
                ),
            ));
        }
        longer = differences
            .iter()
            .any(|difference| difference.key == "data.passes");
    }
    let finished = history.iter().rev().find_map(|record| match record {
        Record::Outcome(outcome) => Some(outcome.state == JobState::Finished),
        _ => None,
    });
    if finished == Some(true) && !longer {
        return Err(Refusal::new(
            7,
            "the run in checkpoint.dir is finished: use --fresh to train anew, or raise data.passes and use --resume",
        ));
    }
    // An outcome ends the life of one run; this one goes on.
    Ok(history
        .into_iter()
        .filter(|record| !matches!(record, Record::Outcome(_)))
        .collect())
}

/// The plan of the checkpoint, if the files are still what they were.
fn unchanged(planned: InputPlan, found: &InputPlan) -> Result<InputPlan, Refusal> {
    let (before, now) = (&planned.files, &found.files);
    let same = before.len() == now.len()
        && before
            .iter()
            .zip(now)
            .all(|(a, b)| a.url == b.url && a.bytes == b.bytes);
    if same {
        return Ok(planned);
    }
    let changed = before
        .iter()
        .find(|file| {
            !now.iter()
                .any(|other| other.url == file.url && other.bytes == file.bytes)
        })
        .or_else(|| {
            now.iter()
                .find(|file| !before.iter().any(|other| other.url == file.url))
        });
    let which = changed.map_or("a file", |file| file.url.as_str());
    Err(Refusal::new(
        7,
        format!(
            "data.train, data.test: {which} is not what it was when the checkpoint was made (added, removed or of another length): \
             restore it, or use --fresh to train anew"
        ),
    ))
}

async fn known(
    dir: &CheckpointDir,
    store: &Store,
) -> Result<Vec<heddle_am_core::Checkpoint>, Refusal> {
    let mut found = Vec::new();
    for candidate in dir.listing(Depth::Shallow).await? {
        if let (true, Health::Good(checkpoint)) = (candidate.in_lineage, candidate.health) {
            found.push(store.checkpoint(*checkpoint));
        }
    }
    found.sort_by_key(|checkpoint: &heddle_am_core::Checkpoint| -> CutId {
        checkpoint.manifest.cut
    });
    Ok(found)
}

fn local_launch(dir: &RunDir, file: &RunFile, spec: &JobSpec, program: &Path) -> LocalLaunch {
    let text = |path: PathBuf| path.to_string_lossy().into_owned();
    let mut variables = vec![
        (RUN.to_owned(), file.run.to_string()),
        (AM_FILE.to_owned(), text(dir.am_file())),
        (SECRET_FILE.to_owned(), text(dir.secret_file())),
        (DATA_THREADS.to_owned(), spec.pservers.vcores.to_string()),
    ];
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

/// The command line's death (standard input ends) and SIGTERM both mean: end in order.
fn watch_for_stops(stops: mpsc::UnboundedSender<Operation>) {
    let on_signal = stops.clone();
    tokio::spawn(async move {
        let Ok(mut terminate) = signal(SignalKind::terminate()) else {
            return;
        };
        while terminate.recv().await.is_some() {
            tracing::info!("asked to end by SIGTERM");
            let _ending = on_signal.send(Operation::Stop { checkpoint: true });
        }
    });
    // A thread of its own: reading standard input cannot be cancelled, and must not hold up the runtime's end.
    let reading = std::thread::Builder::new()
        .name("stdin".into())
        .stack_size(64 * 1024)
        .spawn(move || {
            let mut byte = [0u8; 64];
            loop {
                match std::io::Read::read(&mut std::io::stdin(), &mut byte) {
                    Ok(0) | Err(_) => break,
                    Ok(_) => {}
                }
            }
            tracing::info!("the command line is gone");
            let _ending = stops.send(Operation::Stop { checkpoint: true });
        });
    if let Err(error) = reading {
        tracing::warn!(%error, "the command line's end will not be noticed");
    }
}
