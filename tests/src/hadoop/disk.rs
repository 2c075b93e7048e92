//! The copies of a file's blocks on the DataNodes' disks, to damage them there.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::cluster::Cluster;

/// Bytes of a checksum file before the first sum: version, kind (`BlockMetadataHeader`, `DataChecksum`).
const META_HEADER: u64 = 7;
/// Kind of sum in that header: CRC32C.
const CRC32C: u8 = 2;

/// One block of a file.
#[derive(Debug)]
pub struct Block {
    /// Its id.
    pub id: u64,
    /// Its copies.
    pub replicas: Vec<Replica>,
    /// The names of the DataNodes that the NameNode reports for it.
    pub hosts: Vec<String>,
}

/// One copy of a block.
#[derive(Debug)]
pub struct Replica {
    /// The number of its DataNode.
    pub datanode: u8,
    /// The file on that DataNode's disk.
    pub file: PathBuf,
}

impl Cluster {
    /// The blocks of a file, in order, with the copies that are on disks now.
    ///
    /// # Errors
    /// There is no such file.
    pub fn blocks(&self, path: &str) -> Result<Vec<Block>> {
        let reply = self.webhdfs("GET", path, "GET_BLOCK_LOCATIONS")?;
        let reply: serde_json::Value = serde_json::from_str(&reply)?;
        let located = reply["LocatedBlocks"]["locatedBlocks"]
            .as_array()
            .with_context(|| format!("no blocks of {path}: {reply}"))?;
        let mut blocks = Vec::new();
        for block in located {
            let id = block["block"]["blockId"]
                .as_u64()
                .with_context(|| format!("no block id: {block}"))?;
            let mut replicas = Vec::new();
            for datanode in 1..=3 {
                let data = self.dir.join(format!("dn{datanode}/data"));
                if let Some(file) = find(&data, &format!("blk_{id}")) {
                    replicas.push(Replica { datanode, file });
                }
            }
            let hosts = block["locations"].as_array().into_iter().flatten();
            let hosts = hosts.filter_map(|host| host["hostName"].as_str()).map(str::to_owned);
            blocks.push(Block { id, replicas, hosts: hosts.collect() });
        }
        Ok(blocks)
    }
}

impl Replica {
    /// Changes one byte, which every reader detects by HDFS's own sums.
    ///
    /// # Errors
    /// The block is shorter; the disk.
    pub fn damage(&self, offset: u64) -> Result<()> {
        let file = fs::File::options().read(true).write(true).open(&self.file)?;
        let mut byte = [0];
        file.read_exact_at(&mut byte, offset)
            .with_context(|| format!("no byte {offset} in {}", self.file.display()))?;
        file.write_all_at(&[byte[0] ^ 1], offset)?;
        Ok(())
    }

    /// Changes one byte and HDFS's sum of it: only a sum of ours can notice.
    ///
    /// # Errors
    /// The block is shorter or has sums of another kind; the disk.
    pub fn damage_unnoticed(&self, offset: u64) -> Result<()> {
        self.damage(offset)?;
        let meta = fs::File::options().read(true).write(true).open(self.meta()?)?;
        let mut header = [0; META_HEADER as usize];
        meta.read_exact_at(&mut header, 0)?;
        ensure!(header[2] == CRC32C, "sums of kind {} and not CRC32C", header[2]);
        let chunk = u64::from(u32::from_be_bytes([header[3], header[4], header[5], header[6]]));
        let index = offset / chunk;
        let bytes = fs::read(&self.file)?;
        let from = usize::try_from(index * chunk)?;
        let to = bytes.len().min(from + usize::try_from(chunk)?);
        let sum = crc32c(&bytes[from..to]);
        meta.write_all_at(&sum.to_be_bytes(), META_HEADER + 4 * index)?;
        Ok(())
    }

    /// The file of the block's sums: `blk_<id>_<generation stamp>.meta` beside it.
    fn meta(&self) -> Result<PathBuf> {
        let name = self.file.file_name().context("a file")?.to_string_lossy();
        let prefix = format!("{name}_");
        fs::read_dir(self.file.parent().context("in a folder")?)?
            .flatten()
            .map(|entry| entry.path())
            .find(|path| {
                path.extension().is_some_and(|ending| ending == "meta")
                    && path
                        .file_name()
                        .is_some_and(|name| name.to_string_lossy().starts_with(&prefix))
            })
            .with_context(|| format!("no sums beside {}", self.file.display()))
    }
}

/// The file of this name somewhere below `dir`.
fn find(dir: &Path, name: &str) -> Option<PathBuf> {
    for entry in fs::read_dir(dir).ok()?.flatten() {
        let path = entry.path();
        if path.is_dir() {
            if let Some(found) = find(&path, name) {
                return Some(found);
            }
        } else if entry.file_name() == name {
            return Some(path);
        }
    }
    None
}

/// CRC-32C (Castagnoli), reflected, as HDFS has it. Slow and short: it sums chunks of 512 bytes.
fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |sum: u32, byte| {
        (0..8).fold(sum ^ u32::from(*byte), |sum, _| {
            (sum >> 1) ^ (0x82f6_3b78 & (sum & 1).wrapping_neg())
        })
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_sum_is_that_of_rfc_3720() {
        assert_eq!(super::crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(super::crc32c(&[0; 32]), 0x8a91_36aa);
    }
}
