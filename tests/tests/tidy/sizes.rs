//! Files, functions, names and lines stay small. Test code counts for names and lines.

use proc_macro2::TokenStream;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use crate::exceptions::Exceptions;
use crate::sources::{self, Source};
use crate::words;

const FILE_LINES_MAX: usize = 500;
const FUNCTION_LINES_MAX: usize = 70;
const FUNCTION_NAME_MAX: usize = 60;
const LINE_COLUMNS_MAX: usize = 100;

pub fn check_files(sources: &[Source]) {
    let exceptions = Exceptions::of("file-length");
    let long = sources
        .iter()
        .filter(|source| source.lines > FILE_LINES_MAX && !exceptions.allow(&source.path));
    let violations = long
        .map(|source| {
            format!("{} has {} lines, at most {FILE_LINES_MAX}", source.path, source.lines)
        })
        .collect();
    exceptions.check(violations);
}

pub fn check_functions(sources: &[Source]) {
    let exceptions = Exceptions::of("function-length");
    let mut violations = Vec::new();
    for source in sources {
        let mut functions = Functions::default();
        functions.visit_file(&source.syntax);
        for (name, lines) in functions.found {
            if lines > FUNCTION_LINES_MAX && !exceptions.allow(&format!("{}:{name}", source.path)) {
                violations.push(format!(
                    "{}:{name} has {lines} lines, at most {FUNCTION_LINES_MAX}",
                    source.path
                ));
            }
        }
    }
    exceptions.check(violations);
}

/// Names of functions, those of tests included.
pub fn check_names() {
    let mut long = Vec::new();
    for (path, text) in sources::all() {
        for line in text.lines() {
            let name = line.trim_start().strip_prefix("pub ").unwrap_or(line.trim_start());
            let name = name.strip_prefix("async ").unwrap_or(name).strip_prefix("fn ");
            let name = name.and_then(|rest| rest.split(['(', '<']).next()).unwrap_or_default();
            if name.len() > FUNCTION_NAME_MAX {
                long.push(format!("{path}: {name}"));
            }
        }
    }
    assert!(long.is_empty(), "longer than {FUNCTION_NAME_MAX} letters:\n{}", long.join("\n"));
}

/// Lines of code. `cargo fmt` leaves an expression as it is where one of its lines stays too wide, and reports nothing.
pub fn check_lines() {
    let exceptions = Exceptions::of("line-width");
    let mut violations = Vec::new();
    for (path, text) in sources::all() {
        let wide = wide_lines(&text);
        if !wide.is_empty() && !exceptions.allow(&path) {
            violations.push(format!(
                "{path}: more than {LINE_COLUMNS_MAX} columns, and not one literal, in {wide:?}"
            ));
        }
    }
    exceptions.check(violations);
}

/// The numbers of lines that are too wide and neither a comment nor one string literal.
fn wide_lines(text: &str) -> Vec<usize> {
    let wide = |line: &str| {
        line.chars().count() > LINE_COLUMNS_MAX && !line.trim_start().starts_with("//")
    };
    if !text.lines().any(wide) {
        return Vec::new();
    }
    let mut literals = Vec::new();
    words::collect(text.parse::<TokenStream>().expect("the file is Rust"), &mut literals);
    let bare = |line: &str| line.trim().trim_end_matches([',', ';', ')', ']', '}', '?']).to_owned();
    let is_literal = |line: &str, number: usize| {
        let mut parts = literals
            .iter()
            .filter_map(|(first, text)| text.lines().nth(number.checked_sub(*first)?));
        parts.any(|part| bare(part) == bare(line))
    };
    let lines = text.lines().zip(1..);
    let lines = lines.filter(|(line, number)| wide(line) && !is_literal(line, *number));
    lines.map(|(_, number)| number).collect()
}

#[derive(Default)]
struct Functions {
    found: Vec<(String, usize)>,
}

impl<'ast> Visit<'ast> for Functions {
    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        self.found.push((function.sig.ident.to_string(), length(&function.sig, &function.block)));
        visit::visit_item_fn(self, function);
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        if !sources::has_test_attribute(&function.attrs) {
            self.found
                .push((function.sig.ident.to_string(), length(&function.sig, &function.block)));
            visit::visit_impl_item_fn(self, function);
        }
    }
}

/// Lines of a function without its documentation.
fn length(signature: &syn::Signature, block: &syn::Block) -> usize {
    block.span().end().line - signature.span().start().line + 1
}

#[test]
fn wide_lines_of_code_are_found() {
    let wide = "x".repeat(LINE_COLUMNS_MAX);
    for (line, is_found) in [
        (format!("f({wide});"), true),
        (format!("f(\"{wide}\");"), true),
        (format!("\"{wide}\";"), false),
        (format!("// {wide}"), false),
        (format!("\"a\\\n{wide}\\\nb\";"), false),
    ] {
        assert_eq!(!wide_lines(&line).is_empty(), is_found, "{line}");
    }
}
