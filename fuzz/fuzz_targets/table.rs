//! Tables of text from arbitrary bytes: columns, the rules that are proposed for them, and the features of records.
#![no_main]

use heddle_columns::{Encoder, propose, resolve};
use heddle_input::TextTable;
use heddle_protocol::job_spec::columns::Header;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(table) = TextTable::read(bytes, true, Header::Auto, b',', false) else { return };
    let columns = table.columns();
    let proposal = propose(&columns, None);
    let all: Vec<_> = columns.iter().map(|column| column.column.clone()).collect();
    let Ok(schema) = resolve(&all, &proposal.roles, &proposal.rules, &[]) else { return };
    let mut encoder = Encoder::unscaled(&schema);
    for record in 0..table.records() {
        let mut features = Vec::new();
        for (place, feature) in schema.columns.iter().enumerate() {
            let column = columns.iter().find(|column| column.column.name == feature.name);
            let cell = column.expect("the schema is of these columns").values[record];
            if encoder.cell(place, cell, &mut features).is_err() {
                encoder.drop_record();
                break;
            }
        }
        encoder.end_record(&mut features);
        assert!(features.iter().all(|(_, value)| value.is_finite()));
    }
});
