//! Writes the generated click log for `job.toml` beside it.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Parser;
use click_log::{ClickLog, Shape, Split};

/// Generate a click log with a known model: train.libsvm and test.libsvm.
#[derive(Parser)]
struct ClickLogArgs {
    /// Directory for the files; it is created.
    directory: PathBuf,
    /// Records to train on.
    #[arg(long, default_value_t = 2_000_000)]
    rows: u64,
    /// Records to evaluate on.
    #[arg(long, default_value_t = 100_000)]
    test_rows: u64,
    /// Fields of a record.
    #[arg(long, default_value_t = 40, value_parser = clap::value_parser!(u32).range(2..=4096))]
    fields: u32,
    /// Features; `model.features` of the job must be as large.
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(64..))]
    features: u32,
    /// The same seed gives the same bytes.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Also write the same records for Vowpal Wabbit: train.vw and test.vw.
    #[arg(long)]
    vw: bool,
}

fn main() -> anyhow::Result<()> {
    let args = ClickLogArgs::parse();
    let directory = &args.directory;
    std::fs::create_dir_all(directory)
        .with_context(|| format!("cannot create {}", directory.display()))?;
    for (split, name, rows) in
        [(Split::Train, "train", args.rows), (Split::Test, "test", args.test_rows)]
    {
        let shape = Shape { fields: args.fields, features: args.features };
        let clicks = write(ClickLog::new(shape, args.seed, split), rows, &args, name)?;
        println!("{name}: {rows} records, {clicks} clicks");
    }
    Ok(())
}

/// Writes the files of a split. Returns the number of clicks.
fn write(mut log: ClickLog, rows: u64, args: &ClickLogArgs, name: &str) -> anyhow::Result<u64> {
    let mut libsvm = RecordFile::create(&args.directory.join(format!("{name}.libsvm")))?;
    let vw = args.directory.join(format!("{name}.vw"));
    let mut vw = args.vw.then(|| RecordFile::create(&vw)).transpose()?;
    let (mut line, mut clicks) = (Vec::new(), 0);
    for _ in 0..rows {
        let record = log.next_record();
        clicks += u64::from(record.clicked);
        line.clear();
        record.write_libsvm(&mut line);
        libsvm.write(&line)?;
        if let Some(vw) = &mut vw {
            line.clear();
            record.write_vw(&mut line);
            vw.write(&line)?;
        }
    }
    libsvm.close()?;
    vw.map_or(Ok(()), RecordFile::close)?;
    Ok(clicks)
}

/// A file whose errors name it.
struct RecordFile {
    file: BufWriter<File>,
    path: String,
}

impl RecordFile {
    fn create(path: &Path) -> anyhow::Result<Self> {
        let file =
            File::create(path).with_context(|| format!("cannot create {}", path.display()))?;
        Ok(Self { file: BufWriter::with_capacity(1 << 20, file), path: path.display().to_string() })
    }

    fn write(&mut self, line: &[u8]) -> anyhow::Result<()> {
        self.file.write_all(line).with_context(|| format!("cannot write {}", self.path))
    }

    fn close(mut self) -> anyhow::Result<()> {
        self.file.flush().with_context(|| format!("cannot write {}", self.path))
    }
}
