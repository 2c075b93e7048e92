//! A small generator: the same keys in every run.

/// SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
#[derive(Clone, Debug)]
pub struct SplitMix(pub u64);

impl SplitMix {
    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From -0.5 to 0.5.
    pub fn centred(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u32 << 24) as f32 - 0.5
    }

    /// `count` distinct rows below `rows`, ascending. `rows` is at least twice `count`.
    #[must_use]
    pub fn keys(&mut self, count: usize, rows: u64) -> Vec<u32> {
        debug_assert!(rows >= 2 * count as u64, "most draws are distinct");
        let mut keys: Vec<u32> = Vec::with_capacity(count + count / 8);
        while keys.len() < count {
            keys.extend((keys.len()..count + 100).map(|_| (self.bits() % rows) as u32));
            keys.sort_unstable();
            keys.dedup();
        }
        keys.truncate(count);
        keys
    }
}
