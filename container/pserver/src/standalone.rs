//! A pserver without an ApplicationMaster, for benchmarks and tests: the caller sends commands and receives reports.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;

use crossbeam::channel::{Receiver, Sender, bounded, unbounded};
use heddle_agent::{AgentExit, LogContext};
use heddle_protocol::control::{Command, Report};
use heddle_protocol::handshake::Secret;
use heddle_protocol::ids::{Member, RunId};
use heddle_protocol::job_spec::TableSpec;
use heddle_shard::SparseLimits;

use crate::coordinator::Coordinator;
use crate::job::PserverJob;
use crate::message::CoordinatorInput;
use crate::process::{INPUTS_MAX, Options, start_threads};
use crate::status::PserverStatus;
use crate::workers::Workers;

/// Settings of a standalone pserver.
#[derive(Clone, Debug)]
pub struct StandaloneSettings {
    /// The run of its trainers.
    pub run: RunId,
    /// The secret of its trainers.
    pub secret: Secret,
    /// Tables of the job, in the order of their ids.
    pub tables: Vec<TableSpec>,
    /// Shards of the job.
    pub shards: u32,
    /// Limits of sparse tables, for each shard.
    pub sparse: SparseLimits,
    /// Bytes of copies for snapshots, of all shards together.
    pub copy_bytes: u64,
    /// Its own name, by which views name it.
    pub member: Member,
    /// Threads and addresses.
    pub options: Options,
}

/// The running threads. Dropping it ends the coordinator after its savers, and then the data threads.
pub struct Standalone {
    inputs: Sender<CoordinatorInput>,
    reports: Receiver<Report>,
    endpoints: Vec<SocketAddr>,
    coordinator: Option<JoinHandle<AgentExit>>,
}

impl Standalone {
    /// Starts the threads, without shards.
    ///
    /// # Errors
    /// No port is free, or the system cannot create a thread.
    pub fn start(settings: StandaloneSettings) -> io::Result<Self> {
        let (inputs, queue) = bounded(INPUTS_MAX);
        let member = settings.member;
        let (threads, endpoints) =
            start_threads(settings.run, member, &settings.secret, settings.options, &inputs)?;
        let workers = Workers::start(&inputs)?;
        // The caller receives the reports, or accepts that they take memory.
        let (report, reports) = unbounded();
        let StandaloneSettings { run, tables, shards, sparse, copy_bytes, .. } = settings;
        let job = PserverJob::of(run, tables, shards, sparse, copy_bytes);
        let coordinator =
            std::thread::Builder::new().name("coordinator".into()).spawn(move || {
                let send_report = Box::new(move |up| {
                    let _dropped = report.send(up);
                });
                let mut coordinator = Coordinator::new(
                    threads,
                    workers,
                    send_report,
                    Arc::new(PserverStatus::default()),
                );
                coordinator.set_job(job);
                coordinator.run(&queue, &LogContext::new(member.slot))
            })?;
        Ok(Self { inputs, reports, endpoints, coordinator: Some(coordinator) })
    }

    /// Sends a command, as an ApplicationMaster does.
    pub fn command(&self, command: Command) {
        let _ended = self.inputs.send(CoordinatorInput::Command(Box::new(command)));
    }

    /// Reports for the ApplicationMaster.
    #[must_use]
    pub fn reports(&self) -> &Receiver<Report> {
        &self.reports
    }

    /// The address of each data thread.
    #[must_use]
    pub fn endpoints(&self) -> &[SocketAddr] {
        &self.endpoints
    }
}

impl Drop for Standalone {
    fn drop(&mut self) {
        let _ended = self.inputs.send(CoordinatorInput::Exit(AgentExit::Stopped("dropped".into())));
        if let Some(thread) = self.coordinator.take() {
            let _panicked = thread.join();
        }
    }
}
