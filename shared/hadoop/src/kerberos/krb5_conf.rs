//! Where a krb5.conf is malformed. The library reports that one is, and neither which nor where.
//!
//! Source: `krb5.conf(5)`, and `prof_parse.c` of MIT Kerberos. Included files are not followed.

use std::path::PathBuf;

/// Files that the library reads where `KRB5_CONFIG` is not set.
const DEFAULT: &str = "/etc/krb5.conf:/usr/etc/krb5.conf";
/// No configuration is larger.
const BYTES_MAX: u64 = 1 << 20;

/// A line that the library does not accept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MalformedLine {
    /// The file.
    pub path: PathBuf,
    /// Its number, from 1.
    pub line: usize,
    /// What is wrong with it.
    pub fault: &'static str,
}

/// The first malformed line of the files that this process's library reads.
pub fn malformed_line() -> Option<MalformedLine> {
    let paths = std::env::var("KRB5_CONFIG").unwrap_or_else(|_| DEFAULT.to_owned());
    paths.split(':').map(PathBuf::from).find_map(|path| {
        let length = path.metadata().ok()?.len();
        let bytes = if length > BYTES_MAX { return None } else { std::fs::read(&path).ok()? };
        let (line, fault) = first_fault(&String::from_utf8_lossy(&bytes))?;
        Some(MalformedLine { path, line, fault })
    })
}

/// The number of the first malformed line, and what is wrong with it.
fn first_fault(text: &str) -> Option<(usize, &'static str)> {
    let (mut depth, mut in_section, mut needs_brace) = (0_usize, false, false);
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if line.is_empty() || line.starts_with(['#', ';']) {
            continue;
        }
        if needs_brace {
            if line != "{" {
                return Some((number, "expected {"));
            }
            (needs_brace, depth) = (false, depth + 1);
            continue;
        }
        if !in_section && !line.starts_with('[') {
            // Text before the first section is a comment, or a directive.
            continue;
        }
        if let Some(rest) = line.strip_prefix('[') {
            if depth > 0 {
                return Some((number, "a section begins within braces"));
            }
            match rest.split_once(']') {
                Some((_, "" | "*")) => in_section = true,
                _ => return Some((number, "expected [section]")),
            }
        } else if let Some(rest) = line.strip_prefix('}') {
            if depth == 0 {
                return Some((number, "} without {"));
            }
            if !matches!(rest, "" | "*") {
                return Some((number, "text after }"));
            }
            depth -= 1;
        } else {
            match relation(line) {
                Relation::Value => {}
                Relation::Group => depth += 1,
                Relation::GroupBelow => needs_brace = true,
                Relation::Wrong => return Some((number, "expected tag = value")),
            }
        }
    }
    None
}

enum Relation {
    Value,
    /// `tag = {`
    Group,
    /// `tag =`, with the brace on the next line.
    GroupBelow,
    Wrong,
}

fn relation(line: &str) -> Relation {
    // `include`, `includedir` and `module` are accepted everywhere.
    let first = line.split_whitespace().next().unwrap_or_default();
    if matches!(first, "include" | "includedir" | "module") {
        return Relation::Value;
    }
    let Some((tag, value)) = line.split_once('=') else {
        return Relation::Wrong;
    };
    let tag = tag.trim_end().trim_end_matches('*');
    if tag.is_empty() || tag.contains(char::is_whitespace) {
        return Relation::Wrong;
    }
    match value.trim() {
        "" => Relation::GroupBelow,
        "{" => Relation::Group,
        _ => Relation::Value,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_of_all_forms_has_no_fault() {
        let text = "# of the site\nincludedir /etc/krb5.conf.d/\n\n\
            [libdefaults]\n default_realm = R\n\
            ; old\n[realms]\n R = {\n  kdc = a:88\n  auth_to_local =\n  {\n   x = y\n  }\n }*\n\
            [domain_realm]*\n .r = R\n include /etc/more\n";
        assert_eq!(first_fault(text), None);
    }

    #[test]
    fn each_kind_of_fault_has_its_line() {
        for (text, line, fault) in [
            ("[libdefaults\nx", 1, "expected [section]"),
            ("[a] b\n", 1, "expected [section]"),
            ("[a]\nx\n", 2, "expected tag = value"),
            ("[a]\n= y\n", 2, "expected tag = value"),
            ("[a]\nx z = y\n", 2, "expected tag = value"),
            ("[a]\n}\n", 2, "} without {"),
            ("[a]\nx = {\n} y\n", 3, "text after }"),
            ("[a]\nx =\n\ny = z\n", 4, "expected {"),
            ("[a]\nx = {\n[b]\n", 3, "a section begins within braces"),
        ] {
            assert_eq!(first_fault(text), Some((line, fault)), "{text:?}");
        }
    }
}
