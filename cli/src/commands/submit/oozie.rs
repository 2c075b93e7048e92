//! The tag by which Oozie finds the applications of an action.
//!
//! Oozie kills an action's children, and finds them again after a restart, by a tag that it chooses for the action. It
//! is in the action's configuration, whose file `OOZIE_ACTION_CONF_XML` names in a shell action and the property
//! `oozie.action.conf.xml` in a java action (the launcher of `yarn jar` passes it on). Source: `LauncherMain`,
//! `ShellMain`.

use std::path::Path;

use heddle_hadoop::Configuration;
use heddle_hadoop::configuration::Environment;
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::job_spec::JobSpec;

use crate::failure::{CommandFailure, OrFail};

/// The variable that names the action's configuration.
const CONFIGURATION: &str = "OOZIE_ACTION_CONF_XML";
/// Its key with the tags of children, separated by commas.
const CHILD_TAGS: &str = "oozie.child.mapreduce.job.tags";

/// Adds the tags of the Oozie action that started this process, if one did.
///
/// # Errors
/// Exit code 7 if the action's configuration cannot be read, or the job has too many tags.
pub fn add_child_tags(spec: &mut JobSpec) -> Result<(), CommandFailure> {
    match std::env::var_os(CONFIGURATION).filter(|path| !path.is_empty()) {
        Some(path) => add_tags_of(spec, Path::new(&path)),
        None => Ok(()),
    }
}

fn add_tags_of(spec: &mut JobSpec, path: &Path) -> Result<(), CommandFailure> {
    let unreadable = |cause: Option<&dyn std::error::Error>| {
        let fact = format!("cannot read the Oozie action's configuration {}", path.display());
        let failure = match cause {
            Some(cause) => CommandFailure::caused(ExitCode::Input, fact, cause),
            None => CommandFailure::new(ExitCode::Input, format!("{fact}: it does not exist")),
        };
        failure.next(format!(
            "without the action's tag Oozie cannot kill the job; unset {CONFIGURATION} outside of Oozie"
        ))
    };
    let mut action = Configuration::empty(Environment::of_process());
    if !action.add_file(path).map_err(|error| unreadable(Some(&error)))? {
        return Err(unreadable(None));
    }
    let tags = action.list(CHILD_TAGS).map_err(|error| unreadable(Some(&error)))?;
    for tag in tags {
        // The ResourceManager keeps tags in lower case.
        let tag = tag.to_ascii_lowercase();
        if !spec.yarn.tags.contains(&tag) {
            spec.yarn.tags.push(tag);
        }
    }
    heddle_protocol::job_spec::check(spec)
        .or_fail(ExitCode::Input, "cannot add the tags of the Oozie action to yarn.tags")
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
    use heddle_protocol::job_spec::job::sample;

    use super::*;

    fn action(text: &str) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        file
    }

    #[test]
    fn tags_of_the_action_are_added_once() {
        let file = action(
            "<configuration><property><name>oozie.child.mapreduce.job.tags</name>\
             <value>oozie-ABC, mine</value></property></configuration>",
        );
        let mut spec = sample();
        spec.yarn.tags = vec!["mine".to_owned()];
        for _ in 0..2 {
            add_tags_of(&mut spec, file.path()).unwrap();
            assert_eq!(spec.yarn.tags, ["mine", "oozie-abc"]);
        }
        // An action without children's tags, as older versions of Oozie write it.
        add_tags_of(&mut spec, action("<configuration/>").path()).unwrap();
        assert_eq!(spec.yarn.tags.len(), 2);
    }

    #[test]
    fn a_configuration_that_cannot_be_read_is_an_error() {
        for path in [Path::new("/nonexistent/action.xml"), action("<configuration>").path()] {
            let failure = add_tags_of(&mut sample(), path).unwrap_err();
            assert_eq!(failure.exit, ExitCode::Input);
            assert!(failure.next.contains("Oozie cannot kill"), "{failure:?}");
        }
    }
}
