//! The losses of the passes as a curve: SVG within the page, without script or style.

use heddle_protocol::figure::{Figure, decimal};
use heddle_protocol::view::{EvaluationView, JobView};
use maud::{Markup, html};

/// Points of a curve at the most: its width in pixels.
const POINTS_MAX: usize = 600;
/// Size of the drawing, and the room at its left and below for labels.
const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 200.0;
const LEFT: f64 = 60.0;
const BELOW: f64 = 20.0;

/// One curve: pass from 0, and the loss.
type Points = Vec<(u32, f64)>;

/// The training loss by pass, and the mean loss on the test data beside it. Nothing with fewer than two passes.
pub(super) fn losses(view: &JobView) -> Markup {
    let training: Points =
        view.passes.iter().filter_map(|trained| Some((trained.pass, trained.loss?))).collect();
    let test: Points = view.evaluations.iter().filter_map(test_loss).collect();
    let all = || training.iter().chain(&test);
    let (low, high) = all().fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), (_, loss)| {
        (low.min(*loss), high.max(*loss))
    });
    let passes = all().map(|(pass, _)| *pass).fold(None, |most, pass| most.max(Some(pass)));
    let first = all().map(|(pass, _)| *pass).min().unwrap_or(0);
    let last = passes.filter(|last| *last > first);
    html! {
        @if let Some(last) = last {
            @let scale = Scale { first, last, low, high };
            h2 { "Loss by pass" }
            svg width=(WIDTH) height=(HEIGHT) viewBox=(format!("0 0 {WIDTH} {HEIGHT}")) role="img"
                aria-label="loss by pass" fill="none" stroke="currentColor" {
                path d=(scale.axes()) stroke-opacity="0.4" {}
                polyline points=(scale.points(&training)) stroke-width="2" {}
                polyline points=(scale.points(&test)) stroke-width="2" stroke-dasharray="5 4" {}
                g fill="currentColor" stroke="none" font-size="11" {
                    text x="2" y="14" { (decimal(high, 4)) }
                    text x="2" y=(HEIGHT - BELOW) { (decimal(low, 4)) }
                    text x=(LEFT) y=(HEIGHT - 6.0) { "pass " (first + 1) }
                    text x=(WIDTH - 4.0) y=(HEIGHT - 6.0) text-anchor="end" { "pass " (last + 1) }
                }
            }
            p { "Line: training loss." @if !test.is_empty() { " Dashed: loss on the test data." } }
        }
    }
}

/// The mean loss on the test data; nothing if the first figure of the job has another unit than its loss.
fn test_loss(scores: &EvaluationView) -> Option<(u32, f64)> {
    match scores.figures.loss()? {
        (Figure::LogLoss | Figure::Hinge | Figure::SquaredHinge, loss) => Some((scores.pass, loss)),
        _ => None,
    }
}

/// Where a value is in the drawing.
struct Scale {
    first: u32,
    /// Above `first`.
    last: u32,
    low: f64,
    high: f64,
}

impl Scale {
    fn points(&self, curve: &[(u32, f64)]) -> String {
        let step = curve.len().div_ceil(POINTS_MAX).max(1);
        // Every n-th point from the last one back, so that the present state is shown.
        let shown = curve.iter().rev().step_by(step);
        let at = |(pass, loss): &(u32, f64)| format!("{:.1},{:.1}", self.x(*pass), self.y(*loss));
        shown.map(at).collect::<Vec<_>>().join(" ")
    }

    fn x(&self, pass: u32) -> f64 {
        let share = f64::from(pass - self.first) / f64::from(self.last - self.first);
        LEFT + share * (WIDTH - LEFT - 4.0)
    }

    fn y(&self, loss: f64) -> f64 {
        let range = self.high - self.low;
        // Equal losses are drawn as a line at the bottom.
        let share = if range > 0.0 { (loss - self.low) / range } else { 0.0 };
        let bottom = HEIGHT - BELOW - 4.0;
        bottom - share * (bottom - 4.0)
    }

    fn axes(&self) -> String {
        let bottom = HEIGHT - BELOW;
        format!("M{LEFT} 0V{bottom}H{WIDTH}")
    }
}

#[cfg(test)]
mod tests {
    use heddle_protocol::view::TrainingPassView;

    use super::*;
    use crate::report::samples::view;

    fn trained(losses: impl IntoIterator<Item = f64>) -> JobView {
        let mut view = view();
        let pass = |(n, loss): (usize, f64)| TrainingPassView {
            pass: n as u32,
            rows: 10,
            loss: Some(loss),
        };
        view.passes = losses.into_iter().enumerate().map(pass).collect();
        view
    }

    #[test]
    fn curve_falls_with_the_loss() {
        let svg = losses(&trained([0.5, 0.4, 0.2])).into_string();
        // From the last pass back: lower losses are further down.
        assert!(svg.contains("<polyline points=\"636.0,176.0 348.0,"), "{svg}");
        assert!(svg.contains(" 60.0,4.0\""), "{svg}");
        for expected in ["0.5000", "0.2000", "pass 1<", "pass 3<", "Dashed"] {
            assert!(svg.contains(expected), "{expected} is missing in {svg}");
        }
        assert!(!svg.contains("<script") && !svg.contains("style="), "{svg}");
    }

    #[test]
    fn curve_needs_two_passes() {
        assert_eq!(losses(&trained([0.5])).into_string(), "");
        assert_eq!(losses(&trained([])).into_string(), "");
    }

    #[test]
    fn curve_of_many_passes_is_short() {
        let svg = losses(&trained((1..100_000).map(|n| 1.0 / f64::from(n)))).into_string();
        assert!(svg.len() < 32 << 10, "{} bytes", svg.len());
        let flat = losses(&trained([0.25; 3])).into_string();
        assert!(!flat.contains("NaN") && !flat.contains("inf"), "{flat}");
        let diverged = losses(&trained([0.5, f64::MAX])).into_string();
        assert!(!diverged.contains("NaN") && !diverged.contains("inf"), "{diverged}");
    }
}
