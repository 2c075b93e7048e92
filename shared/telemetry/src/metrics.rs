//! Figures as Prometheus text (exposition format 0.0.4).
//!
//! There is no registry of counters. The process already holds the figures (heartbeats, the job's view), and writes a page
//! from them on request. A metric costs nothing between requests and cannot differ from other displays of the same figure.

use std::fmt::Write;

/// Name, kind and help of a metric. Metrics are constants, in one list per crate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metric {
    /// `heddle_…`, ending in the base unit, counters in `_total`.
    pub name: &'static str,
    /// Whether it only grows.
    pub kind: MetricKind,
    /// One sentence.
    pub help: &'static str,
}

/// Whether a metric only grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// Only grows while the process lives.
    Counter,
    /// Goes up and down.
    Gauge,
}

impl Metric {
    /// A metric that only grows.
    #[must_use]
    pub const fn counter(name: &'static str, help: &'static str) -> Self {
        Self { name, kind: MetricKind::Counter, help }
    }

    /// A metric that goes up and down.
    #[must_use]
    pub const fn gauge(name: &'static str, help: &'static str) -> Self {
        Self { name, kind: MetricKind::Gauge, help }
    }
}

/// A page of metrics.
#[derive(Clone, Debug, Default)]
pub struct Page(String);

impl Page {
    /// An empty page.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a metric with one value.
    pub fn value(&mut self, metric: Metric, value: f64) {
        self.values(metric, [([], value)]);
    }

    /// Adds a metric with one value per set of labels, which are `(name, value)`. A metric without values adds nothing.
    pub fn values<'l, const N: usize>(
        &mut self,
        metric: Metric,
        samples: impl IntoIterator<Item = ([(&'l str, &'l str); N], f64)>,
    ) {
        let mut begun = false;
        for (labels, value) in samples {
            if !begun {
                begun = true;
                self.begin(metric);
            }
            let labels: Vec<_> = labels
                .iter()
                .map(|(name, value)| format!("{name}=\"{}\"", escape(value)))
                .collect();
            let braces = match labels.is_empty() {
                true => String::new(),
                false => format!("{{{}}}", labels.join(",")),
            };
            self.line(format_args!("{}{braces} {value}", metric.name));
        }
    }

    /// The text.
    #[must_use]
    pub fn finish(self) -> String {
        self.0
    }

    fn begin(&mut self, metric: Metric) {
        let kind = match metric.kind {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
        };
        let (name, help) = (metric.name, metric.help);
        self.line(format_args!("# HELP {name} {help}"));
        self.line(format_args!("# TYPE {name} {kind}"));
    }

    fn line(&mut self, text: std::fmt::Arguments<'_>) {
        writeln!(self.0, "{text}").expect("writing to a string cannot fail");
    }
}

/// Escapes backslash, quote and line end in a label's value.
fn escape(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_has_the_prometheus_text_format() {
        let mut page = Page::new();
        page.value(Metric::counter("heddle_rows_total", "Records computed."), 12.0);
        let memory = Metric::gauge("heddle_memory_bytes", "Resident memory.");
        page.values(memory, [([("slot", "a\"b\n")], 1.5), ([("slot", "c")], f64::NAN)]);
        page.values(Metric::gauge("heddle_none", "Nothing."), Vec::<([_; 0], f64)>::new());
        assert_eq!(
            page.finish(),
            "# HELP heddle_rows_total Records computed.\n\
             # TYPE heddle_rows_total counter\n\
             heddle_rows_total 12\n\
             # HELP heddle_memory_bytes Resident memory.\n\
             # TYPE heddle_memory_bytes gauge\n\
             heddle_memory_bytes{slot=\"a\\\"b\\n\"} 1.5\n\
             heddle_memory_bytes{slot=\"c\"} NaN\n"
        );
    }
}
