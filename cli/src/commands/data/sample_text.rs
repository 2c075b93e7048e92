//! Texts about the beginning of data.

use heddle_input::SampleError;
use heddle_input::TextHead;
use heddle_protocol::exit_code::ExitCode;

use crate::failure::CommandFailure;

/// Features that are shown of a record.
const SHOWN: usize = 16;

/// The failure of data with a line that cannot be read.
pub fn malformed(head: &TextHead, error: &SampleError) -> CommandFailure {
    let mut failure = CommandFailure::new(ExitCode::Input, "the data cannot be read");
    failure.causes.push(format!("{}:{error}", head.file));
    failure
}

/// The failure of data whose beginning lacks a whole record.
pub fn without_record(file: &str) -> CommandFailure {
    let fact = format!("the beginning of {file} does not have a whole record");
    CommandFailure::new(ExitCode::Input, fact)
}

/// The first texts, and how many others there are.
pub fn few(texts: impl ExactSizeIterator<Item = String>, separator: &str) -> String {
    let others = texts.len().saturating_sub(SHOWN);
    let more = (others > 0).then(|| format!("… and {others} others"));
    texts.take(SHOWN).chain(more).collect::<Vec<_>>().join(separator)
}

/// `20 of 300 records`: the number that is shown, and the number that was read.
pub fn counted(shown: usize, all: usize) -> String {
    if shown < all { format!("{shown} of {all} records") } else { format!("{all} records") }
}
