//! Where kept segments are: in memory, or in a file without a name, which ends with the process however that ends.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{FallocateFlags, fallocate};

/// Where a cache keeps its segments.
#[derive(Debug)]
pub(super) enum CachePlace {
    Memory,
    Disk(CacheFile),
}

/// A file to which segments are appended. Those that are dropped become holes in it.
#[derive(Debug)]
pub(super) struct CacheFile {
    file: File,
    end: AtomicU64,
}

/// Some blocks of a task.
#[derive(Debug)]
pub(super) enum CacheSegment {
    Memory(Box<[u8]>),
    Disk(DiskSegment),
}

/// A range of the file.
#[derive(Debug)]
pub(super) struct DiskSegment {
    offset: u64,
    bytes: usize,
    crc: u32,
}

impl CachePlace {
    /// A file in a folder.
    pub(super) fn on_disk(folder: &Path) -> io::Result<Self> {
        let path = folder.join(format!("cache-{}", std::process::id()));
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path)?;
        fs::remove_file(&path)?;
        Ok(Self::Disk(CacheFile { file, end: AtomicU64::new(0) }))
    }

    /// Keeps a segment.
    pub(super) fn keep(&self, bytes: &[u8]) -> io::Result<CacheSegment> {
        let Self::Disk(CacheFile { file, end }) = self else {
            return Ok(CacheSegment::Memory(bytes.into()));
        };
        let offset = end.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        file.write_all_at(bytes, offset)?;
        let crc = crc32fast::hash(bytes);
        Ok(CacheSegment::Disk(DiskSegment { offset, bytes: bytes.len(), crc }))
    }

    /// The bytes of a segment; those on disk are read into `read`, unless `is_read`.
    pub(super) fn bytes<'b>(
        &self,
        segment: &'b CacheSegment,
        is_read: bool,
        read: &'b mut Vec<u8>,
    ) -> io::Result<&'b [u8]> {
        match (segment, self) {
            (CacheSegment::Memory(bytes), _) => Ok(bytes),
            (CacheSegment::Disk(DiskSegment { offset, bytes, crc }), Self::Disk(cache))
                if !is_read =>
            {
                read.resize(*bytes, 0);
                cache.file.read_exact_at(read, *offset)?;
                if crc32fast::hash(read) != *crc {
                    return Err(io::Error::new(ErrorKind::InvalidData, "its checksum differs"));
                }
                Ok(read)
            }
            (CacheSegment::Disk(_), _) => Ok(read),
        }
    }

    /// Changes a byte of the file.
    #[cfg(test)]
    pub(super) fn damage(&self) {
        if let Self::Disk(cache) = self {
            cache.file.write_all_at(&[0xff], 7).expect("written");
        }
    }

    /// Gives the space of a segment back.
    pub(super) fn free(&self, segment: &CacheSegment) {
        if let (CacheSegment::Disk(DiskSegment { offset, bytes, .. }), Self::Disk(cache)) =
            (segment, self)
        {
            let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            // A file system without holes keeps the bytes until the process ends.
            let _ = fallocate(&cache.file, hole, *offset, *bytes as u64);
        }
    }
}
