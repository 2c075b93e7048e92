//! Writes OpenMetrics text 1.0.

use std::fmt::{Debug, Write};

use heddle_protocol::process_figures::FigureKind;

/// What is written about a metric besides its samples.
#[derive(Clone, Copy)]
pub(super) struct MetricHead {
    /// The name of its series: `heddle_…`, ending in the base unit, counters in `_total`.
    pub(super) name: &'static str,
    pub(super) kind: FigureKind,
    pub(super) help: &'static str,
}

impl MetricHead {
    /// The type of the metric in a word.
    pub(super) fn kind_word(&self) -> &'static str {
        match self.kind {
            FigureKind::Counter => "counter",
            FigureKind::Gauge => "gauge",
            FigureKind::Histogram(_) => "histogram",
        }
    }
}

/// The samples of one metric.
pub(super) struct MetricSamples {
    name: &'static str,
    lines: String,
}

impl MetricSamples {
    /// Adds a value without labels. Numbers have the same text in OpenMetrics as in Rust's `Debug`.
    pub(super) fn value(&mut self, value: impl Debug) {
        self.push("", &[], value);
    }

    /// Adds the value of a set of labels.
    pub(super) fn labelled(&mut self, labels: &[(&str, &str)], value: impl Debug) {
        self.push("", labels, value);
    }

    /// Adds the classes of a histogram, of which the last has no upper bound, and the sum of its values.
    pub(super) fn histogram(&mut self, bounds: &[u64], classes: &[u64], sum: u64) {
        self.push("_sum", &[], sum as f64);
        self.push("_count", &[], classes.iter().sum::<u64>());
        let bounds = bounds.iter().map(|bound| format!("{:?}", *bound as f64));
        let mut below = 0;
        for (bound, count) in bounds.chain(["+Inf".to_owned()]).zip(classes) {
            below += count;
            self.push("_bucket", &[("le", &bound)], below);
        }
    }

    fn push(&mut self, suffix: &str, labels: &[(&str, &str)], value: impl Debug) {
        self.lines += self.name;
        self.lines += suffix;
        for (n, (label, text)) in labels.iter().enumerate() {
            let text = text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let before = if n == 0 { '{' } else { ',' };
            let _written = write!(self.lines, "{before}{label}=\"{text}\"");
        }
        let after = if labels.is_empty() { "" } else { "}" };
        let _written = writeln!(self.lines, "{after} {value:?}");
    }
}

/// Appends a metric, if it has samples.
pub(super) fn write_metric(
    out: &mut String,
    head: MetricHead,
    fill: impl FnOnce(&mut MetricSamples),
) {
    let mut samples = MetricSamples { name: head.name, lines: String::new() };
    fill(&mut samples);
    if !samples.lines.is_empty() {
        // A counter is named without the suffix of its series.
        let name = head.name.strip_suffix("_total").unwrap_or(head.name);
        let (kind, help) = (head.kind_word(), head.help);
        let _written = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
        *out += &samples.lines;
    }
}
