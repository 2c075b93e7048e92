//! Numbers that follow from a seed (SplitMix64, Steele et al. 2014).

pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From `least` to `most`, both included.
    pub fn range(&mut self, least: u64, most: u64) -> u64 {
        least + self.next() % (most - least + 1)
    }

    pub fn count(&mut self, least: u32, most: u32) -> u32 {
        u32::try_from(self.range(least.into(), most.into())).expect("within the range")
    }

    pub fn amount(&mut self, least: i64, most: i64) -> i64 {
        least
            + i64::try_from(self.range(0, (most - least).unsigned_abs())).expect("within the range")
    }

    /// True once in `n`.
    pub fn once_in(&mut self, n: u64) -> bool {
        self.next().is_multiple_of(n)
    }

    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[usize::try_from(self.range(0, of.len() as u64 - 1)).expect("within the range")]
    }

    pub fn shuffle<T>(&mut self, list: &mut [T]) {
        for at in (1..list.len()).rev() {
            list.swap(at, usize::try_from(self.range(0, at as u64)).expect("within the range"));
        }
    }
}
