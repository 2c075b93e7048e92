//! Quoting: what an application says arrives in the process byte for byte.
//!
//! A NodeManager writes the launch context into a bash script without escaping anything. A variable becomes
//! `export NAME="value"`, the command `exec /bin/bash -c "command"`; so a value is read by bash once, inside double
//! quotes, and an argument twice, first inside double quotes and then as a command. Before that the NodeManager
//! replaces `<LOG_DIR>`, `<CPS>`, `<ADD_OPENS>`, `{{` (by `$`) and `}}` (by nothing) wherever they stand.
//!
//! Therefore: what double quotes interpret gets a backslash, arguments are in single quotes besides, and the
//! NodeManager's own marks are torn apart by a pair of quotes, which bash drops again.
//!
//! Source: `ContainerLaunch.ShellScriptBuilder`, `ContainerLaunch.expandEnvironment`.

/// Text that no quoting can carry into a container.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum QuoteError {
    /// Processes take arguments and variables that end at the first NUL.
    #[error("{what} contains a NUL character")]
    Nul {
        /// Which argument or variable.
        what: String,
    },
    /// bash takes only letters, digits and `_`, no digit first.
    #[error("\"{name}\" is no name for an environment variable")]
    Name {
        /// The name.
        name: String,
    },
    /// The whole command is one argument of bash, which Linux limits (`MAX_ARG_STRLEN`, 128 KiB with its NUL).
    #[error("the command has {length} bytes, more than {COMMAND_MAX}")]
    TooLong {
        /// Its length with quotes.
        length: usize,
    },
}

/// Longest command with all its quotes, in bytes.
pub const COMMAND_MAX: usize = 131_071;

/// Where the NodeManager keeps a container's logs: the text that it replaces by the directory.
pub const LOG_DIR: &str = "<LOG_DIR>";

/// What the NodeManager replaces, and where a pair of quotes breaks it.
const MARKS: [(&str, usize); 5] =
    [("<LOG_DIR>", 1), ("<CPS>", 1), ("<ADD_OPENS>", 1), ("{{", 1), ("}}", 1)];

/// The value as it must stand in the launch context so that the process sees `value`.
///
/// # Errors
/// A NUL.
pub fn environment_value(name: &str, value: &str) -> Result<String, QuoteError> {
    if value.contains('\0') {
        return Err(QuoteError::Nul { what: format!("the variable {name}") });
    }
    // Closing and opening the double quotes in the middle leaves the value as it is.
    Ok(tear_marks(&escape_double(value), "\"\""))
}

/// Checks the name of a variable.
///
/// # Errors
/// bash would not take it.
pub fn environment_name(name: &str) -> Result<(), QuoteError> {
    let start = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    if start && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
        Ok(())
    } else {
        Err(QuoteError::Name { name: name.to_owned() })
    }
}

/// The command that runs `argv` with standard output and error in the files `stdout` and `stderr` of the container's
/// log directory.
///
/// It `exec`s: signals reach the program itself and its status is the container's.
///
/// # Errors
/// A NUL in an argument, or too many bytes.
pub fn command(argv: &[impl AsRef<str>]) -> Result<String, QuoteError> {
    let mut line = String::from("exec");
    for (index, argument) in argv.iter().enumerate() {
        let argument = argument.as_ref();
        if argument.contains('\0') {
            return Err(QuoteError::Nul { what: format!("argument {index}") });
        }
        line.push(' ');
        line.push_str(&tear_marks(&single_quoted(argument), "''"));
    }
    let line = format!("{} 1>{LOG_DIR}/stdout 2>{LOG_DIR}/stderr", escape_double(&line));
    if line.len() > COMMAND_MAX {
        return Err(QuoteError::TooLong { length: line.len() });
    }
    Ok(line)
}

/// One word for bash: `'…'`, with `'\''` for each `'`.
fn single_quoted(argument: &str) -> String {
    format!("'{}'", argument.replace('\'', r"'\''"))
}

/// For a place between double quotes.
fn escape_double(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len() + text.len() / 8);
    for c in text.chars() {
        if matches!(c, '\\' | '"' | '$' | '`') {
            escaped.push('\\');
        }
        escaped.push(c);
    }
    escaped
}

/// Puts `quotes`, which bash drops, into every mark of the NodeManager.
fn tear_marks(text: &str, quotes: &str) -> String {
    let mut torn = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        match MARKS.iter().find(|(mark, _)| rest.starts_with(mark)) {
            // Only up to the break: in `{{{` the second pair begins inside the first.
            Some(&(mark, at)) => {
                torn.push_str(&mark[..at]);
                torn.push_str(quotes);
                rest = &rest[at..];
            }
            None => {
                torn.push(c);
                rest = &rest[c.len_utf8()..];
            }
        }
    }
    torn
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::process::Command;

    /// What the NodeManager does to a value or command before it writes the script.
    fn expand(text: &str, logs: &str) -> String {
        text.replace("<LOG_DIR>", logs)
            .replace("<CPS>", ":")
            .replace("<ADD_OPENS>", "--add-opens=x")
            .replace("{{", "$")
            .replace("}}", "")
    }

    /// Runs the script that the NodeManager would write, with the variable `V` and `printf` of the arguments.
    fn through_bash(value: &str, arguments: &[String]) -> (Vec<u8>, Vec<u8>) {
        let logs = tempfile::tempdir().unwrap();
        let path = logs.path().to_str().unwrap();
        let argv: Vec<String> = ["bash", "-c", r#"printf '%s\0' "$V" "$@""#, "name"]
            .map(str::to_owned)
            .into_iter()
            .chain(arguments.iter().cloned())
            .collect();
        let script = format!(
            "#!/bin/bash\nset -o pipefail -e\nexport V=\"{}\"\nexec /bin/bash -c \"{}\"\n",
            expand(&environment_value("V", value).unwrap(), path),
            expand(&command(&argv).unwrap(), path)
        );
        let status = Command::new("bash").args(["-c", &script]).status().unwrap();
        let stdout = std::fs::read(logs.path().join("stdout")).unwrap();
        let stderr = std::fs::read(logs.path().join("stderr")).unwrap();
        assert!(status.success(), "{script}\n{}", String::from_utf8_lossy(&stderr));
        let mut expected = Vec::new();
        for part in std::iter::once(value).chain(arguments.iter().map(String::as_str)) {
            expected.extend_from_slice(part.as_bytes());
            expected.push(0);
        }
        (stdout, expected)
    }

    const NASTY: [&str; 16] = [
        "",
        " ",
        "a b",
        "'",
        "\"",
        "\\",
        "\\\\\"",
        "$HOME",
        "`id`",
        "$(id)",
        "!!",
        "line\nbreak\ttab\r",
        "{{HOME}} {{{x}}}",
        "<LOG_DIR><CPS><ADD_OPENS>",
        "*?[a]~;&|<>#",
        "π 漢字 \u{1}\u{7f}",
    ];

    #[test]
    fn nasty_text_arrives_unchanged_through_real_bash() {
        let arguments = NASTY.map(str::to_owned);
        for value in NASTY {
            let (seen, expected) = through_bash(value, &arguments);
            assert_eq!(
                String::from_utf8_lossy(&seen),
                String::from_utf8_lossy(&expected),
                "V = {value:?}"
            );
        }
    }

    #[test]
    fn the_program_replaces_the_shells() {
        assert_eq!(
            command(&["date", "+%s"]).unwrap(),
            "exec 'date' '+%s' 1><LOG_DIR>/stdout 2><LOG_DIR>/stderr"
        );
    }

    #[test]
    fn what_cannot_be_carried_is_refused() {
        assert!(matches!(environment_value("A", "a\0b"), Err(QuoteError::Nul { .. })));
        assert!(matches!(command(&["a\0"]), Err(QuoteError::Nul { .. })));
        assert!(matches!(command(&["x".repeat(COMMAND_MAX)]), Err(QuoteError::TooLong { .. })));
        for name in ["", "1A", "A-B", "A=B", "Ä"] {
            assert!(environment_name(name).is_err(), "{name}");
        }
        assert!(environment_name("_A1").is_ok());
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]
        #[test]
        fn any_text_arrives_unchanged(
            value in r#"[{}<>A-Z_$`"'\\ !\nä-]{0,24}"#,
            arguments in prop::collection::vec(r#"[{}<>LOG_DIRCPS$`"'\\ !\n*-]{0,24}"#, 0..4),
        ) {
            let (seen, expected) = through_bash(&value, &arguments);
            prop_assert_eq!(seen, expected);
        }
    }
}
