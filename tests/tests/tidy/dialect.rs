//! What is left of the dialect: phrases and forms that the style replaces. Their counts only fall.
//!
//! A line of `tests/tests/tidy/dialect.txt` is `kind | what | ceiling`. Several phrases may share a ceiling. `comment`: phrases
//! in comments; `code`: phrases in other lines; `signature`: tuples among the parameters of functions; `wide`: comments of more
//! columns. `UPDATE=1 cargo test -p heddle-tests --test tidy` lowers each ceiling to its count.

use syn::visit::Visit;
use syn::{FnArg, Type};

use crate::sources::{self, Source};
use crate::words;

const PATH: &str = "tests/tests/tidy/dialect.txt";

pub fn check(sources: &[Source]) {
    let file = sources::root().join(PATH);
    let lowers = std::env::var_os("UPDATE").is_some();
    let (mut lines, mut failures) = (String::new(), Vec::new());
    let text = std::fs::read_to_string(&file).expect("the ceilings are readable");
    for line in text.lines() {
        if line.starts_with('#') {
            lines += &format!("{line}\n");
            continue;
        }
        let fields: Vec<&str> = line.split(" | ").collect();
        let [kind, what, ceiling] = fields[..] else {
            panic!("{PATH}: {line:?} must have the form `kind | what | ceiling`");
        };
        let mut ceiling = ceiling.parse().unwrap_or_else(|error| panic!("{PATH}: {line}: {error}"));
        let count: usize = sources.iter().map(|source| count(kind, what, source)).sum();
        if lowers {
            ceiling = count.min(ceiling);
        }
        if let Some(advice) = advice(count, ceiling) {
            failures.push(format!("{kind} | {what}: {count}, the ceiling is {ceiling}; {advice}"));
        }
        lines += &format!("{kind} | {what} | {ceiling}\n");
    }
    if lowers {
        std::fs::write(&file, lines).expect("the ceilings are writable");
    }
    assert!(failures.is_empty(), "{PATH}:\n{}", failures.join("\n"));
}

/// What to do about a count. One somewhat below its ceiling is kept, so that not each change has to lower it.
fn advice(count: usize, ceiling: usize) -> Option<&'static str> {
    if count > ceiling {
        Some("write what the change adds in another way (git diff shows it)")
    } else if count + 3 + ceiling / 50 < ceiling {
        Some("lower it: UPDATE=1 cargo test -p heddle-tests --test tidy")
    } else {
        None
    }
}

fn count(kind: &str, what: &str, source: &Source) -> usize {
    match kind {
        "comment" => of_phrases(&source.text, what, true),
        "code" => of_phrases(&source.text, what, false),
        "signature" => {
            let mut tuples = Tuples::default();
            tuples.visit_file(&source.syntax);
            tuples.0
        }
        "wide" => {
            let columns: usize = what.parse().expect("a number of columns");
            let comments = source.text.lines().filter(|line| is_comment(line));
            comments.filter(|line| line.chars().count() > columns).count()
        }
        _ => panic!("{PATH}: {kind:?} must be comment, code, signature or wide"),
    }
}

fn is_comment(line: &str) -> bool {
    line.trim_start().starts_with("//")
}

fn of_phrases(text: &str, phrases: &str, in_comments: bool) -> usize {
    let lines = without_key_tables(text).filter(|line| is_comment(line) == in_comments);
    lines.flat_map(|line| phrases.split(", ").map(|phrase| words::count(line, phrase))).sum()
}

/// The lines outside tables of keys: their documentation is text for users.
fn without_key_tables(text: &str) -> impl Iterator<Item = &str> {
    let mut in_table = false;
    text.lines().filter(move |line| {
        in_table = *line == "section! {" || (in_table && *line != "}");
        !in_table
    })
}

/// Number of parameters that are tuples.
#[derive(Default)]
struct Tuples(usize);

impl<'ast> Visit<'ast> for Tuples {
    fn visit_signature(&mut self, signature: &'ast syn::Signature) {
        let is_tuple = |input: &&FnArg| matches!(input, FnArg::Typed(of) if is_tuple(&of.ty));
        self.0 += signature.inputs.iter().filter(is_tuple).count();
    }
}

fn is_tuple(ty: &Type) -> bool {
    match ty {
        Type::Reference(reference) => is_tuple(&reference.elem),
        Type::Tuple(tuple) => !tuple.elems.is_empty(),
        _ => false,
    }
}

#[test]
fn counts_far_from_their_ceilings_fail() {
    for (count, has_advice) in [(101, true), (100, false), (95, false), (94, true)] {
        assert_eq!(advice(count, 100).is_some(), has_advice, "{count}");
    }
}

#[test]
fn phrases_and_tuples_are_counted() {
    let text =
        "/// One that of one that.\nfn of() {} // one that\nmatch a { true => 1, false => 2 }";
    assert_eq!(of_phrases(text, "one that, none", true), 2);
    assert_eq!(of_phrases(text, "true =>, false =>", false), 2);
    assert_eq!(of_phrases("section! {\n/// none\n}\n/// none", "none", true), 1);
    let mut tuples = Tuples::default();
    let file =
        "fn a(b: (u8, u8), (c, d): &(u8, u8), e: (), f: &[(u8, u8)]) {} #[test] fn g(h: (u8,)) {}";
    let file = syn::parse_file(file).expect("it is Rust");
    tuples.visit_file(&sources::without_tests(file));
    assert_eq!(tuples.0, 2);
}
