//! `unsafe` code is in the crate of the GSSAPI library, and in the files that are listed as exceptions, each with its reason.
//!
//! The lint `unsafe_code = "deny"` of the workspace needs an attribute at each place; this finds where the places are, and that
//! no package leaves the lints out.

use syn::visit::{self, Visit};

use crate::exceptions::Exceptions;
use crate::sources;

/// The crate that calls the C library.
const LIBRARY: &str = "shared/gssapi/";

pub fn check() {
    let exceptions = Exceptions::of("unsafe");
    let mut violations = Vec::new();
    for (path, text) in sources::all() {
        let syntax = syn::parse_file(&text).unwrap_or_else(|error| panic!("{path}: {error}"));
        let mut places = Places(0);
        places.visit_file(&syntax);
        if places.0 > 0 && !path.starts_with(LIBRARY) && !exceptions.allow(&path) {
            violations.push(format!("{path}: {} places with unsafe code", places.0));
        }
    }
    exceptions.check(violations);
}

/// Counts what only the word `unsafe` permits.
struct Places(usize);

impl<'ast> Visit<'ast> for Places {
    fn visit_expr_unsafe(&mut self, block: &'ast syn::ExprUnsafe) {
        self.0 += 1;
        visit::visit_expr_unsafe(self, block);
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        self.0 += usize::from(item.unsafety.is_some());
        visit::visit_item_impl(self, item);
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        self.0 += usize::from(item.unsafety.is_some());
        visit::visit_item_trait(self, item);
    }

    fn visit_item_foreign_mod(&mut self, item: &'ast syn::ItemForeignMod) {
        self.0 += 1;
        visit::visit_item_foreign_mod(self, item);
    }
}

/// Each package has the lints of the workspace.
pub fn check_lints() {
    let metadata = cargo_metadata::MetadataCommand::new()
        .manifest_path(sources::root().join("Cargo.toml"))
        .no_deps()
        .exec()
        .expect("cargo prints the metadata of this workspace");
    for package in metadata.workspace_packages() {
        let text = std::fs::read_to_string(&package.manifest_path).expect("it is readable");
        let inherits = text.contains("[lints]\nworkspace = true\n");
        assert!(inherits, "{} lacks `lints.workspace = true`", package.manifest_path);
    }
}
