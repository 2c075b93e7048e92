//! docs/json.md: the schemas of what `--json` prints, made from the types and from the objects that commands print.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use heddle_protocol::figure::Figure;
use heddle_protocol::process_figures::{FigureKind, FigureScope, ProcessFigure};
use proc_macro2::{TokenStream, TokenTree};
use quote::ToTokens;
use syn::visit::{self, Visit};
use syn::{Attribute, Expr, Fields, GenericArgument, Item, Lit, Meta, PathArguments, Type};

use crate::documented::{cell, check};
use crate::sources::Source;

/// Types that have a section of their own, besides those that they contain.
const ROOTS: [&str; 4] = ["JobView", "JobReport", "JobEvent", "EventPage"];

pub fn check_page(sources: &[Source]) {
    let version = heddle_am::report::VERSION;
    let mut page = format!(
        "# JSON\n\nVersion {version}. Within a version fields are only added: readers ignore fields that they do not know, and take one \
         that is missing as not known. Commands with `--json` print one object per line. Times of day are milliseconds since \
         1970, spans are in the unit that ends their name. This page is made from the types of the program: \
         `HEDDLE_WRITE_DOCS=1 cargo test -p heddle-tests --test tidy`.\n\n\
         `heddle run --json` and `heddle attach --json` print events ([JobEvent](#jobevent)), `heddle report --json` of an \
         application a [JobReport](#jobreport), `heddle status --json` an object with a [JobView](#jobview) as `view`. \
         `/api/v1/job` answers a JobView, `/api/v1/events` an [EventPage](#eventpage).\n"
    );
    objects(&mut page, sources);
    let mut types = Types::of(sources);
    let mut open = printed_by_commands(sources);
    open.extend(ROOTS.map(str::to_owned));
    let mut done = BTreeSet::new();
    page.push_str("\n# Types\n");
    while let Some(name) = open.pop() {
        if done.insert(name.clone()) {
            types.section(&mut page, &name);
            let named = std::mem::take(&mut types.named);
            open.extend(named.into_iter().rev());
        }
    }
    check("docs/json.md", &page);
}

/// The objects that commands make in place, by the command's file.
fn objects(page: &mut String, sources: &[Source]) {
    page.push_str("\n# Objects of commands\n\n| file | fields |\n| --- | --- |\n");
    let mut count = 0;
    for source in sources.iter().filter(|source| source.package == "heddle-cli") {
        let mut found = Objects::default();
        found.visit_file(&source.syntax);
        for keys in found.0 {
            count += 1;
            let keys: Vec<String> = keys.iter().map(|key| format!("`{key}`")).collect();
            row(page, &[&format!("`{}`", source.path), &keys.join(", ")]);
        }
    }
    assert!(count > 10, "only {count} objects were found");
}

/// The structs that commands write and do not read, descending.
fn printed_by_commands(sources: &[Source]) -> Vec<String> {
    let of_cli = sources.iter().filter(|source| source.package == "heddle-cli");
    let derives = |item: &syn::ItemStruct| -> String {
        let lists = item.attrs.iter().filter(|attribute| attribute.path().is_ident("derive"));
        lists.map(|list| list.meta.to_token_stream().to_string()).collect()
    };
    let names = of_cli.flat_map(|source| &source.syntax.items).filter_map(|item| match item {
        Item::Struct(item) => {
            let derives = derives(item);
            let is_printed = derives.contains("Serialize") && !derives.contains("Deserialize");
            is_printed.then(|| item.ident.to_string())
        }
        _ => None,
    });
    let names: BTreeSet<String> = names.collect();
    assert!(names.len() > 3, "only {names:?} were found");
    names.into_iter().rev().collect()
}

/// Keys of the objects of `json!`.
#[derive(Default)]
struct Objects(Vec<Vec<String>>);

impl<'ast> Visit<'ast> for Objects {
    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        if call.path.segments.last().is_some_and(|name| name.ident == "json")
            && let Some(TokenTree::Group(object)) = call.tokens.clone().into_iter().next()
        {
            let keys = keys(object.stream());
            self.0.extend(Some(keys).filter(|keys| !keys.is_empty()));
        }
        visit::visit_macro(self, call);
    }
}

/// The literals before a colon.
fn keys(object: TokenStream) -> Vec<String> {
    let tokens: Vec<TokenTree> = object.into_iter().collect();
    let key = |two: &[TokenTree]| match two {
        [TokenTree::Literal(key), TokenTree::Punct(colon)] if colon.as_char() == ':' => {
            Some(key.to_string().trim_matches('"').to_owned())
        }
        _ => None,
    };
    tokens.windows(2).filter_map(key).collect()
}

/// The name in `number_id!(Name(u32), "")`.
fn number(tokens: TokenStream) -> Option<String> {
    tokens.into_iter().find_map(|token| match token {
        TokenTree::Ident(name) => Some(name.to_string()),
        _ => None,
    })
}

/// The structs and enums of the product that are written as JSON.
struct Types<'s> {
    items: BTreeMap<String, &'s Item>,
    /// Numbers with a type of their own that a macro makes.
    numbers: BTreeSet<String>,
    /// Types that the last section names.
    named: Vec<String>,
}

impl<'s> Types<'s> {
    fn of(sources: &'s [Source]) -> Self {
        let packages = ["heddle-protocol", "heddle-am", "heddle-am-core", "heddle-cli"];
        let items = sources.iter().filter(|source| packages.contains(&source.package.as_str()));
        let items = items.flat_map(|source| &source.syntax.items).filter_map(|item| match item {
            Item::Struct(it) => Some((it.ident.to_string(), item)),
            Item::Enum(it) => Some((it.ident.to_string(), item)),
            _ => None,
        });
        let macros = sources.iter().flat_map(|source| &source.syntax.items);
        let numbers = macros.filter_map(|item| match item {
            Item::Macro(it) if it.mac.path.is_ident("number_id") => number(it.mac.tokens.clone()),
            _ => None,
        });
        Self { items: items.collect(), numbers: numbers.collect(), named: Vec::new() }
    }

    fn section(&mut self, page: &mut String, name: &str) {
        let item = self.items.get(name).copied().unwrap_or_else(|| panic!("no type {name}"));
        let attrs = match item {
            Item::Struct(item) => &item.attrs,
            Item::Enum(item) => &item.attrs,
            _ => return,
        };
        text(page, &format!("\n## {name}\n\n{}\n", doc(attrs)));
        let style = serde_value(attrs, "rename_all");
        match item {
            Item::Struct(it) => {
                text(page, "| field | type | meaning |\n| --- | --- | --- |");
                self.fields(page, &it.fields, style.as_deref());
            }
            Item::Enum(it) => {
                for variant in &it.variants {
                    let value = styled(&variant.ident.to_string(), style.as_deref());
                    let tag = serde_value(attrs, "tag");
                    let tag = tag.map_or_else(String::new, |tag| format!("`{tag}`: "));
                    if serde_flag(&variant.attrs, "other") {
                        text(page, &format!("Any other text: {}", doc(&variant.attrs)));
                        continue;
                    }
                    text(page, &format!("- {tag}`{value}`: {}", doc(&variant.attrs)));
                    let mut table = String::new();
                    self.fields(&mut table, &variant.fields, None);
                    if !table.is_empty() {
                        text(page, "\n  | field | type | meaning |\n  | --- | --- | --- |");
                        table.lines().for_each(|line| text(page, &format!("  {line}")));
                        text(page, "");
                    }
                }
            }
            _ => {}
        }
    }

    fn fields(&mut self, page: &mut String, fields: &Fields, style: Option<&str>) {
        for field in fields {
            if serde_flag(&field.attrs, "skip") {
                continue;
            }
            let flat = serde_flag(&field.attrs, "flatten") || field.ident.is_none();
            let (mut kind, about) = (self.kind(&field.ty), doc(&field.attrs));
            if serde_value(&field.attrs, "skip_serializing_if").is_some() {
                kind += ", may be missing";
            }
            match (&field.ident, flat, kind.as_str()) {
                (_, true, "EvaluationFigures") => scores(page),
                (_, true, "ProcessFigures") => {
                    let scope =
                        if about.contains("Slot") { FigureScope::Slot } else { FigureScope::Job };
                    counted(page, scope);
                }
                (Some(name), false, _) => {
                    let name = styled(&name.to_string().replace("r#", ""), style);
                    row(page, &[&format!("`{name}`"), &kind, &about]);
                }
                (..) => row(page, &["", &format!("the fields of {kind}"), &about]),
            }
        }
    }

    /// A type in words, with links to sections.
    fn kind(&mut self, of: &Type) -> String {
        let path = match of {
            Type::Path(path) => path,
            Type::Reference(reference) => return self.kind(&reference.elem),
            Type::Slice(slice) => return format!("list of {}", self.kind(&slice.elem)),
            _ => return "value".to_owned(),
        };
        let Some(last) = path.path.segments.last() else { return "value".to_owned() };
        let inner: Vec<String> = match &last.arguments {
            PathArguments::AngleBracketed(arguments) => {
                let types = arguments.args.iter().filter_map(|argument| match argument {
                    GenericArgument::Type(inner) => Some(inner),
                    _ => None,
                });
                types.map(|inner| self.kind(inner)).collect()
            }
            _ => Vec::new(),
        };
        match (last.ident.to_string().as_str(), &inner[..]) {
            ("Option", [inner]) => format!("{inner} or null"),
            ("Vec" | "VecDeque", [inner]) => format!("list of {inner}"),
            ("Box", [inner]) => inner.clone(),
            ("BTreeMap", [key, value]) => format!("object: {value} by {key}"),
            ("String" | "str" | "Slot" | "Uuid" | "PathBuf" | "Path", _) => "text".to_owned(),
            ("bool", _) => "true or false".to_owned(),
            ("u8" | "u16" | "u32" | "u64" | "usize" | "f32" | "f64" | "ExitCode", _) => {
                "number".to_owned()
            }
            (name @ ("EvaluationFigures" | "ProcessFigures"), _) => name.to_owned(),
            ("WarningCode", _) => "[code](operations.md#warnings)".to_owned(),
            (name, _) => self.named_kind(name),
        }
    }

    fn named_kind(&mut self, name: &str) -> String {
        match self.items.get(name).copied() {
            // A number or a text with a type of its own.
            Some(Item::Struct(it)) if matches!(it.fields, Fields::Unnamed(_)) => {
                let inner = it.fields.iter().next().map(|field| self.kind(&field.ty));
                inner.unwrap_or_else(|| "value".to_owned())
            }
            Some(_) => {
                self.named.push(name.to_owned());
                format!("[{name}](#{})", name.to_lowercase())
            }
            None if self.numbers.contains(name) => "number".to_owned(),
            None => "value".to_owned(),
        }
    }
}

/// The figures of an evaluation.
fn scores(page: &mut String) {
    for figure in Figure::all() {
        let name = format!("`{}`", figure.key());
        row(page, &[&name, "number, may be missing", figure.help()]);
    }
}

/// Figures that processes count.
fn counted(page: &mut String, scope: FigureScope) {
    let fields = ProcessFigure::fields().filter(|field| field[0].row().scope == scope);
    for figure in fields.flatten() {
        let figure = figure.row();
        let dot = if figure.key.is_empty() { "" } else { "." };
        let kind = match figure.kind {
            FigureKind::Histogram(_) => "list of number",
            FigureKind::Counter | FigureKind::Gauge => "number",
        };
        let name = format!("`{}{dot}{}`", figure.field, figure.key);
        row(page, &[&name, &format!("{kind}, may be missing"), figure.help]);
    }
}

fn text(page: &mut String, line: &str) {
    writeln!(page, "{line}").expect("a string takes all text");
}

fn row(page: &mut String, cells: &[&str]) {
    let cells: Vec<String> = cells.iter().map(|text| cell(text)).collect();
    text(page, &format!("| {} |", cells.join(" | ")));
}

/// The text of a documentation comment, without links into the code.
fn doc(attributes: &[Attribute]) -> String {
    let lines = attributes.iter().filter(|attribute| attribute.path().is_ident("doc"));
    let lines = lines.filter_map(|attribute| match &attribute.meta {
        Meta::NameValue(value) => match &value.value {
            Expr::Lit(literal) => match &literal.lit {
                Lit::Str(text) => Some(text.value().trim().to_owned()),
                _ => None,
            },
            _ => None,
        },
        _ => None,
    });
    let mut text = lines.collect::<Vec<_>>().join(" ");
    while let Some((before, rest)) = text.split_once("[`") {
        let Some((name, after)) = rest.split_once("`]") else { break };
        let after = match after.strip_prefix('(').and_then(|target| target.split_once(')')) {
            Some((_, after)) => after,
            None => after,
        };
        text = format!("{before}`{name}`{after}");
    }
    text
}

/// The tokens of `#[serde(…)]`, without spaces.
fn serde_text(attributes: &[Attribute]) -> String {
    let lists = attributes.iter().filter(|attribute| attribute.path().is_ident("serde"));
    let lists = lists.filter_map(|attribute| match &attribute.meta {
        Meta::List(list) => Some(list.tokens.to_string()),
        _ => None,
    });
    lists.collect::<Vec<_>>().join(",").replace(' ', "")
}

fn serde_flag(attributes: &[Attribute], name: &str) -> bool {
    serde_text(attributes).split(',').any(|part| part == name)
}

fn serde_value(attributes: &[Attribute], name: &str) -> Option<String> {
    let text = serde_text(attributes);
    let part = text.split(',').find_map(|part| part.strip_prefix(name)?.strip_prefix('='))?;
    Some(part.trim_matches('"').to_owned())
}

/// A name as JSON has it.
fn styled(name: &str, style: Option<&str>) -> String {
    match style {
        Some("kebab-case") => {
            let dashed = name.chars().enumerate().map(|(n, c)| match c {
                '_' => "-".to_owned(),
                c if c.is_ascii_uppercase() && n > 0 => format!("-{}", c.to_ascii_lowercase()),
                c => c.to_ascii_lowercase().to_string(),
            });
            dashed.collect()
        }
        _ => name.to_owned(),
    }
}
