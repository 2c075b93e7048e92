//! The values of a published model that has one dense table, as counting jobs have.

use std::path::Path;

use heddle_protocol::model::ModelFile;

/// The values of the model that `MODEL.json` in a folder names, in the order of their rows.
///
/// # Panics
/// There is no such model, or its safetensors file is not the one that it names.
#[must_use]
pub fn published_counts(dir: &Path) -> Vec<f32> {
    let json = std::fs::read(dir.join("MODEL.json")).expect("a published model");
    let model = ModelFile::from_json(&json).expect("a model file");
    let [file] = &model.files[..] else { panic!("{model:?}") };
    let bytes = std::fs::read(dir.join(&model.dir).join(&file.name)).expect("the file it names");
    assert_eq!(bytes.len() as u64, file.bytes);
    // A length, a JSON header, then the values.
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")) as usize;
    bytes[header..].as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}
