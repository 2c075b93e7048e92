//! Parses decimal numbers: the usual forms by a fast path, all others by the standard library, with identical results to
//! the last bit.

/// Exact powers of ten in f64 (10²² is the highest without rounding).
const TENS: [f64; 23] = [
    1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16,
    1e17, 1e18, 1e19, 1e20, 1e21, 1e22,
];
/// Number of digits that always fits a u64.
const DIGITS_MAX: usize = 18;

/// Parses a decimal number at the start of `text`; returns the nearest f32 and the length.
///
/// The number ends before the first byte that cannot belong to one. `None` if `text` does not begin with a number or the
/// number is not finite as f32 (`nan`, `inf`, `1e99`).
#[inline]
pub(super) fn decimal(text: &[u8]) -> Option<(f32, usize)> {
    // One digit and a separator: the form of indicator features and of many counts.
    if let [digit @ b'0'..=b'9', b' ' | b'\n', ..] = text {
        return Some((f32::from(digit - b'0'), 1));
    }
    let negative = text.first() == Some(&b'-');
    if let Some(word) = text[usize::from(negative)..].first_chunk()
        && let Some((value, len)) = short(word)
        && matches!(word[len], b' ' | b'\n')
    {
        return Some((if negative { -value } else { value }, len + usize::from(negative)));
    }
    let start = usize::from(negative || text.first() == Some(&b'+'));
    let mut mantissa = 0u64;
    let whole = digits(&text[start..], &mut mantissa);
    let mut at = start + whole;
    let mut fraction = 0;
    if text.get(at) == Some(&b'.') {
        at += 1;
        fraction = digits(&text[at..], &mut mantissa);
        at += fraction;
    }
    let count = whole + fraction;
    let plain = !matches!(text.get(at), Some(b'e' | b'E' | b'n' | b'i' | b'N' | b'I'));
    if !plain || count == 0 || count > DIGITS_MAX || mantissa > 1 << 53 {
        return by_std(text);
    }
    match exact(mantissa, fraction) {
        Some(value) => Some((if negative { -value } else { value }, at)),
        None => by_std(text),
    }
}

/// Powers of ten in f32, all exact.
const SMALL_TENS: [f32; 8] = [1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7];

/// The f32 nearest to `mantissa` / 10^`places`, if the fast path can compute it. The mantissa is at most 2⁵³, the
/// places at most [`DIGITS_MAX`].
#[inline]
fn exact(mantissa: u64, places: usize) -> Option<f32> {
    // Clinger's fast path: both are exact, so the quotient is the f64 nearest to the decimal.
    let value = mantissa as f64 / TENS[places];
    // Two roundings (to f64, then to f32) differ from one only if the f64 is exactly halfway between two f32. The
    // smallest value here is 10⁻¹⁸, far above the range in which f32 loses precision.
    (value.to_bits() & 0x1fff_ffff != 0x1000_0000).then_some(value as f32)
}

/// Adds leading digits to `value` (which wraps beyond [`DIGITS_MAX`]) and counts them.
#[inline]
fn digits(text: &[u8], value: &mut u64) -> usize {
    let mut count = 0;
    while let Some(eight) = text[count..].first_chunk::<8>() {
        let (some, found) = eight_digits(*eight);
        *value = value.wrapping_mul(POWERS[found]).wrapping_add(some);
        count += found;
        if found < 8 {
            return count;
        }
    }
    for byte in &text[count..] {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            break;
        }
        *value = value.wrapping_mul(10).wrapping_add(u64::from(digit));
        count += 1;
    }
    count
}

const POWERS: [u64; 9] = [1, 10, 100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000];

/// Up to seven digits with or without a point among them, at the start of `text`; returns the number and its length.
///
/// A byte at a time: numbers of one file have similar lengths, which a processor predicts, so that it begins the next
/// feature early. Eight bytes at once make the next step wait for each length. Features with three decimals: 1.26 GB/s
/// instead of 0.94.
#[inline(always)]
pub(super) fn short(text: &[u8; 14]) -> Option<(f32, usize)> {
    let (mantissa, whole) = leading_digits::<8>(text.first_chunk()?, 0);
    let point = text[whole & 7] == b'.';
    if whole > 7 || !point {
        // Seven digits are below 2²⁴: exact.
        return (1..=7).contains(&whole).then_some((mantissa as i32 as f32, whole));
    }
    let fraction = text[(whole & 7) + 1..].first_chunk::<6>()?;
    let (mantissa, places) = leading_digits(fraction, mantissa);
    // Powers up to 10¹⁰ are exact too: the quotient of two exact f32 is the f32 nearest to the decimal.
    let value = mantissa as i32 as f32 / SMALL_TENS[places & 7];
    (1..=7).contains(&(whole + places)).then_some((value, whole + 1 + places))
}

/// Continues the number `value` with the leading digits of `text`; returns it and how many they are. It wraps beyond u32.
#[inline(always)]
pub(super) fn leading_digits<const N: usize>(text: &[u8; N], mut value: u32) -> (u32, usize) {
    for (count, byte) in text.iter().enumerate() {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return (value, count);
        }
        value = value.wrapping_mul(10).wrapping_add(u32::from(digit));
    }
    (value, N)
}

/// The number in the leading digits of eight bytes, and how many they are, without branches.
#[inline]
pub(super) fn eight_digits(bytes: [u8; 8]) -> (u64, usize) {
    let (nibbles, other) = split(u64::from_le_bytes(bytes));
    let count = first_of(other);
    (join(nibbles, count), count)
}

/// Eight bytes as digits, and a mask with bits in those that are not digits. Correct up to the first non-digit, and
/// beyond it if that is a point, blank or line feed.
#[inline(always)]
fn split(text: u64) -> (u64, u64) {
    // A digit is 0x30 to 0x39: its upper half becomes 0, and stays 0 when 6 is added. Only 0xca and above carry into
    // the next byte.
    let nibbles = text ^ 0x3030_3030_3030_3030;
    let sixes = nibbles.wrapping_add(0x0606_0606_0606_0606);
    (nibbles, (nibbles | sixes) & 0xf0f0_f0f0_f0f0_f0f0)
}

/// The first byte with a bit; 8 without one.
#[inline(always)]
fn first_of(mask: u64) -> usize {
    (mask.trailing_zeros() / 8) as usize
}

/// The number of the first `count` digits, at most 8.
#[inline(always)]
fn join(digits: u64, count: usize) -> u64 {
    // Shifted to the upper end, so that zeros precede the first digit. (In two steps: a shift by 64 is not defined.)
    let value = (digits << (4 * (8 - count))) << (4 * (8 - count));
    // Pairs of digits, then pairs of pairs, then both halves (Lemire, "Parsing series of integers with SIMD", 2018).
    let value = (value.wrapping_mul(10).wrapping_add(value >> 8)) & 0x00ff_00ff_00ff_00ff;
    let value = (value.wrapping_mul(100).wrapping_add(value >> 16)) & 0x0000_ffff_0000_ffff;
    value.wrapping_mul(10_000).wrapping_add(value >> 32) & 0xffff_ffff
}

#[cold]
fn by_std(text: &[u8]) -> Option<(f32, usize)> {
    let belongs = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.');
    let len = text.iter().position(|byte| !belongs(byte)).unwrap_or(text.len());
    let value: f32 = std::str::from_utf8(&text[..len]).ok()?.parse().ok()?;
    value.is_finite().then_some((value, len))
}

/// Parses an unsigned integer at the start of `text`; returns it and its length. `None` if `text` does not begin with one
/// or it exceeds u32.
#[inline]
pub(super) fn whole(text: &[u8]) -> Option<(u32, usize)> {
    let mut value = 0u64;
    let count = digits(text, &mut value);
    // Eleven digits and more exceed u32 unless they begin with zeros, which does not occur in practice.
    (count > 0 && count <= 10).then_some(())?;
    Some((u32::try_from(value).ok()?, count))
}

/// As [`whole`], up to the highest u64.
#[inline]
pub(super) fn whole_u64(text: &[u8]) -> Option<(u64, usize)> {
    let mut value = 0u64;
    let mut count = 0;
    for byte in text {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            break;
        }
        value = value.checked_mul(10)?.checked_add(u64::from(digit))?;
        count += 1;
    }
    (count > 0).then_some((value, count))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_number_ends_at_the_first_other_byte() {
        assert_eq!(decimal(b"12.5 3"), Some((12.5, 4)));
        assert_eq!(decimal(b"-.5\n"), Some((-0.5, 3)));
        assert_eq!(decimal(b"+7:"), Some((7.0, 2)));
        assert_eq!(decimal(b"1e-3 "), Some((1e-3, 4)));
        assert_eq!(decimal(b"5."), Some((5.0, 2)));
        assert_eq!(whole(b"4294967295:"), Some((u32::MAX, 10)));
    }

    #[test]
    fn a_number_that_is_not_finite_is_rejected() {
        for text in [
            "", "-", ".", "abc", "nan", "inf", "-inf", "NaN", "infinity", "1e99", "1e", "--1",
            "1e5e", "1nan",
        ] {
            assert_eq!(decimal(text.as_bytes()), None, "{text}");
        }
        for text in ["", "x", "-1", "4294967296", "99999999999"] {
            assert_eq!(whole(text.as_bytes()), None, "{text}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn eight_bytes_are_read_as_one_by_one(bytes in any::<[u8; 8]>(), digits in "[0-9]{0,8}") {
            let mut bytes = bytes;
            bytes[..digits.len()].copy_from_slice(digits.as_bytes());
            let count = bytes.iter().take_while(|byte| byte.is_ascii_digit()).count();
            let digits = bytes[..count].iter().map(|byte| u64::from(byte - b'0'));
            let value = digits.fold(0, |value, digit| value * 10 + digit);
            prop_assert_eq!(eight_digits(bytes), (value, count));
        }

        #[test]
        fn decimals_are_as_std_reads_them(
            text in "[-+]?[0-9]{0,20}(\\.[0-9]{0,24})?([eE][-+]?[0-9]{1,2})?",
        ) {
            let expected = text.parse::<f32>().ok().filter(|value| value.is_finite());
            let got = decimal(text.as_bytes());
            match expected {
                Some(value) => prop_assert_eq!(
                    got.map(|(v, n)| (v.to_bits(), n)),
                    Some((value.to_bits(), text.len()))
                ),
                None => prop_assert!(got.is_none()),
            }
        }

        #[test]
        fn printed_floats_come_back(bits in any::<u32>()) {
            let value = f32::from_bits(bits);
            prop_assume!(value.is_finite());
            let text = format!("{value} ");
            prop_assert_eq!(decimal(text.as_bytes()).map(|(v, _)| v.to_bits()), Some(bits));
        }

        #[test]
        fn midpoints_of_two_floats_are_rounded_once(
            bits in 0x3000_0000u32..0x4b00_0000,
            digit in 0u8..10,
        ) {
            // The exact decimal of a midpoint, then with one more digit.
            let low = f64::from(f32::from_bits(bits));
            let high = f64::from(f32::from_bits(bits + 1));
            let text = format!("{}{digit}", (low + high) / 2.0);
            let expected: f32 = text.parse().expect("a number");
            prop_assert_eq!(
                decimal(text.as_bytes()).map(|(v, _)| v.to_bits()),
                Some(expected.to_bits())
            );
        }
    }
}
