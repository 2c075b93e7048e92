//! Shell quoting, so that arguments and variables arrive in the process byte for byte.
//!
//! A NodeManager writes the launch context into a bash script without escaping. A variable becomes
//! `export NAME="value"`, the command becomes `exec /bin/bash -c "command"`. So bash parses a value once, inside double
//! quotes, and an argument twice, first inside double quotes and then as a command. Before that the NodeManager
//! replaces `<LOG_DIR>`, `<CPS>`, `<ADD_OPENS>`, `{{` (by `$`) and `}}` (by nothing) everywhere.
//!
//! Therefore characters that are special inside double quotes get a backslash, and arguments are also in single quotes. A
//! pair of quotes splits each of the NodeManager's marks, and bash removes it again.
//!
//! Source: `ContainerLaunch.ShellScriptBuilder`, `ContainerLaunch.expandEnvironment`.

/// Why text cannot be passed to a container.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum QuoteError {
    /// Arguments and variables of processes end at the first NUL.
    #[error("{what} must not contain a NUL character")]
    Nul {
        /// The argument or variable.
        what: String,
    },
    /// bash accepts only letters, digits and `_`, and not a digit first.
    #[error(
        "the name of an environment variable must have only letters, digits and _ (got \"{name}\")"
    )]
    Name {
        /// The name.
        name: String,
    },
    /// The whole command is one argument of bash, which Linux limits (`MAX_ARG_STRLEN`, 128 KiB with its NUL).
    #[error("the command must have at most {COMMAND_MAX} bytes (got {length})")]
    TooLong {
        /// Its length with quotes.
        length: usize,
    },
}

/// Longest command with its quotes, in bytes.
pub const COMMAND_MAX: usize = 131_071;

/// The mark that the NodeManager replaces by the container's log directory.
pub const LOG_DIR: &str = "<LOG_DIR>";

/// The NodeManager's marks, and the positions at which a pair of quotes splits them.
const MARKS: [(&str, usize); 5] =
    [("<LOG_DIR>", 1), ("<CPS>", 1), ("<ADD_OPENS>", 1), ("{{", 1), ("}}", 1)];

/// The encoding of a variable's value in the launch context.
///
/// # Errors
/// A NUL.
pub fn environment_value(name: &str, value: &str) -> Result<String, QuoteError> {
    if value.contains('\0') {
        return Err(QuoteError::Nul { what: format!("the variable {name}") });
    }
    // A pair of double quotes inside the value closes and opens the string and does not change it.
    Ok(split_marks(&escape_double(value), "\"\""))
}

/// Checks the name of a variable.
///
/// # Errors
/// bash rejects the name.
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
/// The shell `exec`s the program, so it receives signals, and its exit status is the container's.
///
/// # Errors
/// An argument has a NUL, or the command is too long.
pub fn command(argv: &[impl AsRef<str>]) -> Result<String, QuoteError> {
    let mut line = String::from("exec");
    for (index, argument) in argv.iter().enumerate() {
        let argument = argument.as_ref();
        if argument.contains('\0') {
            return Err(QuoteError::Nul { what: format!("argument {index}") });
        }
        line.push(' ');
        line.push_str(&split_marks(&single_quoted(argument), "''"));
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

/// Escapes text for double quotes.
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

/// Puts `quotes`, which bash removes, into each mark of the NodeManager.
fn split_marks(text: &str, quotes: &str) -> String {
    let mut split = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        match MARKS.iter().find(|(mark, _)| rest.starts_with(mark)) {
            // Continue at the split: in `{{{` the second pair begins inside the first.
            Some(&(mark, at)) => {
                split.push_str(&mark[..at]);
                split.push_str(quotes);
                rest = &rest[at..];
            }
            None => {
                split.push(c);
                rest = &rest[c.len_utf8()..];
            }
        }
    }
    split
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::process::Command;

    /// The NodeManager's replacements in a value or command.
    fn expand(text: &str, logs: &str) -> String {
        text.replace("<LOG_DIR>", logs)
            .replace("<CPS>", ":")
            .replace("<ADD_OPENS>", "--add-opens=x")
            .replace("{{", "$")
            .replace("}}", "")
    }

    /// Runs the NodeManager's script, with the variable `V` and `printf` of the arguments.
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
    fn special_characters_pass_through_bash_unchanged() {
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
    fn the_program_replaces_the_shell() {
        assert_eq!(
            command(&["date", "+%s"]).unwrap(),
            "exec 'date' '+%s' 1><LOG_DIR>/stdout 2><LOG_DIR>/stderr"
        );
    }

    #[test]
    fn text_that_cannot_be_passed_is_rejected() {
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
        fn any_text_passes_through_bash_unchanged(
            value in r#"[{}<>A-Z_$`"'\\ !\nä-]{0,24}"#,
            arguments in prop::collection::vec(r#"[{}<>LOG_DIRCPS$`"'\\ !\n*-]{0,24}"#, 0..4),
        ) {
            let (seen, expected) = through_bash(&value, &arguments);
            prop_assert_eq!(seen, expected);
        }
    }
}
