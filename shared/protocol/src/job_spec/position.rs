//! The order of the rows of sparse tables: by position, a fixed permutation of the u64 keys.
//!
//! Keys of real data come in runs (hashes of one field share their high bits, ids are counted from 1). Positions spread them
//! over all of u64, so that equal ranges of positions hold about equally many rows. Shards are such ranges. Frames and files
//! hold positions instead of keys; a model holds keys again.
//!
//! The permutation is two rounds of xor-shift by 32 and multiplication by an odd constant, then another xor-shift. Each of
//! these is a bijection. The constant is that of Pelle Evensen's `rrmxmx`.

use std::ops::RangeInclusive;

use crate::ids::ShardId;

/// Name of the section of a shard file with the positions of a sparse table's rows: a u64 a row, two words in memory.
pub const POSITIONS: &str = "positions";

const FACTOR: u64 = 0xd6e8_feb8_6659_fd93;
/// FACTOR · INVERSE = 1 modulo 2⁶⁴.
const INVERSE: u64 = inverse(FACTOR);

/// The inverse of an odd number modulo 2⁶⁴, by Newton's iteration: each round doubles the bits that are right.
const fn inverse(odd: u64) -> u64 {
    let mut inverse = odd;
    let mut round = 0;
    while round < 5 {
        inverse = inverse.wrapping_mul(2u64.wrapping_sub(odd.wrapping_mul(inverse)));
        round += 1;
    }
    inverse
}

/// The position of a key.
#[inline]
#[must_use]
pub fn position_of_key(key: u64) -> u64 {
    let mut x = key;
    x = (x ^ (x >> 32)).wrapping_mul(FACTOR);
    x = (x ^ (x >> 32)).wrapping_mul(FACTOR);
    x ^ (x >> 32)
}

/// The key at a position: the inverse of [`position_of_key`].
#[inline]
#[must_use]
pub fn key_of_position(position: u64) -> u64 {
    // An xor-shift by half of the bits is its own inverse.
    let mut x = position;
    x = (x ^ (x >> 32)).wrapping_mul(INVERSE);
    x = (x ^ (x >> 32)).wrapping_mul(INVERSE);
    x ^ (x >> 32)
}

/// The positions of shard `shard` of `shards`: `[⌈2⁶⁴·s/S⌉, ⌈2⁶⁴·(s+1)/S⌉ − 1]`.
///
/// # Panics
/// When `shards` is 0 or `shard` is not below it.
#[must_use]
pub fn shard_positions(shard: ShardId, shards: u32) -> RangeInclusive<u64> {
    assert!(shard.0 < shards, "shard {shard} of {shards}");
    let bound = |s: u32| (u128::from(s) << 64).div_ceil(u128::from(shards));
    // The upper bound of the last shard is 2⁶⁴, so what is before it fits.
    bound(shard.0) as u64..=(bound(shard.0 + 1) - 1) as u64
}

/// The shard that holds a position: the inverse of [`shard_positions`].
#[must_use]
pub fn shard_of_position(position: u64, shards: u32) -> ShardId {
    ShardId(((u128::from(position) * u128::from(shards)) >> 64) as u32)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn positions_are_the_documented_ones() {
        let positions = [0, 1, 2, u64::MAX].map(position_of_key);
        assert_eq!(
            positions,
            [0, 0x4179_b061_e0c0_e0d0, 0x1c99_6330_5feb_c252, 0x448e_29ce_d410_3459]
        );
    }

    #[test]
    fn neighbouring_keys_are_spread_over_all_shards() {
        let mut counts = [0u32; 16];
        for key in 1..=16_000u64 {
            counts[shard_of_position(position_of_key(key), 16).0 as usize] += 1;
        }
        assert!(counts.iter().all(|count| (850..1150).contains(count)), "{counts:?}");
    }

    proptest! {
        #[test]
        fn each_key_has_its_own_position(key in any::<u64>()) {
            prop_assert_eq!(key_of_position(position_of_key(key)), key);
            prop_assert_eq!(position_of_key(key_of_position(key)), key);
        }

        #[test]
        fn shards_cover_all_positions_once(shards in 1u32..5000, position in any::<u64>()) {
            let shard = shard_of_position(position, shards);
            let own = shard_positions(shard, shards);
            prop_assert!(own.contains(&position));
            for edge in [*own.start(), *own.end()] {
                prop_assert_eq!(shard_of_position(edge, shards), shard);
            }
            match own.end().checked_add(1) {
                Some(next) => {
                    prop_assert_eq!(shard_of_position(next, shards), ShardId(shard.0 + 1));
                }
                None => prop_assert_eq!(shard.0, shards - 1),
            }
        }
    }
}
