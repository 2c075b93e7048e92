//! The name and the form of a ticket cache, checked before the library reads it.
//!
//! The library crashes at some corrupt files, so the first bytes are checked here. Source: MIT `cc_file.c`.

use std::io::Read as _;
use std::path::Path;

use super::cache_times::end_of_tickets;
use super::error::KerberosError;

/// Most of a cache that is read: the ticket-granting ticket is its first entry.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// First byte of a cache file; the second is its version.
const FILE_TAG: u8 = 5;
const VERSIONS: std::ops::RangeInclusive<u8> = 1..=4;

/// Checks that a cache in a file exists and begins like one. Other types of caches are left to the library.
pub(super) fn check(cache: &str) -> Result<(), KerberosError> {
    let Some(path) = path_of(cache) else {
        return Ok(());
    };
    let name = || cache.to_owned();
    let unreadable = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::NotFound => KerberosError::NoTicket { cache: name() },
        _ => KerberosError::UnreadableCache { cache: name(), cause: error.to_string() },
    };
    let mut head = [0; 2];
    let mut file = std::fs::File::open(path).map_err(unreadable)?;
    match file.read_exact(&mut head) {
        Ok(()) if head[0] == FILE_TAG && VERSIONS.contains(&head[1]) => Ok(()),
        Ok(()) => Err(KerberosError::CorruptCache { cache: name() }),
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
            Err(KerberosError::CorruptCache { cache: name() })
        }
        Err(error) => Err(unreadable(error)),
    }
}

/// The failure of a ticket that has ended, with the time if the cache is a file that has it.
pub(super) fn ended(cache: String) -> KerberosError {
    let mut file = Vec::new();
    if let Some(opened) = path_of(&cache).and_then(|path| std::fs::File::open(path).ok()) {
        // What was read before an error has no ticket, or has the time.
        let _partial = opened.take(FILE_BYTES_MAX).read_to_end(&mut file);
    }
    KerberosError::TicketEnded { cache, ended_s: end_of_tickets(&file) }
}

/// The file of a cache: `FILE:path`, or a path without type.
fn path_of(cache: &str) -> Option<&Path> {
    match cache.strip_prefix("FILE:") {
        Some(path) => Some(Path::new(path)),
        None if cache.starts_with('/') || !cache.contains(':') => Some(Path::new(cache)),
        None => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_are_not_caches_never_reach_the_library() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("cc");
        let name = format!("FILE:{}", path.display());
        assert_eq!(check(&name), Err(KerberosError::NoTicket { cache: name.clone() }));
        for bytes in [&b""[..], b"\x05", b"\x05\x09xxxx", b"text", b"\x00\x04"] {
            std::fs::write(&path, bytes).expect("written");
            let corrupt = KerberosError::CorruptCache { cache: name.clone() };
            assert_eq!(check(&name), Err(corrupt), "{bytes:?}");
        }
        std::fs::write(&path, b"\x05\x04\x00").expect("written");
        assert_eq!(check(&name), Ok(()));
        assert_eq!(check(&path.display().to_string()), Ok(()));
        assert_eq!(check("KEYRING:persistent:0"), Ok(()));
        assert!(matches!(check("FILE:/"), Err(KerberosError::UnreadableCache { .. })));
    }
}
