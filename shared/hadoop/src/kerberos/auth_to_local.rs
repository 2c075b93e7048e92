//! The short name of a principal by `hadoop.security.auth_to_local`.
//!
//! Rules are separated by white space; the first that applies decides:
//!
//! | rule | effect |
//! | --- | --- |
//! | `DEFAULT` | one or two components of the default realm: the first component |
//! | `RULE:[n:format](match)s/from/to/gL` | principals of n components; `$0` is the realm, `$1` … the components; `match`, the substitution, `g` (all places) and `L` (lower case) are optional |
//!
//! Source: `security.authentication.util.KerberosName`.

use regex::Regex;

use crate::configuration::{Configuration, PropertyError};

/// The rules of a configuration.
#[derive(Clone, Debug)]
pub struct AuthToLocal {
    rules: Vec<NameRule>,
    default_realm: Option<String>,
    /// `hadoop.security.auth_to_local.mechanism` = `mit`: a principal without a rule keeps its whole name.
    is_mit: bool,
}

/// Why a principal has no short name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AuthToLocalError {
    /// No rule applies.
    #[error("no rule of hadoop.security.auth_to_local applies to {0}")]
    NoRule(String),
    /// The result still has a realm or a component.
    #[error("hadoop.security.auth_to_local maps {principal} to {name}, which is not a simple name")]
    NotSimple {
        /// The principal.
        principal: String,
        /// The result.
        name: String,
    },
    /// Not one or two components and a realm.
    #[error("{0} is not a Kerberos principal of one or two components")]
    Malformed(String),
    /// A rule does not parse.
    #[error("hadoop.security.auth_to_local has an invalid rule at \"{0}\"")]
    Rule(String),
    /// The configuration's value does not resolve.
    #[error(transparent)]
    Value(#[from] PropertyError),
}

#[derive(Clone, Debug)]
enum NameRule {
    Default,
    Format {
        components: usize,
        format: String,
        matches: Option<Regex>,
        substitute: Option<(Regex, String, bool)>,
        lower_case: bool,
    },
}

/// One rule at the start of the text, as `KerberosName.ruleParser` has it.
const RULE: &str =
    r"^\s*(?:(DEFAULT)|RULE:\[(\d*):([^\]]*)\](?:\(([^)]*)\))?(?:s/([^/]*)/([^/]*)/(g)?)?)/?(L)?";

impl AuthToLocal {
    /// The rules of a configuration. Without a known default realm, `DEFAULT` applies to all realms: the servers apply
    /// their own rules, and the name only selects directories.
    ///
    /// # Errors
    /// A rule does not parse.
    pub fn of(
        configuration: &Configuration,
        default_realm: Option<String>,
    ) -> Result<Self, AuthToLocalError> {
        let text = configuration.get("hadoop.security.auth_to_local")?.unwrap_or_default();
        let mechanism = configuration.trimmed("hadoop.security.auth_to_local.mechanism")?;
        let is_mit = mechanism.is_some_and(|mechanism| mechanism.eq_ignore_ascii_case("mit"));
        Self::parse(&text, default_realm, is_mit)
    }

    fn parse(
        text: &str,
        default_realm: Option<String>,
        is_mit: bool,
    ) -> Result<Self, AuthToLocalError> {
        let parser = Regex::new(RULE).expect("the pattern is constant and valid");
        let mut rules = Vec::new();
        let mut rest = text.trim();
        while !rest.is_empty() {
            let wrong = || AuthToLocalError::Rule(rest.to_owned());
            let found = parser.captures(rest).ok_or_else(wrong)?;
            let part = |index: usize| found.get(index).map(|part| part.as_str());
            let pattern = |text: &str| Regex::new(text).map_err(|_| wrong());
            rules.push(match part(1) {
                Some(_) => NameRule::Default,
                None => NameRule::Format {
                    components: part(2).and_then(|n| n.parse().ok()).ok_or_else(wrong)?,
                    format: part(3).unwrap_or_default().to_owned(),
                    // Java's `matches`: the whole text.
                    matches: part(4).map(|text| pattern(&format!("^(?:{text})$"))).transpose()?,
                    substitute: match part(5) {
                        None => None,
                        Some(from) => {
                            let to = replacement(part(6).unwrap_or_default());
                            Some((pattern(from)?, to, part(7).is_some()))
                        }
                    },
                    lower_case: part(8).is_some(),
                },
            });
            let end = found.get(0).map_or(rest.len(), |whole| whole.end());
            if end == 0 {
                return Err(wrong());
            }
            rest = rest[end..].trim_start();
        }
        if rules.is_empty() {
            rules.push(NameRule::Default);
        }
        Ok(Self { rules, default_realm, is_mit })
    }

    /// The short name of a principal. A name without realm passes as it is.
    ///
    /// # Errors
    /// No rule applies, or the result is not a simple name.
    pub fn short_name(&self, principal: &str) -> Result<String, AuthToLocalError> {
        let Some((name, realm)) = principal.split_once('@') else {
            return match principal.contains('/') {
                false => Ok(principal.to_owned()),
                true => Ok(principal.split('/').next().unwrap_or_default().to_owned()),
            };
        };
        let components: Vec<&str> = name.split('/').collect();
        if components.len() > 2 || realm.contains('@') || components.iter().any(|c| c.is_empty()) {
            return Err(AuthToLocalError::Malformed(principal.to_owned()));
        }
        let found = self.rules.iter().find_map(|rule| self.apply(rule, realm, &components));
        match found {
            None if self.is_mit => Ok(principal.to_owned()),
            None => Err(AuthToLocalError::NoRule(principal.to_owned())),
            Some(name) if !self.is_mit && name.contains(['/', '@']) => {
                Err(AuthToLocalError::NotSimple { principal: principal.to_owned(), name })
            }
            Some(name) => Ok(name),
        }
    }

    fn apply(&self, rule: &NameRule, realm: &str, components: &[&str]) -> Option<String> {
        match rule {
            NameRule::Default => {
                let applies = self.default_realm.as_deref().is_none_or(|default| default == realm);
                applies.then(|| components[0].to_owned())
            }
            NameRule::Format { components: count, format, matches, substitute, lower_case } => {
                if *count != components.len() {
                    return None;
                }
                let mut name = format.replace("$0", realm);
                for (index, component) in components.iter().enumerate() {
                    name = name.replace(&format!("${}", index + 1), component);
                }
                if matches.as_ref().is_some_and(|pattern| !pattern.is_match(&name)) {
                    return None;
                }
                if let Some((from, to, all)) = substitute {
                    let limit = usize::from(!all);
                    name = from.replacen(&name, limit, to.as_str()).into_owned();
                }
                Some(if *lower_case { name.to_lowercase() } else { name })
            }
        }
    }
}

/// Java's `$1a` is group 1 and `a`, which is `${1}a` here.
fn replacement(java: &str) -> String {
    let mut text = String::new();
    let mut rest = java.chars().peekable();
    while let Some(character) = rest.next() {
        match (character, rest.peek()) {
            ('$', Some(digit)) if digit.is_ascii_digit() => {
                text.push_str(&format!("${{{digit}}}"));
                rest.next();
            }
            ('$', _) => text.push_str("$$"),
            ('\\', Some(quoted)) => {
                text.push(*quoted);
                rest.next();
            }
            _ => text.push(character),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(rules: &str, principal: &str) -> Result<String, AuthToLocalError> {
        AuthToLocal::parse(rules, Some("TEST.LOCAL".into()), false)?.short_name(principal)
    }

    /// Results of Java's `KerberosName` for the same input.
    #[test]
    fn names_equal_javas() {
        let site = "RULE:[2:$1@$0](.*@TEST\\.LOCAL)s/@.*//\n \
            RULE:[1:$1@$0](.*@TEST\\.LOCAL)s/@.*//\n DEFAULT";
        for (rules, principal, expected) in [
            ("", "alice@TEST.LOCAL", "alice"),
            ("DEFAULT", "nn/localhost@TEST.LOCAL", "nn"),
            ("", "alice", "alice"),
            (site, "alice@TEST.LOCAL", "alice"),
            (site, "nn/localhost@TEST.LOCAL", "nn"),
            ("RULE:[2:$1]", "nn/localhost@OTHER.REALM", "nn"),
            ("RULE:[1:$1@$0](.*@OTHER)s/@.*///L DEFAULT", "Alice@OTHER", "alice"),
            ("RULE:[1:$1@$0](.*@OTHER)s/@.*//L DEFAULT", "Alice@OTHER", "alice"),
            ("RULE:[1:$1]s/a/b/g", "banana@X", "bbnbnb"),
            ("RULE:[1:$1]s/a/b/", "banana@X", "bbnana"),
            ("RULE:[1:$1@$0](.*@X)s/(.*)@.*/$1x/", "al@X", "alx"),
        ] {
            assert_eq!(name(rules, principal).as_deref(), Ok(expected), "{rules} {principal}");
        }
    }

    #[test]
    fn a_principal_without_a_simple_name_is_an_error() {
        let no_rule = AuthToLocalError::NoRule("alice@OTHER.REALM".into());
        assert_eq!(name("", "alice@OTHER.REALM"), Err(no_rule));
        let result = name("RULE:[1:$1@$0]", "a@X");
        assert!(matches!(result, Err(AuthToLocalError::NotSimple { .. })), "{result:?}");
        let result = name("", "a/b/c@TEST.LOCAL");
        assert!(matches!(result, Err(AuthToLocalError::Malformed(_))), "{result:?}");
        for rules in ["RULE:[x:$1]", "DEFAULTS nonsense", "RULE:[1:$1](()"] {
            let result = name(rules, "a@X");
            assert!(matches!(result, Err(AuthToLocalError::Rule(_))), "{rules}: {result:?}");
        }
    }

    #[test]
    fn the_mit_mechanism_keeps_names_without_a_rule() {
        let rules = AuthToLocal::parse("", Some("R".into()), true).expect("are rules");
        assert_eq!(rules.short_name("a@OTHER").as_deref(), Ok("a@OTHER"));
    }

    #[test]
    fn without_a_default_realm_the_default_rule_applies_to_all() {
        let rules = AuthToLocal::parse("", None, false).expect("are rules");
        assert_eq!(rules.short_name("alice@ANY").as_deref(), Ok("alice"));
    }
}
