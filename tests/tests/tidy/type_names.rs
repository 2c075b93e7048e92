//! A type name is used once in the workspace.

use std::collections::{BTreeMap, BTreeSet};

use syn::Item;
use syn::visit::{self, Visit};

use crate::exceptions::Exceptions;
use crate::sources::Source;

pub fn check(sources: &[Source]) {
    let exceptions = Exceptions::of("type-name");
    let mut homes: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    for source in sources {
        for name in of(source) {
            homes.entry(name).or_default().insert(&source.package);
        }
    }
    let mut violations = Vec::new();
    for (name, packages) in homes.into_iter().filter(|(_, packages)| packages.len() > 1) {
        if !exceptions.allow(&name) {
            let packages: Vec<&str> = packages.into_iter().collect();
            violations.push(format!("{name} is defined in {}", packages.join(", ")));
        }
    }
    exceptions.check(violations);
}

/// Names of the types that a file defines outside its tests.
pub fn of(source: &Source) -> BTreeSet<String> {
    let mut types = Types::default();
    types.visit_file(&source.syntax);
    types.0
}

#[derive(Default)]
struct Types(BTreeSet<String>);

impl<'ast> Visit<'ast> for Types {
    fn visit_item(&mut self, item: &'ast Item) {
        let name = match item {
            Item::Struct(item) => Some(&item.ident),
            Item::Enum(item) => Some(&item.ident),
            Item::Type(item) => Some(&item.ident),
            Item::Trait(item) => Some(&item.ident),
            _ => None,
        };
        self.0.extend(name.map(ToString::to_string));
        visit::visit_item(self, item);
    }
}
