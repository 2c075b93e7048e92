//! Origins, notes and values set by programs. The golden files test the meaning of files.

use super::*;
use std::fs;

fn write(directory: &Path, name: &str, properties: &[(&str, &str)]) {
    let properties: String = properties
        .iter()
        .map(|(name, value)| {
            format!("<property><name>{name}</name><value>{value}</value></property>\n")
        })
        .collect();
    let text = format!("<configuration>\n{properties}</configuration>");
    fs::write(directory.join(name), text).expect("is written");
}

fn environment(variables: &[(&str, &Path)]) -> Environment {
    variables.iter().fold(Environment::empty(), |environment, (name, path)| {
        environment.with_variable(*name, path.display().to_string())
    })
}

fn notes(configuration: &Configuration) -> Vec<String> {
    configuration.notes().iter().map(Note::to_string).collect()
}

#[test]
fn a_value_has_its_origin_and_replaced_values() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path();
    write(
        path,
        "core-site.xml",
        &[
            ("other", "x"),
            ("fs.default.name", "hdfs://${env.NN:-nn}"),
            ("fs.defaultFS", "hdfs://b"),
        ],
    );
    let mut configuration =
        Configuration::load(environment(&[("HADOOP_CONF_DIR", path)])).expect("is good");
    configuration.set("fs.default.name", "hdfs://c", "--set");
    let explained = configuration.explain(" fs.defaultFS ").expect("has a value");
    assert_eq!(explained.key, "fs.defaultFS");
    assert_eq!(explained.value.as_deref(), Ok("hdfs://c"));
    let file = path.join("core-site.xml").display().to_string();
    let mut origins = vec![explained.setting.origin.to_string()];
    origins.extend(
        explained.hidden.iter().map(|setting| format!("{} {}", setting.origin, setting.raw)),
    );
    let expected = [
        "--set".to_owned(),
        format!("{file}:4 hdfs://b"),
        format!("{file}:3 hdfs://${{env.NN:-nn}}"),
        "core-default.xml (built in) file:///".to_owned(),
    ];
    assert_eq!(origins, expected);
    assert_eq!(configuration.explain("none"), None);
}

#[test]
fn final_values_remain_and_list_rejected_ones() {
    let mut configuration = Configuration::empty(Environment::empty());
    struct Memory;
    impl FileSource for Memory {
        fn read(&self, path: &Path) -> std::io::Result<Option<Vec<u8>>> {
            let is_final = if path == Path::new("a") { " final='true'" } else { "" };
            let text = format!("<c><property name='k' value='{}'{is_final}/></c>", path.display());
            Ok(Some(text.into_bytes()))
        }
    }
    for file in ["a", "b"] {
        assert!(configuration.add_file_of(&Memory, Path::new(file)).expect("is good"));
    }
    let explained = configuration.explain("k").expect("has a value");
    assert_eq!(explained.setting.raw, "a");
    assert_eq!(explained.sealed.map(|origin| origin.to_string()).as_deref(), Some("a:1"));
    assert_eq!(explained.refused.len(), 1);
    assert_eq!(explained.refused[0].origin.to_string(), "b:1");
    // The program overrides final values, as in Hadoop.
    configuration.set("k", "c", "test");
    assert_eq!(configuration.get("k"), Ok(Some("c".into())));
}

#[test]
fn without_directories_each_file_has_a_note() {
    let configuration =
        Configuration::load(environment(&[("HADOOP_CONF_DIR", Path::new("/no/such"))]))
            .expect("is fine");
    assert_eq!(configuration.get("fs.defaultFS"), Ok(Some("file:///".into())));
    assert_eq!(
        notes(&configuration),
        [
            "no core-site.xml in /no/such (HADOOP_CONF_DIR)",
            "no hdfs-site.xml in /no/such (HADOOP_CONF_DIR)",
            "no yarn-site.xml in /no/such (HADOOP_CONF_DIR)",
            "no resource-types.xml in /no/such (HADOOP_CONF_DIR)",
        ]
    );
}

#[test]
fn two_different_files_of_one_name_have_a_note() {
    let (hadoop, yarn) = (tempfile::tempdir().expect("one"), tempfile::tempdir().expect("two"));
    for (directory, value) in [(&hadoop, "from-hadoop"), (&yarn, "from-yarn")] {
        write(directory.path(), "core-site.xml", &[("in.core", value)]);
        write(directory.path(), "yarn-site.xml", &[("in.yarn", value)]);
        write(directory.path(), "hdfs-site.xml", &[("in.hdfs", "the same")]);
    }
    let variables = [("HADOOP_CONF_DIR", hadoop.path()), ("YARN_CONF_DIR", yarn.path())];
    let configuration = Configuration::load(environment(&variables)).expect("is good");
    assert_eq!(configuration.get("in.core"), Ok(Some("from-hadoop".into())));
    assert_eq!(configuration.get("in.yarn"), Ok(Some("from-yarn".into())));
    let differ = notes(&configuration)
        .into_iter()
        .filter(|note| note.contains("differs and is ignored"))
        .count();
    assert_eq!(differ, 2, "{:?}", notes(&configuration));
}

#[test]
fn a_malformed_file_changes_nothing() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("core-site.xml");
    fs::write(
        &path,
        "<configuration>\n<property><name>a</name><value>1</value></property>\n\
         <property></configuration>",
    )
    .expect("is written");
    let mut configuration = Configuration::empty(Environment::empty());
    let error = configuration.add_file(&path).expect_err("is damaged");
    assert_eq!((error.file.as_path(), error.line), (path.as_path(), 3));
    assert_eq!(configuration.get("a"), Ok(None));
    let loaded = Configuration::load(environment(&[("HADOOP_CONF_DIR", directory.path())]));
    assert!(loaded.is_err());
    assert!(configuration.add_file(directory.path()).is_err(), "a directory is not a file");
}

#[test]
fn a_value_error_names_key_value_and_origin() {
    let mut configuration = Configuration::empty(Environment::empty());
    configuration.set("port", "${base}x", "--set");
    configuration.set("base", "80", "--set");
    let error = configuration.integer("port", 1).expect_err("is not an integer");
    assert_eq!(error.to_string(), "port must be an integer (got \"80x\" from --set)");
    configuration.set("circle", "${circle2}", "--set");
    configuration.set("circle2", "${circle}", "--set");
    let error = configuration.get("circle").expect_err("is a cycle");
    assert!(error.to_string().starts_with("circle cannot be expanded"), "{error}");
    assert!(configuration.explain("circle").expect("has a value").value.is_err());
}

#[test]
fn addresses_have_the_default_port_and_are_optional() {
    let mut configuration = Configuration::empty(Environment::empty());
    configuration.set("a", " rm.example.com ", "--set");
    configuration.set("blank", "  ", "--set");
    configuration.set("bad", "rm:port", "--set");
    let address = configuration.address("a", Some(8032)).expect("is good").expect("is set");
    assert_eq!(address.to_string(), "rm.example.com:8032");
    assert_eq!(configuration.address("blank", Some(1)), Ok(None));
    assert_eq!(configuration.address("none", Some(1)), Ok(None));
    configuration.address("bad", Some(1)).expect_err("has no port");
    configuration.address("a", None).expect_err("needs one");
}

#[test]
fn a_built_in_default_is_not_a_stated_value() {
    let key = "yarn.am.liveness-monitor.expiry-interval-ms";
    let mut configuration = Configuration::with_defaults(Environment::empty());
    assert!(configuration.trimmed(key).is_ok_and(|value| value.is_some()));
    assert!(!configuration.is_stated(key) && !configuration.is_stated("no.such.key"));
    configuration.set(key, "900000", "test");
    assert!(configuration.is_stated(key), "also when the value is the default's");
}
