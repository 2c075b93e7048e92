//! The ApplicationMaster under load: a real process with server, journal, store and driver, and pretended containers that
//! talk to it over real connections with the real control thread.
//!
//! `cargo run --release -p heddle-tests --example am_load [-- <trainers> <pservers> <tasks>]`; without arguments 1,000
//! trainers, 100 pservers, 100,000 tasks. Only what gives out containers is pretended: a grant comes at once and starts no
//! process. The containers train nothing, so what is measured is the ApplicationMaster and its connections.
//! This process plays the containers; its child is the ApplicationMaster, whose memory and processor time are read from
//! `/proc`.

mod containers;
mod master;

use std::time::Duration;

use anyhow::Context as _;
use heddle_input::{TaskLength, plan_input};
use heddle_protocol::job_spec::{Consistency, DataFormat, Every, JobSpec};
use heddle_protocol::manifest::InputFile;
use heddle_protocol::{ids::RunId, manifest::InputPlan};

use heddle_telemetry::descriptors::Limit;

use containers::Containers;

/// What is measured.
#[derive(Clone, Copy, Debug)]
struct Size {
    trainers: u32,
    pservers: u32,
    tasks: u32,
}

const RUN: RunId = RunId(uuid::Uuid::from_u128(7));

impl Size {
    fn parse(arguments: &[String]) -> anyhow::Result<Self> {
        let number = |index: usize, default: u32| match arguments.get(index) {
            Some(text) => text.parse().with_context(|| format!("{text:?} is not a number")),
            None => Ok(default),
        };
        Ok(Self {
            trainers: number(0, 1_000)?,
            pservers: number(1, 100)?,
            tasks: number(2, 100_000)?,
        })
    }

    fn spec(self) -> JobSpec {
        let mut spec = heddle_protocol::job_spec::job::sample();
        spec.training.consistency = Consistency::Asp;
        spec.pservers.count = self.pservers;
        spec.pservers.shards = self.pservers;
        spec.trainers.min = self.trainers;
        spec.trainers.max = self.trainers;
        spec.checkpoint.every = Every::Passes(1000);
        spec
    }

    fn plan(self) -> InputPlan {
        let file = InputFile {
            url: "hdfs:///data/train.libsvm".to_owned(),
            bytes: u64::from(self.tasks) << 25,
            modified_ms: 0,
            compression: Default::default(),
        };
        plan_input(DataFormat::Libsvm, vec![file], Vec::new(), TaskLength::Bytes(1 << 25))
    }
}

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|first| first == "master") {
        return master::lead(&arguments[1..]);
    }
    let size = Size::parse(&arguments)?;
    // A thousand connections and as many event queues need more descriptors than shells give.
    Limit::raise();
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    println!(
        "{} trainers, {} pservers, {} tasks; load {}",
        size.trainers,
        size.pservers,
        size.tasks,
        load.trim()
    );
    let dir = tempfile::tempdir()?;
    let mut job = Containers::start(size, dir.path())?;
    let all = size.trainers + size.pservers;
    let line = |what: &str, value: String, bar: &str| println!("{what:<46} {value:>14}   {bar}");

    job.wait("welcomes", |seen| seen.welcomed >= all as usize)?;
    line("start, all welcomed", ms(job.since()), "bar 10 s");
    job.wait("work", |seen| seen.working.len() >= size.trainers as usize)?;
    line("start, all at work", ms(job.since()), "");
    let start = job.master()?;
    line("start, highest memory", mib(start.peak_bytes), "bar 256 MiB");
    line("start, processor time", ms(start.cpu), "");

    let idle = Duration::from_secs(20);
    std::thread::sleep(idle);
    let after = job.master()?;
    let rounds = idle.as_secs_f64() / 2.0;
    let round = (after.cpu - start.cpu).div_f64(rounds);
    line("a heartbeat of all, processor time", ms(round), "bar 50 ms at 10,000");

    let before = job.master()?;
    let done = job.finish_until(size.tasks as usize / 2)?;
    let spent = job.master()?.cpu - before.cpu;
    let each = spent.as_secs_f64() * 1e6 / done.tasks.max(1) as f64;
    line("a finished task, processor time", format!("{each:.0} us"), "");
    let rate = done.tasks as f64 / done.took.as_secs_f64();
    line("finished tasks", format!("{rate:.0} /s"), "");

    let lost = job.lose_trainer(7)?;
    line("a trainer lost, until another is asked for", ms(lost), "bar 100 ms");
    let lost = job.lose_pserver(7)?;
    line("a pserver lost, until shards hear of it", ms(lost), "bar 100 ms");
    job.wait("work after the rollback", |seen| seen.working.len() >= size.trainers as usize)?;
    job.finish_until(size.tasks as usize / 2)?;

    let waited = job.take_over(all as usize)?;
    line("takeover, after the listening port is there", ms(waited), "bar 2 s");
    line("takeover, since the process was started", ms(job.since()), "");
    let end = job.master()?;
    line("takeover, highest memory", mib(end.peak_bytes), "bar 256 MiB");
    line("takeover, processor time", ms(end.cpu), "");
    job.end();
    // The threads of a thousand control connections end with the process.
    std::process::exit(0)
}

fn ms(time: Duration) -> String {
    format!("{:.0} ms", time.as_secs_f64() * 1e3)
}

fn mib(bytes: u64) -> String {
    format!("{:.0} MiB", bytes as f64 / f64::from(1 << 20))
}
