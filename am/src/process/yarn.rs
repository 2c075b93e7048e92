//! Lifecycle of the ApplicationMaster on YARN: start, register, run, unregister.
//!
//! ```text
//! container → ports ┬─ register, heartbeats, containers of an earlier attempt ─┐
//!                   └─ claim, then journal, plan and address on HDFS ──────────┴─ job → report → unregister
//! ```
//!
//! Both branches run concurrently, since neither needs the other. `unregister` decides the end: a job that is over or
//! refused is unregistered; a job that stopped because a service was unreachable is left to the next attempt; a
//! superseded attempt makes no call.

mod attempt_end;
mod inputs;
mod owner_liveness;
mod token_keeper;
mod token_schedule;
mod tokens;
mod unregister;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use heddle_am_core::{Event, Limits};
use heddle_hadoop::kerberos::TicketSource;
use heddle_protocol::environment::AmAddress;
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::job_spec::LivenessTimes;
use heddle_storage::chain;
use heddle_storage::checkpoint::{CheckpointDir, Owner};
use heddle_yarn::am::Registered;
use heddle_yarn::{Access, AmEndpoint};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tracing::Instrument as _;

use super::listen::bind;
use super::prepare::{PreparationInputs, Prepared, prepare};
use super::run_job::{JobContext, run_job};
use super::start_failure::StartFailure;
use crate::api::{PageGate, Viewers, WebProxy};
use crate::claim::same_application;
use crate::cluster::Events;
use crate::cluster::yarn::{
    ContainerCredentials, Gone, JoinError, Joined, Joining, Sizes, YarnLaunch, join,
};
use crate::driver::job_span;
use crate::event_log::{EventLog, EventOutput};
use crate::lease::Lease;
use crate::node_address;
use crate::run_dir::RunDir;
use crate::staging::KEYTAB;
use inputs::{ContainerInputs, SubmittedFiles};
use owner_liveness::YarnOwners;
use token_keeper::{TokenKeeper, TokenLogin};
use unregister::{Fenced, Unregistration};

/// Nothing is committed when the last answer of the ResourceManager is older than this: the rule of MapReduce
/// (`yarn.app.mapreduce.am.job.committer.commit-window`).
const LEASE_MS: u64 = 10_000;
/// Time for the next attempt to start after the expiry and to write its address.
const START_MS: u64 = 60_000;

/// Runs the application of this container to its end; returns the process's exit code.
pub(super) async fn lead(dir: &RunDir) -> ExitCode {
    end_on_sigterm();
    let inputs = match ContainerInputs::read() {
        Ok(inputs) => inputs,
        Err(refusal) => return refusal.print(),
    };
    tracing::info!(
        attempt = %inputs.environment.attempt(),
        since_submit_ms = inputs.since_submit_ms(),
        "application_master_started"
    );
    match SubmittedFiles::read(dir, &inputs) {
        Ok(files) => {
            let span = job_span(&files.run.name, inputs.attempt(), None);
            lead_with(&inputs, &files).instrument(span).await
        }
        // Unregister: another attempt would find the same files.
        Err(refusal) => unregister_unstarted(&inputs, &refusal).await,
    }
}

async fn lead_with(inputs: &ContainerInputs, files: &SubmittedFiles) -> ExitCode {
    let attempt = match StartedAttempt::open(inputs, files).await {
        Ok(attempt) => attempt,
        Err(refusal) => return unregister_unstarted(inputs, &refusal).await,
    };
    let judge = YarnOwners::new(&inputs.cluster, inputs.environment.attempt().application);
    let lease = Lease::new(Duration::from_millis(LEASE_MS));
    let preparation = PreparationInputs {
        file: &files.run,
        spec: &files.spec,
        owner: attempt.owner.clone(),
        lease: lease.clone(),
        run_dir: &files.yarn.staging,
        events: &attempt.log,
    };
    let (joined, prepared) = tokio::join!(
        joined(inputs, attempt.joining(lease.clone()), attempt.events.0.clone()),
        async {
            attempt.wait_for_tokens().await;
            files.write_grant(&attempt.listening.1, &attempt.log).await;
            prepare(preparation, &judge, files.write_address(&attempt.listening.1)).await
        },
    );
    match joined {
        Ok((joined, None)) => attempt.registered(joined, prepared).await,
        Ok((joined, Some(error))) => {
            let refusal = StartFailure::new(ExitCode::Refused, not_granted(&error));
            attempt.registered(joined, Err(refusal)).await
        }
        Err(refusal) => refusal.print(),
    }
}

/// An attempt before its registration.
struct StartedAttempt<'a> {
    inputs: &'a ContainerInputs,
    files: &'a SubmittedFiles,
    listening: (TcpListener, AmAddress),
    gate: Arc<PageGate>,
    owner: Owner,
    containers: ContainerCredentials,
    keeper: Option<TokenKeeper>,
    events: (Events, mpsc::UnboundedReceiver<Event>),
    log: EventLog,
}

impl<'a> StartedAttempt<'a> {
    /// Opens the port, and starts to fetch tokens if the job has a keytab.
    async fn open(
        inputs: &'a ContainerInputs,
        files: &'a SubmittedFiles,
    ) -> Result<Self, StartFailure> {
        let (listening, gate) = (listen(inputs, files).await?, gate(inputs, files)?);
        let events = mpsc::unbounded_channel();
        let containers = inputs.for_containers();
        let keeper = tokens(inputs, files, &containers, &events.0)?;
        let owner = Owner::Application {
            application: files.yarn.application.clone(),
            attempt: inputs.attempt(),
        };
        let log = EventLog::new(inputs.attempt(), EventOutput::LogOnly);
        Ok(Self { inputs, files, listening, gate, owner, containers, keeper, events, log })
    }

    /// Waits for tokens where the submission's tokens are dead. The attempt registers meanwhile.
    async fn wait_for_tokens(&self) {
        if let Some(keeper) = self.keeper.as_ref().filter(|_| self.inputs.usable_tokens().is_none())
        {
            keeper.first().await;
        }
    }

    fn joining(&self, lease: Lease) -> Joining {
        let launch = launch(self.inputs, self.files, &self.listening.1, self.containers.clone());
        joining(self.inputs, Sizes::of(&self.files.spec), launch, lease, self.log.clone())
    }

    /// Runs the job of a registered attempt, or ends the application.
    async fn registered(
        self,
        joined: Joined,
        prepared: Result<Prepared, StartFailure>,
    ) -> ExitCode {
        let Self { inputs, files, listening, gate, owner, keeper, events, log, .. } = self;
        let Registered { queue, acls, .. } = joined.registered.clone().unwrap_or_default();
        if let Some(named) = acls.get(&Access::View) {
            match viewers(inputs, files, named) {
                Ok(viewers) => gate.set_viewers(viewers),
                Err(refusal) => return refusal.print(),
            }
        }
        let mut unregistration =
            Unregistration::new(inputs, files, joined.cluster.clone(), queue, log);
        unregistration.tokens = keeper;
        let prepared = match prepared {
            Ok(prepared) => prepared,
            Err(refusal) => return unregistration.refused(refusal).await,
        };
        if let Some(outcome) = prepared.ended.clone() {
            tracing::info!(?outcome, "job_already_ended");
            return unregistration.ended(outcome, None, Fenced::Not).await;
        }
        tracing::info!(
            since_submit_ms = inputs.since_submit_ms(),
            kept = joined.kept.len(),
            "job_starting"
        );
        let attempt =
            RegisteredAttempt { inputs, files, listening, gate, owner, unregistration, events };
        run(attempt, joined, prepared).await
    }
}

/// A registered attempt whose job can begin.
struct RegisteredAttempt<'a> {
    inputs: &'a ContainerInputs,
    files: &'a SubmittedFiles,
    listening: (TcpListener, AmAddress),
    gate: Arc<PageGate>,
    owner: Owner,
    unregistration: Unregistration<'a>,
    events: (Events, mpsc::UnboundedReceiver<Event>),
}

/// Runs the job to its end and unregisters.
async fn run(attempt: RegisteredAttempt<'_>, joined: Joined, prepared: Prepared) -> ExitCode {
    let RegisteredAttempt { inputs, files, listening, gate, owner, unregistration, events } =
        attempt;
    let Joined { cluster, kept, mut gone, .. } = joined;
    // Orders to stop come only by the control API.
    let (_stops, stopped) = mpsc::unbounded_channel();
    let context = JobContext {
        file: &files.run,
        spec: &files.spec,
        run_dir: &files.yarn.staging,
        secret: files.secret.clone(),
        mechanism: inputs.mechanism(&files.spec),
        attempt: inputs.attempt(),
        listener: listening.0,
        gate: Some(gate),
        address: inputs.tracking_url(&listening.1),
        limits: limits(inputs, files),
        cluster_lease_ms: Some(LEASE_MS),
        application: Some(unregistration.application.clone()),
        cluster,
        kept,
        placement: Some(inputs.placement()),
        past: files.past(),
        events,
        log: unregistration.events.clone(),
        stops: stopped,
    };
    let dir = prepared.store.dir.clone();
    let fencing = context.events.0.clone();
    let job = run_job(prepared, context);
    tokio::pin!(job);
    let (outcome, view) = tokio::select! {
        ended = &mut job => ended,
        lost = &mut gone => match lost {
            // Containers continue training, and the next attempt takes them over.
            Ok(Gone::Silent(reason)) => {
                return StartFailure::new(ExitCode::Unreachable, reason).print();
            }
            Ok(Gone::Fenced(reason)) => {
                let own = inputs.environment.attempt();
                let fence = async {
                    let event = attempt_end::event(&inputs.cluster, own, reason).await;
                    // The job may have ended by itself.
                    let _ended = fencing.send(event);
                };
                let ((outcome, view), ()) = tokio::join!(job, fence);
                return unregistration.ended(outcome, Some(view), Fenced::ByAttempt).await;
            }
            // The session ends without a word only with the job.
            Err(_) => {
                let (outcome, view) = job.await;
                return unregistration.ended(outcome, Some(view), Fenced::ByAttempt).await;
            }
        },
    };
    let fenced = match outcome.exit_code {
        ExitCode::Fenced => fenced_by(&dir, &owner).await,
        _ => Fenced::Not,
    };
    unregistration.ended(outcome, Some(view), fenced).await
}

/// What has superseded an attempt that the ResourceManager still considers current. If that cannot be determined, it
/// counts as a later attempt: then no call is made, and the ResourceManager decides.
async fn fenced_by(dir: &CheckpointDir, owner: &Owner) -> Fenced {
    let highest = match dir.claimed().await.map(|claimed| claimed.last().copied()) {
        Ok(Some(highest)) => dir.claim(highest).await,
        Ok(None) => return Fenced::ByAttempt,
        Err(error) => Err(error),
    };
    match highest {
        Ok(claim) if !same_application(&claim.owner, owner) => Fenced::ByAnother,
        Ok(_) => Fenced::ByAttempt,
        Err(error) => {
            tracing::warn!(error = chain(&error), "leader_unknown");
            Fenced::ByAttempt
        }
    }
}

async fn listen(
    inputs: &ContainerInputs,
    files: &SubmittedFiles,
) -> Result<(TcpListener, AmAddress), StartFailure> {
    let name = inputs.environment.node_host.clone();
    let servers: Vec<String> =
        inputs.cluster.resource_managers().iter().map(ToString::to_string).collect();
    let no_address = |error: String| {
        StartFailure::new(
            ExitCode::Unreachable,
            format!("NM_HOST = {} cannot be resolved: {error}", inputs.environment.node_host),
        )
    };
    // The resolver blocks.
    let found = tokio::task::spawn_blocking(move || node_address::of_node(&name, &servers)).await;
    let host = found
        .map_err(|error| no_address(error.to_string()))?
        .map_err(|error| no_address(error.to_string()))?;
    let (listener, address) = bind(host, &files.spec).await?;
    let address = AmAddress { address, attempt: inputs.attempt(), pid: std::process::id() };
    Ok((listener, address))
}

/// Access control for the pages: YARN's proxy and the cluster's view ACL.
fn gate(inputs: &ContainerInputs, files: &SubmittedFiles) -> Result<Arc<PageGate>, StartFailure> {
    let ContainerInputs { environment, configuration, .. } = inputs;
    let base = environment.web_proxy_base.clone();
    let base = base.unwrap_or_else(|| format!("/proxy/{}", files.yarn.application));
    let proxy =
        WebProxy::of(configuration, &base, &environment.node_host).map_err(|e| unfit(&e))?;
    Ok(PageGate::new(proxy, viewers(inputs, files, "")?))
}

/// The users that may view the pages, when the ResourceManager named these at the registration.
fn viewers(
    inputs: &ContainerInputs,
    files: &SubmittedFiles,
    named: &str,
) -> Result<Option<Viewers>, StartFailure> {
    let view_acl = &files.spec.yarn.view_acl;
    Viewers::of(&inputs.configuration, &files.yarn.user, [view_acl, named]).map_err(|e| unfit(&e))
}

fn unfit(error: &dyn std::error::Error) -> StartFailure {
    let message = format!("cannot use the configuration: {}", chain(error));
    StartFailure::new(ExitCode::Input, message)
}

/// Reports how long the tokens of the submission last, and starts to fetch others if the job has a keytab.
fn tokens(
    inputs: &ContainerInputs,
    files: &SubmittedFiles,
    containers: &ContainerCredentials,
    events: &Events,
) -> Result<Option<TokenKeeper>, StartFailure> {
    let principal = files.yarn.keytab_principal.as_deref();
    // With a keytab the job does not end with dead tokens: others come.
    let counts = principal.is_none() || inputs.usable_tokens().is_some();
    if let Some(lifetime) = inputs.token_lifetime().filter(|_| counts) {
        // The driver that receives it starts later.
        let _received = events.send(Event::TokensLast(lifetime));
    }
    let Some(principal) = principal else {
        return Ok(None);
    };
    let login = TokenLogin {
        source: TicketSource::Keytab { path: KEYTAB.into(), principal: Some(principal.to_owned()) },
        principal,
        identity: &inputs.identity,
        configuration: &inputs.configuration,
        file_systems: files.hdfs_file_systems(),
        submitted_until_ms: inputs.usable_tokens().map(|lifetime| lifetime.until_ms),
    };
    let keeper = TokenKeeper::start(login, containers.clone(), events.clone());
    let keeper = keeper.map_err(|error| StartFailure::new(ExitCode::Input, chain(&error)))?;
    Ok(Some(keeper))
}

fn joining(
    inputs: &ContainerInputs,
    sizes: Sizes,
    launch: YarnLaunch,
    lease: Lease,
    log: EventLog,
) -> Joining {
    Joining {
        cluster: inputs.cluster.clone(),
        token: inputs.token.clone(),
        place: AmEndpoint {
            host: inputs.environment.node_host.clone(),
            port: launch.am.address.port(),
            tracking_url: inputs.tracking_url(&launch.am),
        },
        again: inputs.attempt().0 > 1,
        sizes,
        launch,
        silence_max: inputs.expiry(),
        lease,
        log,
    }
}

async fn joined(
    inputs: &ContainerInputs,
    joining: Joining,
    events: Events,
) -> Result<(Joined, Option<JoinError>), StartFailure> {
    let joined = join(joining, events).await.map_err(|error| match &error {
        JoinError::Am(am) if am.is_fenced() => StartFailure::fenced(chain(&error)),
        _ => StartFailure::new(ExitCode::Unreachable, chain(&error)),
    })?;
    tracing::info!(since_submit_ms = inputs.since_submit_ms(), "application_master_registered");
    Ok(joined)
}

fn not_granted(error: &JoinError) -> String {
    let role = match error {
        JoinError::Resources { role, .. } => role,
        JoinError::Am(_) => "containers",
    };
    format!(
        "the cluster cannot grant what the job asks for: {}; lower {role}.memory, {role}.vcores or {role}.resources",
        chain(error)
    )
}

fn launch(
    inputs: &ContainerInputs,
    files: &SubmittedFiles,
    address: &AmAddress,
    credentials: ContainerCredentials,
) -> YarnLaunch {
    YarnLaunch {
        run: files.run.run,
        am: address.clone(),
        am_dir: files.am_dir(),
        user: files.yarn.user.clone(),
        resources: files.yarn.resources.clone(),
        env: files.yarn.env.clone(),
        data_threads: files.spec.pservers.vcores,
        dead_ms: LivenessTimes::of(&files.spec).dead_ms,
        ports: files.spec.network.ports.map(|ports| ports.to_string()),
        mechanism: inputs.mechanism(&files.spec),
        acls: BTreeMap::new(),
        credentials,
    }
}

fn limits(inputs: &ContainerInputs, files: &SubmittedFiles) -> Limits {
    let expiry_ms = u64::try_from(inputs.expiry().as_millis()).unwrap_or(u64::MAX);
    let orphan_ms =
        files.spec.run.orphan_timeout.map_or(expiry_ms.saturating_add(START_MS), |time| time.0);
    Limits {
        allocation_ms: files.spec.yarn.allocation_timeout.0,
        ..Limits::of_job(&files.spec, orphan_ms)
    }
}

/// Ends an application that cannot start: registers only to unregister.
async fn unregister_unstarted(inputs: &ContainerInputs, refusal: &StartFailure) -> ExitCode {
    refusal.print();
    let mut am = heddle_yarn::ApplicationMaster::new(&inputs.cluster, inputs.token.clone());
    let place = AmEndpoint { host: inputs.environment.node_host.clone(), ..AmEndpoint::default() };
    let ended = match am.register(place).await {
        Ok(_) => {
            let diagnostics =
                format!("Heddle: {} (exit code {})", refusal.message, refusal.exit_code);
            am.finish(heddle_yarn::FinalStatus::Failed, &diagnostics, "").await
        }
        Err(error) => Err(error),
    };
    if let Err(error) = ended {
        tracing::warn!(error = chain(&error), "application_not_unregistered");
    }
    refusal.exit_code
}

/// Exits on SIGTERM. A NodeManager gives a container 250 ms to end. A file that is being written then is either complete
/// under its name or has no name, so there is nothing to save. An orderly stop comes through the control API.
fn end_on_sigterm() {
    let Ok(mut terminate) = signal(SignalKind::terminate()) else {
        return;
    };
    tokio::spawn(async move {
        if terminate.recv().await.is_some() {
            tracing::info!("sigterm_received");
            std::process::exit(i32::from(ExitCode::Terminated.code()));
        }
    });
}
