//! The first centres: weighted k-means++ on the candidates of k-means||, then Lloyd's iterations on them.
//!
//! Every trainer computes the same: candidates and their counts are constants of the first pass, all sums are f64 in one
//! order, and random numbers come from the job's seed. K-means++ is the greedy form of Arthur and Vassilvitskii (SODA 2007,
//! section 5): of some draws the one that lowers the sum of distances most.

use super::draw::Sequence;
use super::points::{PointSet, squared_distance};

/// Most of Lloyd's iterations.
const ITERATIONS_MAX: usize = 30;
/// Fewest of Lloyd's iterations, whatever they cost.
const ITERATIONS_MIN: usize = 3;
/// Products of coordinates that the iterations may take, some seconds: they run on each trainer at the same time.
const PRODUCTS_MAX: usize = 4_000_000_000;

/// Chooses `clusters` centres among `points`, of which each counts by its weight. With fewer distinct points than that the
/// rest are copies of the first centre, and their clusters are empty.
pub(super) fn initial_centres(
    points: &PointSet,
    weights: &[f64],
    clusters: usize,
    seed: u64,
) -> PointSet {
    let mut centres = plus_plus(points, weights, clusters, &mut Sequence::of(seed));
    let products = points.len().saturating_mul(clusters).saturating_mul(centres.get(0).len());
    let most = (PRODUCTS_MAX / products.max(1)).clamp(ITERATIONS_MIN, ITERATIONS_MAX);
    let mut owners = vec![usize::MAX; points.len()];
    for _ in 0..most {
        if !iterate(points, weights, &mut centres, &mut owners) {
            break;
        }
    }
    centres
}

fn plus_plus(
    points: &PointSet,
    weights: &[f64],
    clusters: usize,
    random: &mut Sequence,
) -> PointSet {
    let dim = points.get(0).len();
    let mut centres = PointSet::new(dim);
    let first = draw(weights.iter().copied(), random).unwrap_or(0);
    centres.push(points.get(first).iter().copied());
    let mut nearest: Vec<f64> =
        points.iter().map(|point| squared_distance(point, points.get(first))).collect();
    let trials = 2 + (clusters as f64).ln() as usize;
    while centres.len() < clusters {
        let mut best: Option<(f64, usize, Vec<f64>)> = None;
        for _ in 0..trials {
            let rates = weights.iter().zip(&nearest).map(|(weight, distance)| weight * distance);
            let Some(drawn) = draw(rates, random) else { break };
            let with = |(point, distance): (&[f64], &f64)| {
                squared_distance(point, points.get(drawn)).min(*distance)
            };
            let distances: Vec<f64> = points.iter().zip(&nearest).map(with).collect();
            let sum: f64 =
                weights.iter().zip(&distances).map(|(weight, distance)| weight * distance).sum();
            if best.as_ref().is_none_or(|(least, ..)| sum < *least) {
                best = Some((sum, drawn, distances));
            }
        }
        // Without a rate above 0 every point is a centre.
        let (_, drawn, distances) = best.unwrap_or((0.0, first, nearest));
        centres.push(points.get(drawn).iter().copied());
        nearest = distances;
    }
    centres
}

/// A place, each with a probability proportional to its rate; `None` if no rate is above 0.
fn draw(rates: impl Iterator<Item = f64> + Clone, random: &mut Sequence) -> Option<usize> {
    let at = random.unit() * rates.clone().sum::<f64>();
    let (mut sum, mut last) = (0.0, None);
    for (place, rate) in rates.enumerate() {
        sum += rate;
        if rate > 0.0 {
            last = Some(place);
            if sum > at {
                return last;
            }
        }
    }
    // Rounding may leave the sum at or below the mark.
    last
}

/// An iteration of Lloyd's algorithm. Returns whether a point changed its owner.
fn iterate(
    points: &PointSet,
    weights: &[f64],
    centres: &mut PointSet,
    owners: &mut [usize],
) -> bool {
    let dim = centres.get(0).len();
    let (mut sums, mut counts) = (vec![0.0; centres.len() * dim], vec![0.0; centres.len()]);
    let mut changed = false;
    for ((point, weight), owner) in points.iter().zip(weights).zip(owners) {
        let (nearest, _) = centres.nearest(point).unwrap_or_default();
        changed |= std::mem::replace(owner, nearest) != nearest;
        counts[nearest] += weight;
        for (sum, x) in sums[nearest * dim..(nearest + 1) * dim].iter_mut().zip(point) {
            *sum += weight * x;
        }
    }
    for (n, count) in counts.iter().enumerate().filter(|(_, count)| **count > 0.0) {
        for (x, sum) in centres.get_mut(n).iter_mut().zip(&sums[n * dim..(n + 1) * dim]) {
            *x = sum / count;
        }
    }
    changed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(values: &[f64]) -> PointSet {
        let mut points = PointSet::new(1);
        values.iter().for_each(|value| points.push([*value]));
        points
    }

    #[test]
    fn centres_of_separate_groups_are_their_weighted_means() {
        let points = line(&[0.0, 1.0, 100.0, 104.0, 200.0]);
        let weights = [1.0, 3.0, 1.0, 1.0, 2.0];
        for seed in 0..20 {
            let centres = initial_centres(&points, &weights, 3, seed);
            let mut found: Vec<f64> = centres.iter().map(|centre| centre[0]).collect();
            found.sort_by(f64::total_cmp);
            assert_eq!(found, [0.75, 102.0, 200.0], "seed {seed}");
        }
        assert_eq!(
            initial_centres(&points, &weights, 3, 5),
            initial_centres(&points, &weights, 3, 5)
        );
    }

    #[test]
    fn more_clusters_than_distinct_points_are_copies() {
        let centres = initial_centres(&line(&[7.0, 7.0]), &[1.0, 1.0], 3, 1);
        assert_eq!(centres, line(&[7.0, 7.0, 7.0]));
        let unweighted = initial_centres(&line(&[7.0, 8.0]), &[0.0, 0.0], 1, 1);
        assert_eq!(unweighted.len(), 1);
    }
}
