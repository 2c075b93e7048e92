//! Words that the glossary replaces do not occur in names, texts for users and comments.
//!
//! The list is `tests/tests/tidy/words.txt`: `file | word | replacement` for names of files and types, `name` also for those
//! of fields and functions, `text` for string literals, comments and names of fields and functions, `comment` for comments
//! and these names. Compared without case, as whole words.

use std::collections::BTreeSet;

use proc_macro2::{TokenStream, TokenTree};
use quote::ToTokens;
use syn::visit::Visit;

use crate::exceptions::Exceptions;
use crate::sources::{self, Source};
use crate::type_names;

const PATH: &str = "tests/tests/tidy/words.txt";

struct Word {
    word: String,
    instead: String,
}

fn words(kind: &str) -> Vec<Word> {
    let text = std::fs::read_to_string(sources::root().join(PATH)).expect("the list is readable");
    let mut words = Vec::new();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let fields: Vec<&str> = line.split('|').map(str::trim).collect();
        let [of, word, instead] = fields[..] else {
            panic!(
                "{PATH}: {line:?} must have the form \
                 `file, name, text or comment | word | replacement`"
            );
        };
        if of == kind {
            words.push(Word { word: word.to_lowercase(), instead: instead.to_owned() });
        }
    }
    words
}

pub fn check_names(sources: &[Source]) {
    let exceptions = Exceptions::of("name");
    let of_types: Vec<Word> = ["file", "name"].into_iter().flat_map(words).collect();
    let of_members: Vec<Word> = ["name", "text", "comment"].into_iter().flat_map(words).collect();
    let mut violations = Vec::new();
    let mut check = |subject: &str, name: &str, words: &[Word]| {
        for word in words.iter().filter(|word| has_part(&snake(name), &word.word)) {
            if !exceptions.allow(&format!("{subject}:{}", word.word)) {
                violations
                    .push(format!("{subject}: `{}` in {name}; use `{}`", word.word, word.instead));
            }
        }
    };
    for source in sources {
        source.module.split('/').for_each(|part| check(&source.path, part, &of_types));
        type_names::of(source).iter().for_each(|name| check(&source.path, name, &of_types));
        let mut members = Members::default();
        members.visit_file(&source.syntax);
        members.0.iter().for_each(|name| check(&source.path, name, &of_members));
    }
    exceptions.check(violations);
}

/// Names of fields, functions and methods.
#[derive(Default)]
struct Members(BTreeSet<String>);

impl<'ast> Visit<'ast> for Members {
    fn visit_field(&mut self, field: &'ast syn::Field) {
        self.0.extend(field.ident.as_ref().map(ToString::to_string));
    }

    fn visit_signature(&mut self, signature: &'ast syn::Signature) {
        self.0.insert(signature.ident.to_string());
    }
}

pub fn check_texts(sources: &[Source]) {
    let exceptions = Exceptions::of("text");
    let words = words("text");
    let mut violations = Vec::new();
    for source in sources {
        for (line, text) in literals(source) {
            for word in words.iter().filter(|word| has_phrase(&text, &word.word)) {
                if !exceptions.allow(&format!("{}:{}", source.path, word.word)) {
                    violations.push(format!(
                        "{}:{line}: `{}` in {text:?}; use `{}`",
                        source.path, word.word, word.instead
                    ));
                }
            }
        }
    }
    exceptions.check(violations);
}

/// Comments and documentation, also of unit tests.
pub fn check_comments(sources: &[Source]) {
    let exceptions = Exceptions::of("comment");
    let words: Vec<Word> = words("text").into_iter().chain(words("comment")).collect();
    let mut violations = Vec::new();
    for source in sources {
        for (number, line) in source.text.lines().enumerate() {
            let Some(comment) = line.trim_start().strip_prefix("//") else { continue };
            for word in words.iter().filter(|word| has_phrase(comment, &word.word)) {
                if !exceptions.allow(&format!("{}:{}", source.path, word.word)) {
                    violations.push(format!(
                        "{}:{}: `{}` in a comment; use `{}`",
                        source.path,
                        number + 1,
                        word.word,
                        word.instead
                    ));
                }
            }
        }
    }
    exceptions.check(violations);
}

/// String literals outside tests and documentation comments, with their lines.
fn literals(source: &Source) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for item in &source.syntax.items {
        collect(item.to_token_stream(), &mut found);
    }
    found
}

/// String literals of the tokens, without documentation.
pub fn collect(tokens: TokenStream, found: &mut Vec<(usize, String)>) {
    let mut before_documentation = 0;
    for token in tokens {
        match token {
            TokenTree::Group(group) => collect(group.stream(), found),
            TokenTree::Ident(name) if name == "doc" => before_documentation = 2,
            TokenTree::Literal(literal) => {
                let text = literal.to_string();
                let is_documentation = before_documentation == 1;
                if text.contains('"') && !is_documentation {
                    found.push((literal.span().start().line, text));
                }
                before_documentation = 0;
            }
            TokenTree::Punct(punct) if punct.as_char() == '=' && before_documentation == 2 => {
                before_documentation = 1
            }
            _ => before_documentation = 0,
        }
    }
}

/// Whether a name in snake case has the word as one of its parts.
fn has_part(name: &str, word: &str) -> bool {
    name.split('_').any(|part| part == word)
}

/// Whether a text has the phrase between characters that are not letters.
fn has_phrase(text: &str, phrase: &str) -> bool {
    count(text, phrase) > 0
}

/// How often a text has the phrase between characters that are not letters.
pub fn count(text: &str, phrase: &str) -> usize {
    let text = text.to_lowercase();
    let matches = text.match_indices(phrase).filter(|(at, _)| {
        let before = text[..*at].chars().next_back();
        let after = text[at + phrase.len()..].chars().next();
        let is_letter =
            |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == '-');
        // "There is no checkpoint" and "is no longer" are plain; "is no checkpoint" is not.
        let is_plain =
            text[..*at].ends_with("there ") || text[at + phrase.len()..].starts_with(" longer");
        // A part of a path, such as `CommandEnvelope::heard`.
        let is_path = before == Some(':');
        !is_letter(before) && !is_letter(after) && !is_plain && !is_path
    });
    matches.count()
}

fn snake(name: &str) -> String {
    let mut snake = String::new();
    for (n, c) in name.chars().enumerate() {
        if c.is_uppercase() && n > 0 {
            snake.push('_');
        }
        snake.extend(c.to_lowercase());
    }
    snake
}

#[test]
fn whole_words_are_found() {
    assert!(has_phrase("\"Nobody answers\"", "nobody"));
    assert!(!has_phrase("\"busybody\"", "body"));
    assert!(has_phrase("\"x is no number\"", "is no"));
    assert!(!has_phrase("\"there is no checkpoint\"", "is no"));
    assert!(!has_phrase("it is no longer used", "is no"));
    assert!(!has_phrase("see [`CommandEnvelope::heard`]", "heard"));
    assert!(has_part(&snake("LateTask"), "late"));
    assert!(!has_part(&snake("Template"), "late"));
}

#[test]
fn names_of_fields_and_functions_are_found() {
    let mut members = Members::default();
    let file = "struct A { told_b: u8 } impl A { fn judge(&self) {} } #[test] fn near() {}";
    let file = syn::parse_file(file).expect("it is Rust");
    members.visit_file(&sources::without_tests(file));
    assert!(members.0.iter().map(String::as_str).eq(["judge", "told_b"]));
}
