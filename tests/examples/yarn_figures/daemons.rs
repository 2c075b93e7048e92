//! What the daemons' logs and /proc say about an application.

use std::fs;
use std::path::Path;
use std::process::{Child, Command};

use anyhow::{Context, Result, ensure};
use heddle_tests::hadoop::Cluster;

/// Ids of all applications.
pub fn applications(cluster: &Cluster) -> Result<Vec<String>> {
    let apps = cluster.rm_get("/ws/v1/cluster/apps")?;
    let list = apps["apps"]["app"].as_array().cloned().unwrap_or_default();
    Ok(list.iter().filter_map(|app| app["id"].as_str().map(str::to_owned)).collect())
}

/// When the line with all of these was logged: seconds of the day.
pub fn logged(log: &str, id: &str, words: &str) -> Option<f64> {
    let line = log.lines().find(|line| line.contains(id) && line.contains(words))?;
    // 2026-11-21 12:47:25,388 …
    of_clock(&line.split(' ').nth(1)?.replace(',', "."))
}

/// Seconds of the day of `12:47:25.388`.
pub fn of_clock(clock: &str) -> Option<f64> {
    let parts: Option<Vec<f64>> = clock.split(':').map(|part| part.parse().ok()).collect();
    match parts?[..] {
        [hours, minutes, seconds] => Some(hours * 3600.0 + minutes * 60.0 + seconds),
        _ => None,
    }
}

/// When the first container besides the ApplicationMaster's was running.
pub fn worker_time(cluster: &Cluster, id: &str) -> Result<Option<f64>> {
    let all = format!("{}_01_", id.replace("application", "container"));
    let am = format!("{all}000001");
    let mut first: Option<f64> = None;
    for n in 1..=3 {
        let log = fs::read_to_string(cluster.dir().join(format!("nm{n}.log")))?;
        let workers: String =
            log.lines().filter(|line| !line.contains(&am)).flat_map(|line| [line, "\n"]).collect();
        if let Some(time) = logged(&workers, &all, "to RUNNING") {
            first = Some(first.map_or(time, |first| first.min(time)));
        }
    }
    Ok(first)
}

/// Seconds of the day, by the clock and the zone of the daemons' logs.
pub fn now_s() -> Result<f64> {
    let output = Command::new("date").arg("+%H %M %S.%N").output()?;
    let text = String::from_utf8(output.stdout)?;
    let parts: Vec<f64> = text.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
    let [hours, minutes, seconds] = parts[..] else { anyhow::bail!("date printed {text}") };
    Ok(hours * 3600.0 + minutes * 60.0 + seconds)
}

/// Peak resident set of a process that runs, MB.
pub fn peak_mb(process: &Child) -> Result<f64> {
    peak_of(&Path::new("/proc").join(process.id().to_string())).context("the client runs")
}

/// The largest process of a container.
pub fn peak_mb_of_container(container: &str) -> Result<f64> {
    let mark = format!("CONTAINER_ID={container}");
    let mut peak: f64 = 0.0;
    for entry in fs::read_dir("/proc")? {
        let folder = entry?.path();
        let environment = fs::read(folder.join("environ")).unwrap_or_default();
        if environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes()) {
            peak = peak.max(peak_of(&folder).unwrap_or(0.0));
        }
    }
    ensure!(peak > 0.0, "no process of {container}");
    Ok(peak)
}

/// Peak resident set, MB.
fn peak_of(process: &Path) -> Option<f64> {
    let status = fs::read_to_string(process.join("status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: f64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib * 1024.0 / 1e6)
}
