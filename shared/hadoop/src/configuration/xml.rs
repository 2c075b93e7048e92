//! Parser of configuration files: one file and its includes become a list of properties.
//!
//! The parser follows `conf.Configuration.Parser`. A property has two forms (elements and attributes). `xi:include` has
//! `xi:fallback`. Names are trimmed, values are not. Unlike Hadoop, it rejects DOCTYPE (entity bombs need one), more
//! than [`FILE_BYTES_MAX`] or [`INCLUDES_MAX`], nesting beyond [`DEPTH_MAX`], include cycles, and includes by URL.

mod encoding;

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use quick_xml::events::{BytesRef, BytesStart, Event};
use quick_xml::{Reader, XmlVersion};

use encoding::line_of;

/// Longest file in bytes. A site file with every key stays below 1 MiB.
pub const FILE_BYTES_MAX: u64 = 16 << 20;
/// Most files that one file may include, over all levels.
pub const INCLUDES_MAX: usize = 64;
/// Deepest nesting of elements, and of includes. A plain file needs 3.
pub const DEPTH_MAX: usize = 32;

/// Source of the files' bytes: the file system, or memory in tests and fuzz targets.
pub trait FileSource {
    /// The bytes of a file, or `None` when it does not exist.
    ///
    /// # Errors
    /// The file exists and cannot be read, or is too long.
    fn read(&self, path: &Path) -> std::io::Result<Option<Vec<u8>>>;
}

/// One property as a file states it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PropertyElement {
    pub name: String,
    /// `None` for an absent or empty element: it sets no value but may make the key final.
    pub value: Option<String>,
    pub is_final: bool,
    pub file: Arc<Path>,
    /// Line of the property's start tag, counted from 1.
    pub line: u32,
}

/// Why a file does not parse.
#[derive(Debug, thiserror::Error)]
#[error("{}:{line}: {problem}", file.display())]
pub struct XmlError {
    /// The file, which may be an included one.
    pub file: PathBuf,
    /// Line, counted from 1; 0 for the whole file.
    pub line: u32,
    /// What is wrong.
    pub problem: XmlProblem,
}

/// What is wrong with a file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum XmlProblem {
    /// The file cannot be read.
    #[error("cannot read the file: {0}")]
    Io(std::io::Error),
    /// The XML is not well-formed.
    #[error("the XML is not well-formed: {0}")]
    Malformed(String),
    /// A DOCTYPE: entities in it could expand without bound or read other files.
    #[error("a DOCTYPE is not supported: entities could expand without bound or read other files")]
    Dtd,
    /// An entity other than the five of XML and character references.
    #[error("unknown entity &{0};")]
    Entity(String),
    /// Elements or includes nested too deep.
    #[error("the nesting must be at most {DEPTH_MAX} deep")]
    TooDeep,
    /// Too many includes.
    #[error("the file must have at most {INCLUDES_MAX} includes")]
    TooManyIncludes,
    /// A file includes itself, directly or through other files.
    #[error("the file includes itself: {0}")]
    Cycle(String),
    /// The included file does not exist and the include has no fallback.
    #[error(
        "the included file {} must exist or the include must have an xi:fallback",
        .0.display()
    )]
    IncludeMissing(PathBuf),
    /// The include names a URL of another scheme than `file`.
    #[error("an include must be a file (got {0})")]
    IncludeRemote(String),
}

/// Reads `path` and its includes. `None` when the file itself does not exist.
pub(super) fn read_file(
    files: &dyn FileSource,
    path: &Path,
) -> Result<Option<Vec<PropertyElement>>, XmlError> {
    let at_file = |problem| XmlError { file: path.to_owned(), line: 0, problem };
    let Some(bytes) = files.read(path).map_err(|error| at_file(XmlProblem::Io(error)))? else {
        return Ok(None);
    };
    let mut run = PropertyReader { files, stack: Vec::new(), includes: 0, entries: Vec::new() };
    run.file(path, &bytes)?;
    Ok(Some(run.entries))
}

struct PropertyReader<'a> {
    files: &'a dyn FileSource,
    /// Files being read, the outermost first.
    stack: Vec<PathBuf>,
    includes: usize,
    entries: Vec<PropertyElement>,
}

/// The state of Hadoop's parser for one file. The names are its own.
#[derive(Default)]
struct Parser {
    token: String,
    parse_token: bool,
    name: Option<String>,
    value: Option<String>,
    is_final: bool,
    property_line: u32,
    include: Option<PathBuf>,
    fallback_allowed: bool,
    fallback_entered: bool,
}

impl PropertyReader<'_> {
    fn file(&mut self, path: &Path, bytes: &[u8]) -> Result<(), XmlError> {
        let at = |line, problem| XmlError { file: path.to_owned(), line, problem };
        let malformed =
            |line, text: &dyn ToString| at(line, XmlProblem::Malformed(text.to_string()));
        let text = &*encoding::decode(bytes).map_err(|(line, what)| malformed(line, &what))?;
        let file: Arc<Path> = path.into();
        self.stack.push(path.to_owned());

        let mut reader = Reader::from_str(text);
        let mut lines = LineCounter { text: text.as_bytes(), position: 0, line: 1 };
        let mut parser = Parser::default();
        let mut depth = 0;
        let mut roots = 0;
        loop {
            let line = lines.at(usize::try_from(reader.buffer_position()).unwrap_or(usize::MAX));
            match reader.read_event().map_err(|error| malformed(line, &error))? {
                Event::Start(element) => {
                    roots += usize::from(depth == 0);
                    depth += 1;
                    if depth > DEPTH_MAX {
                        return Err(at(line, XmlProblem::TooDeep));
                    }
                    self.start(&mut parser, &element, path, line)?;
                }
                Event::Empty(element) => {
                    roots += usize::from(depth == 0);
                    self.start(&mut parser, &element, path, line)?;
                    self.end(&mut parser, element.local_name().as_ref(), &file, line)?;
                }
                Event::End(element) => {
                    depth -= 1;
                    self.end(&mut parser, element.local_name().as_ref(), &file, line)?;
                }
                Event::Text(text) => {
                    let text = text.xml10_content();
                    if depth == 0 && !text.trim().is_empty() {
                        return Err(malformed(line, &"text outside the root element"));
                    }
                    parser.text(&text);
                }
                Event::CData(text) => parser.text(&text.xml10_content()),
                Event::GeneralRef(reference) => {
                    parser.text(resolve(&reference, path, line)?.as_str())
                }
                Event::DocType(_) => return Err(at(line, XmlProblem::Dtd)),
                Event::Decl(_) | Event::Comment(_) | Event::PI(_) => {}
                Event::Eof => break,
            }
            if roots > 1 {
                return Err(malformed(line, &"more than one root element"));
            }
        }
        if depth != 0 || roots == 0 {
            return Err(malformed(lines.at(text.len()), &"the file ends too early"));
        }
        self.stack.pop();
        Ok(())
    }

    fn start(
        &mut self,
        parser: &mut Parser,
        element: &BytesStart<'_>,
        path: &Path,
        line: u32,
    ) -> Result<(), XmlError> {
        let attributes = || {
            attributes(element).map_err(|text| XmlError {
                file: path.to_owned(),
                line,
                problem: XmlProblem::Malformed(text),
            })
        };
        match element.local_name().as_ref() {
            "property" => {
                parser.name = None;
                parser.value = None;
                parser.is_final = false;
                parser.property_line = line;
                for (name, value) in attributes()? {
                    match name.as_str() {
                        "name" => parser.name = Some(value),
                        "value" => parser.value = Some(value),
                        "final" => parser.is_final = value == "true",
                        _ => {}
                    }
                }
            }
            "name" | "value" | "final" | "source" | "tag" => {
                parser.parse_token = true;
                parser.token.clear();
            }
            "include" => {
                let href = attributes()?.into_iter().rev().find(|(name, _)| name == "href");
                if let Some((_, href)) = href {
                    self.include(parser, &href, path, line)?;
                }
            }
            "fallback" => parser.fallback_entered = true,
            _ => {}
        }
        Ok(())
    }

    fn end(
        &mut self,
        parser: &mut Parser,
        name: &str,
        file: &Arc<Path>,
        line: u32,
    ) -> Result<(), XmlError> {
        match name {
            "name" if !parser.token.is_empty() => {
                parser.name = Some(java_trim(&parser.token).to_owned())
            }
            "value" if !parser.token.is_empty() => parser.value = Some(parser.token.clone()),
            "final" => parser.is_final = parser.token == "true",
            "include" => {
                if parser.fallback_allowed && !parser.fallback_entered {
                    let missing = parser.include.take().unwrap_or_default();
                    let problem = XmlProblem::IncludeMissing(missing);
                    return Err(XmlError { file: file.to_path_buf(), line, problem });
                }
                parser.fallback_allowed = false;
                parser.fallback_entered = false;
            }
            "property" => {
                // Properties of a fallback that is not needed are ignored.
                if let Some(name) = &parser.name
                    && (parser.fallback_allowed || !parser.fallback_entered)
                {
                    self.entries.push(PropertyElement {
                        name: name.clone(),
                        value: parser.value.clone(),
                        is_final: parser.is_final,
                        file: file.clone(),
                        line: parser.property_line,
                    });
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn include(
        &mut self,
        parser: &mut Parser,
        href: &str,
        path: &Path,
        line: u32,
    ) -> Result<(), XmlError> {
        let at = |problem| XmlError { file: path.to_owned(), line, problem };
        let target = match href.split_once("://") {
            Some(("file", rest)) => PathBuf::from(rest),
            Some(_) => return Err(at(XmlProblem::IncludeRemote(href.to_owned()))),
            None => PathBuf::from(href.strip_prefix("file:").unwrap_or(href)),
        };
        // A relative path starts at the directory of the including file; `join` keeps absolute paths.
        let target = path.parent().unwrap_or(Path::new("")).join(target);
        self.includes += 1;
        if self.includes > INCLUDES_MAX {
            return Err(at(XmlProblem::TooManyIncludes));
        }
        if self.stack.len() >= DEPTH_MAX {
            return Err(at(XmlProblem::TooDeep));
        }
        let same = |open: &PathBuf| same_file(open, &target);
        if self.stack.iter().any(same) {
            let chain: Vec<_> =
                self.stack.iter().chain([&target]).map(|path| path.display().to_string()).collect();
            return Err(at(XmlProblem::Cycle(chain.join(" → "))));
        }
        let bytes = self.files.read(&target).map_err(|error| XmlError {
            file: target.clone(),
            line: 0,
            problem: XmlProblem::Io(error),
        })?;
        match bytes {
            Some(bytes) => self.file(&target, &bytes),
            None => {
                parser.fallback_allowed = true;
                parser.include = Some(target);
                Ok(())
            }
        }
    }
}

impl Parser {
    fn text(&mut self, text: &str) {
        if self.parse_token {
            self.token.push_str(text);
        }
    }
}

/// Counts lines while the reader advances.
struct LineCounter<'a> {
    text: &'a [u8],
    position: usize,
    line: u32,
}

impl LineCounter<'_> {
    fn at(&mut self, position: usize) -> u32 {
        let position = position.clamp(self.position, self.text.len());
        self.line = self.line.saturating_add(line_of(&self.text[self.position..position]) - 1);
        self.position = position;
        self.line
    }
}

/// Java's `String.trim`, which removes all characters up to the space.
pub(super) fn java_trim(text: &str) -> &str {
    text.trim_matches(|c| c <= ' ')
}

/// Whether two paths name one file. Includes may use symbolic links, so resolved paths are compared if both exist.
fn same_file(a: &Path, b: &Path) -> bool {
    a == b || matches!((a.canonicalize(), b.canonicalize()), (Ok(a), Ok(b)) if a == b)
}

fn attributes(element: &BytesStart<'_>) -> Result<Vec<(String, String)>, String> {
    let mut found = Vec::new();
    for attribute in element.attributes() {
        let attribute = attribute.map_err(|error| error.to_string())?;
        let value = attribute
            .normalized_value(XmlVersion::Implicit1_0)
            .map_err(|error| error.to_string())?;
        found.push((attribute.key.local_name().as_ref().to_owned(), value.into_owned()));
    }
    Ok(found)
}

fn resolve(reference: &BytesRef<'_>, file: &Path, line: u32) -> Result<String, XmlError> {
    let at = |problem| XmlError { file: file.to_owned(), line, problem };
    match reference.resolve_char_ref() {
        Ok(Some(character)) => return Ok(character.to_string()),
        Ok(None) => {}
        Err(error) => return Err(at(XmlProblem::Malformed(error.to_string()))),
    }
    let name: Cow<'_, str> = reference.xml10_content();
    match quick_xml::escape::resolve_xml_entity(&name) {
        Some(text) => Ok(text.to_owned()),
        None => Err(at(XmlProblem::Entity(name.into_owned()))),
    }
}

#[cfg(test)]
mod tests;
