//! Decimal numbers of files with types.

/// A number in the two's complement, the highest byte first.
#[must_use]
pub fn unscaled(bytes: &[u8]) -> f64 {
    let number =
        |flip: u8| bytes.iter().fold(0.0, |sum, byte| sum * 256.0 + f64::from(byte ^ flip));
    match bytes.first() {
        Some(0x80..) => -number(0xff) - 1.0,
        _ => number(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals_of_fixed_length_have_a_sign() {
        assert_eq!(unscaled(&[0, 1, 2]), 258.0);
        assert_eq!(unscaled(&[0xff, 0xff]), -1.0);
        assert_eq!(unscaled(&[0x80, 0]), -32768.0);
        assert_eq!(unscaled(&[]), 0.0);
    }
}
