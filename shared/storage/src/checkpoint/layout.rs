//! The names in a checkpoint directory. Names outside this grammar belong to others; Heddle never touches them.

use heddle_protocol::ids::{CutId, Generation};
use uuid::Uuid;

/// The marker of a directory of Heddle.
pub(crate) const MARKER: &str = "HEDDLE";
/// Directory of the claims.
pub(crate) const CLAIMS: &str = "claims";
/// Directory of the journals.
pub(crate) const JOURNAL: &str = "journal";
/// Directory of checkpoints that are being written or deleted.
pub(crate) const STAGING: &str = ".staging";
/// Directory of damaged checkpoints.
pub(crate) const DAMAGED: &str = "damaged";
/// File name of a checkpoint's manifest.
pub(crate) const MANIFEST: &str = "MANIFEST.json";

/// Parses `17`, and neither `017` nor `+17`: one number has one name.
fn number(text: &str) -> Option<u32> {
    let plain =
        !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) && !text.starts_with('0');
    if plain { text.parse().ok() } else { None }
}

/// Parses `g2`. Generation 0 has no name.
pub(crate) fn generation_of(name: &str) -> Option<Generation> {
    number(name.strip_prefix('g')?).map(Generation)
}

/// Parses `g2-c5`, the name of a checkpoint.
pub(crate) fn cut_of(name: &str) -> Option<CutId> {
    let (generation, cut) = name.split_once("-c")?;
    Some(CutId { generation: generation_of(generation)?, number: number(cut)? })
}

/// A name below `.staging/g<n>/`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StagingEntry {
    /// `c5-<uuid>`: cut 5, being written.
    Cut(u32),
    /// `trash-g1-c1-<uuid>`: being deleted.
    Trash(CutId),
    /// `old-g1-<uuid>`: the staging directory of an earlier generation, being deleted.
    Old(Generation),
    /// `probe-g2-<uuid>`: scratch of a start-up probe that saw generation 2 as the highest claim;
    /// `probe-<uuid>`: one that saw no claim.
    Probe(Option<Generation>),
}

fn is_uuid(text: &str) -> bool {
    Uuid::try_parse(text).is_ok_and(|uuid| uuid.simple().to_string() == text)
}

/// Parses a name below `.staging/g<n>/`.
pub(crate) fn staged_of(name: &str) -> Option<StagingEntry> {
    let (what, uuid) = name.rsplit_once('-')?;
    if !is_uuid(uuid) {
        return None;
    }
    if what == "probe" {
        return Some(StagingEntry::Probe(None));
    }
    if let Some(seen) = what.strip_prefix("probe-") {
        return generation_of(seen).map(|seen| StagingEntry::Probe(Some(seen)));
    }
    if let Some(cut) = what.strip_prefix("trash-") {
        return cut_of(cut).map(StagingEntry::Trash);
    }
    if let Some(generation) = what.strip_prefix("old-") {
        return generation_of(generation).map(StagingEntry::Old);
    }
    number(what.strip_prefix('c')?).map(StagingEntry::Cut)
}

/// Hadoop and users treat names that begin with a point as hidden.
const HIDDEN: &str = ".heddle-";

/// Name of a cut's staging directory.
pub(crate) fn staging_name(cut: CutId, uuid: Uuid) -> String {
    format!("c{}-{}", cut.number, uuid.simple())
}

/// Name of a checkpoint that is being deleted.
pub(crate) fn trash_name(cut: CutId, uuid: Uuid) -> String {
    format!("trash-{cut}-{}", uuid.simple())
}

/// Name of an earlier generation's staging directory that is being deleted.
pub(crate) fn old_name(generation: Generation, uuid: Uuid) -> String {
    format!("old-{generation}-{}", uuid.simple())
}

/// Name of a checkpoint that was moved to `damaged/`.
pub(crate) fn damaged_name(cut: CutId, uuid: Uuid) -> String {
    format!("{cut}-{}", uuid.simple())
}

/// Name of a directory below `damaged/` for single files of a checkpoint that were replaced.
pub(crate) fn damaged_files_name(cut: CutId, uuid: Uuid) -> String {
    format!("files-{}", damaged_name(cut, uuid))
}

/// Parses a name below `damaged/`.
pub(crate) fn damaged_of(name: &str) -> Option<CutId> {
    let (cut, uuid) = name.rsplit_once('-')?;
    if is_uuid(uuid) { cut_of(cut) } else { None }
}

/// Name of the probe's scratch directory; `seen` is the highest claim at that time.
pub(crate) fn probe_name(seen: Option<Generation>, uuid: Uuid) -> String {
    match seen {
        Some(seen) => format!("probe-{seen}-{}", uuid.simple()),
        None => format!("probe-{}", uuid.simple()),
    }
}

/// The same if other files are beside it.
pub(crate) fn hidden_probe_name(uuid: Uuid) -> String {
    format!("{HIDDEN}{}", probe_name(None, uuid))
}

/// Whether a probe beside other files has the name.
pub(crate) fn is_hidden_probe_name(name: &str) -> bool {
    let probe = name.strip_prefix(HIDDEN);
    probe.and_then(staged_of) == Some(StagingEntry::Probe(None))
}

/// The name of the file that a file of sums belongs to, or the name itself.
pub(crate) fn summed_name(name: &str) -> &str {
    let suffixes = [crate::sidecar::SIDECAR_SUFFIX, crate::sidecar::SHA256_SUFFIX];
    suffixes.iter().find_map(|suffix| name.strip_suffix(suffix)).unwrap_or(name)
}

/// Whether a shard's file or sidecar may have a name in a staging directory.
pub(crate) fn is_shard_name(name: &str) -> bool {
    is_shard_file_name(summed_name(name))
}

/// Whether a shard's file may have a name in a checkpoint's directory. The sidecars have other names.
#[must_use]
pub fn is_shard_file_name(name: &str) -> bool {
    name.starts_with("shard-") && name.ends_with(".ckpt")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ID: Uuid = Uuid::from_u128(0x1234);

    fn cut(generation: u32, number: u32) -> CutId {
        CutId { generation: Generation(generation), number }
    }

    #[test]
    fn names_read_back_as_written() {
        assert_eq!(generation_of("g12"), Some(Generation(12)));
        assert_eq!(cut_of(&cut(3, 40).to_string()), Some(cut(3, 40)));
        assert_eq!(staged_of(&staging_name(cut(3, 40), ID)), Some(StagingEntry::Cut(40)));
        assert_eq!(staged_of(&trash_name(cut(3, 40), ID)), Some(StagingEntry::Trash(cut(3, 40))));
        for seen in [None, Some(Generation(3))] {
            let name = probe_name(seen, ID);
            assert_eq!(staged_of(&name), Some(StagingEntry::Probe(seen)), "{name}");
        }
        assert_eq!(damaged_of(&damaged_name(cut(3, 40), ID)), Some(cut(3, 40)));
        let files = damaged_files_name(cut(3, 40), ID);
        assert_eq!(damaged_of(&files), None, "the checkpoint itself stays: {files}");
        assert!(is_hidden_probe_name(&hidden_probe_name(ID)));
        assert!(!is_hidden_probe_name(&probe_name(None, ID)));
    }

    #[test]
    fn other_names_are_foreign() {
        for name in ["g", "g0", "g01", "G1", "g1 ", "g+1", "g4294967296", "h1", "g1-c1"] {
            assert_eq!(generation_of(name), None, "{name}");
        }
        for name in ["g1", "g1-c", "g1-c0", "g1-c01", "g1-c1-", "g1-c1.bak", "g0-c1", "xg1-c1"] {
            assert_eq!(cut_of(name), None, "{name}");
        }
        let id = ID.simple().to_string();
        for name in [
            "c5",
            "c5-",
            "c5-123",
            "trash",
            "probe",
            &format!("x-{id}"),
            &format!("c0-{id}"),
            &format!("trash-g1-{id}"),
            &format!("probe-{id}-{id}"),
            &format!("probe-g0-{id}"),
        ] {
            assert_eq!(staged_of(name), None, "{name}");
        }
    }

    proptest! {
        #[test]
        fn whatever_is_read_is_written_the_same(name in "(g|c|trash-|probe-)?[g0-9a-c-]{0,40}") {
            if let Some(generation) = generation_of(&name) {
                prop_assert_eq!(generation.to_string(), name.clone());
            }
            if let Some(cut) = cut_of(&name) {
                prop_assert_eq!(cut.to_string(), name.clone());
            }
            let _ = (staged_of(&name), damaged_of(&name));
        }
    }
}
