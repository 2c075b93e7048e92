//! The ApplicationMaster's process: everything of a real one but the cluster, which grants every request at once.
//!
//! Standard output orders the containers' process (`launch <member>`, `ask <slot>`, `ready`), standard input
//! what the cluster would say (`exit <container>`).

use std::collections::BTreeMap;
use std::io::{BufRead, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use heddle_agent::PeerTimeout;
use heddle_am::api::{self, ApiState, Capacity, Pages};
use heddle_am::attempt_history::AttemptHistory;
use heddle_am::claim::{self, Liveness};
use heddle_am::cluster::{ContainerSource, Events};
use heddle_am::driver::{About, Driver, Sources, WorkerQueues};
use heddle_am::event_log::{EventLog, EventOutput};
use heddle_am::journal::{self, Journal};
use heddle_am::lease::Lease;
use heddle_am::store::Store;
use heddle_am_core::{
    Config, ContainerName, ContainerOrder, ContainerRequest, Core, Event, Exit, Limits,
    RecordedSpec, StartupState, SurvivingContainer,
};
use heddle_protocol::environment::AmAddress;
use heddle_protocol::handshake::{Mechanism, Secret};
use heddle_protocol::ids::{Attempt, Incarnation, Member, Slot};
use heddle_protocol::job_spec::phase_count;
use heddle_protocol::manifest::Salt;
use heddle_protocol::plan_file::PlanFile;
use heddle_protocol::view::JobView;
use heddle_storage::checkpoint::{CheckpointDir, DamagePolicy, Owner};
use heddle_storage::{LocalStorage, StorageUrl};
use heddle_telemetry::descriptors::Limit;
use tokio::sync::{mpsc, watch};

use super::{RUN, Size};

/// File with the job's secret in the job's directory.
pub(super) const SECRET: &str = "secret";
/// File with the address.
pub(super) const ADDRESS: &str = "am.json";

fn say(text: &str) {
    let mut out = std::io::stdout().lock();
    let _gone = writeln!(out, "{text}").and_then(|()| out.flush());
}

/// Grants everything at once.
struct Granting {
    events: Events,
    members: BTreeMap<ContainerName, Member>,
}

impl Granting {
    fn tell(&self, event: Event) {
        let _ending = self.events.send(event);
    }
}

fn container(slot: Slot, incarnation: Incarnation) -> ContainerName {
    ContainerName(format!("container_{slot}_{}", incarnation.0))
}

impl ContainerSource for Granting {
    fn order(&mut self, order: ContainerOrder) {
        match order {
            ContainerOrder::Ask(ContainerRequest { member, .. }) => {
                let Member { slot, incarnation } = member;
                say(&format!("ask {slot}"));
                self.tell(Event::Allocated {
                    container: container(slot, incarnation),
                    slot,
                    incarnation,
                    node: format!("node-{}", slot.index % 100),
                });
            }
            ContainerOrder::Launch { container, member } => {
                let name = container.0.clone();
                self.members.insert(container, member);
                let member = serde_json::to_string(&member).unwrap_or_default();
                say(&format!("launch {name} {member}"));
            }
            ContainerOrder::Stop { container, .. } => {
                let (exit, text) = (Exit::Signal(9), String::new());
                self.tell(Event::Exited { container, exit, text });
            }
            ContainerOrder::CancelAsk(_) | ContainerOrder::Release(_) => {}
        }
    }
}

/// Leads as attempt `arguments[1]` in the directory `arguments[0]`, with the containers that the file `kept` there names.
pub(super) fn lead(arguments: &[String]) -> anyhow::Result<()> {
    let [dir, attempt, size @ ..] = arguments else {
        anyhow::bail!("master <dir> <attempt> <trainers> <pservers> <tasks>");
    };
    let size = Size::parse(size)?;
    // As the real one: one thread for everything but what waits for files.
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(serve(
        Path::new(dir),
        Attempt(attempt.parse()?),
        size,
    ))
}

async fn serve(dir: &Path, attempt: Attempt, size: Size) -> anyhow::Result<()> {
    Limit::raise();
    let secret = Secret::from_hex(std::fs::read_to_string(dir.join(SECRET))?.trim())?;
    let (spec, plan) = (size.spec(), size.plan());
    let place = dir.join("checkpoints");
    std::fs::create_dir_all(&place)?;
    let location = StorageUrl::parse(place.to_str().context("UTF-8")?)?;
    let storage = Arc::new(LocalStorage);
    let checkpoints = CheckpointDir::open_or_create(storage, location.path().clone()).await?;
    let salt = Salt(uuid::Uuid::new_v4());
    let request = claim::ClaimRequest {
        run: RUN,
        owner: Owner::Application { application: "application_1_1".to_owned(), attempt },
        salt,
        at_ms: 0,
        take_over: true,
        fresh: false,
        on_corrupt: DamagePolicy::Previous,
    };
    let gone = |_: &Owner| Liveness::Gone;
    let claimed = claim::claim(&checkpoints, &request, &gone).await?;
    let carried = journal::read(&checkpoints, claimed.generation).await?;
    let journal = Journal::open(checkpoints.clone(), claimed.generation, &carried).await?;
    let (plan_file, bytes) = PlanFile::of(&plan, dir.to_str().context("UTF-8")?)?;
    std::fs::write(&plan_file.url, bytes)?;
    let kept: Vec<SurvivingContainer> = match std::fs::read_to_string(dir.join("kept")) {
        Ok(text) => text
            .lines()
            .map(|name| SurvivingContainer {
                container: ContainerName(name.to_owned()),
                node: "node".to_owned(),
            })
            .collect(),
        Err(_) => Vec::new(),
    };
    let listener = api::bind(IpAddr::V4(Ipv4Addr::LOCALHOST), &[]).await?;
    let address = AmAddress { address: listener.local_addr()?, attempt, pid: std::process::id() };
    let draft = dir.join("am.draft");
    std::fs::write(&draft, serde_json::to_vec(&address)?)?;
    std::fs::rename(&draft, dir.join(ADDRESS))?;
    let (events, receiver) = mpsc::unbounded_channel();
    hear_the_cluster(events.clone());
    let cluster = Granting { events: events.clone(), members: BTreeMap::new() };
    let core = Core::new(Config {
        run: RUN,
        spec: Arc::new(spec.clone()),
        recorded: RecordedSpec::default(),
        plan: Arc::new(plan),
        plan_file,
        address: String::new(),
        started_ms: 0,
        limits: Limits::default(),
        cluster_lease_ms: None,
        locality: Arc::default(),
        output: None,
    });
    let (inputs, incoming) = mpsc::channel(4096);
    let (records, journaled) = mpsc::unbounded_channel();
    let (calls, called) = mpsc::unbounded_channel();
    let (viewer, view) = watch::channel(Arc::new(JobView::starting(RUN, "load", attempt, 0)));
    let store = Store {
        dir: checkpoints,
        location,
        salt,
        run: RUN,
        job: spec.name.clone(),
        generation: claimed.generation,
        overwrite: false,
        permissions: None,
        lease: Lease::default(),
        mirrors: None,
    };
    let base = claimed.base.map(|base| store.checkpoint(base));
    let (warnings, notices) = mpsc::unbounded_channel();
    tokio::spawn(journal.run(journaled, events.clone(), warnings.clone()));
    tokio::spawn(store.run(called, events.clone(), warnings));
    let log = EventLog::new(attempt, EventOutput::LogOnly);
    let pages = Pages::new(view, log.clone());
    let shared = ApiState {
        run: RUN,
        secret: secret.clone(),
        mechanism: Mechanism::Hmac,
        timeout: PeerTimeout::default(),
        inputs,
        pages,
    };
    let capacity = Capacity::within(Limit::now());
    tokio::spawn(api::serve(listener, Arc::new(shared), None, capacity));
    let (_stops, stopped) = mpsc::unbounded_channel();
    let driver = Driver::new(
        core,
        cluster,
        About {
            job: "am-load".to_owned(),
            attempt,
            phases: phase_count(&spec),
            application: None,
            past: AttemptHistory::default(),
            prober: heddle_agent::PeerProbe { run: RUN, secret, mechanism: Mechanism::Hmac },
            mirrors: heddle_am::mirrors::Mirrors::default(),
        },
        WorkerQueues { journal: records, store: calls },
        Sources { inputs: incoming, events: receiver, sender: events, notices, stops: stopped },
        viewer,
        log,
    );
    say("ready");
    let recovered = StartupState {
        attempt,
        generation: claimed.generation,
        journal: carried,
        base,
        checkpoints: Vec::new(),
        damaged: Vec::new(),
        kept,
        unfinished: Vec::new(),
    };
    driver.run(Event::Startup(Box::new(recovered))).await;
    Ok(())
}

/// Reads what the cluster would say. Ends the process with its parent.
fn hear_the_cluster(events: Events) {
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if let Some(container) = line.strip_prefix("exit ") {
                let _ending = events.send(Event::Exited {
                    container: ContainerName(container.to_owned()),
                    exit: Exit::Code(1),
                    text: String::new(),
                });
            }
        }
        std::process::exit(0);
    });
}
