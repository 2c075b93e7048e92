//! The ApplicationMaster of an application on YARN, from its container to its goodbye.
//!
//! ```text
//! container → ports ┬─ register, heartbeats, containers of an earlier attempt ─┐
//!                   └─ claim, then journal, plan and address on HDFS ──────────┴─ job → report → unregister
//! ```
//!
//! Both branches take their time side by side, since neither needs the other. How it ends decides what the
//! ResourceManager hears (`unregister`): a job that is over or refused is unregistered, one that something unreachable
//! stopped is left to the next attempt, and an attempt that another one has replaced says nothing at all.

mod inputs;
mod owner_liveness;
mod unregister;

use std::sync::Arc;
use std::time::Duration;

use heddle_am_core::{Limits, Outcome};
use heddle_protocol::environment::AmAddress;
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::view::{JobState, JobView};
use heddle_storage::chain;
use heddle_storage::checkpoint::{CheckpointDir, Owner};
use heddle_yarn::AmEndpoint;
use heddle_yarn::am::Registered;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use super::bind;
use super::prepare::prepare;
use super::run_job::{JobContext, run_job};
use super::start_failure::StartFailure;
use crate::api::{PageGate, Viewers, WebProxy};
use crate::claim::same_application;
use crate::cluster::Events;
use crate::cluster::yarn::{Gone, JoinError, Joined, Joining, Sizes, YarnLaunch, join};
use crate::lease::Lease;
use crate::node_address;
use crate::run_dir::RunDir;
use inputs::{ContainerInputs, SubmittedFiles};
use owner_liveness::YarnOwners;
use unregister::{Fenced, Unregistration};

/// Nothing is committed while the ResourceManager has not been heard for so long: the rule of MapReduce
/// (`yarn.app.mapreduce.am.job.committer.commit-window`).
const LEASE_MS: u64 = 10_000;
/// After the expiry the next attempt has to start and to write where it is.
const START_MS: u64 = 60_000;

/// Leads the application of this container to its end; returns the process's exit code.
pub(super) async fn lead(dir: &RunDir) -> ExitCode {
    end_on_sigterm();
    let inputs = match ContainerInputs::read() {
        Ok(inputs) => inputs,
        Err(refusal) => return said(&refusal),
    };
    tracing::info!(
        attempt = %inputs.environment.attempt(),
        since_submit_ms = inputs.since_submit_ms(),
        "ApplicationMaster started"
    );
    match SubmittedFiles::read(dir, &inputs) {
        Ok(files) => lead_with(&inputs, &files).await,
        // The ResourceManager must hear of it: another attempt would find the same files.
        Err(refusal) => give_back(&inputs, &refusal).await,
    }
}

/// The last line of the container's standard error, which NodeManagers add to the diagnostics.
fn said(refusal: &StartFailure) -> ExitCode {
    tracing::error!(exit_code = refusal.exit_code, message = refusal.message, "the attempt ends");
    eprintln!("heddle: {}", refusal.message);
    refusal.exit_code
}

async fn lead_with(inputs: &ContainerInputs, files: &SubmittedFiles) -> ExitCode {
    let (listening, gate) = match (listen(inputs, files).await, gate(inputs, files)) {
        (Ok(listening), Ok(gate)) => (listening, gate),
        (Err(refusal), _) | (_, Err(refusal)) => return give_back(inputs, &refusal).await,
    };
    let (events, receiver) = mpsc::unbounded_channel();
    let owner = Owner::Application {
        application: files.yarn.application.clone(),
        attempt: inputs.attempt(),
    };
    let judge = YarnOwners::new(&inputs.cluster, inputs.environment.attempt().application);
    let lease = Lease::new(Duration::from_millis(LEASE_MS));
    let (joined, prepared) = tokio::join!(
        joined(inputs, files, &listening.1, lease.clone(), events.clone()),
        prepare(
            &files.run,
            &files.spec,
            owner.clone(),
            &judge,
            lease.clone(),
            &files.yarn.staging,
            files.write_address(&listening.1)
        ),
    );
    let (joined, too_much) = match joined {
        Ok(joined) => joined,
        Err(refusal) => return said(&refusal),
    };
    let queue = joined
        .registered
        .as_ref()
        .map_or_else(String::new, |Registered { queue, .. }| queue.clone());
    let ending = Unregistration::new(inputs, files, joined.cluster.clone(), queue);
    let prepared = match (too_much, prepared) {
        (Some(error), _) => Err(StartFailure::new(ExitCode::Refused, not_granted(&error))),
        (None, prepared) => prepared,
    };
    let prepared = match prepared {
        Ok(prepared) => prepared,
        Err(refusal) => return ending.refused(refusal).await,
    };
    if let Some(outcome) = prepared.ended.clone() {
        tracing::info!(?outcome, "an earlier attempt has ended the job, only its goodbye was lost");
        return ending.ended(outcome, None, Fenced::Not).await;
    }
    tracing::info!(
        since_submit_ms = inputs.since_submit_ms(),
        kept = joined.kept.len(),
        "the job begins"
    );
    let Joined { cluster, kept, mut gone, .. } = joined;
    // Orders to stop come by the control API alone; nobody holds the other end.
    let (_stops, stopped) = mpsc::unbounded_channel();
    let context = JobContext {
        file: &files.run,
        spec: &files.spec,
        secret: files.secret.clone(),
        attempt: inputs.attempt(),
        listener: listening.0,
        gate: Some(gate),
        address: inputs.tracking_url(&listening.1),
        limits: limits(inputs, files),
        cluster_lease_ms: Some(LEASE_MS),
        application: Some(ending.application.clone()),
        cluster,
        kept,
        master: Some(inputs.placement()),
        past: files.past(),
        events: (events, receiver),
        stops: stopped,
    };
    let dir = prepared.store.dir.clone();
    let job = run_job(prepared, context);
    tokio::pin!(job);
    let (outcome, view) = tokio::select! {
        ended = &mut job => ended,
        lost = &mut gone => match lost {
            // Containers train on, and the next attempt takes them over.
            Ok(Gone::Silent(reason)) => return said(&StartFailure::new(ExitCode::Unreachable, reason)),
            // The core has heard of it and ends by itself.
            Ok(Gone::Fenced(_)) | Err(_) => {
                let (outcome, view) = job.await;
                return ending.ended(outcome, Some(view), Fenced::ByAttempt).await;
            }
        },
    };
    let fenced = match outcome.exit_code {
        ExitCode::Fenced => fenced_by(&dir, &owner).await,
        _ => Fenced::Not,
    };
    ending.ended(outcome, Some(view), fenced).await
}

/// Who leads in place of an attempt that the ResourceManager still takes for the leading one. What cannot be found
/// out counts as a later attempt: then nothing is said, and the ResourceManager decides.
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
            tracing::warn!(error = chain(&error), "who leads is not known");
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
            format!("NM_HOST = {} has no address: {error}", inputs.environment.node_host),
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

/// Pages are behind YARN's proxy, and for those whom the cluster lets look.
fn gate(inputs: &ContainerInputs, files: &SubmittedFiles) -> Result<Arc<PageGate>, StartFailure> {
    let unfit = |error: &dyn std::error::Error| {
        StartFailure::new(ExitCode::Input, format!("the configuration: {}", chain(error)))
    };
    let ContainerInputs { environment, configuration, .. } = inputs;
    let base = environment.web_proxy_base.clone();
    let base = base.unwrap_or_else(|| format!("/proxy/{}", files.yarn.application));
    let proxy =
        WebProxy::of(configuration, &base, &environment.node_host).map_err(|e| unfit(&e))?;
    let view_acl = &files.spec.yarn.view_acl;
    let viewers = Viewers::of(configuration, &files.yarn.user, view_acl).map_err(|e| unfit(&e))?;
    Ok(PageGate::new(proxy, viewers))
}

async fn joined(
    inputs: &ContainerInputs,
    files: &SubmittedFiles,
    address: &AmAddress,
    lease: Lease,
    events: Events,
) -> Result<(Joined, Option<JoinError>), StartFailure> {
    let joining = Joining {
        cluster: inputs.cluster.clone(),
        token: inputs.token.clone(),
        place: AmEndpoint {
            host: inputs.environment.node_host.clone(),
            port: address.address.port(),
            tracking_url: inputs.tracking_url(address),
        },
        again: inputs.attempt().0 > 1,
        sizes: Sizes::of(&files.spec),
        launch: launch(inputs, files, address),
        silence_max: inputs.expiry(),
        lease,
    };
    let joined = join(joining, events).await.map_err(|error| match &error {
        JoinError::Am(am) if am.is_fenced() => StartFailure::fenced(chain(&error)),
        _ => StartFailure::new(ExitCode::Unreachable, chain(&error)),
    })?;
    tracing::info!(since_submit_ms = inputs.since_submit_ms(), "registered");
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

fn launch(inputs: &ContainerInputs, files: &SubmittedFiles, address: &AmAddress) -> YarnLaunch {
    YarnLaunch {
        run: files.run.run,
        am: address.clone(),
        am_dir: files.am_dir(),
        user: files.yarn.user.clone(),
        resources: files.yarn.resources.clone(),
        env: files.yarn.env.clone(),
        data_threads: files.spec.pservers.vcores,
        ports: files.spec.network.ports.map(|ports| ports.to_string()),
        credentials: inputs.for_containers(),
    }
}

fn limits(inputs: &ContainerInputs, files: &SubmittedFiles) -> Limits {
    let expiry_ms = u64::try_from(inputs.expiry().as_millis()).unwrap_or(u64::MAX);
    let orphan_ms =
        files.spec.run.orphan_timeout.map_or(expiry_ms.saturating_add(START_MS), |time| time.0);
    Limits {
        orphan_ms,
        allocation_ms: files.spec.yarn.allocation_timeout.0,
        replacement_ms: files.spec.yarn.replacement_timeout.0,
        ..Limits::default()
    }
}

/// Ends an application that cannot begin: registers only to unregister.
async fn give_back(inputs: &ContainerInputs, refusal: &StartFailure) -> ExitCode {
    said(refusal);
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
        tracing::warn!(error = chain(&error), "not unregistered");
    }
    refusal.exit_code
}

/// A NodeManager that ends a container leaves it 250 ms. Whatever is being written then is either complete under its
/// name or has none; so there is nothing better to do than to end. An orderly stop comes through the control API.
fn end_on_sigterm() {
    let Ok(mut terminate) = signal(SignalKind::terminate()) else {
        return;
    };
    tokio::spawn(async move {
        if terminate.recv().await.is_some() {
            tracing::info!("ended by SIGTERM; containers go on if the application does");
            std::process::exit(i32::from(ExitCode::Terminated.code()));
        }
    });
}

/// The view of a job that did not come to begin, or had ended before.
fn bare_view(inputs: &ContainerInputs, files: &SubmittedFiles, outcome: &Outcome) -> JobView {
    JobView {
        state: outcome.state,
        message: outcome.message.clone(),
        ..JobView::starting(files.run.run, &files.run.name, inputs.attempt(), files.run.started_ms)
    }
}

/// How a refusal ends a job.
fn outcome(refusal: &StartFailure) -> Outcome {
    Outcome {
        state: JobState::Failed,
        exit_code: refusal.exit_code,
        message: refusal.message.clone(),
        model: None,
    }
}
