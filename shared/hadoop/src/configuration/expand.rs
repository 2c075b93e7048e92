//! Variables in values: `${other.key}`, `${user.name}`, `${env.HOME}`, `${env.X-default}`, `${env.X:-default}`.
//!
//! Source: `conf.Configuration.substituteVars` and `findSubVariable`. The innermost, leftmost variable is replaced
//! first, at most 20 times; a variable without a value ends the expansion and stays in the text.

/// `Configuration.MAX_SUBST`.
const SUBSTITUTIONS_MAX: usize = 20;
/// Longest expanded value in bytes: 20 rounds of doubling must not fill the memory.
const LENGTH_MAX: usize = 1 << 20;

/// Why a value cannot be expanded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExpandError {
    /// More replacements than Hadoop makes, as in a cycle of several keys.
    #[error("it has more than 20 variables to replace; check it for a cycle")]
    TooDeep,
    /// Longer than any sensible value.
    #[error("the expanded value must be at most 1 MiB")]
    TooLong,
}

/// Expands `text`. `lookup` gives the value of a variable's name as it stands between the braces.
pub(super) fn expand(
    text: &str,
    lookup: &dyn Fn(&str) -> Option<String>,
) -> Result<String, ExpandError> {
    let mut value = text.to_owned();
    for _ in 0..SUBSTITUTIONS_MAX {
        let Some((start, end)) = variable(&value) else {
            return Ok(value);
        };
        let Some(replacement) = lookup(&value[start + 2..end - 1]) else {
            return Ok(value);
        };
        if replacement.contains(&value[start..end]) {
            // A variable that expands to itself leaves the value as written.
            return Ok(text.to_owned());
        }
        if value.len() + replacement.len() > LENGTH_MAX {
            return Err(ExpandError::TooLong);
        }
        value.replace_range(start..end, &replacement);
    }
    Err(ExpandError::TooDeep)
}

/// The value of `env.…` without its prefix; `get` reads the environment.
pub(super) fn environment(name: &str, get: &dyn Fn(&str) -> Option<String>) -> Option<String> {
    for (index, character) in name.char_indices() {
        if let Some(default) = name[index..].strip_prefix(":-") {
            return Some(
                get(&name[..index])
                    .filter(|value| !value.is_empty())
                    .unwrap_or_else(|| default.to_owned()),
            );
        }
        if character == '-' {
            return Some(get(&name[..index]).unwrap_or_else(|| name[index + 1..].to_owned()));
        }
    }
    get(name)
}

/// Finds the leftmost innermost `${name}`, as byte range with `${` and `}`. A name has no blank, `$` or `}`.
fn variable(text: &str) -> Option<(usize, usize)> {
    let mut start = 0;
    while let Some(found) = text[start..].find("${") {
        let dollar = start + found;
        let name = &text[dollar + 2..];
        // Without any of the three, Hadoop leaves the rest of the text as it is.
        let stop = dollar + 2 + name.find([' ', '$', '}'])?;
        if text.as_bytes()[stop] == b'}' && stop > dollar + 2 {
            return Some((dollar, stop + 1));
        }
        // The `$` that ended the name may begin the next variable.
        start = if text.as_bytes()[stop] == b'$' { stop } else { stop + 1 };
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn values(name: &str) -> Option<String> {
        match name {
            "a" => Some("1".into()),
            "b" => Some("${a}${a}".into()),
            "self" => Some("x${self}".into()),
            "ping" => Some("${pong}".into()),
            "pong" => Some("${ping}".into()),
            "name1" => Some("found".into()),
            _ => None,
        }
    }

    #[test]
    fn variables_expand_as_in_hadoop() {
        for (text, expected) in [
            ("plain", Ok("plain")),
            ("${a}-${b}", Ok("1-11")),
            ("${name${a}}", Ok("found")),
            // A variable without a value ends the expansion. The text after it stays as written.
            ("${none}/${a}", Ok("${none}/${a}")),
            ("${a}/${none}", Ok("1/${none}")),
            ("${}", Ok("${}")),
            ("${ a}", Ok("${ a}")),
            ("$${a}", Ok("$1")),
            ("${a", Ok("${a")),
            ("${self}", Ok("${self}")),
            ("${a}${self}", Ok("${a}${self}")),
            ("${ping}", Err(ExpandError::TooDeep)),
        ] {
            assert_eq!(expand(text, &values), expected.map(str::to_owned), "{text}");
        }
    }

    #[test]
    fn environment_defaults_follow_the_shell() {
        let get = |name: &str| match name {
            "SET" => Some("set".to_owned()),
            "EMPTY" => Some(String::new()),
            _ => None,
        };
        for (name, expected) in [
            ("SET", Some("set")),
            ("UNSET", None),
            ("UNSET-d", Some("d")),
            ("UNSET:-d", Some("d")),
            ("EMPTY-d", Some("")),
            ("EMPTY:-d", Some("d")),
            ("SET-d", Some("set")),
            ("SET:-d", Some("set")),
            ("UNSET-", Some("")),
            ("UNSET:", None),
        ] {
            assert_eq!(environment(name, &get).as_deref(), expected, "{name}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "[${}abé :.-]{0,40}") {
            let _ = expand(&text, &values);
        }
    }
}
