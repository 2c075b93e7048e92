//! `examples/tabular`: the commands of its page lead from a table to predictions.

use heddle_tests::example_page::ExamplePage;

use crate::defaults::figure;

#[test]
fn commands_of_the_page_lead_to_predictions() {
    let page = ExamplePage::copy("tabular").expect("a copy");
    let commands = page.commands(0).expect("commands");
    assert_eq!(commands.lines().count(), 3, "{commands}");
    let stdout = page.run(commands, &[]).expect("they succeed");
    let figures = stdout.lines().last().unwrap_or_default();
    assert!(figures.starts_with("rows 2000 ") && figure(figures, "auc") > 0.84, "{stdout}");
    let scores = std::fs::read_to_string(page.path().join("scores.txt")).expect("scores");
    assert_eq!(scores.lines().count(), 2_000);
    assert!(scores.lines().all(|line| line.parse().is_ok_and(|p: f64| p > 0.0 && p < 1.0)));
}

#[test]
fn parquet_without_pyarrow_is_an_error_with_the_next_step() {
    let page = ExamplePage::copy("tabular").expect("a copy");
    // Without the packages that are installed.
    let error = page.run("python3 -S examples/tabular/generate.py --format parquet", &[]);
    let error = error.expect_err("PyArrow is missing").to_string();
    assert!(error.contains("--format parquet needs PyArrow: pip install pyarrow"), "{error}");
}
