//! The beginning of a file with types.

use heddle_columns::typed::FirstValue;
use heddle_columns::{Cell, SampledColumn, key};
use heddle_input::{TypedFormat, input_files};
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::job_spec::DataFormat;
use heddle_storage::StorageUrl;

use super::sample_args::SampleArgs;
use super::sample_text::without_record;
use super::table::{LIST_SEPARATOR, ProposedTable};
use crate::am_client;
use crate::failure::{CommandFailure, CommandResult, OrFail};

/// Rows that are looked at.
const ROWS_MAX: usize = 1_000;

/// Prints the beginning of a file with types.
pub fn show(
    args: &SampleArgs,
    format: DataFormat,
    typed: &dyn TypedFormat,
    url: &str,
    json: bool,
) -> CommandResult {
    let failed = |error: heddle_input::ReadError| {
        CommandFailure::caused(error.class().exit_code(), "the data cannot be read", &error)
    };
    let read = async {
        let place = StorageUrl::parse(url).or_fail(ExitCode::Input, url)?;
        let found = input_files(&place).await.or_fail(ExitCode::Input, url)?.0;
        let file = found.first().ok_or_else(|| without_record(url))?;
        let head = typed.head(file).await.map_err(failed)?;
        let rows = typed.rows(file, ROWS_MAX).await.map_err(failed)?;
        Ok::<_, CommandFailure>((head.columns, rows))
    };
    let (columns, rows) = am_client::runtime()?.block_on(read)?;
    if rows.is_empty() {
        return Err(without_record(url));
    }
    let texts: Vec<Vec<Option<Vec<u8>>>> =
        rows.iter().map(|row| row.iter().map(shown).collect()).collect();
    let sampled: Vec<SampledColumn<'_>> = columns
        .iter()
        .enumerate()
        .map(|(place, column)| {
            let cell = |row: usize| match &rows[row][place] {
                FirstValue::Number(number) => Cell::Number(*number),
                _ => texts[row][place].as_deref().map_or(Cell::Missing, Cell::Text),
            };
            SampledColumn { column: column.clone(), values: (0..rows.len()).map(cell).collect() }
        })
        .collect();
    let proposed = ProposedTable::new(args, url, &sampled)?;
    proposed.show(args, format, None, json, |place, row, encoder, found| {
        let name = &proposed.schema.columns[place].name;
        let column = columns.iter().position(|column| column.name == *name);
        let value = column.map_or(&FirstValue::Missing, |column| &rows[row][column]);
        match value {
            FirstValue::Missing => encoder.cell(place, Cell::Missing, found),
            FirstValue::Number(number) => encoder.cell(place, Cell::Number(*number), found),
            FirstValue::Text(text) => encoder.cell(place, Cell::Text(text), found),
            FirstValue::Items(items) => {
                let seed = key::seed(name);
                items.iter().for_each(|item| encoder.item(place, key::of_text(seed, item), found));
                Ok(())
            }
            FirstValue::Weights(entries) => entries.iter().try_for_each(|(item, value)| {
                let key = key::of_text(key::seed(name), item);
                encoder.weighted_item(place, key, *value, found)
            }),
            FirstValue::Entries(entries) => {
                let mut entries = entries.iter();
                entries.try_for_each(|(index, value)| encoder.entry(place, *index, *value, found))
            }
        }
    })
}

/// A value as an example.
fn shown(value: &FirstValue) -> Option<Vec<u8>> {
    match value {
        FirstValue::Missing | FirstValue::Number(_) => None,
        FirstValue::Text(text) => Some(text.clone()),
        FirstValue::Items(items) => Some(items.join(LIST_SEPARATOR.as_bytes())),
        FirstValue::Weights(entries) => {
            let keys: Vec<&[u8]> = entries.iter().map(|(key, _)| &key[..]).collect();
            Some(keys.join(LIST_SEPARATOR.as_bytes()))
        }
        FirstValue::Entries(entries) => {
            let pair = |(index, value): &(u64, f64)| format!("{index}:{value}");
            Some(entries.iter().map(pair).collect::<Vec<_>>().join(" ").into_bytes())
        }
    }
}
