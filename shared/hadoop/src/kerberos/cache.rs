//! The name and the form of a ticket cache, checked before the library reads it.
//!
//! The library crashes at some corrupt files, so the first bytes are checked here. Source: MIT `cc_file.c`.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use super::cache_times::end_of_tickets;
use super::error::KerberosError;

/// Most of a cache that is read: the ticket-granting ticket is its first entry.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Most of the name of a cache in a directory of caches: file names are not longer.
const NAME_BYTES_MAX: u64 = 256;

/// First byte of a cache file; the second is its version.
const FILE_TAG: u8 = 5;
const VERSIONS: std::ops::RangeInclusive<u8> = 1..=4;

/// Checks that a cache in a file exists and begins like one. Other types of caches are left to the library.
pub(super) fn check(cache: &str) -> Result<(), KerberosError> {
    let Some(path) = file_named(cache) else {
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

/// The failure of a ticket that has ended, with the time if the cache is in a file that has it. Of caches in keyrings and
/// of KCM the time is unknown: GSSAPI reports only that nothing is left, and such a cache is read by libkrb5's own calls,
/// whose structures are not part of a stable interface.
pub(super) fn ended(cache: String) -> KerberosError {
    let mut file = Vec::new();
    if let Some(opened) = file_of(&cache).and_then(|path| std::fs::File::open(path).ok()) {
        // What was read before an error has no ticket, or has the time.
        let _partial = opened.take(FILE_BYTES_MAX).read_to_end(&mut file);
    }
    KerberosError::TicketEnded { cache, ended_s: end_of_tickets(&file) }
}

/// The file that contains the tickets of a cache: its own, or of a directory of caches the one in use.
fn file_of(cache: &str) -> Option<PathBuf> {
    let Some(directory) = cache.strip_prefix("DIR:") else {
        return file_named(cache).map(Path::to_owned);
    };
    if let Some(file) = directory.strip_prefix(':') {
        return Some(PathBuf::from(file));
    }
    let directory = Path::new(directory);
    // The file `primary` names the cache in use; without it that is `tkt`. Source: MIT `cc_dir.c`.
    let mut primary = String::new();
    if let Ok(opened) = std::fs::File::open(directory.join("primary")) {
        opened.take(NAME_BYTES_MAX).read_to_string(&mut primary).ok()?;
    }
    let name = match primary.trim_end() {
        "" => "tkt",
        name => name,
    };
    (name.starts_with("tkt") && !name.contains('/')).then(|| directory.join(name))
}

/// The file that the name states: `FILE:path`, or a path without type.
fn file_named(cache: &str) -> Option<&Path> {
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

    #[test]
    fn directory_of_caches_leads_to_the_cache_in_use() {
        let dir = tempfile::tempdir().expect("a directory");
        let name = format!("DIR:{}", dir.path().display());
        let file = |name: &str| Some(dir.path().join(name));
        assert_eq!(file_of(&name), file("tkt"));
        std::fs::write(dir.path().join("primary"), "tktAb3\n").expect("written");
        assert_eq!(file_of(&name), file("tktAb3"));
        let chosen = format!("DIR::{}/tktX", dir.path().display());
        assert_eq!(file_of(&chosen), file("tktX"));
        for hostile in ["../tkt", "tkt/../../x", "other"] {
            std::fs::write(dir.path().join("primary"), hostile).expect("written");
            assert_eq!(file_of(&name), None, "{hostile}");
        }
        assert_eq!(file_of("KEYRING:persistent:0"), None);
        assert_eq!(file_of("/tmp/cc"), Some("/tmp/cc".into()));
    }

    #[test]
    fn ended_ticket_of_a_directory_has_its_time() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = crate::kerberos::cache_times::sample(1_700_000_000);
        std::fs::write(dir.path().join("tkt"), file).expect("written");
        let cache = format!("DIR:{}", dir.path().display());
        let ended_s = Some(1_700_000_000);
        assert_eq!(ended(cache.clone()), KerberosError::TicketEnded { cache, ended_s });
    }
}
