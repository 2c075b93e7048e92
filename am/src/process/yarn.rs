//! The ApplicationMaster of an application on YARN, from its container to its goodbye.
//!
//! ```text
//! container → ports ┬─ register, heartbeats, containers of an earlier attempt ─┐
//!                   └─ claim, then journal, plan and address on HDFS ──────────┴─ job → report → unregister
//! ```
//!
//! Both branches take their time side by side, since neither needs the other. How it ends decides what the
//! ResourceManager hears (`ending`): a job that is over or refused is unregistered, one that something unreachable
//! stopped is left to the next attempt, and an attempt that another one has replaced says nothing at all.

mod ending;
mod given;
mod judge;

use std::sync::Arc;
use std::time::Duration;

use heddle_am_core::{Limits, Outcome};
use heddle_protocol::environment::AmAddress;
use heddle_protocol::view::{JobState, JobView};
use heddle_storage::chain;
use heddle_storage::checkpoint::{CheckpointDir, Owner};
use heddle_yarn::Place;
use heddle_yarn::am::Registered;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use super::bind;
use super::conduct::{Stage, conduct};
use super::prepare::prepare;
use super::refusal::Refusal;
use crate::api::{Gate, Proxy, Viewers};
use crate::claim::same_application;
use crate::cluster::Events;
use crate::cluster::yarn::{Gone, JoinError, Joined, Joining, Sizes, YarnLaunch, join};
use crate::lease::Lease;
use crate::node_address;
use crate::run_dir::RunDir;
use ending::{Ending, Fenced};
use given::{Files, Given};
use judge::YarnJudge;

/// Nothing is committed while the ResourceManager has not been heard for so long: the rule of MapReduce
/// (`yarn.app.mapreduce.am.job.committer.commit-window`).
const LEASE_MS: u64 = 10_000;
/// After the expiry the next attempt has to start and to write where it is.
const START_MS: u64 = 60_000;
/// What a shell makes of SIGTERM.
const TERMINATED: i32 = 143;

/// Leads the application of this container to its end; returns the process's exit code.
pub(super) async fn lead(dir: &RunDir) -> u8 {
    end_on_sigterm();
    let given = match Given::read() {
        Ok(given) => given,
        Err(refusal) => return said(&refusal),
    };
    tracing::info!(
        attempt = %given.environment.attempt(),
        since_submit_ms = given.since_submit_ms(),
        "ApplicationMaster started"
    );
    match Files::read(dir, &given) {
        Ok(files) => lead_with(&given, &files).await,
        // The ResourceManager must hear of it: another attempt would find the same files.
        Err(refusal) => give_back(&given, &refusal).await,
    }
}

/// The last line of the container's standard error, which NodeManagers add to the diagnostics.
fn said(refusal: &Refusal) -> u8 {
    tracing::error!(exit_code = refusal.exit_code, message = refusal.message, "the attempt ends");
    eprintln!("heddle: {}", refusal.message);
    refusal.exit_code
}

async fn lead_with(given: &Given, files: &Files) -> u8 {
    let (listening, gate) = match (listen(given, files).await, gate(given, files)) {
        (Ok(listening), Ok(gate)) => (listening, gate),
        (Err(refusal), _) | (_, Err(refusal)) => return give_back(given, &refusal).await,
    };
    let (events, receiver) = mpsc::unbounded_channel();
    let owner = Owner::Application {
        application: files.yarn.application.clone(),
        attempt: given.attempt(),
    };
    let judge = YarnJudge::new(&given.cluster, given.environment.attempt().application);
    let lease = Lease::new(Duration::from_millis(LEASE_MS));
    let (joined, prepared) = tokio::join!(
        joined(given, files, &listening.1, lease.clone(), events.clone()),
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
    let ending = Ending::new(given, files, joined.cluster.clone(), queue);
    let prepared = match (too_much, prepared) {
        (Some(error), _) => Err(Refusal::new(4, not_granted(&error))),
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
        since_submit_ms = given.since_submit_ms(),
        kept = joined.kept.len(),
        "the job begins"
    );
    let Joined { cluster, kept, mut gone, .. } = joined;
    // Orders to stop come by the control API alone; nobody holds the other end.
    let (_stops, stopped) = mpsc::unbounded_channel();
    let stage = Stage {
        file: &files.run,
        spec: &files.spec,
        secret: files.secret.clone(),
        attempt: given.attempt(),
        listener: listening.0,
        gate: Some(gate),
        address: given.tracking_url(&listening.1),
        limits: limits(given, files),
        cluster_lease_ms: Some(LEASE_MS),
        application: Some(ending.application.clone()),
        cluster,
        kept,
        master: Some(given.placement()),
        past: files.past(),
        events: (events, receiver),
        stops: stopped,
    };
    let dir = prepared.store.dir.clone();
    let job = conduct(prepared, stage);
    tokio::pin!(job);
    let (outcome, view) = tokio::select! {
        ended = &mut job => ended,
        lost = &mut gone => match lost {
            // Containers train on, and the next attempt takes them over.
            Ok(Gone::Silent(reason)) => return said(&Refusal::new(6, reason)),
            // The core has heard of it and ends by itself.
            Ok(Gone::Fenced(_)) | Err(_) => {
                let (outcome, view) = job.await;
                return ending.ended(outcome, Some(view), Fenced::ByAttempt).await;
            }
        },
    };
    let fenced = match outcome.exit_code {
        9 => fenced_by(&dir, &owner).await,
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

async fn listen(given: &Given, files: &Files) -> Result<(TcpListener, AmAddress), Refusal> {
    let name = given.environment.node_host.clone();
    let servers: Vec<String> =
        given.cluster.resource_managers().iter().map(ToString::to_string).collect();
    let no_address = |error: String| {
        Refusal::new(
            6,
            format!("NM_HOST = {} has no address: {error}", given.environment.node_host),
        )
    };
    // The resolver blocks.
    let found = tokio::task::spawn_blocking(move || node_address::of_node(&name, &servers)).await;
    let host = found
        .map_err(|error| no_address(error.to_string()))?
        .map_err(|error| no_address(error.to_string()))?;
    let (listener, address) = bind(host, &files.spec).await?;
    let address = AmAddress { address, attempt: given.attempt(), pid: std::process::id() };
    Ok((listener, address))
}

/// Pages are behind YARN's proxy, and for those whom the cluster lets look.
fn gate(given: &Given, files: &Files) -> Result<Arc<Gate>, Refusal> {
    let unfit = |error: &dyn std::error::Error| {
        Refusal::new(7, format!("the configuration: {}", chain(error)))
    };
    let Given { environment, configuration, .. } = given;
    let base = environment.web_proxy_base.clone();
    let base = base.unwrap_or_else(|| format!("/proxy/{}", files.yarn.application));
    let proxy = Proxy::of(configuration, &base, &environment.node_host).map_err(|e| unfit(&e))?;
    let view_acl = &files.spec.yarn.view_acl;
    let viewers = Viewers::of(configuration, &files.yarn.user, view_acl).map_err(|e| unfit(&e))?;
    Ok(Gate::new(proxy, viewers))
}

async fn joined(
    given: &Given,
    files: &Files,
    address: &AmAddress,
    lease: Lease,
    events: Events,
) -> Result<(Joined, Option<JoinError>), Refusal> {
    let joining = Joining {
        cluster: given.cluster.clone(),
        token: given.token.clone(),
        place: Place {
            host: given.environment.node_host.clone(),
            port: address.address.port(),
            tracking_url: given.tracking_url(address),
        },
        again: given.attempt().0 > 1,
        sizes: Sizes::of(&files.spec),
        launch: launch(given, files, address),
        silence_max: given.expiry(),
        lease,
    };
    let joined = join(joining, events).await.map_err(|error| match &error {
        JoinError::Am(am) if am.is_fenced() => Refusal::fenced(chain(&error)),
        _ => Refusal::new(6, chain(&error)),
    })?;
    tracing::info!(since_submit_ms = given.since_submit_ms(), "registered");
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

fn launch(given: &Given, files: &Files, address: &AmAddress) -> YarnLaunch {
    YarnLaunch {
        run: files.run.run,
        am: address.clone(),
        am_dir: files.am_dir(),
        user: files.yarn.user.clone(),
        resources: files.yarn.resources.clone(),
        env: files.yarn.env.clone(),
        data_threads: files.spec.pservers.vcores,
        ports: files.spec.network.ports.map(|ports| ports.to_string()),
        credentials: given.for_containers(),
    }
}

fn limits(given: &Given, files: &Files) -> Limits {
    let expiry_ms = u64::try_from(given.expiry().as_millis()).unwrap_or(u64::MAX);
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
async fn give_back(given: &Given, refusal: &Refusal) -> u8 {
    said(refusal);
    let mut am = heddle_yarn::ApplicationMaster::new(&given.cluster, given.token.clone());
    let place = Place { host: given.environment.node_host.clone(), ..Place::default() };
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
            std::process::exit(TERMINATED);
        }
    });
}

/// The view of a job that did not come to begin, or had ended before.
fn bare_view(given: &Given, files: &Files, outcome: &Outcome) -> JobView {
    JobView {
        state: outcome.state,
        message: outcome.message.clone(),
        ..JobView::starting(files.run.run, &files.run.name, given.attempt(), files.run.started_ms)
    }
}

/// How a refusal ends a job.
fn outcome(refusal: &Refusal) -> Outcome {
    Outcome {
        state: JobState::Failed,
        exit_code: refusal.exit_code,
        message: refusal.message.clone(),
        model: None,
    }
}
