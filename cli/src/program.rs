//! The program that containers run: its file, its name on the cluster, and whether old systems can load it.

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use heddle_protocol::exit_code::ExitCode;
use sha2::{Digest, Sha256};

use crate::elf;
use crate::failure::{CommandFailure, OrFail};

/// The newest glibc that the oldest systems in use have (CentOS 7); the released program needs no newer one.
const GLIBC_OLDEST: (u32, u32) = (2, 17);

/// A program on this machine.
#[derive(Clone, Debug)]
pub struct Program {
    /// Its path.
    pub path: PathBuf,
    /// Its length.
    pub bytes: u64,
    /// Its SHA-256 in hexadecimal digits.
    pub digest: String,
    /// `heddle-<first 32 digits of its SHA-256>`.
    pub name: String,
    /// A note for the user.
    pub note: Option<String>,
}

/// Reads the program of containers: `binary` (`submit.binary`), or the running program.
///
/// # Errors
/// Exit code 7 if it cannot be read or is not a Linux program for x86-64.
pub fn read(binary: Option<&Path>) -> Result<Program, CommandFailure> {
    let path = match binary {
        Some(path) => path.to_owned(),
        None => std::env::current_exe()
            .or_fail(ExitCode::Internal, "cannot determine the path of this program")?,
    };
    let unreadable = |error: &io::Error| {
        let fact = format!("cannot read the program {}", path.display());
        CommandFailure::of_file(&fact, error)
    };
    let (digest, bytes) = digest(&path).map_err(|error| unreadable(&error))?;
    let needs = elf::newest_glibc(&path).map_err(|error| match error.kind() {
        io::ErrorKind::InvalidData => CommandFailure::new(
            ExitCode::Input,
            format!("submit.binary = {}: {error}", path.display()),
        )
        .next("set submit.binary to the heddle program for Linux on x86-64"),
        _ => unreadable(&error),
    })?;
    let note = needs.filter(|needs| *needs > GLIBC_OLDEST).map(|(major, minor)| {
        format!(
            "warning: {} needs glibc {major}.{minor}; nodes with an older one cannot load it (submit.binary may name the released program, which needs 2.17)",
            path.display()
        )
    });
    Ok(Program { bytes, name: format!("heddle-{}", &digest[..32]), digest, path, note })
}

/// SHA-256 of a file in hexadecimal digits, and its length.
///
/// # Errors
/// The file cannot be read.
pub fn digest(path: &Path) -> io::Result<(String, u64)> {
    let mut file = std::fs::File::open(path)?;
    let (mut sha, mut bytes) = (Sha256::new(), 0);
    let mut buffer = vec![0; 1 << 20];
    loop {
        let count = file.read(&mut buffer)?;
        if count == 0 {
            return Ok((hex::encode(sha.finalize()), bytes));
        }
        sha.update(&buffer[..count]);
        bytes += count as u64;
    }
}
