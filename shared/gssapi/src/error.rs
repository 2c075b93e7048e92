//! Failures of the library: its two codes and its texts.

use std::ffi::c_void;
use std::ptr;

use crate::library::{GssBuffer, Library, OidRef};

/// A failed call of the library.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[error("{}", text(.major_text, .minor_text))]
pub struct GssError {
    /// Name of the C function.
    pub call: &'static str,
    /// GSSAPI's code (RFC 2744 §3.9.1).
    pub major: u32,
    /// Kerberos' code: `ERROR_TABLE_BASE_krb5` (-1765328384) plus the number of RFC 4120 §7.5.9, or a code of the library.
    pub minor: i32,
    /// The library's text for `major`.
    pub major_text: String,
    /// The library's text for `minor`; empty if there is none.
    pub minor_text: String,
}

/// The text of the minor code is the cause. The text of the major code is generic and is used in its absence.
fn text<'a>(major: &'a str, minor: &'a str) -> &'a str {
    let minor = minor.trim();
    if minor.is_empty() || minor == "Success" { major } else { minor }
}

/// Status types of `gss_display_status`.
const GSS_CODE: i32 = 1;
const MECHANISM_CODE: i32 = 2;
/// Most texts of one code. The library has one for each.
const TEXTS_MAX: usize = 8;

impl GssError {
    pub(crate) fn new(library: &Library, call: &'static str, major: u32, minor: u32) -> Self {
        Self {
            call,
            major,
            minor: minor.cast_signed(),
            major_text: display(library, major, GSS_CODE),
            minor_text: display(library, minor, MECHANISM_CODE),
        }
    }

    /// An error that this crate found itself.
    pub(crate) fn own(call: &'static str, text: &str) -> Self {
        Self { call, major: 0, minor: 0, major_text: text.to_owned(), minor_text: String::new() }
    }
}

#[expect(unsafe_code, reason = "calls the C library")]
fn display(library: &Library, code: u32, kind: i32) -> String {
    let mut texts = Vec::new();
    let mut more = 0_u32;
    while texts.len() < TEXTS_MAX {
        let mut minor = 0_u32;
        let mut buffer = GssBuffer { length: 0, value: ptr::null_mut::<c_void>() };
        // SAFETY: all pointers are to live local variables, and the object identifier is a static.
        let major = unsafe {
            (library.display_status)(
                &raw mut minor,
                code,
                kind,
                OidRef::kerberos(),
                &raw mut more,
                &raw mut buffer,
            )
        };
        // The most significant 16 bits have the errors.
        if major >> 16 != 0 {
            break;
        }
        texts.push(String::from_utf8_lossy(&library.take(buffer)).trim().to_owned());
        if more == 0 {
            break;
        }
    }
    texts.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(major_text: &str, minor_text: &str) -> GssError {
        let (major_text, minor_text) = (major_text.to_owned(), minor_text.to_owned());
        GssError { call: "gss_x", major: 0xd0000, minor: -1, major_text, minor_text }
    }

    #[test]
    fn the_cause_is_the_minor_text_where_there_is_one() {
        assert_eq!(error("Unspecified", "Ticket expired").to_string(), "Ticket expired");
        assert_eq!(error("A token was invalid", "").to_string(), "A token was invalid");
        assert_eq!(error("A token was invalid", "Success").to_string(), "A token was invalid");
    }
}
