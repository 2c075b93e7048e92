//! Random numbers of k-means||, without the state of a generator: each is a function of what it is for.
//!
//! A record offers itself for a slot with the key −ln(u) / (weight · d²), and the least key wins the slot. Keys are
//! exponentially distributed with the rate weight · d², so that each record wins with a probability proportional to it, in
//! whatever order and by whatever trainer the records are read.

/// The place of a record's draws: the round, and the record in the data.
#[derive(Clone, Copy, Debug)]
pub(super) struct Draw {
    state: u64,
}

impl Draw {
    /// The draws of a record in a round.
    pub(super) fn of(seed: u64, round: u32, task: u32, record: u64) -> Self {
        let place = mix(mix(mix(seed) ^ u64::from(round)) ^ u64::from(task));
        Self { state: mix(place ^ record) }
    }

    /// The key for a slot if it is below `best`; `rate` is above 0.
    pub(super) fn key_below(self, slot: u32, rate: f64, best: f64) -> Option<f64> {
        let u = unit(mix(self.state ^ u64::from(slot).wrapping_mul(GOLDEN)));
        // −ln u is at least 1 − u: most logarithms need not be computed.
        if (1.0 - u) / rate >= best {
            return None;
        }
        let key = -libm::log(u) / rate;
        (key < best).then_some(key)
    }
}

/// A sequence of numbers (SplitMix64: Steele, Lea, Flood, OOPSLA 2014).
pub(super) struct Sequence(u64);

impl Sequence {
    /// The sequence of a seed, other than the rounds' sequences.
    pub(super) fn of(seed: u64) -> Self {
        Self(mix(!seed))
    }

    /// Above 0 and below 1.
    pub(super) fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(GOLDEN);
        unit(mix(self.0))
    }
}

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// The 53 upper bits, in the middle of their interval: above 0 and below 1.
fn unit(bits: u64) -> f64 {
    ((bits >> 11) as f64 + 0.5) / (1u64 << 53) as f64
}

fn mix(z: u64) -> u64 {
    let z = z.wrapping_add(GOLDEN);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_win_slots_by_their_rates() {
        // Rates 1, 2, 5: of 8,000 slots some 1,000, 2,000 and 5,000.
        let mut won = [0u32; 3];
        for slot in 0..8_000 {
            let mut best = (f64::INFINITY, 0);
            for (record, rate) in [1.0, 2.0, 5.0].into_iter().enumerate() {
                let draw = Draw::of(7, 1, 3, record as u64);
                if let Some(key) = draw.key_below(slot, rate, best.0) {
                    best = (key, record);
                }
            }
            won[best.1] += 1;
        }
        for (won, expected) in won.into_iter().zip([1_000.0, 2_000.0, 5_000.0]) {
            // Five standard deviations.
            let deviation = 5.0 * f64::sqrt(expected * (1.0 - expected / 8_000.0));
            assert!((f64::from(won) - expected).abs() < deviation, "{won} {expected}");
        }
    }

    #[test]
    fn keys_depend_on_each_part_of_their_place() {
        let key = |draw: Draw, slot| draw.key_below(slot, 1.0, f64::INFINITY);
        let base = key(Draw::of(1, 2, 3, 4), 5);
        assert_eq!(base, key(Draw::of(1, 2, 3, 4), 5));
        let places = [(0, 2, 3, 4), (1, 0, 3, 4), (1, 2, 0, 4), (1, 2, 3, 0)];
        for (seed, round, task, record) in places {
            assert_ne!(base, key(Draw::of(seed, round, task, record), 5));
        }
        assert_ne!(base, key(Draw::of(1, 2, 3, 4), 6));
    }
}
