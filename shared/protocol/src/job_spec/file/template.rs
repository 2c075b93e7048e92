//! The commented reference of a job file.

use std::fmt::Write;

use super::key::{Fallback, Key};
use super::keys::GROUPS;

/// Width at which comments are broken.
const WIDTH: usize = 96;

/// Every key with its meaning and default, as a job file: required keys with an example, all others
/// commented out. Read back as it is, it is a job of defaults.
#[must_use]
pub fn template() -> String {
    let mut out = String::from(
        "# A job file of Heddle: every key, its meaning and its default.\n\
         # What is commented out holds as it stands; what is not must be given.\n",
    );
    for group in GROUPS {
        if !group.name.is_empty() {
            out.push('\n');
            comment(&mut out, group.doc);
            line(&mut out, format_args!("[{}]", group.name));
        }
        for key in group.keys {
            describe(&mut out, key);
        }
    }
    out
}

fn describe(out: &mut String, key: &Key) {
    let name = key.name();
    match key.fallback {
        Fallback::Required(example) => {
            comment(out, &format!("{} Required.", key.doc));
            line(out, format_args!("{name} = {example}"));
        }
        // Needed by all but custom jobs, so that a file made from this needs it.
        Fallback::Absent(example) if key.path == "model.features" => {
            comment(out, key.doc);
            line(out, format_args!("{name} = {example}"));
        }
        Fallback::Absent(example) => {
            comment(out, key.doc);
            line(out, format_args!("# {name} = {example}"));
        }
        Fallback::Value(default) => {
            comment(out, key.doc);
            line(out, format_args!("# {name} = {default}"));
        }
        Fallback::NotYet(default) => {
            comment(out, &format!("{} Not available yet.", key.doc));
            line(out, format_args!("# {name} = {default}"));
        }
    }
}

fn line(out: &mut String, text: std::fmt::Arguments<'_>) {
    writeln!(out, "{text}").expect("writing to a string cannot fail");
}

/// The text as comment lines of at most [`WIDTH`] characters.
fn comment(out: &mut String, text: &str) {
    let mut length = 0;
    for word in text.split(' ') {
        let word_length = word.chars().count();
        if length > 0 && length + 1 + word_length > WIDTH {
            out.push('\n');
            length = 0;
        }
        if length == 0 {
            out.push_str("## ");
            length = 3;
        } else {
            out.push(' ');
            length += 1;
        }
        out.push_str(word);
        length += word_length;
    }
    out.push('\n');
}
