//! Files and functions stay small. Test code is not counted.

use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use crate::exceptions::Exceptions;
use crate::sources::{self, Source};

const FILE_LINES_MAX: usize = 500;
const FUNCTION_LINES_MAX: usize = 70;

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
