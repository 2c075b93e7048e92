//! Modules of a crate do not depend on each other in cycles. A module is a file.
//!
//! A file depends on another if it names an item of it. A re-export alone is not a dependency. An inherent `impl` outside
//! the file of its type counts as a cycle: the type's file has that method without naming it.

use std::collections::{BTreeMap, BTreeSet};

use syn::visit::{self, Visit};
use syn::{Item, UseTree, Visibility};

use crate::exceptions::Exceptions;
use crate::sources::Source;

/// From a module to the modules that it depends on.
type Graph = BTreeMap<String, BTreeSet<String>>;

pub fn check(sources: &[Source]) {
    let exceptions = Exceptions::of("cycle");
    let mut packages: BTreeMap<&str, Vec<&Source>> = BTreeMap::new();
    for source in sources {
        packages.entry(&source.package).or_default().push(source);
    }
    let mut violations = Vec::new();
    for (package, sources) in packages {
        for cycle in cycles(&Package::read(&sources).graph()) {
            let cycle: Vec<&str> = cycle.iter().map(String::as_str).collect();
            let subject = format!("{package}: {}", cycle.join(" "));
            if !exceptions.allow(&subject) {
                violations.push(subject);
            }
        }
    }
    exceptions.check(violations);
}

/// What a file names.
struct Module {
    /// Names that `use` brings into the module, and the paths that they stand for.
    names: BTreeMap<String, Vec<String>>,
    /// Modules whose items are all brought in.
    globs: Vec<Vec<String>>,
    /// Paths that the module depends on.
    paths: Vec<Vec<String>>,
    types: BTreeSet<String>,
    /// Types that have an inherent `impl` here.
    implemented: BTreeSet<String>,
}

struct Package {
    /// By path: `[]` is the root of the crate, `["checkpoint", "cut"]` is `checkpoint/cut.rs`.
    modules: BTreeMap<Vec<String>, Module>,
}

impl Package {
    fn read(sources: &[&Source]) -> Self {
        let modules =
            sources.iter().map(|source| (path_of(&source.module), Module::read(source))).collect();
        Self { modules }
    }

    fn graph(&self) -> Graph {
        let mut graph = Graph::new();
        for (path, module) in &self.modules {
            let needs = graph.entry(name(path)).or_default();
            for named in &module.paths {
                if let Some(target) = self.resolve(path, named, 0)
                    && target != *path
                {
                    needs.insert(name(&target));
                }
            }
        }
        let homes: BTreeMap<&String, &Vec<String>> = self
            .modules
            .iter()
            .flat_map(|(path, module)| module.types.iter().map(move |of| (of, path)))
            .collect();
        for (path, module) in &self.modules {
            // A type of this file may have the name of a type of another file.
            for home in module
                .implemented
                .iter()
                .filter(|of| !module.types.contains(*of))
                .filter_map(|of| homes.get(of))
                .filter(|home| **home != path)
            {
                graph.entry(name(path)).or_default().insert(name(home));
                graph.entry(name(home)).or_default().insert(name(path));
            }
        }
        graph
    }

    /// The module that defines what a path names; nothing for what is not of this crate.
    fn resolve(&self, from: &[String], path: &[String], depth: usize) -> Option<Vec<String>> {
        let (first, rest) = path.split_first()?;
        if depth > 8 {
            return None;
        }
        match first.as_str() {
            "crate" => self.descend(Vec::new(), rest, depth),
            "self" => self.descend(from.to_vec(), rest, depth),
            "super" => {
                let mut above = from.to_vec();
                above.pop()?;
                match rest.first().map(String::as_str) {
                    Some("super") => self.resolve(&above, rest, depth + 1),
                    _ => self.descend(above, rest, depth),
                }
            }
            _ => {
                let module = self.modules.get(from)?;
                if let Some(target) = module.names.get(first) {
                    let target: Vec<String> = target.iter().chain(rest).cloned().collect();
                    return self.resolve_import(from, &target, depth + 1);
                }
                let child: Vec<String> = from.iter().chain([first]).cloned().collect();
                self.modules.contains_key(&child).then(|| self.descend(child, rest, depth))?
            }
        }
    }

    /// A path of a `use`: its first name may be a child module or another crate, never an import of the same file.
    fn resolve_import(
        &self,
        from: &[String],
        path: &[String],
        depth: usize,
    ) -> Option<Vec<String>> {
        let first = path.first()?;
        if matches!(first.as_str(), "crate" | "self" | "super") {
            return self.resolve(from, path, depth);
        }
        let child: Vec<String> = from.iter().chain([first]).cloned().collect();
        self.modules.contains_key(&child).then(|| self.descend(child, &path[1..], depth))?
    }

    fn descend(&self, at: Vec<String>, rest: &[String], depth: usize) -> Option<Vec<String>> {
        let Some((first, after)) = rest.split_first() else { return Some(at) };
        let child: Vec<String> = at.iter().chain([first]).cloned().collect();
        if self.modules.contains_key(&child) {
            return self.descend(child, after, depth);
        }
        let module = self.modules.get(&at)?;
        if let Some(target) = module.names.get(first)
            && depth < 8
        {
            let target: Vec<String> = target.iter().chain(after).cloned().collect();
            return self.resolve_import(&at, &target, depth + 1);
        }
        if module.types.contains(first) {
            return Some(at);
        }
        let through = module.globs.iter().find_map(|glob| {
            let found = self.resolve_import(&at, glob, depth + 1)?;
            self.modules.get(&found)?.types.contains(first).then_some(found)
        });
        Some(through.unwrap_or(at))
    }
}

impl Module {
    fn read(source: &Source) -> Self {
        let mut module = Self {
            names: BTreeMap::new(),
            globs: Vec::new(),
            paths: Vec::new(),
            types: BTreeSet::new(),
            implemented: BTreeSet::new(),
        };
        let mut reexports = Vec::new();
        for item in &source.syntax.items {
            let Item::Use(import) = item else { continue };
            let mut leaves = Vec::new();
            flatten(&import.tree, &mut Vec::new(), &mut leaves);
            for (alias, path) in leaves {
                if alias == "*" {
                    module.globs.push(path.clone());
                } else {
                    module.names.insert(alias.clone(), path.clone());
                }
                match import.vis {
                    Visibility::Inherited => module.paths.push(path),
                    _ => reexports.push((alias, path)),
                }
            }
        }
        let mut paths = Paths::default();
        paths.visit_file(&source.syntax);
        let firsts: BTreeSet<&String> =
            paths.found.iter().filter_map(|path| path.first()).collect();
        module.paths.extend(
            reexports.into_iter().filter(|(alias, _)| firsts.contains(alias)).map(|(_, path)| path),
        );
        module.paths.extend(paths.found.iter().filter(|path| path.len() > 1).cloned());
        module.types = paths.types;
        module.implemented = paths.implemented;
        module
    }
}

#[derive(Default)]
struct Paths {
    found: Vec<Vec<String>>,
    types: BTreeSet<String>,
    implemented: BTreeSet<String>,
}

impl<'ast> Visit<'ast> for Paths {
    fn visit_item(&mut self, item: &'ast Item) {
        let name = match item {
            Item::Struct(item) => Some(&item.ident),
            Item::Enum(item) => Some(&item.ident),
            Item::Type(item) => Some(&item.ident),
            Item::Trait(item) => Some(&item.ident),
            Item::Fn(item) => Some(&item.sig.ident),
            Item::Const(item) => Some(&item.ident),
            Item::Static(item) => Some(&item.ident),
            _ => None,
        };
        self.types.extend(name.map(ToString::to_string));
        if let Item::Impl(item) = item
            && item.trait_.is_none()
            && let syn::Type::Path(of) = &*item.self_ty
            && let Some(last) = of.path.segments.last()
        {
            self.implemented.insert(last.ident.to_string());
        }
        if !matches!(item, Item::Use(_)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        self.found.push(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        visit::visit_path(self, path);
    }
}

fn flatten(tree: &UseTree, before: &mut Vec<String>, into: &mut Vec<(String, Vec<String>)>) {
    match tree {
        UseTree::Path(path) => {
            before.push(path.ident.to_string());
            flatten(&path.tree, before, into);
            before.pop();
        }
        UseTree::Name(name) if name.ident == "self" => {
            into.push((before.last().cloned().unwrap_or_default(), before.clone()));
        }
        UseTree::Name(name) => into.push((name.ident.to_string(), joined(before, &name.ident))),
        UseTree::Rename(rename) => {
            into.push((rename.rename.to_string(), joined(before, &rename.ident)))
        }
        UseTree::Glob(_) => into.push(("*".to_owned(), before.clone())),
        UseTree::Group(group) => group.items.iter().for_each(|tree| flatten(tree, before, into)),
    }
}

fn joined(before: &[String], last: &syn::Ident) -> Vec<String> {
    before.iter().cloned().chain([last.to_string()]).collect()
}

fn path_of(module: &str) -> Vec<String> {
    let parts = module.split('/').map(str::to_owned).collect::<Vec<_>>();
    match parts.last().map(String::as_str) {
        Some("lib" | "main") if parts.len() == 1 => Vec::new(),
        Some("mod") => parts[..parts.len() - 1].to_vec(),
        _ => parts,
    }
}

fn name(path: &[String]) -> String {
    if path.is_empty() { "crate".to_owned() } else { path.join("::") }
}

/// Strongly connected components of more than one module, each sorted.
fn cycles(graph: &Graph) -> Vec<Vec<String>> {
    let reach: BTreeMap<&String, BTreeSet<&String>> =
        graph.keys().map(|from| (from, reachable(graph, from))).collect();
    let mut found = BTreeSet::new();
    for (from, to) in &reach {
        let cycle: Vec<String> = to
            .iter()
            .filter(|other| reach.get(*other).is_some_and(|back| back.contains(from)))
            .map(|m| (*m).clone())
            .collect();
        if cycle.len() > 1 {
            found.insert(cycle);
        }
    }
    found.into_iter().collect()
}

fn reachable<'g>(graph: &'g Graph, from: &'g String) -> BTreeSet<&'g String> {
    let mut reached = BTreeSet::new();
    let mut open = vec![from];
    while let Some(module) = open.pop() {
        for next in graph.get(module).into_iter().flatten() {
            if reached.insert(next) {
                open.push(next);
            }
        }
    }
    reached
}

#[test]
fn a_cycle_is_found_and_a_tree_is_not() {
    let graph = |edges: &[(&str, &str)]| {
        let mut graph = Graph::new();
        for (from, to) in edges {
            graph.entry((*from).to_owned()).or_default().insert((*to).to_owned());
            graph.entry((*to).to_owned()).or_default();
        }
        graph
    };
    assert!(cycles(&graph(&[("a", "b"), ("b", "c"), ("a", "c")])).is_empty());
    assert_eq!(cycles(&graph(&[("a", "b"), ("b", "c"), ("c", "b")])), [["b", "c"]]);
}
