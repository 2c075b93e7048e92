//! Rules about the source text that no compiler checks: sizes, cycles, words, names, documentation.
//!
//! Exceptions are lines in `tidy/exceptions/`, each with its reason. An exception that is not needed any more fails.

#[path = "tidy/cycles.rs"]
mod cycles;
#[path = "tidy/dialect.rs"]
mod dialect;
#[path = "tidy/documented.rs"]
mod documented;
#[path = "tidy/exceptions.rs"]
mod exceptions;
#[path = "tidy/faults.rs"]
mod faults;
#[path = "tidy/json_types.rs"]
mod json_types;
#[path = "tidy/map.rs"]
mod map;
#[path = "tidy/nightly.rs"]
mod nightly;
#[path = "tidy/sizes.rs"]
mod sizes;
#[path = "tidy/sources.rs"]
mod sources;
#[path = "tidy/type_names.rs"]
mod type_names;
#[path = "tidy/unsafe_code.rs"]
mod unsafe_code;
#[path = "tidy/words.rs"]
mod words;

#[test]
fn files_are_short() {
    sizes::check_files(&sources::product());
}

#[test]
fn functions_are_short() {
    sizes::check_functions(&sources::product());
}

#[test]
fn function_names_are_short() {
    sizes::check_names();
}

#[test]
fn lines_of_code_are_short() {
    sizes::check_lines();
}

#[test]
fn modules_have_no_cycles() {
    cycles::check(&sources::product());
}

#[test]
fn type_names_are_used_once() {
    type_names::check(&sources::product());
}

#[test]
fn names_are_the_fields_terms() {
    words::check_names(&sources::product());
}

#[test]
fn texts_are_plain() {
    words::check_texts(&sources::product());
}

#[test]
fn comments_are_plain() {
    words::check_comments(&sources::product());
}

#[test]
fn the_dialect_is_not_more_than_it_was() {
    dialect::check(&sources::product());
}

#[test]
fn metrics_are_documented() {
    documented::check_metrics();
}

#[test]
fn json_is_documented() {
    json_types::check_page(&sources::product());
}

#[test]
fn exit_codes_are_documented() {
    documented::check_exit_codes(&sources::product());
}

#[test]
fn warnings_are_documented() {
    documented::check_warnings();
}

#[test]
fn keys_that_pages_name_exist() {
    documented::check_named_keys();
}

#[test]
fn job_file_keys_are_documented() {
    documented::check_job_file();
}

#[test]
fn unsafe_code_is_in_one_crate_and_listed_files() {
    unsafe_code::check();
}

#[test]
fn packages_inherit_the_lints() {
    unsafe_code::check_lints();
}

#[test]
fn paths_of_the_map_exist() {
    map::check();
}

#[test]
fn outcomes_of_faults_name_tests_that_exist() {
    faults::check();
}

#[test]
fn tests_that_are_left_out_are_run_nightly() {
    nightly::check();
}

#[test]
fn minimum_rust_version_is_the_tested_one() {
    let read = |path: &str| {
        std::fs::read_to_string(sources::root().join(path)).expect("the file is readable")
    };
    let value = |text: &str, key: &str| {
        let line = text
            .lines()
            .find(|line| line.starts_with(key))
            .unwrap_or_else(|| panic!("no line of {key}"));
        line.split('"').nth(1).expect("a quoted value").to_owned()
    };
    let minimum = value(&read("Cargo.toml"), "rust-version");
    let tested = value(&read("rust-toolchain.toml"), "channel");
    assert_eq!(tested.strip_suffix(".0").unwrap_or(&tested), minimum);
}
