//! Packings of text files: the table of them, and what unpacks a file piece by piece in bounded memory. The packing of a file
//! follows from its name, of a stream from its first bytes.

mod bzip2;
mod gzip;
mod parts;
mod snappy;
mod unpacker;
mod zstd;

use heddle_protocol::manifest::Compression;

use self::parts::{PackedParts, PartDecoder};
pub use self::unpacker::{UnpackError, Unpacker};

/// [`unpack_beginning`] ends at this number of bytes: 256 times those that are packed, in the sample of a job's data.
const BEGINNING_BYTES_MAX: usize = 64 << 20;

/// A row of the table.
#[derive(Debug)]
pub struct Packing {
    compression: Compression,
    /// Its name, as users write it.
    pub name: &'static str,
    /// How names of files end that are packed so.
    pub suffix: &'static str,
    /// Whether a file with these first bytes is packed so.
    pub begins: fn(&[u8]) -> bool,
    /// What unpacks a file from its beginning.
    pub unpacker: fn() -> Box<dyn Unpacker>,
}

/// The table. Snappy's files begin with a length, so a stream of it is taken for text.
static PACKINGS: [Packing; 4] = [
    of_parts::<gzip::Gzip>(Compression::Gzip, ".gz"),
    of_parts::<zstd::Zstd>(Compression::Zstd, ".zst"),
    of_parts::<bzip2::Bzip2>(Compression::Bzip2, ".bz2"),
    Packing {
        compression: Compression::Snappy,
        name: snappy::NAME,
        suffix: ".snappy",
        begins: |_| false,
        unpacker: || Box::new(snappy::Snappy::default()),
    },
];

const fn of_parts<D: PartDecoder + 'static>(
    compression: Compression,
    suffix: &'static str,
) -> Packing {
    let unpacker: fn() -> Box<dyn Unpacker> = || Box::new(PackedParts::<D>::default());
    Packing { compression, name: D::PACKING, suffix, begins: D::begins, unpacker }
}

/// The packing of files of this name.
pub fn packing_of_name(name: &str) -> Option<&'static Packing> {
    PACKINGS.iter().find(|packing| name.ends_with(packing.suffix))
}

/// The packing of a file with these first bytes.
pub fn packing_of_start(start: &[u8]) -> Option<&'static Packing> {
    PACKINGS.iter().find(|packing| (packing.begins)(start))
}

/// The row of a compression, unless it is plain text.
pub fn packing_of(compression: Compression) -> Option<&'static Packing> {
    PACKINGS.iter().find(|packing| packing.compression == compression)
}

/// How a file is packed, by the end of its name: `.gz`, `.zst`, `.bz2`, `.snappy`.
#[must_use]
pub fn compression_of(name: &str) -> Compression {
    packing_of_name(name).map_or(Compression::None, |packing| packing.compression)
}

/// A file's name without the end that its packing has.
#[must_use]
pub fn unpacked_name(name: &str) -> &str {
    packing_of_name(name).map_or(name, |packing| &name[..name.len() - packing.suffix.len()])
}

/// All packings with their suffixes, for a message.
pub fn packings() -> String {
    let [first @ .., last] =
        PACKINGS.each_ref().map(|row| format!("{} ({})", row.name, row.suffix));
    format!("{} or {last}", first.join(", "))
}

/// The text of the beginning of a file, up to damage, which the reader of the file reports.
#[must_use]
pub fn unpack_beginning(compression: Compression, mut packed: &[u8]) -> Vec<u8> {
    let Some(packing) = packing_of(compression) else {
        return packed.to_vec();
    };
    let (mut unpacker, mut text) = ((packing.unpacker)(), Vec::new());
    while text.len() < BEGINNING_BYTES_MAX
        && matches!(unpacker.step(&mut packed, &mut text), Ok(false))
    {}
    text
}

#[cfg(test)]
pub(crate) mod tests;
