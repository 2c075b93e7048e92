//! Parquet on HDFS: what a pass reads, and what it asks the NameNode.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use heddle_tests::hadoop::{Cluster, Daemon, Options};
use heddle_tests::hdfs_job::{HdfsJob, Shape};
use parquet::data_type::{DoubleType, Int32Type};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;

const COLUMNS: usize = 40;
/// Every third column.
const USED: usize = 13;

/// Writes a table with row groups: a label, and columns of random numbers without dictionaries.
fn write(path: &Path, groups: usize, rows: usize, seed: u64) -> Result<()> {
    let columns: String = (0..COLUMNS).map(|n| format!("required double c{n:02};")).collect();
    let schema = parse_message_type(&format!("message m {{ {columns} required int32 label; }}"))?;
    let properties = WriterProperties::builder().set_dictionary_enabled(false).build();
    let file = std::fs::File::create(path)?;
    let mut writer = SerializedFileWriter::new(file, Arc::new(schema), Arc::new(properties))?;
    let mut state = seed;
    for _ in 0..groups {
        let mut group = writer.next_row_group()?;
        for _ in 0..COLUMNS {
            let mut column = group.next_column()?.context("a column")?;
            let values: Vec<f64> = (0..rows)
                .map(|_| {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    (state >> 40) as f64 / 1e6
                })
                .collect();
            column.typed::<DoubleType>().write_batch(&values, None, None)?;
            column.close()?;
        }
        let mut column = group.next_column()?.context("a column")?;
        let labels: Vec<i32> = (0..rows).map(|row| i32::from(row % 3 == 0)).collect();
        column.typed::<Int32Type>().write_batch(&labels, None, None)?;
        column.close()?;
        group.close()?;
    }
    writer.close()?;
    Ok(())
}

/// Uploads `files` tables with `groups` row groups of `rows` rows, and writes a job that uses [`USED`] of their columns.
fn tables<'c>(
    cluster: &'c Cluster,
    name: &str,
    files: u64,
    groups: usize,
    rows: usize,
) -> Result<HdfsJob<'c>> {
    let job = HdfsJob::new(cluster, name, Shape { local_data: true, ..Shape::passes(1) })?;
    let folder = job.path().join("tables");
    std::fs::create_dir_all(&folder)?;
    for file in 0..files {
        write(&folder.join(format!("{file:03}.parquet")), groups, rows, file + 1)?;
    }
    job.upload(&folder, "tables")?;
    let used: Vec<String> = (0..USED).map(|n| format!("\"c{:02}\"", 3 * n)).collect();
    let text = format!(
        "name = \"{name}\"\n[data]\ntrain = \"hdfs://{}/tables/*.parquet\"\nformat = \"parquet\"\n\
         label = \"label\"\n[[data.columns]]\nnames = [{}]\nas = \"number\"\nscale = \"none\"\n\
         [[data.columns]]\nnames = [\"*\"]\nas = \"ignore\"\n\
         [model]\nfeatures = 1000\nl2 = 0.001\n[training]\nlanes = 4\nbatch = 64\n\
         [trainers]\nmin = 2\nmax = 2\n[pservers]\ncount = 1\nshards = 1\n\
         [checkpoint]\ndir = \"ckpt\"\n[output]\nmodel = \"model\"\n",
        job.root,
        used.join(", ")
    );
    std::fs::write(job.path().join("tables.toml"), text)?;
    Ok(job)
}

/// Runs the job with this number of passes.
fn run(job: &HdfsJob<'_>, passes: u32, set: &str) -> Result<()> {
    let passes = format!("data.passes={passes}");
    let arguments =
        ["run", "tables.toml", "--set", &passes, "--set", set, "--fresh", "--overwrite"];
    let ended = job.heddle(&arguments)?;
    ensure!(ended.code == Some(0), "{ended:?}");
    Ok(())
}

/// The sum of numbers of a daemon's beans, by the ends of their names.
fn figure(cluster: &Cluster, daemon: Daemon, bean: &str, names: &[&str]) -> Result<u64> {
    // Daemons renew them each second.
    std::thread::sleep(Duration::from_millis(1_500));
    let answer = cluster.jmx(daemon, bean)?;
    let beans = answer["beans"].as_array().context("beans")?;
    let numbers = beans.iter().filter_map(|bean| bean.as_object()).flatten();
    Ok(numbers
        .filter(|(name, _)| names.contains(&name.as_str()))
        .filter_map(|(_, n)| n.as_u64())
        .sum())
}

/// Calls of all processes of a job: the command, the ApplicationMaster and the trainers.
#[test]
fn later_passes_ask_the_namenode_once_for_a_file_at_most() -> Result<()> {
    let cluster = Cluster::start(Options::hdfs())?;
    for (files, passes, caches) in [(40, 4, &["disk"][..]), (1_000, 2, &["off", "memory"])] {
        let job = tables(&cluster, &format!("calls-{files}"), files, 1, 20)?;
        let calls = |passes, set: &str| {
            let names = ["GetBlockLocationsNumOps", "GetFileInfoNumOps", "GetListingNumOps"];
            let bean = "Hadoop:service=NameNode,name=RpcDetailedActivityForPort*";
            let asked = || figure(&cluster, Daemon::NameNode(1), bean, &names);
            let before = asked()?;
            run(&job, passes, set)?;
            anyhow::Ok(asked()? - before)
        };
        let one = calls(1, "data.cache=off")?;
        println!("{one} calls with one pass over {files} files");
        // For its blocks, by the command and by a trainer. Each process finds files and their inodes besides.
        ensure!(one <= 2 * files + 150, "{one} calls over {files} files");
        for cache in caches {
            let all = calls(passes, &format!("data.cache={cache}"))?;
            println!("data.cache={cache}: {all} calls with {passes} passes over {files} files");
            // For its status, unless its blocks are known.
            let later = if *cache == "off" { 0 } else { u64::from(passes - 1) * files };
            ensure!(all <= one + later + 50, "data.cache={cache}: {one} and {all} calls");
        }
    }
    Ok(())
}

/// By row groups, of which each lane has one, and within one row group that all lanes share: pages at the ends of their parts are
/// read twice.
#[test]
fn columns_and_pages_that_are_not_used_are_not_read() -> Result<()> {
    let cluster = Cluster::start(Options::hdfs())?;
    let bytes = || {
        let bean = "Hadoop:service=DataNode,name=DataNodeActivity-*";
        let of = |n| figure(&cluster, Daemon::DataNode(n), bean, &["BytesRead"]);
        anyhow::Ok(of(1)? + of(2)? + of(3)?)
    };
    for (name, groups, rows, percent) in [("groups", 4, 60_000, 110), ("pages", 1, 240_000, 150)] {
        let job = tables(&cluster, name, 1, groups, rows)?;
        let before = bytes()?;
        run(&job, 1, "data.cache=off")?;
        let one = bytes()? - before;
        run(&job, 3, "data.cache=off")?;
        let pass = (bytes()? - before - 2 * one) / 2;
        let used = (groups * rows * (8 * USED + 4)) as u64;
        println!("{name}: {pass} bytes of {used} in a pass, {one} in the first");
        ensure!(pass * 100 <= used * percent, "{name}: {pass} bytes of {used}");
    }
    Ok(())
}
