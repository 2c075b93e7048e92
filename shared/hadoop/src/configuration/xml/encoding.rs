//! The text of a file, by its byte order mark and the encoding that its declaration names (XML 1.0, appendix F).
//!
//! These are the encodings that need no tables. A file of ASCII characters alone is read whatever it declares.

use std::borrow::Cow;

/// The most bytes of a declaration. The names of encodings are short.
const DECLARATION_MAX: usize = 256;

/// The text of the file.
///
/// # Errors
/// The line, from 1, and what is wrong there.
pub(super) fn decode(bytes: &[u8]) -> Result<Cow<'_, str>, (u32, String)> {
    let (units, has_mark): (fn([u8; 2]) -> u16, bool) = match bytes {
        [0xef, 0xbb, 0xbf, rest @ ..] => return utf_8(rest),
        [0xfe, 0xff, ..] => (u16::from_be_bytes, true),
        [0xff, 0xfe, ..] => (u16::from_le_bytes, true),
        [0, b'<', 0, b'?', ..] => (u16::from_be_bytes, false),
        [b'<', 0, b'?', 0, ..] => (u16::from_le_bytes, false),
        _ => return declared(bytes),
    };
    utf_16(&bytes[if has_mark { 2 } else { 0 }..], units).map(Cow::Owned)
}

fn declared(bytes: &[u8]) -> Result<Cow<'_, str>, (u32, String)> {
    let name = encoding(bytes).unwrap_or_default();
    let not = |name: &str| {
        let plain = bytes.iter().take_while(|byte| byte.is_ascii()).count();
        Err((line_of(&bytes[..plain]), format!("the text is not {name}")))
    };
    match name.to_ascii_uppercase().as_str() {
        _ if bytes.is_ascii() => utf_8(bytes),
        "" | "UTF-8" | "UTF8" => utf_8(bytes),
        // Its 256 characters are the first of Unicode.
        "ISO-8859-1" | "ISO8859-1" | "ISO_8859-1" | "LATIN1" | "L1" => {
            Ok(bytes.iter().map(|byte| char::from(*byte)).collect())
        }
        "US-ASCII" | "ASCII" | "UTF-16" | "UTF-16BE" | "UTF-16LE" => not(&name),
        _ => Err((
            1,
            format!("the encoding must be UTF-8, UTF-16, ISO-8859-1 or US-ASCII (got {name})"),
        )),
    }
}

fn utf_8(bytes: &[u8]) -> Result<Cow<'_, str>, (u32, String)> {
    std::str::from_utf8(bytes).map(Cow::Borrowed).map_err(|error| {
        (line_of(&bytes[..error.valid_up_to()]), "the text is not UTF-8".to_owned())
    })
}

fn utf_16(bytes: &[u8], unit: fn([u8; 2]) -> u16) -> Result<String, (u32, String)> {
    let (pairs, odd) = bytes.as_chunks::<2>();
    let mut text = String::new();
    for character in char::decode_utf16(pairs.iter().map(|pair| unit(*pair))) {
        match character {
            Ok(character) => text.push(character),
            Err(_) => return Err((line_of(text.as_bytes()), "the text is not UTF-16".to_owned())),
        }
    }
    match odd.is_empty() {
        true => Ok(text),
        false => Err((line_of(text.as_bytes()), "the text is not UTF-16".to_owned())),
    }
}

/// The encoding that the declaration at the start of the file names.
fn encoding(bytes: &[u8]) -> Option<String> {
    let head = &bytes[..bytes.len().min(DECLARATION_MAX)];
    let head = String::from_utf8_lossy(head.strip_prefix(b"<?xml")?);
    let (declaration, _) = head.split_once("?>")?;
    let (_, value) = declaration.split_once("encoding")?;
    let value = value.trim_start().strip_prefix('=')?.trim_start();
    let quote = value.chars().next().filter(|quote| ['"', '\''].contains(quote))?;
    Some(value[1..].split_once(quote)?.0.to_owned())
}

/// The line that follows these bytes, from 1.
pub(super) fn line_of(before: &[u8]) -> u32 {
    let newlines = before.iter().filter(|byte| **byte == b'\n').count();
    u32::try_from(newlines).unwrap_or(u32::MAX - 1) + 1
}
