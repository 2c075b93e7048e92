//! Texts in cells: those that mean a missing value, numbers, items of lists.

/// The texts that mean a missing value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NullTexts {
    texts: Vec<Vec<u8>>,
    /// A bit for each of their lengths; the last one is for longer ones too.
    lengths: u64,
}

impl NullTexts {
    /// These texts.
    #[must_use]
    pub fn new(texts: &[String]) -> Self {
        let texts: Vec<_> = texts.iter().map(|text| text.as_bytes().to_vec()).collect();
        let lengths = texts.iter().fold(0, |lengths, text| lengths | Self::bit(text));
        Self { texts, lengths }
    }

    #[inline]
    fn bit(text: &[u8]) -> u64 {
        1 << text.len().min(63)
    }

    /// Whether a text is among them.
    #[inline]
    #[must_use]
    pub fn has(&self, text: &[u8]) -> bool {
        // Most texts have another length than all of them, and few words are as frequent as the empty one.
        self.lengths & Self::bit(text) != 0
            && (text.is_empty() || self.texts.iter().any(|null| null == text))
    }
}

/// The number that a text is.
#[inline]
pub(crate) fn number_in(text: &[u8]) -> Option<f64> {
    plain_number(text).or_else(|| std::str::from_utf8(text).ok()?.trim().parse().ok())
}

/// Exact powers of ten.
const TENS: [f64; 16] =
    [1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15];

/// The number in at most 15 digits with or without a point: the quotient of two exact numbers is the nearest one (Clinger, "How
/// to read floating point numbers accurately", 1990).
#[inline(never)] // Inlined, it makes reading a table slower by an eighth.
pub(crate) fn plain_number(text: &[u8]) -> Option<f64> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    if digits.len() > 16 {
        return None;
    }
    let (mut mantissa, mut point) = (0_u64, None);
    for (at, byte) in digits.iter().enumerate() {
        match byte.wrapping_sub(b'0') {
            digit @ 0..=9 => mantissa = mantissa * 10 + u64::from(digit),
            _ if *byte == b'.' && point.is_none() => point = Some(at),
            _ => return None,
        }
    }
    let count = digits.len() - usize::from(point.is_some());
    if !(1..=15).contains(&count) {
        return None;
    }
    let places = point.map_or(0, |point| digits.len() - 1 - point);
    let value = mantissa as f64 / TENS[places];
    Some(if digits.len() < text.len() { -value } else { value })
}

/// The items of a text, without empty ones.
pub(crate) fn items<'t>(text: &'t [u8], separator: &'t [u8]) -> impl Iterator<Item = &'t [u8]> {
    let mut rest = Some(text);
    let next = move || {
        let text = rest?;
        let at = match separator {
            [] => None,
            [one] => text.iter().position(|byte| byte == one),
            _ => text.windows(separator.len()).position(|window| window == separator),
        };
        rest = at.map(|at| &text[at + separator.len()..]);
        Some(&text[..at.unwrap_or(text.len())])
    };
    std::iter::from_fn(next).filter(|item| !item.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        #[test]
        fn numbers_are_those_of_the_standard_library(
            text in "-?[0-9]{0,17}(\\.[0-9]{0,17})?(e-?[0-9])?",
        ) {
            let expected = text.parse().ok().map(f64::to_bits);
            proptest::prop_assert_eq!(number_in(text.as_bytes()).map(f64::to_bits), expected);
        }
    }

    #[test]
    fn null_texts_are_found_among_texts_of_their_length() {
        let long = "x".repeat(70);
        let null = NullTexts::new(&["".to_owned(), "NA".to_owned(), long.clone()]);
        for text in ["", "NA", &long] {
            assert!(null.has(text.as_bytes()), "{text:?}");
        }
        for text in ["N", "na", &long[1..], &"y".repeat(70)] {
            assert!(!null.has(text.as_bytes()), "{text:?}");
        }
        assert!(!NullTexts::new(&["NA".to_owned()]).has(b""));
    }
}
