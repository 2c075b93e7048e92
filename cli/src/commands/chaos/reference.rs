//! The model of an undisturbed run, with which that of a disturbed one is compared.

use std::collections::BTreeMap;

use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::model::{MODEL_FILE, ModelFile};
use heddle_storage::read_small;

use crate::commands::checkpoint_source::{location, reached, unusable};
use crate::failure::{CommandFailure, OrFail};

/// Longest `MODEL.json` that is read.
const MODEL_FILE_BYTES_MAX: usize = 1 << 20;

/// Length and MD5 of each file of a published model, by name.
pub type ModelSums = BTreeMap<String, (u64, String)>;

/// Reads the sums of the model in a folder.
///
/// # Errors
/// There is no model, or it cannot be read.
pub async fn read(folder: &str) -> Result<ModelSums, CommandFailure> {
    let place = location(folder)?;
    let storage = reached(&place).await?;
    let file = place
        .path()
        .join(MODEL_FILE)
        .or_fail(ExitCode::Input, format_args!("{folder:?} is not a folder"))?;
    let json = read_small(&*storage, &file, MODEL_FILE_BYTES_MAX).await;
    let json = json.or_fail_with(unusable, format_args!("cannot read the model in {place}"))?;
    let model = ModelFile::from_json(&json)
        .or_fail(ExitCode::Input, format_args!("{place} has no model"))?;
    Ok(model.files.into_iter().map(|file| (file.name, (file.bytes, file.md5))).collect())
}
