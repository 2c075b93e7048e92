//! Runs a prepared job to its end: wires core, journal, store, server and driver to one cluster.

use std::sync::Arc;
use std::time::Duration;

use heddle_am_core::{
    Config, Core, Event, Limits, Outcome, RecordedSpec, StartupState, SurvivingContainer,
};
use heddle_channel::{PeerProbe, PeerTimeout};
use heddle_protocol::control::Operation;
use heddle_protocol::handshake::{Mechanism, Secret};
use heddle_protocol::ids::Attempt;
use heddle_protocol::job_spec::{BatchFeatures, JobSpec, Location, phase_count};
use heddle_protocol::view::{ApplicationView, AttemptView, JobEvent, JobView, Placement};
use heddle_telemetry::descriptors::Limit;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tracing::{Instrument as _, Span, info_span};

use super::prepare::Prepared;
use crate::api::{self, ApiState, Capacity, PageGate, Pages};
use crate::attempt_history;
use crate::cluster::ContainerSource;
use crate::driver::{About, Driver, Sources, WorkerQueues};
use crate::event_log::EventLog;
use crate::plan_file::{self, KeptPlan};
use crate::run_dir::RunFile;

/// Most inputs in the queue of the driver. TCP slows containers that report faster than the driver handles.
const INPUTS_IN_FLIGHT: usize = 4096;

/// Between two looks at the plan's file: how long a lost trainer's successor may find none.
const PLAN_LOOK_EVERY: Duration = Duration::from_secs(5);

/// The context that a job runs in.
pub(super) struct JobContext<'a, C> {
    pub(super) file: &'a RunFile,
    pub(super) spec: &'a JobSpec,
    /// The directory of the plan (a URL).
    pub(super) run_dir: &'a str,
    pub(super) secret: Secret,
    /// How connections of the job are secured.
    pub(super) mechanism: Mechanism,
    pub(super) attempt: Attempt,
    pub(super) listener: TcpListener,
    /// Access control for the pages; `None` allows all clients.
    pub(super) gate: Option<Arc<PageGate>>,
    /// Address of the job's pages.
    pub(super) address: String,
    pub(super) limits: Limits,
    pub(super) cluster_lease_ms: Option<u64>,
    pub(super) application: Option<ApplicationView>,
    pub(super) cluster: C,
    pub(super) kept: Vec<SurvivingContainer>,
    /// The container of this ApplicationMaster, on YARN.
    pub(super) placement: Option<Placement>,
    /// Where the history of attempts is kept, on YARN.
    pub(super) past: Option<attempt_history::HistoryDir>,
    pub(super) events: (mpsc::UnboundedSender<Event>, mpsc::UnboundedReceiver<Event>),
    /// The log of events, with the warnings of the preparation.
    pub(super) log: EventLog,
    pub(super) stops: mpsc::UnboundedReceiver<Operation>,
}

/// Runs the job to its end, and keeps its plan where trainers read it meanwhile.
pub(super) async fn run_job<C: ContainerSource>(
    prepared: Prepared,
    context: JobContext<'_, C>,
) -> (Outcome, JobView) {
    let (warnings, noticed) = mpsc::unbounded_channel();
    let secret = context.application.is_some().then(|| context.secret.clone());
    let kept = KeptPlan::new(&prepared.plan, &prepared.plan_file, context.run_dir, secret);
    let keeping = plan_file::keep(kept, PLAN_LOOK_EVERY, warnings.clone());
    let keeping = tokio::spawn(keeping.instrument(info_span!("plan")));
    let ended = drive(prepared, context, warnings, noticed).await;
    // Before the directory is removed.
    keeping.abort();
    ended
}

fn first_view(file: &RunFile, attempt: Attempt, application: &Option<ApplicationView>) -> JobView {
    let view = JobView::starting(file.run, &file.name, attempt, file.started_ms);
    JobView { application: application.clone(), ..view }
}

async fn drive<C: ContainerSource>(
    prepared: Prepared,
    context: JobContext<'_, C>,
    warnings: mpsc::UnboundedSender<JobEvent>,
    notices: mpsc::UnboundedReceiver<JobEvent>,
) -> (Outcome, JobView) {
    let JobContext { file, spec, attempt, application, past, log, listener, gate, .. } = context;
    let (events, receiver) = context.events;
    let mut before = earlier_attempts(past.as_ref(), attempt, context.placement).await;
    log.continue_from(before.history.clone(), std::mem::take(&mut before.events));
    let base = prepared.base.as_ref().map(|base| base.manifest.cut);
    let recorded = prepared.base.as_ref().map(|base| base.manifest.spec.clone());
    let recovered = StartupState {
        attempt,
        generation: prepared.generation,
        journal: prepared.carried,
        base: prepared.base.map(|base| prepared.store.checkpoint(base)),
        damaged: prepared.damaged,
        checkpoints: prepared.checkpoints,
        kept: context.kept,
        unfinished: std::mem::take(&mut before.unfinished),
    };
    let timeout = PeerTimeout(Duration::from_millis(context.limits.dead_ms));
    let core = Core::new(Config {
        run: file.run,
        spec: Arc::new(started_spec(spec, prepared.init, recorded.as_ref())),
        recorded: RecordedSpec::default(),
        plan: prepared.plan,
        plan_file: prepared.plan_file,
        address: context.address,
        started_ms: file.started_ms,
        limits: context.limits,
        cluster_lease_ms: context.cluster_lease_ms,
        locality: Arc::new(prepared.locality),
        output: Some(spec.output.model.url()),
    });
    let (inputs, incoming) = mpsc::channel(INPUTS_IN_FLIGHT);
    let (records, journaled) = mpsc::unbounded_channel();
    let (calls, called) = mpsc::unbounded_channel();
    let (viewer, view) = watch::channel(Arc::new(first_view(file, attempt, &application)));
    if let Some(place) = past {
        tokio::spawn(place.keep(attempt, view.clone(), log.clone()).in_current_span());
    }
    spawn(info_span!("journal"), prepared.journal.run(journaled, events.clone(), warnings.clone()));
    let mut store = prepared.store;
    let mirrors = store.start_mirrors(&spec.checkpoint, base, &warnings);
    spawn(info_span!("store"), store.run(called, events.clone(), warnings));
    let pages = Pages::new(view, log.clone());
    let (secret, mechanism) = (context.secret, context.mechanism);
    let prober = PeerProbe { run: file.run, secret: secret.clone(), mechanism };
    let shared = ApiState { run: file.run, secret, mechanism, timeout, inputs, pages };
    serve(listener, shared, gate);
    let workers = WorkerQueues { journal: records, store: calls };
    let stops = context.stops;
    let sources = Sources { inputs: incoming, events: receiver, sender: events, notices, stops };
    let about = About {
        job: file.name.clone(),
        attempt,
        phases: phase_count(spec),
        application,
        past: before,
        prober,
        mirrors: mirrors.clone(),
    };
    let ended = Driver::new(core, context.cluster, about, workers, sources, viewer, log)
        .run(Event::Startup(Box::new(recovered)))
        .await;
    mirrors.finish().await;
    ended
}

/// The history of earlier attempts, with this one.
async fn earlier_attempts(
    past: Option<&attempt_history::HistoryDir>,
    attempt: Attempt,
    placement: Option<Placement>,
) -> attempt_history::AttemptHistory {
    let mut before = match past {
        Some(place) if attempt.0 > 1 => place.read().await,
        _ => attempt_history::AttemptHistory::default(),
    };
    if let Some(placement) = placement {
        before.history.add_attempt(AttemptView { attempt, placement });
    }
    before
}

/// The job with the checkpoint that was found for `model.init`, so that each start from initial values takes the same one.
/// Batches are closed, and tasks dealt to lanes, as in the run that is continued, whose spec is `recorded`.
fn started_spec(
    spec: &JobSpec,
    init: Option<Location>,
    recorded: Option<&serde_json::Value>,
) -> JobSpec {
    let mut spec = spec.clone();
    spec.model.init = init.or(spec.model.init);
    if let Some(recorded) = recorded {
        spec.batch_features = BatchFeatures::recorded(recorded);
        spec.lanes_keep_tasks =
            recorded.get("lanes-keep-tasks").is_some_and(|keeps| *keeps == true);
    }
    spec
}

/// Starts the server of the job's pages and control connections.
fn serve(listener: TcpListener, state: ApiState, gate: Option<Arc<PageGate>>) {
    let capacity = Capacity::within(Limit::now());
    spawn(info_span!("api"), api::serve(listener, Arc::new(state), gate, capacity));
}

/// Starts a task whose log lines carry the job's span and this one.
fn spawn(span: Span, task: impl Future<Output = ()> + Send + 'static) {
    tokio::spawn(task.instrument(span));
}

#[cfg(test)]
mod tests {
    use heddle_protocol::job_spec::Bytes;
    use heddle_protocol::job_spec::job::sample;

    use super::*;

    /// The memory may be raised for it; steps of its tasks stay the same records.
    #[test]
    fn continued_run_closes_batches_where_it_began_to() {
        let with = |bytes| JobSpec { batch_features: BatchFeatures::of(bytes), ..sample() };
        let (before, now) = (with(Bytes::mib(512)), with(Bytes::mib(2048)));
        let json = |spec: &JobSpec| serde_json::from_slice(&spec.to_json()).expect("JSON");
        assert_eq!(started_spec(&now, None, None), now);
        assert_eq!(started_spec(&now, None, Some(&json(&before))), before);
        let (older, kept) =
            (BatchFeatures::default(), JobSpec { lanes_keep_tasks: true, ..now.clone() });
        assert!(!started_spec(&kept, None, Some(&json(&before))).lanes_keep_tasks);
        assert!(started_spec(&now, None, Some(&json(&kept))).lanes_keep_tasks);
        assert_eq!(started_spec(&now, None, Some(&json(&sample()))).batch_features, older);
    }
}
