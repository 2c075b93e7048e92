//! The file beside each file that holds its MD5 sum: one line as `md5sum -b` writes it, so that
//! `md5sum -c` checks it.
//!
//! ```text
//! 9e107d9d372bb6826bd81d3542a419d6 *shard-00003-….ckpt⏎
//! ```

use heddle_protocol::manifest::{Md5, Md5Error, Sha256};

/// Suffix of the name of a sidecar.
pub const SIDECAR_SUFFIX: &str = ".md5";

/// Suffix of the name of a file with the SHA-256 of another one, for `sha256sum -c`.
pub const SHA256_SUFFIX: &str = ".sha256";

/// Longest sidecar that is read: a sum, a name of 255 bytes, and room for a line end or two.
pub(crate) const SIDECAR_BYTES_MAX: usize = 512;

/// Why a sidecar does not match its file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SidecarError {
    /// It is missing.
    #[error("the sidecar is missing")]
    Missing,
    /// It is not exactly one line of the form `<md5> *<name>`.
    #[error("the sidecar is not one line '<md5> *<name>'")]
    Form,
    /// It contains no valid MD5.
    #[error("the sidecar does not contain a valid MD5")]
    Sum(#[source] Md5Error),
    /// It names another file.
    #[error("the sidecar must name '{expected}' (got '{found}')")]
    Name {
        /// The file beside it.
        expected: String,
        /// The file it names.
        found: String,
    },
    /// Its MD5 differs from that in the manifest.
    #[error("the sidecar has {found}, the manifest has {expected}")]
    Differs {
        /// The manifest's.
        expected: Md5,
        /// The sidecar's.
        found: Md5,
    },
}

/// The name of a file's sidecar.
pub fn sidecar_name(file: &str) -> String {
    format!("{file}{SIDECAR_SUFFIX}")
}

/// The name of the file with a file's SHA-256.
pub fn sha256_name(file: &str) -> String {
    format!("{file}{SHA256_SUFFIX}")
}

/// Its content, as `sha256sum -b` writes it.
pub fn sha256_line(sum: Sha256, file: &str) -> String {
    format!("{sum} *{file}\n")
}

/// The sidecar's content.
pub fn sidecar_line(sum: Md5, file: &str) -> String {
    format!("{sum} *{file}\n")
}

/// The MD5 that a sidecar has for `file`. Digits may be upper-case, the line may end in CR LF or without a line end, and
/// the name may follow two spaces (md5sum's text mode), since users copy such files between systems.
///
/// # Errors
/// The sidecar has another form or names another file.
pub fn read_sidecar(content: &[u8], file: &str) -> Result<Md5, SidecarError> {
    let text = std::str::from_utf8(content).map_err(|_| SidecarError::Form)?;
    let line = text.strip_suffix('\n').unwrap_or(text);
    let line = line.strip_suffix('\r').unwrap_or(line);
    let (sum, name) = line.split_once(' ').ok_or(SidecarError::Form)?;
    let name = name.strip_prefix(['*', ' ']).ok_or(SidecarError::Form)?;
    if name.contains(['\n', '\r']) || name.is_empty() {
        return Err(SidecarError::Form);
    }
    let sum = sum.parse().map_err(SidecarError::Sum)?;
    if name != file {
        let (expected, found) = (file.to_owned(), name.to_owned());
        return Err(SidecarError::Name { expected, found });
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SUM: &str = "9e107d9d372bb6826bd81d3542a419d6";

    fn read(content: &str) -> Result<String, SidecarError> {
        read_sidecar(content.as_bytes(), "a b.ckpt").map(|sum| sum.to_string())
    }

    #[test]
    fn a_sidecar_reads_back_as_written() {
        let line = sidecar_line(SUM.parse().expect("a sum"), "a b.ckpt");
        assert_eq!(line, format!("{SUM} *a b.ckpt\n"));
        assert_eq!(read(&line), Ok(SUM.to_owned()));
    }

    #[test]
    fn carriage_returns_upper_case_and_text_mode_are_accepted() {
        for line in [
            format!("{SUM} *a b.ckpt"),
            format!("{SUM} *a b.ckpt\r\n"),
            format!("{SUM}  a b.ckpt\n"),
            format!("{} *a b.ckpt\n", SUM.to_uppercase()),
        ] {
            assert_eq!(read(&line), Ok(SUM.to_owned()), "{line:?}");
        }
    }

    #[test]
    fn malformed_sidecars_are_refused_with_a_reason() {
        assert_eq!(read(""), Err(SidecarError::Form));
        assert_eq!(read("\n"), Err(SidecarError::Form));
        assert_eq!(read(SUM), Err(SidecarError::Form));
        assert_eq!(read(&format!("{SUM} a b.ckpt")), Err(SidecarError::Form));
        assert_eq!(read(&format!("{SUM} *a b.ckpt\n\n")), Err(SidecarError::Form));
        assert_eq!(read(&format!("{SUM} *a b.ckpt\n{SUM} *c\n")), Err(SidecarError::Form));
        assert!(matches!(read("123 *a b.ckpt\n"), Err(SidecarError::Sum(_))));
        assert!(matches!(read(&format!("{SUM} *other\n")), Err(SidecarError::Name { .. })));
        assert_eq!(read_sidecar(&[0xff, b' ', b'*'], "x"), Err(SidecarError::Form));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(bytes: Vec<u8>) {
            let _ = read_sidecar(&bytes, "x");
        }
    }
}
