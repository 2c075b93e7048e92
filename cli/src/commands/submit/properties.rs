//! PropertyLine files as Spark and Java write them: `key=value`, `key: value` or `key value`, one a line.
//!
//! Source: the format of `java.util.Properties`. Lines that continue with a backslash and `\u` escapes are refused with
//! their line, so that no value is misread.

/// A property and its line, from 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PropertyLine {
    pub line: usize,
    pub key: String,
    pub value: String,
}

/// The properties of a file.
///
/// # Errors
/// The line that cannot be read, and why.
pub fn parse(text: &str) -> Result<Vec<PropertyLine>, (usize, String)> {
    let mut properties = Vec::new();
    for (line, text) in (1..).zip(text.lines()) {
        let text = text.trim_start();
        if text.is_empty() || text.starts_with(['#', '!']) {
            continue;
        }
        let end = separator(text);
        let (key, rest) = text.split_at(end);
        let rest = rest.trim_start();
        let value = rest.strip_prefix(['=', ':']).unwrap_or(rest).trim();
        let key = unescaped(key).map_err(|what| (line, what))?;
        let value = unescaped(value).map_err(|what| (line, what))?;
        if key.is_empty() {
            return Err((line, "a property needs a key".to_owned()));
        }
        properties.push(PropertyLine { line, key, value });
    }
    Ok(properties)
}

/// Where the key ends: at the first blank, `=` or `:` that no backslash precedes.
fn separator(text: &str) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '=' | ':' => return at,
            c if c.is_whitespace() => return at,
            _ => {}
        }
    }
    text.len()
}

fn unescaped(text: &str) -> Result<String, String> {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c != '\\' {
            out.push(c);
            continue;
        }
        match chars.next() {
            Some('t') => out.push('\t'),
            Some(c @ ('n' | 'r' | 'f' | 'u')) => {
                return Err(format!("the escape \\{c} is not supported"));
            }
            Some(c) => out.push(c),
            None => return Err("a value must be on one line".to_owned()),
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_three_forms_of_a_property_are_read() {
        let text = "# comment\n! comment\n\nyarn.queue=ml\n  trainers.max : 4\nam.memory\t1g \r\n\
            fs.a=x=y:z\nyarn.node-label\nk\\:ey = a\\\\b\n";
        let read: Vec<_> = parse(text)
            .expect("plain")
            .into_iter()
            .map(|property| (property.line, property.key, property.value))
            .collect();
        let expected = [
            (4, "yarn.queue", "ml"),
            (5, "trainers.max", "4"),
            (6, "am.memory", "1g"),
            (7, "fs.a", "x=y:z"),
            (8, "yarn.node-label", ""),
            (9, "k:ey", "a\\b"),
        ];
        let expected: Vec<_> = expected
            .into_iter()
            .map(|(line, key, value)| (line, key.to_owned(), value.to_owned()))
            .collect();
        assert_eq!(read, expected);
    }

    #[test]
    fn what_would_be_misread_is_refused_with_its_line() {
        for (text, line) in [("a=1\nb=\\\n  2", 2), ("a=\\u00e4", 1), ("\n\n=x", 3)] {
            assert_eq!(parse(text).expect_err("refused").0, line, "{text}");
        }
    }
}
