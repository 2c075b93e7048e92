//! The rules of `[yarn]` and `trainers.resources`.

use std::collections::{BTreeMap, BTreeSet};

use super::limits::{SpecError, rule};
use super::value::DurationMs;
use super::yarn::{TAG_BYTES_MAX, TAGS_MAX, YarnSpec};

/// Most files and archives together: each is a copy on each node.
const FILES_MAX: usize = 1000;
/// Most secrets: each start of a container carries them.
const SECRETS_MAX: usize = 64;

/// Whether YARN can accept the requests of this spec.
///
/// # Errors
/// The first rule that does not hold.
pub(super) fn check_cluster(
    yarn: &YarnSpec,
    resources: &BTreeMap<String, u64>,
) -> Result<(), SpecError> {
    check_application(yarn)?;
    check_timing(yarn)?;
    check_files(yarn)?;
    check_env(yarn)?;
    check_secrets(yarn)?;
    check_resources(resources)
}

fn check_application(yarn: &YarnSpec) -> Result<(), SpecError> {
    let is_line = |text: &str| text.len() <= 1000 && !text.chars().any(char::is_control);
    rule(!yarn.queue.is_empty() && is_line(&yarn.queue), "yarn.queue", || {
        "must be the name of a queue".to_owned()
    })?;
    rule(yarn.tags.len() <= TAGS_MAX, "yarn.tags", || {
        format!("{} tags, at most {TAGS_MAX}", yarn.tags.len())
    })?;
    for tag in &yarn.tags {
        let fits = (1..=TAG_BYTES_MAX).contains(&tag.len())
            && tag.bytes().all(|b| b.is_ascii_graphic() && b != b',');
        rule(fits, "yarn.tags", || {
            format!("{tag:?} must be 1 to {TAG_BYTES_MAX} ASCII characters without space or comma")
        })?;
    }
    for (key, acl) in [("yarn.view-acl", &yarn.view_acl), ("yarn.modify-acl", &yarn.modify_acl)] {
        rule(is_line(acl), key, || "must be one line".to_owned())?;
    }
    Ok(())
}

fn check_timing(yarn: &YarnSpec) -> Result<(), SpecError> {
    let timeout = yarn.allocation_timeout;
    rule(timeout >= DurationMs::secs(1), "yarn.allocation-timeout", || {
        format!("is {timeout}, must be at least 1s")
    })?;
    let retry = yarn.memory_retry;
    rule((1.0..=10.0).contains(&retry.factor) && retry.times <= 10, "yarn.memory-retry", || {
        format!(
            "factor is {}, must be from 1 to 10; times is {}, must be at most 10",
            retry.factor, retry.times
        )
    })
}

fn check_files(yarn: &YarnSpec) -> Result<(), SpecError> {
    let mut names = BTreeSet::new();
    let files = yarn.files.iter().map(|file| ("yarn.files", file));
    let archives = yarn.archives.iter().map(|file| ("yarn.archives", file));
    for (key, file) in files.chain(archives) {
        let is_new = names.insert(&file.name);
        rule(is_new && names.len() <= FILES_MAX, key, || {
            format!(
                "{:?} is the name of two files in the work directory, or there are more than {FILES_MAX}; name one of them otherwise by path#name",
                file.name
            )
        })?;
    }
    Ok(())
}

fn is_variable(name: &str) -> bool {
    name.len() <= 200
        && name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

fn check_secrets(yarn: &YarnSpec) -> Result<(), SpecError> {
    rule(yarn.secrets.len() <= SECRETS_MAX, "yarn.secrets", || {
        format!("{} secrets, at most {SECRETS_MAX}", yarn.secrets.len())
    })?;
    for name in yarn.secrets.keys() {
        rule(is_variable(name) && !name.starts_with("HEDDLE_"), "yarn.secrets", || {
            format!(
                "{name:?}: expected a name of letters, digits and \"_\" that does not start with HEDDLE_"
            )
        })?;
        let variable = format!("{name}_FILE");
        rule(!yarn.env.contains_key(&variable), "yarn.secrets", || {
            format!("{name:?}: yarn.env sets {variable}, which names the secret's file")
        })?;
    }
    Ok(())
}

fn check_env(yarn: &YarnSpec) -> Result<(), SpecError> {
    for (name, value) in &yarn.env {
        let is_plain = is_variable(name);
        let is_ours = name.starts_with("HEDDLE_");
        let fits = value.len() <= 32 << 10 && !value.contains(['\0', '\n']);
        rule(is_plain && !is_ours && fits, "yarn.env", || {
            format!(
                "{name:?}: expected a name of letters, digits and \"_\" that does not start with HEDDLE_, and a value of one line, at most 32 KiB"
            )
        })?;
    }
    Ok(())
}

fn check_resources(resources: &BTreeMap<String, u64>) -> Result<(), SpecError> {
    const KEY: &str = "trainers.resources";
    for (name, amount) in resources {
        let is_plain = !name.is_empty()
            && name.len() <= 200
            && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_./".contains(&b));
        rule(is_plain && *amount <= i64::MAX as u64, KEY, || {
            format!(
                "{name:?} = {amount}: expected a resource of the cluster, such as \"yarn.io/gpu\", and how many"
            )
        })?;
        rule(!["memory", "memory-mb", "vcores"].contains(&name.as_str()), KEY, || {
            format!("{name:?} has keys of its own: trainers.memory and trainers.vcores")
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
    use std::path::Path;

    use super::super::secret_source::SecretSource;
    use super::*;
    use crate::job_spec::check::check;
    use crate::job_spec::job::{JobSpec, sample};
    use crate::job_spec::shipped_file::FileSpec;
    use crate::job_spec::value::{Bytes, Share};

    fn refused(change: impl FnOnce(&mut JobSpec)) -> String {
        let mut spec = sample();
        change(&mut spec);
        check(&spec).unwrap_err().to_string()
    }

    #[test]
    fn two_files_of_one_name_are_refused() {
        let text = refused(|spec| {
            spec.yarn.files = vec![FileSpec::parse("a/x", Path::new("/")).unwrap()];
            spec.yarn.archives = vec![FileSpec::parse("b/x", Path::new("/")).unwrap()];
        });
        assert!(text.starts_with("yarn.archives: \"x\" is the name of two"), "{text}");
    }

    #[test]
    fn requests_that_yarn_would_refuse_are_refused() {
        for (change, key) in [
            ((|y| y.queue.clear()) as fn(&mut YarnSpec), "yarn.queue"),
            (|y| y.tags = vec!["x".to_owned(); 11], "yarn.tags"),
            (|y| y.tags = vec!["a,b".to_owned()], "yarn.tags"),
            (|y| y.max_attempts = 0, "yarn.max-attempts"),
            (|y| y.memory_retry.factor = f64::NAN, "yarn.memory-retry"),
            (|y| y.env = [("A B".to_owned(), String::new())].into(), "yarn.env"),
            (|y| y.env = [("HEDDLE_RUN".to_owned(), String::new())].into(), "yarn.env"),
            (
                |y| {
                    y.secrets =
                        [("HEDDLE_X".to_owned(), SecretSource::Environment("X".into()))].into()
                },
                "yarn.secrets",
            ),
            (
                |y| {
                    y.env = [("KEY_FILE".to_owned(), String::new())].into();
                    y.secrets = [("KEY".to_owned(), SecretSource::Environment("X".into()))].into();
                },
                "yarn.secrets",
            ),
        ] {
            let text = refused(|spec| change(&mut spec.yarn));
            assert!(text.starts_with(&format!("{key}: ")), "{text}");
        }
        let text = refused(|spec| {
            spec.trainers.resources = [("vcores".to_owned(), 1)].into();
        });
        assert!(text.contains("trainers.vcores"), "{text}");
    }

    #[test]
    fn the_overhead_comes_on_top() {
        let mut spec = sample();
        assert_eq!(spec.container_memory(Bytes(1000)), Bytes(1100));
        spec.yarn.memory_overhead = Share::Bytes(Bytes(0));
        assert_eq!(spec.container_memory(Bytes(1000)), Bytes(1000));
    }
}
