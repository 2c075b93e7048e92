//! Secrets of a job that are looked for wherever other users could find them. Each has a name, so that a failing test does
//! not print the secret itself.

use std::path::Path;

use anyhow::{Result, ensure};

use crate::yarn_job::Process;

/// What is read of a file: longer ones are programs.
const READ_MAX: usize = 4 << 20;

/// Secrets, and the places where one was found.
pub struct Canaries {
    secrets: Vec<(&'static str, Vec<u8>)>,
    found: Vec<String>,
}

impl Canaries {
    /// Looks for these.
    ///
    /// # Errors
    /// One is so short that it is anywhere.
    pub fn new(secrets: Vec<(&'static str, Vec<u8>)>) -> Result<Self> {
        for (name, secret) in &secrets {
            ensure!(secret.len() >= 12, "{name} has {} bytes", secret.len());
        }
        Ok(Self { secrets, found: Vec::new() })
    }

    /// Looks at some bytes.
    pub fn look_at(&mut self, place: &str, bytes: impl AsRef<[u8]>) {
        let bytes = bytes.as_ref();
        for (name, secret) in &self.secrets {
            if contains(bytes, secret) {
                self.found.push(format!("{name} is in {place}"));
            }
        }
    }

    /// Looks at all files below a directory but those whose names end in one of these ways.
    pub fn look_below(&mut self, dir: &Path, besides: &[&str]) {
        for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
            let (path, name) = (entry.path(), entry.file_name());
            let name = name.to_string_lossy();
            // A token file that is being replaced is written under `NAME.PID.tmp`.
            let temporary = name.strip_suffix(".tmp").and_then(|name| name.rsplit_once('.'));
            let name = temporary.map_or(&*name, |(name, _)| name);
            // Links of containers lead to files of the same NodeManager.
            let kind = entry.file_type();
            if kind.as_ref().is_ok_and(std::fs::FileType::is_dir) {
                self.look_below(&path, besides);
            } else if kind.is_ok_and(|kind| kind.is_file())
                && !besides.iter().any(|ending| name.ends_with(ending))
                && let Ok(bytes) = std::fs::read(&path)
            {
                self.look_at(&path.display().to_string(), &bytes[..bytes.len().min(READ_MAX)]);
            }
        }
    }

    /// Looks at the command lines of this machine, and at the variables of these processes.
    pub fn look_at_processes(&mut self, processes: &[Process]) {
        for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
            let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
            self.look_at(&format!("the command line of {:?}", entry.file_name()), line);
        }
        for process in processes {
            let variables = std::fs::read(format!("/proc/{}/environ", process.pid));
            self.look_at(&format!("variables of {process:?}"), variables.unwrap_or_default());
        }
    }

    /// None was found.
    ///
    /// # Errors
    /// One was, with its name and the places.
    pub fn are_nowhere(self) -> Result<()> {
        ensure!(self.found.is_empty(), "{:#?}", self.found);
        Ok(())
    }
}

fn contains(bytes: &[u8], text: &[u8]) -> bool {
    let Some(first) = text.first() else { return false };
    let starts = bytes.iter().enumerate().filter(|(_, byte)| *byte == first);
    starts.into_iter().any(|(at, _)| bytes.get(at..).is_some_and(|rest| rest.starts_with(text)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_found_in_files_and_named() {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::create_dir(dir.path().join("a")).expect("made");
        std::fs::write(dir.path().join("a/b"), b"xx\0the secret itself\n").expect("written");
        std::fs::write(dir.path().join("a/b.tokens"), b"another secret").expect("written");
        let secrets = ["the secret itself", "another secret", "a third secret"];
        let named = ["one", "two", "three"].into_iter().zip(secrets);
        let named: Vec<_> = named.map(|(name, secret)| (name, secret.into())).collect();
        let mut canaries = Canaries::new(named).expect("long enough");
        canaries.look_below(dir.path(), &[".tokens"]);
        assert_eq!(canaries.found.len(), 1, "{:?}", canaries.found);
        assert!(canaries.found[0].starts_with("one is in ") && canaries.are_nowhere().is_err());
        assert!(Canaries::new(vec![("short", b"abc".to_vec())]).is_err());
    }
}
