//! Files and functions stay small. Test code is not counted.

use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use crate::exceptions::Exceptions;
use crate::sources::{self, Source};

const FILE_LINES_MAX: usize = 500;
const FUNCTION_LINES_MAX: usize = 70;
const FUNCTION_NAME_MAX: usize = 60;

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

#[derive(Default)]
struct Functions {
    found: Vec<(String, usize)>,
}

impl<'ast> Visit<'ast> for Functions {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        if !sources::is_test(item) {
            visit::visit_item(self, item);
        }
    }

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
