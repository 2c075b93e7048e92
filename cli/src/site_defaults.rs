//! The site's defaults: `heddle-defaults.toml` in `$HEDDLE_CONF_DIR`, else in `/etc/heddle`.
//!
//! Commands that read a job file read it too; containers do not. A platform team installs the file for all users of a
//! machine. A file that other users can change is refused: it names the program that containers run.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::job_spec::file::{Shown, SiteFile, read_site};

use crate::failure::CommandFailure;
use crate::login::StatedKeytab;

/// Name of the file.
const FILE: &str = "heddle-defaults.toml";
/// Its folder, unless the variable names another that has it.
const FOLDER: &str = "/etc/heddle";
/// The variable that names its folder.
const VARIABLE: &str = "HEDDLE_CONF_DIR";
/// Permission of all users to write.
const OTHERS_WRITE: u32 = 0o002;
/// In a directory with this bit only the owner of a file can replace it.
const STICKY: u32 = 0o1000;

/// The places of the file, the first that exists counts.
#[must_use]
pub fn places() -> Vec<PathBuf> {
    let named = std::env::var_os(VARIABLE).filter(|folder| !folder.is_empty());
    named.map(PathBuf::from).into_iter().chain([FOLDER.into()]).map(|dir| dir.join(FILE)).collect()
}

/// The site's file; `None` if there is none.
///
/// # Errors
/// Exit code 7 if it cannot be read, or if other users can write it.
pub fn load() -> Result<Option<SiteFile>, CommandFailure> {
    for path in places() {
        if let Some(file) = load_from(&path)? {
            return Ok(Some(file));
        }
    }
    Ok(None)
}

fn load_from(path: &Path) -> Result<Option<SiteFile>, CommandFailure> {
    let shown = path.display();
    let unreadable = |error: &io::Error| {
        CommandFailure::of_file(&format!("cannot read the site's defaults {shown}"), error)
            .next(format!("let all users read the file; {VARIABLE} names another folder"))
    };
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(unreadable(&error)),
    };
    let path = std::path::absolute(path).map_err(|error| unreadable(&error))?;
    let dir = path.parent().unwrap_or(Path::new("/")).to_owned();
    let mode_of_dir = std::fs::metadata(&dir).map_err(|error| unreadable(&error))?.mode();
    let mode = file.metadata().map_err(|error| unreadable(&error))?.mode();
    let open_dir = mode_of_dir & OTHERS_WRITE != 0 && mode_of_dir & STICKY == 0;
    if mode & OTHERS_WRITE != 0 || open_dir {
        let what = if open_dir { dir.display() } else { path.display() };
        return Err(CommandFailure::new(
            ExitCode::Input,
            format!("cannot use the site's defaults {shown}: every user can write {what}"),
        )
        .next(format!("chmod o-w {what}")));
    }
    let mut text = String::new();
    file.read_to_string(&mut text).map_err(|error| unreadable(&error))?;
    Ok(Some(SiteFile { file: path.display().to_string(), dir, text }))
}

/// The keys that the site sets, each with its line; `None` without a file.
///
/// # Errors
/// Exit code 7 with all problems of the file.
pub fn shown() -> Result<Option<Vec<Shown>>, CommandFailure> {
    let Some(file) = load()? else {
        return Ok(None);
    };
    let rows = read_site(&file).map_err(|problems| {
        CommandFailure::new(ExitCode::Input, problems)
            .next("docs/operations.md lists the keys that a site may set")
    })?;
    Ok(Some(rows))
}

/// A text or path that the site sets; `None` for the empty one.
///
/// # Errors
/// As [`shown`].
pub fn text(key: &str) -> Result<Option<String>, CommandFailure> {
    let rows = shown()?.unwrap_or_default();
    let row = rows.into_iter().find(|row| row.key == key);
    // A value that is its own resolution is shown as TOML.
    let text = row.map(|row| row.resolved.unwrap_or_else(|| row.value.trim_matches('"').into()));
    Ok(text.filter(|text| !text.is_empty()))
}

/// `run.work-dir` of the site.
///
/// # Errors
/// As [`shown`].
pub fn work_dir() -> Result<Option<PathBuf>, CommandFailure> {
    Ok(text("run.work-dir")?.map(PathBuf::from))
}

/// `yarn.keytab` and `yarn.principal` of the site; `None` without a keytab, or if the file has problems.
#[must_use]
pub fn keytab() -> Option<StatedKeytab> {
    let path = text("yarn.keytab").ok().flatten()?;
    Some(StatedKeytab { path: path.into(), principal: text("yarn.principal").ok().flatten() })
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_file_that_every_user_can_write_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE);
        let mode = |of: &Path, mode| std::fs::set_permissions(of, Permissions::from_mode(mode));
        assert!(load_from(&path).unwrap().is_none());
        std::fs::write(&path, "[yarn]\n").unwrap();
        for (of_file, of_dir, refused) in [
            (0o644, 0o755, false),
            (0o664, 0o775, false),
            (0o666, 0o755, true),
            (0o644, 0o777, true),
            (0o644, 0o1777, false),
        ] {
            mode(&path, of_file).unwrap();
            mode(dir.path(), of_dir).unwrap();
            let loaded = load_from(&path);
            assert_eq!(loaded.is_err(), refused, "{of_file:o} {of_dir:o}: {loaded:?}");
        }
        mode(&path, 0o646).unwrap();
        let failure = load_from(&path).unwrap_err();
        assert_eq!(failure.exit, ExitCode::Input);
        assert_eq!(failure.next, format!("chmod o-w {}", path.display()));
    }
}
