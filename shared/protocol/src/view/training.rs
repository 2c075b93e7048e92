//! What is shown of the training itself: the loss of each pass.

use serde::{Deserialize, Serialize};

/// The training loss of one pass: the loss of each record at the values of its own step, before the step's update. So it is
/// an average over the pass, without l2.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrainingPassView {
    /// The pass, from 0.
    pub pass: u32,
    /// Records that it counts: in BSP all. In ASP and SSP steps of a trainer that was lost, in a task that another trainer
    /// continued, are missing.
    pub rows: u64,
    /// Mean loss of a record; `None` if the trainers of a custom algorithm report none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
}

impl TrainingPassView {
    /// The pass of these sums. JSON has no NaN and no infinity: such a loss becomes the largest number.
    #[must_use]
    pub fn new(pass: u32, rows: u64, loss_sum: Option<f64>) -> Self {
        let mean = |sum: f64| sum / rows.max(1) as f64;
        let finite = |loss: f64| if loss.is_finite() { loss } else { f64::MAX };
        Self { pass, rows, loss: loss_sum.map(mean).map(finite) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loss_that_json_lacks_becomes_the_largest_number() {
        assert_eq!(TrainingPassView::new(0, 4, Some(2.0)).loss, Some(0.5));
        for sum in [f64::NAN, f64::INFINITY] {
            let trained = TrainingPassView::new(0, 4, Some(sum));
            let json = serde_json::to_string(&trained).expect("JSON");
            assert_eq!(serde_json::from_str::<TrainingPassView>(&json).expect("read"), trained);
        }
        let without = r#"{"pass":1,"rows":2}"#;
        assert_eq!(
            serde_json::to_string(&TrainingPassView::new(1, 2, None)).expect("JSON"),
            without
        );
    }
}
