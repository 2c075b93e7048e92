//! The report as text.

use std::fmt;

use heddle_protocol::view::{JobState, JobView};
use heddle_telemetry::recovery::seconds;

use super::lines::lines;
use super::{ContainerSummary, JobReport, RequestedContainers, format};

impl fmt::Display for JobReport {
    /// Writes lines of plain text, and replaces control characters from outside.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} {} (exit code {})",
            one_line(&self.name),
            format::word(&self.state),
            self.exit_code
        )?;
        for line in self.message.lines() {
            writeln!(f, "  {}", format::plain(line))?;
        }
        if let Some(test) = &self.test {
            writeln!(f, "\n{test}")?;
        }
        writeln!(f)?;
        rows(self, f)?;
        sections(self, f)
    }
}

/// One row for each figure.
fn rows(report: &JobReport, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let view = &report.view;
    row(f, "run", report.run)?;
    if let Some(application) = &report.application {
        let queue = match application.queue.as_str() {
            "" => String::new(),
            queue => format!(", queue {}", one_line(queue)),
        };
        row(
            f,
            "application",
            format_args!(
                "{}, attempt {}, user {}{queue}",
                one_line(&application.id),
                report.attempt,
                one_line(&application.user)
            ),
        )?;
    }
    row(f, "started", format::time(report.started_ms))?;
    row(
        f,
        "ended",
        format_args!(
            "{}, after {}",
            format::time(report.ended_ms),
            seconds(report.ended_ms.saturating_sub(report.started_ms))
        ),
    )?;
    records(report, f)?;
    let newest = view.checkpoints.last().map_or_else(String::new, |newest| {
        format!(", newest {} in {}", newest.cut, one_line(&newest.dir))
    });
    row(
        f,
        "checkpoints",
        format_args!(
            "{} taken, {} given up{newest}",
            view.checkpoints_taken, view.history.checkpoints_given_up_total
        ),
    )?;
    row(f, "checkpoint dir", one_line(&report.checkpoint_dir))?;
    mirrors(view, f)?;
    match (&report.model, report.state) {
        (Some(model), _) => row(f, "model", one_line(model))?,
        (None, JobState::Finished) => row(f, "model", "none: the job exports no model")?,
        (None, _) => row(f, "model", "none: the job did not finish")?,
    }
    for requested in &report.requested {
        row(f, "requested", requested)?;
    }
    Ok(())
}

/// What was read, and what was left out.
fn records(report: &JobReport, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let view = &report.view;
    let speed = report
        .rows_per_second
        .map_or_else(String::new, |speed| format!(", {} rows/s", format::rate(speed)));
    row(f, "rows", format_args!("{}{speed}", format::thousands(view.rows)))?;
    let lines = lines(view).into_iter().filter(|line| !line.name.is_empty());
    for line in lines {
        row(f, line.name, one_line(&line.text))?;
    }
    Ok(())
}

fn mirrors(view: &JobView, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    for mirror in &view.mirrors {
        let text = format!("{} {}", mirror.dir, mirror.text());
        row(f, "mirror", one_line(&text))?;
    }
    Ok(())
}

/// Lists of evaluations, failures and waits.
fn sections(report: &JobReport, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let (view, history) = (&report.view, &report.view.history);
    let plain = |text: &str| format::plain(text);
    section(f, "Passes", &view.passes, format::trained)?;
    section(f, "Evaluations", &view.evaluations, format::evaluation)?;
    section(f, "Recoveries", &view.recoveries, |recovery| plain(&format::recovery(recovery)))?;
    let earlier = view.recoveries_total.saturating_sub(view.recoveries.len() as u64);
    if earlier > 0 {
        writeln!(f, "  and {earlier} earlier ones")?;
    }
    section(f, "Checkpoints", &view.checkpoints, |taken| {
        format!("{}  {}", format::time(taken.at_ms), format::checkpoint(taken))
    })?;
    let tables = view.checkpoints.last().map_or(&[][..], |newest| &newest.tables);
    section(f, "Tables of the newest checkpoint", tables, format::table)?;
    section(f, "Checkpoints given up", &history.checkpoints_given_up, |aborted| {
        format!("{}  {}  {}", format::time(aborted.at_ms), aborted.cut, plain(&aborted.reason))
    })?;
    section(f, "Waits for storage", &history.storage_waits, |wait| {
        plain(&format::storage_wait(wait))
    })?;
    if let Some(wait) = &view.storage_wait {
        section(f, "Waiting for storage", [wait], |wait| plain(&format::storage_wait(wait)))?;
    }
    section(f, "Checkpoints damaged", &history.checkpoints_damaged, |damaged| {
        let text = format::checkpoint_damaged(damaged.cut, &damaged.dir, &damaged.error);
        format!("{}  {}", format::time(damaged.at_ms), plain(&text))
    })?;
    section(f, "Warnings", &history.warnings, |warning| {
        format!("{}  {}", format::time(warning.at_ms), plain(&warning.text))
    })?;
    section(f, "Containers", &report.containers, ToString::to_string)?;
    let omitted = history.ended_total.saturating_sub(history.ended.len() as u64);
    if omitted > 0 {
        writeln!(f, "  and {omitted} earlier ones that ended")?;
    }
    Ok(())
}

impl fmt::Display for RequestedContainers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} × {}: {} MiB, {} vcore{}",
            self.containers,
            one_line(&self.kind),
            self.memory_mib,
            self.vcores,
            if self.vcores == 1 { "" } else { "s" }
        )?;
        for (name, amount) in &self.other {
            write!(f, ", {} {}", one_line(amount), one_line(name))?;
        }
        Ok(())
    }
}

impl fmt::Display for ContainerSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = format!("{}-{}", self.slot, self.incarnation);
        write!(f, "{name:<16}")?;
        if let Some(at) = &self.placement {
            write!(f, "  {}  {}", one_line(&at.container), one_line(&at.node))?;
        }
        write!(f, "  {}", format::plain(&self.end))?;
        match self.at_ms {
            Some(at_ms) => write!(f, "  ({})", format::time(at_ms)),
            None => Ok(()),
        }
    }
}

/// A name from outside on one line.
fn one_line(text: &str) -> String {
    format::plain(text).replace(['\n', '\t'], " ")
}

fn row(f: &mut fmt::Formatter<'_>, name: &str, value: impl fmt::Display) -> fmt::Result {
    writeln!(f, "{name:<16}{value}")
}

fn section<'a, T: 'a>(
    f: &mut fmt::Formatter<'_>,
    title: &str,
    entries: impl IntoIterator<Item = &'a T>,
    text: impl Fn(&T) -> String,
) -> fmt::Result {
    let mut entries = entries.into_iter().peekable();
    if entries.peek().is_some() {
        writeln!(f, "\n{title}")?;
    }
    for entry in entries {
        for line in text(entry).lines() {
            writeln!(f, "  {line}")?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use heddle_protocol::exit_code::ExitCode;

    use super::super::samples::{failed, finished};

    #[test]
    fn text_has_the_figures_of_the_job_and_of_the_cluster() {
        let text = finished().to_string();
        for expected in [
            "quickstart finished (exit code 0)\n",
            "\ntest  log-loss 0.2118  auc 0.9729  accuracy 0.9250\n",
            "application     application_1700000000000_0005, attempt 1, user alice, queue default\n",
            "rows            10,000, 500 rows/s\n",
            "\nPasses\n  pass 1: training loss 0.3512\n  pass 2: training loss 0.2304\n",
            "checkpoints     3 taken, 1 given up, newest g1-c3 in hdfs://nn/user/alice/ckpt/1.3\n",
            "model           hdfs://nn/user/alice/model\n",
            "requested       1 × pserver: 512 MiB, 1 vcore\n",
            "    checkpoint     0.040 s    5 %  to save the checkpoint returned to\n",
            "    resume         0.011 s    1 %  until all train again\n",
            "    outage 0.760 s; the checkpoint was 1.200 s old; 2 steps are done again\n",
            "  table weights  1,000 rows  990 non-zero  norm 2.5000\n",
            "g1-c2  pserver-0 was lost before its shards were saved\n",
            "  2023-11-14 22:13:32Z  the journal is 7 s late and tried again: safe mode\n",
            "  pserver-0-1       container_1700000000000_0005_01_000002  n1  was killed by signal 9",
            "  trainer-0-1       container_1700000000000_0005_01_000003  n1  ran to the end\n",
        ] {
            assert!(text.contains(expected), "{expected:?} is missing in\n{text}");
        }
    }

    #[test]
    fn name_with_line_ends_forges_no_line() {
        let mut report = failed(ExitCode::JobFailed, "a fact\nits cause\u{1b}[31m");
        report.name = "x\nmodel           hdfs://evil".into();
        let text = report.to_string();
        assert!(text.starts_with("x model "), "{text}");
        assert!(text.contains("\n  a fact\n  its cause\u{fffd}[31m\n"), "{text}");
        assert!(text.contains("model           none: the job did not finish\n"));
    }
}
