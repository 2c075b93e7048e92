//! Valid and rejected files. The golden files test the meaning of valid ones.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

/// Files in memory.
struct Memory(BTreeMap<PathBuf, String>);

impl FileSource for Memory {
    fn read(&self, path: &Path) -> std::io::Result<Option<Vec<u8>>> {
        Ok(self.0.get(path).map(|text| text.clone().into_bytes()))
    }
}

fn files(files: &[(&str, &str)]) -> Memory {
    Memory(files.iter().map(|(path, text)| (PathBuf::from(path), (*text).to_owned())).collect())
}

fn read(files: &Memory) -> Result<Vec<PropertyElement>, XmlError> {
    read_file(files, Path::new("/conf/a.xml")).map(|entries| entries.expect("is there"))
}

fn problem(text: &str) -> String {
    let error = read(&files(&[("/conf/a.xml", text)])).expect_err("is refused");
    error.to_string()
}

fn include(href: &str) -> String {
    format!("<configuration><xi:include href=\"{href}\"/></configuration>")
}

#[test]
fn properties_have_their_file_and_line() {
    let text = "<configuration>\n<property>\n<name>a</name><value>1</value></property>\n\n\
        <property name='b' value='2'/>\n\
        <xi:include href='b.xml'/></configuration>";
    let other = "<configuration>\n\n<property><name>c</name></property></configuration>";
    let entries = read(&files(&[("/conf/a.xml", text), ("/conf/b.xml", other)])).expect("is good");
    let places: Vec<_> = entries
        .iter()
        .map(|entry| format!("{}:{}:{}", entry.name, entry.file.display(), entry.line))
        .collect();
    assert_eq!(places, ["a:/conf/a.xml:2", "b:/conf/a.xml:5", "c:/conf/b.xml:3"]);
}

#[test]
fn a_doctype_is_rejected() {
    let bomb = "<?xml version=\"1.0\"?>\n\
        <!DOCTYPE lolz [<!ENTITY lol \"lol\"><!ENTITY lol2 \"&lol;&lol;\">]>\n\
        <configuration><property><name>a</name><value>&lol2;</value></property></configuration>";
    assert!(
        problem(bomb).starts_with("/conf/a.xml:2: a DOCTYPE is not supported"),
        "{}",
        problem(bomb)
    );
    let external = "<!DOCTYPE x SYSTEM \"file:///etc/passwd\"><configuration/>";
    assert!(problem(external).contains("DOCTYPE"));
    let bare =
        "<configuration><property><name>a</name><value>&lol;</value></property></configuration>";
    assert!(problem(bare).contains("unknown entity &lol;"), "{}", problem(bare));
}

#[test]
fn include_cycles_are_listed() {
    let own = read(&files(&[("/conf/a.xml", &include("a.xml"))])).expect_err("is a cycle");
    assert!(own.to_string().contains("/conf/a.xml → /conf/a.xml"), "{own}");
    let three = files(&[
        ("/conf/a.xml", &include("b.xml")),
        ("/conf/b.xml", &include("/conf/c.xml")),
        ("/conf/c.xml", &include("file:///conf/a.xml")),
    ]);
    let three = read(&three).expect_err("is a cycle");
    assert!(matches!(three.problem, XmlProblem::Cycle(_)), "{three}");
    assert_eq!(three.file, Path::new("/conf/c.xml"));
}

#[test]
fn depth_and_number_of_includes_are_bounded() {
    let chain: Vec<(String, String)> = (0..DEPTH_MAX + 2)
        .map(|number| {
            let name =
                if number == 0 { "/conf/a.xml".to_owned() } else { format!("/conf/{number}.xml") };
            (name, include(&format!("{}.xml", number + 1)))
        })
        .collect();
    let chain = Memory(chain.into_iter().map(|(path, text)| (path.into(), text)).collect());
    assert!(matches!(read(&chain).expect_err("is too deep").problem, XmlProblem::TooDeep));

    let many = "<xi:include href='b.xml'/>".repeat(INCLUDES_MAX + 1);
    let many = files(&[
        ("/conf/a.xml", &format!("<configuration>{many}</configuration>")),
        ("/conf/b.xml", "<configuration/>"),
    ]);
    assert!(matches!(read(&many).expect_err("are too many").problem, XmlProblem::TooManyIncludes));

    // Two includes in each of n levels are 2^n files.
    let double = |next: usize| {
        let one = format!("<xi:include href='{next}.xml'/>");
        format!("<configuration>{one}{one}</configuration>")
    };
    let mut tree = BTreeMap::from([(PathBuf::from("/conf/a.xml"), double(1))]);
    for level in 1..30 {
        tree.insert(format!("/conf/{level}.xml").into(), double(level + 1));
    }
    tree.insert("/conf/30.xml".into(), "<configuration/>".into());
    assert!(matches!(
        read(&Memory(tree)).expect_err("is too much").problem,
        XmlProblem::TooManyIncludes
    ));

    let nested = "<a>".repeat(DEPTH_MAX + 1);
    assert!(problem(&nested).contains("the nesting must be at most"));
}

#[test]
fn includes_by_url_are_rejected() {
    for href in ["http://example.com/x.xml", "https://x/y", "hdfs://nn/x.xml"] {
        assert!(problem(&include(href)).contains("must be a file"), "{href}");
    }
    assert!(problem(&include("none.xml")).contains("/conf/none.xml must exist"));
}

/// One file of any bytes.
struct Bytes(Vec<u8>);

impl FileSource for Bytes {
    fn read(&self, _: &Path) -> std::io::Result<Option<Vec<u8>>> {
        Ok(Some(self.0.clone()))
    }
}

#[test]
fn text_is_read_in_its_declared_encoding() {
    let file = |encoding: &str| {
        format!(
            "<?xml version='1.0' encoding=\"{encoding}\"?>\n<configuration>\n<property name='a' value='é'/></configuration>"
        )
    };
    let latin = |text: &str| text.chars().map(|c| c as u8).collect::<Vec<u8>>();
    let wide = |text: &str, mark: bool, bytes: fn(u16) -> [u8; 2]| {
        let mark = mark.then_some(0xfeff).into_iter();
        mark.chain(text.encode_utf16()).flat_map(bytes).collect::<Vec<u8>>()
    };
    for (name, bytes) in [
        ("UTF-8", file("utf-8").into_bytes()),
        ("ISO-8859-1", latin(&file("ISO-8859-1"))),
        ("latin1", latin(&file("latin1"))),
        ("UTF-16 with a mark", wide(&file("UTF-16"), true, u16::to_be_bytes)),
        ("UTF-16 with the other mark", wide(&file("UTF-16"), true, u16::to_le_bytes)),
        ("UTF-16BE", wide(&file("UTF-16BE"), false, u16::to_be_bytes)),
        ("UTF-16LE", wide(&file("UTF-16LE"), false, u16::to_le_bytes)),
    ] {
        let read = read_file(&Bytes(bytes), Path::new("x")).expect(name).expect("is there");
        assert_eq!((read[0].value.as_deref(), read[0].line), (Some("é"), 3), "{name}");
    }
    let mut half = wide(&file("UTF-16"), true, u16::to_be_bytes);
    half.pop();
    let unread = "the encoding must be UTF-8, UTF-16, ISO-8859-1 or US-ASCII (got windows-1252)";
    for (bytes, error) in [
        (latin(&file("windows-1252")), format!("x:1: {unread}")),
        (latin(&file("us-ascii")), "x:3: the text is not us-ascii".to_owned()),
        (latin(&file("UTF-16")), "x:3: the text is not UTF-16".to_owned()),
        (half, "x:3: the text is not UTF-16".to_owned()),
        (latin(&file("UTF-8")), "x:3: the text is not UTF-8".to_owned()),
        (
            b"<configuration>\n\xff</configuration>".to_vec(),
            "x:2: the text is not UTF-8".to_owned(),
        ),
    ] {
        let found = read_file(&Bytes(bytes), Path::new("x")).expect_err(&error);
        let expected = error.replacen(": ", ": the XML is not well-formed: ", 1);
        assert_eq!(found.to_string(), expected);
    }
    let plain = file("windows-1252").replace('é', "e");
    read_file(&Bytes(plain.into_bytes()), Path::new("x")).expect("ASCII in any of these encodings");
}

proptest! {
    #[test]
    fn any_bytes_give_entries_or_an_error(
        head in prop_oneof![
            Just(""), Just("\u{feff}"), Just("<?xml encoding='latin1'?>"), Just("<?xml encoding="),
            Just("<\0?\0"), Just("\0<\0?"),
        ],
        bytes in proptest::collection::vec(any::<u8>(), 0..80),
    ) {
        for mark in [&b""[..], b"\xff\xfe", b"\xfe\xff"] {
            let _ = read_file(&Bytes([mark, head.as_bytes(), &bytes].concat()), Path::new("x"));
        }
    }

    #[test]
    fn any_text_gives_entries_or_an_error(text in "\\PC{0,80}") {
        let _ = read(&files(&[("/conf/a.xml", &text)]));
    }

    #[test]
    fn any_order_of_tags_gives_entries_or_an_error(
        pieces in proptest::collection::vec(
            prop_oneof![
                Just("<configuration>"), Just("</configuration>"), Just("<property>"),
                Just("</property>"), Just("<name>"), Just("</name>"), Just("<value>"),
                Just("</value>"), Just("<final>true</final>"), Just("<xi:include href='a.xml'/>"),
                Just("<xi:include href='b.xml'>"), Just("</xi:include>"), Just("<xi:fallback>"),
                Just("</xi:fallback>"), Just("text"), Just("&amp;"), Just("&#x0;"),
                Just("<![CDATA[x]]>"), Just("<!-- c -->"), Just("<property name='a' name='b'/>"),
                Just("&#99999999;"),
            ],
            0..24,
        ),
    ) {
        let _ = read(&files(&[("/conf/a.xml", &pieces.concat())]));
        let whole = format!("<configuration>{}</configuration>", pieces.concat());
        let _ = read(&files(&[("/conf/a.xml", &whole)]));
    }
}
