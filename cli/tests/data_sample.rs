//! `heddle data sample`: what it proposes for a table is a part of a job file that trains.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fmt::Write;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

/// Runs the program in a folder; exit code, stdout, stderr.
fn heddle(dir: &Path, arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_heddle"))
        .args(arguments)
        .current_dir(dir)
        .env_remove("RUST_LOG")
        .env_remove("HADOOP_CONF_DIR")
        .env("XDG_STATE_HOME", dir.join("state"))
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

fn folder(name: &str, text: &str) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join(name), text).unwrap();
    dir
}

fn sample(dir: &Path, arguments: &[&str]) -> Value {
    let (exit, stdout, stderr) =
        heddle(dir, &[&["data", "sample", "--json"][..], arguments].concat());
    assert_eq!((exit, stderr.as_str()), (Some(0), ""));
    assert_eq!(stdout.lines().count(), 1, "{stdout}");
    serde_json::from_str(&stdout).unwrap()
}

/// A job with this part trains.
fn trains(dir: &Path, proposal: &str) {
    let job = format!(
        "name = \"small\"\n{proposal}\n[model]\nfeatures = \"any\"\n[training]\nlanes = 2\nbatch = 4\n\
         [pservers]\ncount = 1\nshards = 2\n[trainers]\nmax = 1\n[output]\nmodel = \"model\"\n"
    );
    std::fs::write(dir.join("job.toml"), &job).unwrap();
    let (exit, _, stderr) = heddle(dir, &["run", "job.toml", "--set", "data.passes=1"]);
    assert_eq!(exit, Some(0), "{job}{stderr}");
    assert!(dir.join("model/MODEL.json").exists());
}

/// A table of 60 records.
fn clicks() -> String {
    let mut text = "user_id,price,site,comment,age,clicked\n".to_owned();
    for n in 0..60 {
        let age = if n % 5 == 0 { "?".to_owned() } else { (20 + n % 7).to_string() };
        let (site, clicked) = (n * 7 % 11, u32::from(n * 7 % 11 < 5));
        let price = 100 + n % 17;
        writeln!(text, "u{n},{price}.5,s {site},text {n},{age},{clicked}").unwrap();
    }
    text
}

#[test]
fn proposal_for_a_table_trains() {
    let dir = folder("clicks.csv", &clicks());
    let (exit, stdout, stderr) = heddle(dir.path(), &["data", "sample", "clicks.csv"]);
    assert_eq!((exit, stderr.as_str()), (Some(0), ""));
    let expected = "\
[data]
train = \"clicks.csv\"
format = \"csv\"
label = \"clicked\"   # guessed: the last column with two values
id = [\"user_id\"]
null = [\"\", \"NA\", \"\\\\N\", \"?\"]

[[data.columns]]
names = [\"price\", \"age\"]
as = \"number\"

[[data.columns]]
names = [\"site\"]
as = \"category\"

[[data.columns]]
names = [
    \"comment\",   # its 60 texts all differ
]
as = \"ignore\"
";
    assert!(stdout.contains(expected), "{stdout}");
    for line in [
        "column   kind      missing  examples",
        "age      number    20.0 %   21, 22, 23",
        "label and features of 20 of 60 records, before scaling:",
        "1  price:100.5 site=s 0 (",
    ] {
        assert!(stdout.contains(line), "{line:?} in {stdout}");
    }
    trains(dir.path(), expected);
    let json = sample(dir.path(), &["clicks.csv", "--rows", "2"]);
    assert_eq!(format!("{}\n", json["proposal"].as_str().unwrap()), expected);
    assert_eq!(json["rows"].as_array().unwrap().len(), 2);
    assert_eq!(json["rows"][1]["label"], "0");
    let site = &json["rows"][1]["features"][2];
    assert_eq!((&site["column"], &site["text"]), (&"site".into(), &"s 7".into()));
    let site = site["key"].as_str().unwrap();
    assert!(stdout.contains(&format!("site=s 7 ({site})")), "{site} in {stdout}");
}

#[test]
fn proposal_for_a_messy_table_trains() {
    let mut text =
        "\u{feff};\"price, net\";gone;\"odd \"\"name\"\" [1]\";sign;Class\r\n".to_owned();
    for n in 0..40 {
        let price = if n == 3 { "n/a".to_owned() } else { format!("\"{n}.25\"") };
        let sign = if n % 3 == 0 { "-" } else { "+" };
        write!(text, "{n};{price};;\"a;{}\"\"\";{sign};{}\r\n", n % 4, n % 2).unwrap();
    }
    let dir = folder("messy.csv", &text);
    let json = sample(dir.path(), &["messy.csv"]);
    let proposal = json["proposal"].as_str().unwrap();
    for line in [
        "delimiter = \";\"\n",
        "label = \"Class\"   # guessed by its name\n",
        "null = [\"\", \"NA\", \"\\\\N\", \"n/a\"]\n",
        "names = [\"price, net\"]\nas = \"number\"\n",
        "names = [\"odd \\\"name\\\" [[]1[]]\", \"sign\"]\nas = \"category\"\n",
        "    \"*\",   # a column without a name\n    \"gone\",   # it has no value\n",
    ] {
        assert!(proposal.contains(line), "{line:?} in {proposal}");
    }
    assert_eq!(json["rows"][0]["features"][0]["text"], "a;0\"");
    trains(dir.path(), proposal);
}

#[test]
fn table_without_names_is_read() {
    let rows: String = (0..30).map(|n| format!("{}\t{}\tx{}\n", n % 2, n + 9, n % 3)).collect();
    let dir = folder("part-0.tsv", &rows);
    let json = sample(dir.path(), &["."]);
    assert_eq!((&json["header"], &json["format"]), (&false.into(), &"tsv".into()));
    let proposal = json["proposal"].as_str().unwrap();
    assert!(proposal.contains("label = \"_c0\"   # guessed: the last column"), "{proposal}");
    trains(dir.path(), &proposal.replace("train = \".\"", "train = \"*.tsv\""));
    let json = sample(dir.path(), &["part-*", "--header", "true", "--label", "0"]);
    assert_eq!(json["records"], 29);
    assert!(
        json["proposal"].as_str().unwrap().contains("\nheader = true\nlabel = \"0\"   # stated")
    );
}

#[test]
fn records_with_indices_are_shown() {
    let dir = folder("train.libsvm", "1 1:0.5 3:1\n0 2:1\n1 1:2\n");
    let (exit, stdout, _) = heddle(dir.path(), &["data", "sample", "train.libsvm"]);
    assert_eq!(exit, Some(0));
    for line in [
        "labels    0 (1), 1 (2)\n",
        "features  3 up to the highest index\n",
        "label and features of 3 records:\n1  1:0.5 3:1\n",
    ] {
        assert!(stdout.contains(line), "{line:?} in {stdout}");
    }
    assert_eq!(sample(dir.path(), &["train.libsvm"])["rows"][0]["indices"][1], 3);
}

#[test]
fn wide_records_are_cut() {
    let names: Vec<String> = (0..30).map(|n| format!("c{n}")).collect();
    let text = format!("y,{}\n0{}\n1{}\n", names.join(","), ",1".repeat(30), ",2".repeat(30));
    let dir = folder("wide.csv", &text);
    let (_, stdout, _) = heddle(dir.path(), &["data", "sample", "wide.csv"]);
    assert!(stdout.contains("… and 14 others\n"), "{stdout}");
    trains(dir.path(), sample(dir.path(), &["wide.csv"])["proposal"].as_str().unwrap());
}

#[test]
fn what_cannot_be_read_has_a_place_and_exit_7() {
    for (text, arguments, words) in [
        ("a,y\n1,0\n2\n", &[][..], &["data.csv:3:1: 1 fields, expected 2"][..]),
        ("a,y\n\"1,0\n", &[], &["data.csv:2:5: a quote that is not closed"]),
        ("a,y,a\n1,0,2\n", &[], &["two columns are named \"a\""]),
        ("a,y\n1,0\n2,no\n", &["--label", "y"], &["data.csv:3:3: column \"y\": expected a label"]),
        ("a,y\n1,0\n", &["--label", "x"], &["data.label names the column \"x\"", "\"a\", \"y\""]),
        ("y\n1\n", &[], &["no column has features"]),
        ("a,y\n", &[], &["does not have a whole record"]),
        ("", &[], &["DATA: the files have no byte of data"]),
    ] {
        let dir = folder("data.csv", text);
        let all = [&["data", "sample", "data.csv"][..], arguments].concat();
        let (exit, stdout, stderr) = heddle(dir.path(), &all);
        assert_eq!((exit, stdout.as_str()), (Some(7), ""), "{text:?}: {stderr}");
        for word in words {
            assert!(stderr.contains(word), "{word:?} in {stderr}");
        }
    }
    let dir = folder("data.parquet", "1 1:x\n");
    std::fs::write(dir.path().join("data.orc"), "1 1:x\n").unwrap();
    for (arguments, exit, word) in [
        (&["data.parquet"][..], 7, "data.parquet: this is not a whole Parquet file"),
        (
            &["data.parquet", "--delimiter", ";"],
            2,
            "--delimiter and --header are for tables of text",
        ),
        (&["data.orc"], 7, "--format states it: libsvm, dummy, csv, tsv, parquet"),
        (&["data.parquet", "--format", "orc"], 2, "possible values: libsvm, dummy, csv, tsv"),
        (&["data.parquet", "--format", "libsvm"], 7, "data.parquet:1:5: expected a finite number"),
        (&["data.parquet", "--format", "libsvm", "--label", "y"], 2, "are for tables"),
        (&["data.parquet", "--delimiter", "::"], 2, "expected one character"),
        (&["gone.csv"], 7, "DATA = "),
    ] {
        let all = [&["data", "sample"][..], arguments].concat();
        let (found, _, stderr) = heddle(dir.path(), &all);
        assert_eq!(found, Some(exit), "{stderr}");
        assert!(stderr.contains(word), "{word:?} in {stderr}");
    }
}

#[test]
fn label_of_texts_is_a_comment_in_the_proposal() {
    let dir = folder("data.csv", "site,target\na,yes\nb,no\n");
    let json = sample(dir.path(), &["data.csv"]);
    // The example of docs/formats.md.
    assert_eq!(json["rows"][0]["features"][0]["key"], "3231bb3a2b0f9c68");
    assert_eq!(json["rows"][0]["label"], "yes");
    let proposal = json["proposal"].as_str().unwrap();
    for text in [
        "# label = \"target\"   # guessed by its name, but",
        "a label must be a number, true or false, not \"yes\"\n",
    ] {
        assert!(proposal.contains(text), "{text:?} in {proposal}");
    }
    let dir = folder("data.csv", "a,b\n1,yes\n2,no\n3,no\n");
    let json = sample(dir.path(), &["data.csv"]);
    assert!(json["proposal"].as_str().unwrap().contains("# label = \"\"   # state it"));
}
