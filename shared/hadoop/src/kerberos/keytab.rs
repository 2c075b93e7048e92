//! The principals of a keytab. The library reports a missing file and a missing principal alike, so they are read here.
//!
//! | part | bytes |
//! | --- | --- |
//! | header | `05 02` |
//! | entry | length (4, big-endian, negative for a hole), then: count of components (2), realm, components (each a length of 2 and bytes), … |
//!
//! Source: MIT `kt_file.c`.

use std::path::Path;

use super::error::KerberosError;

const HEADER: [u8; 2] = [5, 2];
/// Longest file in bytes. Real ones have a few kilobytes.
const BYTES_MAX: u64 = 16 << 20;

/// The principal that a login uses: the requested one, with the realm of its entry, or the first one.
pub(super) fn principal(path: &Path, requested: Option<&str>) -> Result<String, KerberosError> {
    let unreadable =
        |cause: String| KerberosError::UnreadableKeytab { path: path.to_owned(), cause };
    let text = |error: std::io::Error| unreadable(error.to_string());
    let length = std::fs::metadata(path).map_err(text)?.len();
    if length > BYTES_MAX {
        return Err(unreadable("the file is too large".to_owned()));
    }
    let bytes = std::fs::read(path).map_err(text)?;
    let present =
        principals(&bytes).ok_or_else(|| KerberosError::NotAKeytab { path: path.to_owned() })?;
    let found = match requested {
        None => present.first().cloned(),
        Some(full) if full.contains('@') => present.iter().find(|entry| *entry == full).cloned(),
        Some(short) => present
            .iter()
            .find(|entry| entry.rsplit_once('@').is_some_and(|(name, _)| name == short))
            .cloned(),
    };
    found.ok_or_else(|| KerberosError::NotInKeytab {
        path: path.to_owned(),
        principal: requested.unwrap_or("any principal").to_owned(),
        present,
    })
}

/// The principals in the order of their entries, each once; `None` if the bytes are not a keytab.
fn principals(bytes: &[u8]) -> Option<Vec<String>> {
    let mut rest = bytes.strip_prefix(&HEADER)?;
    let mut found = Vec::new();
    while let Some((head, after)) = rest.split_first_chunk::<4>() {
        let length = i32::from_be_bytes(*head);
        let size = usize::try_from(length.unsigned_abs()).ok()?;
        let (entry, next) = after.split_at_checked(size)?;
        rest = next;
        if length == 0 {
            break;
        }
        if length > 0 {
            let principal = entry_principal(entry)?;
            if !found.contains(&principal) {
                found.push(principal);
            }
        }
    }
    Some(found)
}

fn entry_principal(mut entry: &[u8]) -> Option<String> {
    let number = |entry: &mut &[u8]| {
        let (head, rest) = entry.split_first_chunk::<2>()?;
        *entry = rest;
        Some(usize::from(u16::from_be_bytes(*head)))
    };
    let text = |entry: &mut &[u8]| {
        let length = number(entry)?;
        let (bytes, rest) = entry.split_at_checked(length)?;
        *entry = rest;
        Some(String::from_utf8_lossy(bytes).into_owned())
    };
    let (head, after) = entry.split_first_chunk::<2>()?;
    let count = u16::from_be_bytes(*head);
    entry = after;
    let realm = text(&mut entry)?;
    let mut components = Vec::new();
    for _ in 0..count {
        components.push(text(&mut entry)?);
    }
    Some(format!("{}@{realm}", components.join("/")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn entry(realm: &str, components: &[&str]) -> Vec<u8> {
        let text = |text: &str| {
            let mut bytes = u16::try_from(text.len()).expect("short").to_be_bytes().to_vec();
            bytes.extend_from_slice(text.as_bytes());
            bytes
        };
        let mut body = u16::try_from(components.len()).expect("few").to_be_bytes().to_vec();
        body.extend(text(realm));
        components.iter().for_each(|component| body.extend(text(component)));
        body.extend_from_slice(b"name type, time, version, key");
        let mut bytes = i32::try_from(body.len()).expect("short").to_be_bytes().to_vec();
        bytes.extend(body);
        bytes
    }

    fn sample() -> Vec<u8> {
        let mut bytes = HEADER.to_vec();
        bytes.extend(entry("R", &["alice"]));
        bytes.extend_from_slice(&(-3_i32).to_be_bytes());
        bytes.extend_from_slice(b"old");
        bytes.extend(entry("R", &["alice"]));
        bytes.extend(entry("R", &["nn", "host"]));
        bytes
    }

    #[test]
    fn principals_are_listed_once_and_holes_are_skipped() {
        let expected = ["alice@R".to_owned(), "nn/host@R".to_owned()];
        assert_eq!(principals(&sample()).as_deref(), Some(&expected[..]));
        assert_eq!(principals(b"text"), None);
        assert_eq!(principals(b"\x05\x02\x00\x00\x00\x09x"), None);
    }

    #[test]
    fn the_requested_principal_may_lack_its_realm() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("keytab");
        std::fs::write(&path, sample()).expect("written");
        assert_eq!(principal(&path, None).as_deref(), Ok("alice@R"));
        assert_eq!(principal(&path, Some("nn/host")).as_deref(), Ok("nn/host@R"));
        let missing = principal(&path, Some("bob@R")).expect_err("has no bob").to_string();
        assert!(missing.contains("no key of bob@R (it has alice@R, nn/host@R)"), "{missing}");
        std::fs::write(&path, b"x").expect("written");
        assert!(matches!(principal(&path, None), Err(KerberosError::NotAKeytab { .. })));
        let none = principal(&dir.path().join("none"), None);
        assert!(matches!(none, Err(KerberosError::UnreadableKeytab { .. })));
    }

    proptest! {
        #[test]
        fn any_bytes_give_principals_or_none(
            bytes in proptest::collection::vec(any::<u8>(), 0..80),
        ) {
            let _ = principals(&bytes);
            let _ = principals(&[&HEADER[..], &bytes].concat());
        }
    }
}
