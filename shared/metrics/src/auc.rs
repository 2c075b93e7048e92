//! Area under the ROC curve, from counts of scores per bin.

use std::collections::BTreeMap;

use heddle_protocol::metrics::{ScoreCounts, WEIGHT_UNITS};

/// An area under the ROC curve with its error bound.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Auc {
    /// From 0 to 1.
    pub value: f64,
    /// The area over unbinned scores is within `value ± error`.
    pub error: f64,
}

impl Auc {
    /// The chance that a positive record scores above a negative one, ties counting half, and the most that it can differ
    /// from the area over unbinned scores. `None` when a class is missing.
    #[must_use]
    pub fn of(counts: &ScoreCounts) -> Option<Self> {
        // Pairs of one bin could be in either order: they count half, and half of them is the error.
        let (mut below, mut positives) = (0u128, 0u128);
        let (mut doubled, mut tied) = (0u128, 0u128);
        for [n, p] in counts.bins().map(|(_, pair)| pair.map(u128::from)) {
            doubled += p * (2 * below + n);
            tied += p * n;
            below += n;
            positives += p;
        }
        let pairs = positives * below;
        (pairs > 0).then(|| Self {
            value: doubled as f64 / (2.0 * pairs as f64),
            error: tied as f64 / (2.0 * pairs as f64),
        })
    }

    /// The same where some records have a weight, by which a pair counts as the product of its two: `weighted` has their
    /// scores in [`WEIGHT_UNITS`], `counts` those of the others.
    #[must_use]
    pub fn of_weighted(counts: &ScoreCounts, weighted: &ScoreCounts) -> Option<Self> {
        if weighted.is_empty() {
            return Self::of(counts);
        }
        let mut bins: BTreeMap<u32, [f64; 2]> = BTreeMap::new();
        for (counts, unit) in [(counts, 1.0), (weighted, 1.0 / WEIGHT_UNITS)] {
            for (bin, pair) in counts.bins() {
                let sums = bins.entry(bin).or_default();
                for (sum, count) in sums.iter_mut().zip(pair) {
                    *sum += count as f64 * unit;
                }
            }
        }
        // In the order of the bins, so that the bits do not depend on the tasks.
        let (mut below, mut positives) = (0.0, 0.0);
        let (mut doubled, mut tied) = (0.0, 0.0);
        for [n, p] in bins.into_values() {
            doubled += p * (2.0 * below + n);
            tied += p * n;
            below += n;
            positives += p;
        }
        let pairs = positives * below;
        (pairs > 0.0).then(|| Self { value: doubled / (2.0 * pairs), error: tied / (2.0 * pairs) })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn counts(scores: &[(f64, bool)]) -> ScoreCounts {
        let mut counts = ScoreCounts::default();
        for (score, positive) in scores {
            counts.count(*score, *positive);
        }
        counts
    }

    #[test]
    fn area_of_a_perfect_a_reversed_and_a_tied_order() {
        let perfect = Auc::of(&counts(&[(-1.0, false), (1.0, true)])).expect("both classes");
        assert_eq!((perfect.value, perfect.error), (1.0, 0.0));
        let reversed = Auc::of(&counts(&[(-1.0, true), (1.0, false)])).expect("both classes");
        assert_eq!(reversed.value, 0.0);
        let tied = Auc::of(&counts(&[(0.5, true), (0.5, false)])).expect("both classes");
        assert_eq!((tied.value, tied.error), (0.5, 0.5));
        assert_eq!(Auc::of(&counts(&[(0.5, true)])), None);
    }

    #[test]
    fn a_score_of_weight_two_is_two_scores() {
        let mut weighted = ScoreCounts::default();
        for (score, positive, weight) in [(-1.0, true, 2), (0.5, false, 3), (2.0, true, 0)] {
            weighted.add(score, positive, weight << 30);
        }
        let others = counts(&[(-2.0, false), (1.0, true)]);
        let mut repeated = vec![(-2.0, false), (1.0, true), (-1.0, true), (-1.0, true)];
        repeated.extend([(0.5, false); 3]);
        let expected = Auc::of(&counts(&repeated));
        assert_eq!(Auc::of_weighted(&others, &weighted), expected);
        assert!(expected.is_some_and(|auc| auc.value > 0.0 && auc.value < 1.0));
        assert_eq!(Auc::of_weighted(&others, &ScoreCounts::default()), Auc::of(&others));
    }

    proptest! {
        #[test]
        fn the_area_is_within_its_bound_of_the_exact_one(
            scores in proptest::collection::vec((-30.0f64..30.0, any::<bool>()), 2..60)
        ) {
            let positives: Vec<f64> = scores.iter().filter(|s| s.1).map(|s| s.0).collect();
            let negatives: Vec<f64> = scores.iter().filter(|s| !s.1).map(|s| s.0).collect();
            prop_assume!(!positives.is_empty() && !negatives.is_empty());
            let mut wins = 0.0;
            for p in &positives {
                for n in &negatives {
                    wins += if p > n { 1.0 } else if p == n { 0.5 } else { 0.0 };
                }
            }
            let exact = wins / (positives.len() * negatives.len()) as f64;
            let auc = Auc::of(&counts(&scores)).expect("both classes");
            prop_assert!((auc.value - exact).abs() <= auc.error + 1e-12);
        }
    }
}
