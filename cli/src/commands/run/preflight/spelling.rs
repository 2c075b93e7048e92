//! Paths in the form of shells, of Hadoop and of lists, which Heddle takes for names of files: the form to write instead.

use std::path::Path;

use heddle_protocol::exit_code::ExitCode;

use crate::failure::CommandFailure;

/// The form to write for a path that is not there; `None` if it has an ordinary form.
pub fn advice(path: &str) -> Option<String> {
    let mut names = path.split('/');
    while let Some(name) = names.next() {
        let rest: Vec<&str> = names.clone().filter(|name| !name.is_empty()).collect();
        let rest = rest.join("/");
        match name.split_once(':') {
            Some(("file", after)) => {
                let plain = [after, &rest].join("/");
                let plain = plain.trim_end_matches('/');
                return Some(format!("write {plain}, or a URL such as file:///data/train.svm"));
            }
            Some((scheme @ ("hdfs" | "viewfs"), "")) => {
                return Some(format!(
                    "write {scheme}://HOST/{rest}, or {scheme}:///{rest} for the default file system"
                ));
            }
            _ => {}
        }
        if name.starts_with('~') {
            return Some(format!("write the path in full: {name} is not replaced"));
        }
        if name.starts_with('$') || name.contains("${") {
            return Some(format!("write the path in full: the variable in {name} is not replaced"));
        }
    }
    None
}

/// The same for data, which may be a list.
pub fn advice_on_data(path: &str) -> Option<String> {
    advice(path).or_else(|| {
        let paths: Vec<&str> = path.split(',').map(str::trim).collect();
        (paths.len() > 1).then(|| format!("a list of paths is written {paths:?}"))
    })
}

/// Rejects a folder that does not exist and whose name has such a form, before it is made.
pub fn check(key: &str, path: &Path) -> Result<(), CommandFailure> {
    let existing = path.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"));
    let new = path.strip_prefix(existing).unwrap_or(path);
    match advice(&new.to_string_lossy()) {
        None => Ok(()),
        Some(advice) => {
            let fact = format!(
                "{key} = {} does not exist, and is not a name for a new folder",
                path.display()
            );
            Err(CommandFailure::new(ExitCode::Input, fact).next(advice))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_of_other_tools_are_named() {
        for (path, words) in [
            ("/job/file:/data/train.svm", "write /data/train.svm,"),
            ("/job/file:train.svm", "write train.svm,"),
            ("/job/file:a/b.svm", "write a/b.svm,"),
            ("/job/hdfs:/data", "hdfs://HOST/data"),
            ("/job/~/train.svm", "~ is not replaced"),
            ("/job/${PWD}/train.svm", "variable in ${PWD}"),
            ("/job/$HOME/train.svm", "variable in $HOME"),
            ("/job/a.svm,b.svm", r#"["/job/a.svm", "b.svm"]"#),
        ] {
            let advice = advice_on_data(path).expect(path);
            assert!(advice.contains(words), "{path}: {advice}");
        }
        for path in ["/job/train.svm", "/job/a:b/~/c"] {
            assert_eq!(advice_on_data(path).is_some(), path.contains('~'), "{path}");
        }
        assert_eq!(advice("/job/a,b"), None, "a name for a new folder");
    }
}
