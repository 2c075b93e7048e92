//! The product's source files, parsed. Generated files and test code are left out.

use std::path::{Path, PathBuf};

use proc_macro2::Span;
use syn::spanned::Spanned;
use syn::{Attribute, File, Item};

/// One source file of the product.
pub struct Source {
    /// Package that it belongs to.
    pub package: String,
    /// Path from the root of the project, with `/`.
    pub path: String,
    /// Path from the package's `src` directory, without the extension: `checkpoint/cut`.
    pub module: String,
    pub text: String,
    /// Without test code.
    pub syntax: File,
    /// Lines that are not test code.
    pub lines: usize,
}

/// All source files of the product, in the order of their paths.
pub fn product() -> Vec<Source> {
    let root = root();
    let metadata = cargo_metadata::MetadataCommand::new()
        .manifest_path(root.join("Cargo.toml"))
        .no_deps()
        .exec()
        .expect("cargo prints the metadata of this workspace");
    let mut sources = Vec::new();
    for package in metadata.workspace_packages() {
        if matches!(package.name.as_str(), "heddle-tests" | "heddle-simulation") {
            continue;
        }
        let manifest = package.manifest_path.as_std_path();
        let folder = manifest.parent().expect("a manifest is in a directory").join("src");
        for path in rust_files(&folder) {
            let text = std::fs::read_to_string(&path).expect("a source file is readable");
            let module = path.strip_prefix(&folder).expect("it is below src");
            let module = module.with_extension("").to_string_lossy().replace('\\', "/");
            if text.contains("@generated") || is_test_file(&module) {
                continue;
            }
            let syntax = syn::parse_file(&text)
                .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            let tests: usize = syntax
                .items
                .iter()
                .filter(|item| is_test(item))
                .map(|item| lines(item.span()))
                .sum();
            sources.push(Source {
                package: package.name.to_string(),
                path: relative(&path, &root),
                module,
                lines: text.lines().count() - tests,
                text,
                syntax: without_tests(syntax),
            });
        }
    }
    sources.sort_by(|a, b| a.path.cmp(&b.path));
    assert!(sources.len() > 200, "only {} source files were found", sources.len());
    sources
}

/// Path from the root and text of each Rust file in the members of the workspace, tests included, without generated ones.
pub fn all() -> Vec<(String, String)> {
    let root = root();
    let folders = ["am", "bench", "container", "controller", "cli", "shared", "examples", "tests"];
    let files = folders.iter().flat_map(|folder| rust_files(&root.join(folder)));
    let texts = files.map(|path| {
        let text = std::fs::read_to_string(&path).expect("a source file is readable");
        (relative(&path, &root), text)
    });
    texts.filter(|(_, text)| !text.contains("@generated")).collect()
}

fn relative(path: &Path, root: &Path) -> String {
    path.strip_prefix(root).expect("it is below the root").to_string_lossy().replace('\\', "/")
}

/// The project's root directory.
pub fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().expect("the package is in the workspace").to_owned()
}

/// Lines from the first to the last, both counted.
pub fn lines(span: Span) -> usize {
    span.end().line - span.start().line + 1
}

/// The file without the items that exist in test builds only, also in its modules.
pub fn without_tests(mut file: File) -> File {
    file.items = items_without_tests(file.items);
    file
}

fn items_without_tests(items: Vec<Item>) -> Vec<Item> {
    let with_contents = |mut item| {
        if let Item::Mod(module) = &mut item
            && let Some((_, items)) = &mut module.content
        {
            *items = items_without_tests(std::mem::take(items));
        }
        item
    };
    items.into_iter().filter(|item| !is_test(item)).map(with_contents).collect()
}

/// Whether an item exists in test builds only.
fn is_test(item: &Item) -> bool {
    let attributes = match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => return false,
    };
    has_test_attribute(attributes)
}

/// Whether one of the attributes is `#[test]` or `#[cfg(test)]`.
pub fn has_test_attribute(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        if attribute.path().is_ident("cfg") {
            return attribute.parse_args::<syn::Ident>().is_ok_and(|name| name == "test");
        }
        attribute.path().segments.last().is_some_and(|last| last.ident == "test")
    })
}

fn is_test_file(module: &str) -> bool {
    module.split('/').any(|part| part == "tests" || part.ends_with("_tests"))
}

fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).expect("the directory is readable") {
        let path = entry.expect("the directory is readable").path();
        if path.is_dir() {
            files.extend(rust_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files
}
