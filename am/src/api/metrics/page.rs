//! Metrics, and the answer that they are written to.

use std::fmt;

use prometheus_client::encoding::{
    DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue, EncodeLabelSet, EncodeMetric,
    MetricEncoder,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

/// Name, type and help of a metric.
#[derive(Clone, Copy)]
pub(super) struct Metric {
    /// The name of its series: `heddle_…`, ending in the base unit, counters in `_total`.
    name: &'static str,
    help: &'static str,
    kind: MetricType,
}

impl Metric {
    /// A metric that only grows while the process lives.
    pub(super) const fn counter(name: &'static str, help: &'static str) -> Self {
        Self { name, help, kind: MetricType::Counter }
    }

    /// A metric that goes up and down.
    pub(super) const fn gauge(name: &'static str, help: &'static str) -> Self {
        Self { name, help, kind: MetricType::Gauge }
    }

    /// A metric with counts by class. Its last class has no upper bound.
    pub(super) const fn histogram(name: &'static str, help: &'static str) -> Self {
        Self { name, help, kind: MetricType::Histogram }
    }

    fn sample(
        self,
        encoder: MetricEncoder<'_>,
        value: impl EncodeCounterValue + EncodeGaugeValue,
    ) -> fmt::Result {
        match self.kind {
            MetricType::Counter => ConstCounter::new(value).encode(encoder),
            _ => ConstGauge::new(value).encode(encoder),
        }
    }
}

/// Writes metrics to an answer.
pub(super) struct Page<'e>(pub(super) DescriptorEncoder<'e>);

impl Page<'_> {
    /// Adds a metric with one value.
    pub(super) fn value(
        &mut self,
        metric: Metric,
        value: impl EncodeCounterValue + EncodeGaugeValue,
    ) -> fmt::Result {
        metric.sample(self.begin(metric)?, value)
    }

    /// Adds a metric with one value per set of labels. A metric without values adds nothing.
    pub(super) fn values<L: EncodeLabelSet, V: EncodeCounterValue + EncodeGaugeValue>(
        &mut self,
        metric: Metric,
        samples: impl IntoIterator<Item = (L, V)>,
    ) -> fmt::Result {
        let mut samples = samples.into_iter().peekable();
        if samples.peek().is_none() {
            return Ok(());
        }
        let mut encoder = self.begin(metric)?;
        samples
            .try_for_each(|(labels, value)| metric.sample(encoder.encode_family(&labels)?, value))
    }

    /// OpenMetrics names a counter without the suffix of its series, which the encoder appends.
    pub(super) fn begin(&mut self, metric: Metric) -> Result<MetricEncoder<'_>, fmt::Error> {
        let name = metric.name.strip_suffix("_total").unwrap_or(metric.name);
        self.0.encode_descriptor(name, metric.help, None, metric.kind)
    }
}
