//! A pserver without an ApplicationMaster: commands go in by hand, reports come out. What benchmarks
//! and tests drive.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;

use crossbeam::channel::{Receiver, Sender, bounded, unbounded};
use heddle_agent::AgentExit;
use heddle_protocol::control::{Command, Report};
use heddle_protocol::handshake::Secret;
use heddle_protocol::ids::RunId;
use heddle_protocol::spec::TableSpec;

use crate::command::Input;
use crate::coordinator::{Coordinator, Shown};
use crate::hook::Hook;
use crate::job::Job;
use crate::process::{INPUTS_MAX, Options, start_threads};
use crate::workers::Workers;

/// What a pserver has to know, said directly.
#[derive(Clone, Debug)]
pub struct Setting {
    /// Trainers name this run.
    pub run: RunId,
    /// Trainers prove that they hold it.
    pub secret: Secret,
    /// Tables of the job, in the order of their ids.
    pub tables: Vec<TableSpec>,
    /// Shards of the job.
    pub shards: u32,
    /// Bytes that copies of snapshots may take, of all shards together.
    pub copy_bytes: u64,
    /// Where to serve.
    pub options: Options,
}

/// The running threads. Dropping it ends the coordinator when its savers are done; data threads end
/// with it.
pub struct Standalone {
    inputs: Sender<Input>,
    reports: Receiver<Report>,
    endpoints: Vec<SocketAddr>,
    coordinator: Option<JoinHandle<AgentExit>>,
}

impl Standalone {
    /// Starts the threads. They hold nothing yet.
    ///
    /// # Errors
    /// No port is free, or the system gives no threads.
    pub fn start(setting: Setting) -> io::Result<Self> {
        let (inputs, queue) = bounded(INPUTS_MAX);
        let (threads, endpoints) =
            start_threads(setting.run, &setting.secret, setting.options, Hook::default(), &inputs)?;
        let workers = Workers::start(&inputs)?;
        // Whoever drives this takes its reports or does not care for their memory.
        let (report, reports) = unbounded();
        let job = Job::of(setting.run, setting.tables, setting.shards, setting.copy_bytes);
        let coordinator =
            std::thread::Builder::new().name("coordinator".into()).spawn(move || {
                let tell = Box::new(move |up| {
                    let _nobody_listens = report.send(up);
                });
                let mut coordinator =
                    Coordinator::new(threads, workers, tell, Arc::new(Shown::default()));
                coordinator.set_job(job);
                coordinator.run(&queue)
            })?;
        Ok(Self { inputs, reports, endpoints, coordinator: Some(coordinator) })
    }

    /// Gives a command as an ApplicationMaster would.
    pub fn command(&self, command: Command) {
        let _ended = self.inputs.send(Input::Command(Box::new(command)));
    }

    /// What an ApplicationMaster would hear.
    #[must_use]
    pub fn reports(&self) -> &Receiver<Report> {
        &self.reports
    }

    /// One address a data thread.
    #[must_use]
    pub fn endpoints(&self) -> &[SocketAddr] {
        &self.endpoints
    }
}

impl Drop for Standalone {
    fn drop(&mut self) {
        let _ended = self.inputs.send(Input::Exit(AgentExit::Stopped("dropped".into())));
        if let Some(thread) = self.coordinator.take() {
            let _panicked = thread.join();
        }
    }
}
