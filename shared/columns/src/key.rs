//! Keys of features. They are part of the format of models: `docs/formats.md` has them with examples.
//!
//! | feature | key |
//! | --- | --- |
//! | seed of a column | XXH3-64 of its name |
//! | number | the seed |
//! | category, item of a list | XXH3-64 of the text with the seed; of a whole number its decimal digits, else `true`, `false` |
//! | a missing number, as a feature | XXH3-64 of the empty text with the seed, its last bit inverted |
//! | index of a vector | the index; beside other columns XXH3-64 of its 8 bytes, the lowest first, with the seed |
//! | cross | XXH3-64 of the 8 bytes of both keys, with seed 0 |

use twox_hash::XxHash3_64;

/// The seed of the column with this name.
#[must_use]
pub fn seed(name: &str) -> u64 {
    XxHash3_64::oneshot(name.as_bytes())
}

/// The key of a text in the column with this seed.
#[inline]
#[must_use]
pub fn of_text(seed: u64, text: &[u8]) -> u64 {
    XxHash3_64::oneshot_with_seed(seed, text)
}

/// The key of a whole number: the key of its decimal digits.
#[must_use]
pub fn of_integer(seed: u64, number: i128) -> u64 {
    // 39 digits and a sign.
    let mut text = [0; 40];
    let (mut at, mut rest) = (text.len(), number.unsigned_abs());
    loop {
        at -= 1;
        text[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    if number < 0 {
        at -= 1;
        text[at] = b'-';
    }
    of_text(seed, &text[at..])
}

/// The key that stands for a missing number.
#[must_use]
pub fn of_missing(seed: u64) -> u64 {
    of_text(seed ^ 1, b"")
}

/// The key of an index of a vector beside other columns.
#[must_use]
pub fn of_index(seed: u64, index: u64) -> u64 {
    of_text(seed, &index.to_le_bytes())
}

/// The key of a pair of features.
#[inline]
#[must_use]
pub fn of_cross(first: u64, second: u64) -> u64 {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&first.to_le_bytes());
    bytes[8..].copy_from_slice(&second.to_le_bytes());
    of_text(0, &bytes)
}

/// The index of a key among `features` features.
#[inline]
#[must_use]
pub fn folded(key: u64, features: u64) -> u32 {
    // Below `features`, which is below 2³².
    ((u128::from(key) * u128::from(features)) >> 64) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The reference implementation of XXH3 gives the same numbers; models depend on them.
    #[test]
    fn keys_are_those_of_the_documentation() {
        let price = seed("price");
        assert_eq!(seed(""), 0x2d06_8005_38d3_94c2);
        let keys = [
            price,
            of_missing(price),
            of_text(seed("site"), b"a"),
            of_text(seed("site"), b""),
            of_integer(seed("site"), -17),
            of_index(seed("features"), 3),
            of_cross(1, 2),
        ];
        assert_eq!(of_integer(9, 0), of_text(9, b"0"));
        assert_eq!(of_integer(9, i128::MIN), of_text(9, i128::MIN.to_string().as_bytes()));
        assert_eq!(of_integer(9, -17), of_text(9, b"-17"));
        let expected = [
            0x15d5_9752_55a0_8470,
            0x36e2_c22f_6874_893c,
            0x3231_bb3a_2b0f_9c68,
            0x9758_fc8a_1b41_b9b2,
            0x0b8f_87b5_a76c_45a3,
            0x9f69_fc41_a390_32d9,
            0x07ee_86c2_8144_6bef,
        ];
        assert_eq!(keys, expected);
    }

    #[test]
    fn folded_keys_are_below_the_number_of_features() {
        for features in [1, 2, 3, 1 << 20, u64::from(u32::MAX) - 1] {
            assert_eq!(folded(0, features), 0);
            assert_eq!(u64::from(folded(u64::MAX, features)), features - 1);
        }
    }
}
