//! A service of sleepers, which an operator scales between 2 and 16 trainers, beside three jobs: of four trainers each, which
//! leave room for its peaks, and of one to ten by the controller.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use heddle_protocol::ids::Role;
use heddle_protocol::view::{JobState, SlotState};
use heddle_tests::hadoop::Cluster;
use heddle_tests::logs::KILLS;
use heddle_tests::yarn_job::{Counting, Submitted};

use super::{LIMIT, start_cluster, start_controller, submit, vcores_used};

const OFF_PEAK: u32 = 2;
const PEAK: u32 = 16;
const PEAK_TIME: Duration = Duration::from_secs(30);
/// In which the jobs grow.
const START_TIME: Duration = Duration::from_secs(30);
/// Files of each job's data, and samples in each; with the passes more steps than are taken.
const DATA: [u32; 2] = [600, 25];
const PASSES: u32 = 20;

/// What runs beside the service.
struct Neighbours {
    name: &'static str,
    is_elastic: bool,
    keys: [&'static str; 2],
    peaks: u32,
    /// Before each peak.
    off_peak: Duration,
}

/// Their use of the cluster stays as it is.
const FIXED: Neighbours = Neighbours {
    name: "fixed",
    is_elastic: false,
    keys: ["trainers.min=4", "trainers.max=4"],
    peaks: 1,
    off_peak: Duration::from_secs(30),
};

/// A job that gave room grows again after a minute.
const ELASTIC: Neighbours = Neighbours {
    name: "elastic",
    is_elastic: true,
    keys: ["trainers.min=1", "trainers.max=10"],
    peaks: 2,
    off_peak: Duration::from_secs(180),
};

/// Prints a row for the jobs of fixed sizes, and one for elastic jobs.
pub fn measure() -> Result<()> {
    println!(
        "| jobs | service has its trainers after, s, each peak | vcores used off-peak |\n\
         | --- | --- | --- |"
    );
    let cluster = start_cluster(&[])?;
    let fixed = serve_beside(&cluster, &FIXED)?;
    let elastic = serve_beside(&cluster, &ELASTIC)?;
    println!("use of elastic jobs to that of fixed ones: {:.2}", elastic / fixed);
    Ok(())
}

/// Runs the service beside three such jobs; returns the part of the vcores that is used off-peak.
fn serve_beside(cluster: &Cluster, neighbours: &Neighbours) -> Result<f64> {
    let Neighbours { name: kind, is_elastic, keys, peaks, off_peak } = *neighbours;
    let named =
        |name: &str| Counting::of_files(cluster, &format!("{kind}-{name}"), "asp", PASSES, DATA);
    let web = named("service")?;
    let jobs = ["one", "two", "three"].map(named).into_iter().collect::<Result<Vec<_>>>()?;
    let controller = is_elastic.then(|| start_controller(&web)).transpose()?;
    let mut service = submit(&web, &["trainers.min=1", "trainers.max=16"], false)?.expecting(KILLS);
    service.wait_for("it trains", LIMIT, |view| view.state == JobState::Running)?;
    scale(&web, &mut service, OFF_PEAK)?;
    let running = jobs.iter().map(|job| Ok(submit(job, &keys, is_elastic)?.expecting(KILLS)));
    let running = running.collect::<Result<Vec<_>>>()?;
    std::thread::sleep(START_TIME);
    let (mut used, mut waits) = (0.0, Vec::new());
    for _ in 0..peaks {
        let began = Instant::now();
        used += vcores_used(cluster, || began.elapsed() >= off_peak)?;
        waits.push(scale(&web, &mut service, PEAK)?);
        std::thread::sleep(PEAK_TIME);
        scale(&web, &mut service, OFF_PEAK)?;
    }
    for job in &running {
        job.kill()?;
    }
    service.kill()?;
    drop(controller);
    let used = used / (off_peak * peaks).as_secs_f64();
    let waits: Vec<String> = waits.iter().map(|wait| format!("{wait:.1}")).collect();
    println!("| {kind} | {} | {:.0} % |", waits.join(", "), used * 100.0);
    Ok(used)
}

/// Scales the service; returns the seconds until it has this number of trainers.
fn scale(web: &Counting<'_>, service: &mut Submitted<'_>, trainers: u32) -> Result<f64> {
    let began = Instant::now();
    let scaled = web.job.heddle(&["scale", &service.id, "trainers", &trainers.to_string()])?;
    ensure!(scaled.code == Some(0), "{scaled:?}");
    service.wait_for(&format!("{trainers} trainers"), LIMIT, |view| {
        let trainers_run = view
            .slots
            .iter()
            .filter(|place| place.slot.role == Role::Trainer && place.state == SlotState::Running);
        trainers_run.count() == trainers as usize
    })?;
    Ok(began.elapsed().as_secs_f64())
}
