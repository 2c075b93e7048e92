//! `examples/recovery`: a stranger's command shows what is lost and restored, and compares the models itself.

use std::process::Command;

use heddle_tests::local::program;

#[test]
fn example_loses_a_process_and_files_and_no_byte_of_the_model() {
    let dir = tempfile::tempdir().expect("a folder");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/recovery/run.sh");
    let ended = Command::new(script)
        .arg(dir.path())
        .args(["--set", "data.passes=24"])
        .env("HEDDLE", program("heddle").expect("built before"))
        .env_remove("HADOOP_CONF_DIR")
        .output()
        .expect("it starts");
    let (stdout, stderr) =
        (String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
    assert!(ended.status.success(), "{stdout}{stderr}");
    for words in ["failover from pserver-1", "1 of 4 good", "another copy stands in for a file"] {
        assert!(stdout.contains(words), "{words}: {stdout}{stderr}");
    }
}
