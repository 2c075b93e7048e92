//! The newest glibc version that a program needs, from its version symbols.
//!
//! The section `SHT_GNU_verneed` lists needed libraries, each with version names such as `GLIBC_2.17` (System V ABI,
//! Linux extensions). The crate `object` reads it.

use std::fs::File;
use std::io;
use std::path::Path;

use object::LittleEndian;
use object::elf::{EM_X86_64, FileHeader64};
use object::read::elf::FileHeader;
use object::{ReadCache, ReadRef};

/// The newest `GLIBC_major.minor` that the file names; `None` for a static program.
///
/// # Errors
/// `InvalidData` if the file is not a Linux program for x86-64; otherwise the cause of a failed read.
pub fn newest_glibc(path: &Path) -> io::Result<Option<(u32, u32)>> {
    newest_of(&ReadCache::new(File::open(path)?))
}

fn newest_of<'data>(program: impl ReadRef<'data>) -> io::Result<Option<(u32, u32)>> {
    let foreign = || invalid("not a Linux program for x86-64");
    let header = FileHeader64::<LittleEndian>::parse(program).map_err(|_| foreign())?;
    let endian = header.endian().map_err(|_| foreign())?;
    if header.e_machine(endian) != EM_X86_64 {
        return Err(foreign());
    }
    newest_need(header, endian, program).map_err(|_| invalid("a damaged program"))
}

fn newest_need<'data>(
    header: &FileHeader64<LittleEndian>,
    endian: LittleEndian,
    program: impl ReadRef<'data>,
) -> object::read::Result<Option<(u32, u32)>> {
    let sections = header.sections(endian, program)?;
    let Some((mut libraries, strings)) = sections.gnu_verneed(endian, program)? else {
        return Ok(None);
    };
    let strings = sections.strings(endian, program, strings)?;
    let mut newest = None;
    while let Some((_, mut versions)) = libraries.next()? {
        while let Some(version) = versions.next()? {
            newest = newest.max(glibc(version.name(endian, strings)?));
        }
    }
    Ok(newest)
}

/// `GLIBC_2.17` and `GLIBC_2.2.5`.
fn glibc(name: &[u8]) -> Option<(u32, u32)> {
    let version = std::str::from_utf8(name).ok()?.strip_prefix("GLIBC_")?;
    let mut parts = version.split('.');
    let major = parts.next()?.parse().ok()?;
    let minor = parts.next().unwrap_or("0").parse().ok()?;
    Some((major, minor))
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
    use object::elf::SHT_GNU_VERNEED;

    use super::*;

    /// A program of a header, three sections, and one library with the given versions.
    fn program(versions: &[&str]) -> Vec<u8> {
        let mut strings = vec![0u8];
        let mut needs = vec![0u8; 16];
        needs[0] = 1;
        needs[2..4].copy_from_slice(&(versions.len() as u16).to_le_bytes());
        needs[8..12].copy_from_slice(&16u32.to_le_bytes());
        for (n, version) in versions.iter().enumerate() {
            let mut entry = [0u8; 16];
            entry[8..12].copy_from_slice(&(strings.len() as u32).to_le_bytes());
            let next = if n + 1 < versions.len() { 16u32 } else { 0 };
            entry[12..16].copy_from_slice(&next.to_le_bytes());
            needs.extend(entry);
            strings.extend(version.as_bytes());
            strings.push(0);
        }
        let mut file = vec![0u8; 64];
        file[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
        file[18..20].copy_from_slice(&62u16.to_le_bytes());
        file[40..48].copy_from_slice(&64u64.to_le_bytes());
        file[58..60].copy_from_slice(&64u16.to_le_bytes());
        file[60..62].copy_from_slice(&3u16.to_le_bytes());
        file[62..64].copy_from_slice(&1u16.to_le_bytes());
        let start = 64 + 3 * 64;
        let section = |kind: u32, offset: usize, size: usize, link: u32| {
            let mut section = [0u8; 64];
            section[4..8].copy_from_slice(&kind.to_le_bytes());
            section[24..32].copy_from_slice(&(offset as u64).to_le_bytes());
            section[32..40].copy_from_slice(&(size as u64).to_le_bytes());
            section[40..44].copy_from_slice(&link.to_le_bytes());
            section
        };
        file.extend(section(0, 0, 0, 0));
        file.extend(section(3, start, strings.len(), 0));
        file.extend(section(SHT_GNU_VERNEED.0, start + strings.len(), needs.len(), 1));
        file.extend(strings);
        file.extend(needs);
        file
    }

    fn newest(bytes: Vec<u8>) -> io::Result<Option<(u32, u32)>> {
        newest_of(bytes.as_slice())
    }

    #[test]
    fn newest_version_is_found_by_number_not_by_letter() {
        let versions = ["GLIBC_2.9", "GLIBC_2.34", "GLIBC_2.2.5", "GCC_3.0"];
        assert_eq!(newest(program(&versions)).unwrap(), Some((2, 34)));
        assert_eq!(newest(program(&["GCC_3.0"])).unwrap(), None);
    }

    #[test]
    fn version_of_the_running_program_is_found() {
        let path = std::env::current_exe().unwrap();
        assert!(newest_glibc(&path).unwrap() >= Some((2, 2)));
    }

    #[test]
    fn damaged_program_is_rejected_without_panic() {
        assert!(newest(b"#!/bin/sh\n".to_vec()).is_err());
        let whole = program(&["GLIBC_2.17"]);
        for length in 0..whole.len() {
            // A truncated file is rejected or has no versions; it never panics.
            let _ = newest(whole[..length].to_vec());
        }
        for n in 0..whole.len() {
            let mut flipped = whole.clone();
            flipped[n] ^= 0xff;
            let _ = newest(flipped);
        }
    }
}
