//! `examples/tabular`: the commands of its page lead from a table to predictions.

use std::path::Path;
use std::process::Command;

use heddle_tests::local::program;

const EXAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/tabular");

#[test]
fn commands_of_the_page_lead_to_predictions() {
    let dir = tempfile::tempdir().expect("a folder");
    let copy = dir.path().join("examples/tabular");
    std::fs::create_dir_all(&copy).expect("a folder");
    for name in ["generate.py", "job.toml"] {
        std::fs::copy(Path::new(EXAMPLE).join(name), copy.join(name)).expect("a copy");
    }
    let page = std::fs::read_to_string(Path::new(EXAMPLE).join("README.md")).expect("a page");
    let commands = page.split("```sh\n").nth(1).and_then(|rest| rest.split("```").next());
    let commands = commands.expect("a block of commands");
    assert_eq!(commands.lines().count(), 3, "{commands}");
    let heddle = program("heddle").expect("built before");
    let path = std::env::var("PATH").expect("programs are found");
    let path = format!("{}:{path}", heddle.parent().expect("a folder").display());
    let ended = Command::new("sh")
        .args(["-e", "-c", commands])
        .current_dir(dir.path())
        .env("PATH", path)
        .env("XDG_STATE_HOME", dir.path().join("state"))
        .env_remove("HADOOP_CONF_DIR")
        .output()
        .expect("it starts");
    let (stdout, stderr) =
        (String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
    assert!(ended.status.success(), "{stdout}{stderr}");
    let figures = stdout.lines().last().unwrap_or_default();
    let auc = figures.split("auc ").nth(1).and_then(|rest| rest.split(' ').next()?.parse().ok());
    assert!(figures.starts_with("rows 2000 ") && auc > Some(0.84), "{stdout}");
    let scores = std::fs::read_to_string(dir.path().join("scores.txt")).expect("scores");
    assert_eq!(scores.lines().count(), 2_000);
    assert!(scores.lines().all(|line| line.parse().is_ok_and(|p: f64| p > 0.0 && p < 1.0)));
}
