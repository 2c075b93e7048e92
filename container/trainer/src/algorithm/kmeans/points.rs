//! Records and centres as points: coordinates in f64, distances in the order of the columns.

use heddle_protocol::failure::Failure;

use crate::algorithm::Standard;

/// PointSet of one dimension, row by row.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct PointSet {
    dim: usize,
    /// `[points × dim]`
    coordinates: Vec<f64>,
}

/// Columns between two looks at whether a distance exceeds the least one.
const COLUMNS: usize = 8;

impl PointSet {
    /// No point.
    ///
    /// # Panics
    /// If `dim` is 0.
    pub(crate) fn new(dim: usize) -> Self {
        assert!(dim > 0, "points have coordinates");
        Self { dim, coordinates: Vec::new() }
    }

    /// Adds a point.
    pub(crate) fn push(&mut self, coordinates: impl IntoIterator<Item = f64>) {
        self.coordinates.extend(coordinates);
        debug_assert!(self.coordinates.len().is_multiple_of(self.dim));
    }

    pub(crate) fn len(&self) -> usize {
        self.coordinates.len() / self.dim
    }

    pub(crate) fn get(&self, at: usize) -> &[f64] {
        &self.coordinates[at * self.dim..(at + 1) * self.dim]
    }

    pub(crate) fn get_mut(&mut self, at: usize) -> &mut [f64] {
        &mut self.coordinates[at * self.dim..(at + 1) * self.dim]
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &[f64]> {
        self.coordinates.chunks_exact(self.dim)
    }

    /// The nearest point to `x`, of equally near ones the lowest, and its squared distance. `None` without points.
    pub(crate) fn nearest(&self, x: &[f64]) -> Option<(usize, f64)> {
        // Only a point with finite coordinates is the nearest.
        let (mut nearest, mut least) = (0, f64::INFINITY);
        for (n, point) in self.iter().enumerate() {
            let distance = squared_distance_below(x, point, least);
            if distance < least {
                (nearest, least) = (n, distance);
            }
        }
        (self.len() > 0).then_some((nearest, least))
    }
}

/// Σ (aⱼ − bⱼ)², column by column.
pub(crate) fn squared_distance(a: &[f64], b: &[f64]) -> f64 {
    squared_distance_below(a, b, f64::INFINITY)
}

/// The same, or a part of the sum that is at least `limit`: terms are not negative, so that the whole is too.
fn squared_distance_below(a: &[f64], b: &[f64], limit: f64) -> f64 {
    let mut sum = 0.0;
    for (a, b) in a.chunks(COLUMNS).zip(b.chunks(COLUMNS)) {
        for (a, b) in a.iter().zip(b) {
            sum += (a - b) * (a - b);
        }
        if sum >= limit {
            return sum;
        }
    }
    sum
}

/// Where records lie: columns as they are, or standardised.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Space {
    /// The coordinates of a record without entries.
    zero: Vec<f64>,
    standard: Option<Standard>,
    /// The sum of the columns' variances.
    variance: f64,
}

impl Space {
    /// By the sums of the columns.
    ///
    /// # Errors
    /// See [`Standard::of`].
    pub(crate) fn of(stats: &[f32], standardise: bool) -> Result<Self, Failure> {
        let standard = Standard::of(stats)?;
        if !standardise {
            let variance = standard.variance.iter().sum();
            return Ok(Self { zero: vec![0.0; standard.mean.len()], standard: None, variance });
        }
        let columns = standard.mean.iter().zip(&standard.inverse);
        let zero = columns.map(|(mean, inverse)| -mean * inverse).collect();
        let columns = standard.variance.iter().zip(&standard.inverse);
        let variance = columns.map(|(variance, inverse)| variance * inverse * inverse).sum();
        Ok(Self { zero, standard: Some(standard), variance })
    }

    /// Columns times these scales, of which there may be fewer; the others are as they are.
    pub(crate) fn scaled(columns: usize, scales: &[f32]) -> Self {
        let inverse = (0..columns).map(|n| scales.get(n).map_or(1.0, |scale| f64::from(*scale)));
        let zero = vec![0.0; columns];
        let inverse = inverse.collect();
        let standard = Standard { mean: zero.clone(), inverse, variance: Vec::new() };
        Self { zero, standard: Some(standard), variance: 0.0 }
    }

    /// The sum of the columns' variances.
    pub(crate) fn variance(&self) -> f64 {
        self.variance
    }

    /// Replaces `x` by the coordinates of a record.
    pub(crate) fn place(&self, indices: &[u32], values: &[f32], x: &mut Vec<f64>) {
        x.clone_from(&self.zero);
        for (index, value) in indices.iter().zip(values) {
            let (column, value) = (*index as usize, f64::from(*value));
            x[column] = match &self.standard {
                Some(standard) => (value - standard.mean[column]) * standard.inverse[column],
                None => value,
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_of_equally_near_points_is_the_lowest() {
        let mut points = PointSet::new(2);
        assert_eq!(points.nearest(&[0.0, 0.0]), None);
        for point in [[5.0, 0.0], [0.0, 2.0], [2.0, 0.0], [0.0, 2.0]] {
            points.push(point);
        }
        assert_eq!(points.nearest(&[0.0, 0.0]), Some((1, 4.0)));
        assert_eq!(points.nearest(&[5.0, 1.0]), Some((0, 1.0)));
        points.get_mut(0)[0] = f64::NAN;
        assert_eq!(points.nearest(&[5.0, 0.0]), Some((2, 9.0)));
    }

    #[test]
    fn distances_that_are_cut_short_change_no_choice() {
        let mut points = PointSet::new(20);
        for n in 0..30u32 {
            points.push((0..20u32).map(|j| f64::from((n * 7919 + j * 104_729) % 101) / 10.0));
        }
        for n in 0..30u32 {
            let x: Vec<f64> =
                (0..20u32).map(|j| f64::from((n * 31 + j * 17) % 103) / 10.0).collect();
            let whole: Vec<f64> = points.iter().map(|point| squared_distance(&x, point)).collect();
            let least = whole.iter().copied().fold(f64::INFINITY, f64::min);
            let at = whole.iter().position(|distance| *distance == least).expect("a point");
            assert_eq!(points.nearest(&x), Some((at, least)));
        }
    }

    #[test]
    fn standardised_records_have_zeros_too() {
        // Column 0 holds 1, 3, 0, 0; column 1 is always 5.
        let stats = [4.0, 2.0, 4.0, 20.0, 4.0, 0.0, 4.0, 4.0, 0.0];
        let mut x = Vec::new();
        let raw = Space::of(&stats, false).expect("records");
        raw.place(&[1], &[5.0], &mut x);
        assert_eq!((x.as_slice(), raw.variance()), (&[0.0, 5.0][..], 1.5));
        let standard = Space::of(&stats, true).expect("records");
        standard.place(&[1], &[5.0], &mut x);
        assert!((x[0] + 1.0 / 1.5f64.sqrt()).abs() < 1e-12 && x[1] == 0.0, "{x:?}");
        assert!((standard.variance() - 1.0).abs() < 1e-12, "a column that does not vary has none");
    }
}
