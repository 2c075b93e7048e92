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
    let text = "<configuration>\n<property>\n<name>a</name><value>1</value></property>\n\n<property name='b' value='2'/>\n\
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
    let bomb = "<?xml version=\"1.0\"?>\n<!DOCTYPE lolz [<!ENTITY lol \"lol\"><!ENTITY lol2 \"&lol;&lol;\">]>\n\
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

#[test]
fn a_file_of_another_encoding_must_be_ascii() {
    let latin = "<?xml version='1.0' encoding='ISO-8859-1'?><configuration><property name='a' value='VALUE'/></configuration>";
    assert_eq!(read(&files(&[("/conf/a.xml", latin)])).expect("is plain").len(), 1);
    assert!(problem(&latin.replace("VALUE", "ü")).contains("ISO-8859-1"));
    struct Bytes;
    impl FileSource for Bytes {
        fn read(&self, _: &Path) -> std::io::Result<Option<Vec<u8>>> {
            Ok(Some(b"<configuration>\n\xff</configuration>".to_vec()))
        }
    }
    let error = read_file(&Bytes, Path::new("x")).expect_err("is not UTF-8");
    assert_eq!(error.to_string(), "x:2: the XML is not well-formed: the text is not UTF-8");
}

proptest! {
    #[test]
    fn any_text_gives_entries_or_an_error(text in "\\PC{0,80}") {
        let _ = read(&files(&[("/conf/a.xml", &text)]));
    }

    #[test]
    fn any_order_of_tags_gives_entries_or_an_error(
        pieces in proptest::collection::vec(
            prop_oneof![
                Just("<configuration>"), Just("</configuration>"), Just("<property>"), Just("</property>"),
                Just("<name>"), Just("</name>"), Just("<value>"), Just("</value>"), Just("<final>true</final>"),
                Just("<xi:include href='a.xml'/>"), Just("<xi:include href='b.xml'>"), Just("</xi:include>"),
                Just("<xi:fallback>"), Just("</xi:fallback>"), Just("text"), Just("&amp;"), Just("&#x0;"),
                Just("<![CDATA[x]]>"), Just("<!-- c -->"), Just("<property name='a' name='b'/>"), Just("&#99999999;"),
            ],
            0..24,
        ),
    ) {
        let _ = read(&files(&[("/conf/a.xml", &pieces.concat())]));
        let whole = format!("<configuration>{}</configuration>", pieces.concat());
        let _ = read(&files(&[("/conf/a.xml", &whole)]));
    }
}
