//! The newest version of glibc that a program asks for, read from its own version symbols.
//!
//! ELF-64, little-endian: the section `SHT_GNU_verneed` is a chain of needed libraries, each with a chain of
//! version names such as `GLIBC_2.17` in the section of strings it links to (System V ABI, Linux extensions).

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

const SHT_GNU_VERNEED: u32 = 0x6fff_fffe;
/// Sections of a program; the largest with debug information have some hundred.
const SECTIONS_MAX: u64 = 10_000;
/// Bytes of a table of versions or of its strings; real ones have some kilobytes.
const TABLE_BYTES_MAX: u64 = 16 << 20;

/// The newest `GLIBC_major.minor` that the file names; nothing for a static program.
///
/// # Errors
/// `InvalidData` when it is no program of Linux on x86-64; what reading says.
pub fn newest_glibc(path: &Path) -> io::Result<Option<(u32, u32)>> {
    newest_of(&mut File::open(path)?)
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

fn newest_of(file: &mut (impl Read + Seek)) -> io::Result<Option<(u32, u32)>> {
    let foreign = || invalid("no program of Linux on x86-64");
    let header = at(file, 0, 64).map_err(|_| foreign())?;
    // Class 64 bits, little-endian; machine 62 is x86-64.
    let plain = header.starts_with(b"\x7fELF\x02\x01") && u16_at(&header, 18) == Some(62);
    if !plain {
        return Err(foreign());
    }
    let damaged = || invalid("a damaged program");
    let table = u64_at(&header, 40).ok_or_else(damaged)?;
    let size = u64::from(u16_at(&header, 58).ok_or_else(damaged)?);
    let count = u64::from(u16_at(&header, 60).ok_or_else(damaged)?).min(SECTIONS_MAX);
    if count == 0 {
        return Ok(None);
    }
    if size < 64 {
        return Err(damaged());
    }
    let sections = at(file, table, size * count)?;
    let section = |n: u64| {
        let start = usize::try_from(n * size).ok()?;
        sections.get(start..start + 64)
    };
    for n in 0..count {
        let Some(this) = section(n) else { break };
        if u32_at(this, 4) != Some(SHT_GNU_VERNEED) {
            continue;
        }
        let strings = section(u64::from(u32_at(this, 40).ok_or_else(damaged)?));
        let strings = content(file, strings.ok_or_else(damaged)?)?;
        let needs = content(file, this)?;
        return Ok(newest_need(&needs, &strings));
    }
    Ok(None)
}

/// What a section holds.
fn content(file: &mut (impl Read + Seek), section: &[u8]) -> io::Result<Vec<u8>> {
    match (u64_at(section, 24), u64_at(section, 32)) {
        (Some(offset), Some(size)) if size <= TABLE_BYTES_MAX => at(file, offset, size),
        _ => Err(invalid("a damaged program")),
    }
}

/// Goes along both chains. Offsets go forward, so that they end.
fn newest_need(needs: &[u8], strings: &[u8]) -> Option<(u32, u32)> {
    let mut newest = None;
    let mut library = 0usize;
    loop {
        let mut version = library.checked_add(u32_at(needs, library + 8)? as usize)?;
        for _ in 0..u16_at(needs, library + 2)? {
            let name = strings.get(u32_at(needs, version + 8)? as usize..)?;
            let name = name.split(|&byte| byte == 0).next()?;
            newest = newest.max(glibc(name));
            match u32_at(needs, version + 12)? as usize {
                0 => break,
                next => version = version.checked_add(next)?,
            }
        }
        match u32_at(needs, library + 12)? as usize {
            0 => return newest,
            next => library = library.checked_add(next)?,
        }
    }
}

/// `GLIBC_2.17` and `GLIBC_2.2.5`.
fn glibc(name: &[u8]) -> Option<(u32, u32)> {
    let version = std::str::from_utf8(name).ok()?.strip_prefix("GLIBC_")?;
    let mut parts = version.split('.');
    let major = parts.next()?.parse().ok()?;
    let minor = parts.next().unwrap_or("0").parse().ok()?;
    Some((major, minor))
}

fn at(file: &mut (impl Read + Seek), offset: u64, size: u64) -> io::Result<Vec<u8>> {
    file.seek(SeekFrom::Start(offset))?;
    let mut bytes = Vec::new();
    file.take(size).read_to_end(&mut bytes)?;
    match bytes.len() as u64 == size {
        true => Ok(bytes),
        false => Err(invalid("a damaged program")),
    }
}

fn bytes_at<const N: usize>(bytes: &[u8], offset: usize) -> Option<[u8; N]> {
    bytes.get(offset..offset.checked_add(N)?)?.try_into().ok()
}

fn u16_at(bytes: &[u8], offset: usize) -> Option<u16> {
    bytes_at(bytes, offset).map(u16::from_le_bytes)
}

fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    bytes_at(bytes, offset).map(u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], offset: usize) -> Option<u64> {
    bytes_at(bytes, offset).map(u64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
    use std::io::Cursor;

    use super::*;

    /// A program of a header, three sections, and one library with the given versions.
    fn program(versions: &[&str]) -> Vec<u8> {
        let mut strings = vec![0u8];
        let mut needs = vec![0u8; 16];
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
        file[..6].copy_from_slice(b"\x7fELF\x02\x01");
        file[18..20].copy_from_slice(&62u16.to_le_bytes());
        file[40..48].copy_from_slice(&64u64.to_le_bytes());
        file[58..60].copy_from_slice(&64u16.to_le_bytes());
        file[60..62].copy_from_slice(&3u16.to_le_bytes());
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
        file.extend(section(SHT_GNU_VERNEED, start + strings.len(), needs.len(), 1));
        file.extend(strings);
        file.extend(needs);
        file
    }

    fn newest(bytes: Vec<u8>) -> io::Result<Option<(u32, u32)>> {
        newest_of(&mut Cursor::new(bytes))
    }

    #[test]
    fn the_newest_version_is_found_by_number_not_by_letter() {
        let versions = ["GLIBC_2.9", "GLIBC_2.34", "GLIBC_2.2.5", "GCC_3.0"];
        assert_eq!(newest(program(&versions)).unwrap(), Some((2, 34)));
        assert_eq!(newest(program(&["GCC_3.0"])).unwrap(), None);
    }

    #[test]
    fn this_program_is_one() {
        let path = std::env::current_exe().unwrap();
        assert!(newest_glibc(&path).unwrap() >= Some((2, 2)));
    }

    #[test]
    fn what_is_no_program_is_said_to_be_none() {
        assert!(newest(b"#!/bin/sh\n".to_vec()).is_err());
        let whole = program(&["GLIBC_2.17"]);
        for length in 0..whole.len() {
            // A torn file is refused or has no versions; it never panics.
            let _ = newest(whole[..length].to_vec());
        }
        for n in 0..whole.len() {
            let mut flipped = whole.clone();
            flipped[n] ^= 0xff;
            let _ = newest(flipped);
        }
    }
}
