//! The parts of input files, which the command that starts a job hands to its ApplicationMaster: it reads the heads of files
//! again only if one has changed in between.

use heddle_input::FileParts;
use heddle_protocol::manifest::{InputFile, InputPlan};
use heddle_protocol::plan_file::PlanFile;
use serde::{Deserialize, Serialize};

/// Files and parts that are handed over, together: some 20 bytes each in a file that commands read.
const PARTS_MAX: usize = 50_000;

/// The first bytes of the parts of all input files (Parquet: row groups).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownParts {
    /// SHA-256 of the files, with their versions.
    files: String,
    /// Of each file.
    parts: Vec<Vec<u64>>,
}

impl KnownParts {
    /// Takes the parts of these files, unless there are too many.
    pub(crate) fn from_files(files: &[InputFile], parts: &FileParts) -> Option<Self> {
        let known: Vec<_> =
            files.iter().map(|file| parts.get(&file.url).cloned().unwrap_or_default()).collect();
        let count = known.iter().map(|parts| 1 + parts.len()).sum::<usize>();
        (count <= PARTS_MAX).then_some(Self { files: digest(files)?, parts: known })
    }

    /// The same by the URLs of these files, if they are the same files in the same versions.
    pub(crate) fn by_url(&self, files: &[InputFile]) -> Option<FileParts> {
        if digest(files)? != self.files || files.len() != self.parts.len() {
            return None;
        }
        let urls = files.iter().map(|file| file.url.clone());
        Some(urls.zip(self.parts.iter().cloned()).collect())
    }
}

/// Of the files alone.
fn digest(files: &[InputFile]) -> Option<String> {
    let plan = InputPlan { files: files.to_vec(), train: Vec::new(), test: Vec::new() };
    PlanFile::of(&plan, "").ok().map(|(file, _)| file.sha256)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_known_of_unchanged_files() {
        let file = |name: &str, modified_ms| InputFile {
            url: format!("hdfs://nn/{name}"),
            bytes: 100,
            modified_ms,
            compression: Default::default(),
        };
        let files = [file("a", 1), file("b", 2)];
        let parts = FileParts::from([(files[0].url.clone(), vec![4, 50])]);
        let known = KnownParts::from_files(&files, &parts).expect("few");
        let found = known.by_url(&files).expect("the same");
        assert_eq!(found.get("hdfs://nn/a"), Some(&vec![4, 50]));
        assert_eq!(found.get("hdfs://nn/b"), Some(&Vec::new()));
        assert_eq!(known.by_url(&[file("a", 1), file("b", 3)]), None);
        assert_eq!(known.by_url(&files[..1]), None);
        let many = FileParts::from([(files[0].url.clone(), vec![4; PARTS_MAX])]);
        assert_eq!(KnownParts::from_files(&files, &many), None);
    }
}
