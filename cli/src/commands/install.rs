//! `heddle install`: stores the program in the site's directory on HDFS, from where the containers of all users' jobs get
//! it (`submit.binary-dir`).
//!
//! Earlier programs stay, since jobs that run may start containers from them. [`crate::program_dir`] has the rules.

use heddle_am::report::format;
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::job_spec::Location;

use crate::cluster::ClusterContext;
use crate::failure::{CommandFailure, CommandResult};
use crate::job_file::working_dir;
use crate::program::{self, Program};
use crate::program_dir::{ProgramDir, StoredProgram};
use crate::{am_client, output, site_defaults};

/// The key that names the directory.
const KEY: &str = "submit.binary-dir";

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Install into this directory [default: submit.binary-dir of the site's defaults]
    #[arg(long, value_name = "HDFS_URL")]
    dir: Option<String>,
    /// Install this program [default: submit.binary of the site's defaults, or the running program]
    #[arg(long, value_name = "PATH")]
    binary: Option<std::path::PathBuf>,
    /// Check everything and show what would be installed; write nothing
    #[arg(long)]
    dry_run: bool,
}

/// What an installation does, or would do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Installation {
    /// The program is there already.
    Present,
    /// It is sent, or gets its record.
    Needed,
}

pub fn install(args: &Args, json: bool) -> CommandResult {
    let place = place(args)?;
    let program = program::read(binary(args)?.as_deref())?;
    am_client::runtime()?.block_on(async {
        let cluster = ClusterContext::load()?;
        let place = cluster.whole(&place)?;
        cluster.reach().await?;
        let dir = ProgramDir::shared(place)?;
        check(&dir, &program).await?;
        let needed = match args.dry_run {
            true => needed(&dir, &program).await?,
            false => stored(&dir, &program).await?,
        };
        print(&dir, &program, needed, args.dry_run, json)?;
        Ok(ExitCode::Ok)
    })
}

/// The directory of the command line, or of the site.
fn place(args: &Args) -> Result<Location, CommandFailure> {
    let given = match &args.dir {
        Some(dir) => Some((dir.clone(), "--dir")),
        None => site_defaults::text(KEY)?.map(|dir| (dir, KEY)),
    };
    let Some((dir, from)) = given else {
        let fact = format!("the directory for programs is unknown: {KEY} is not set");
        return Err(CommandFailure::new(ExitCode::Input, fact).next(format!(
            "set {KEY} = \"hdfs:///apps/heddle\" in heddle-defaults.toml, or give --dir"
        )));
    };
    let refused = |cause: String| {
        let mut failure = CommandFailure::new(
            ExitCode::Input,
            format!("{from} must be a directory on HDFS, such as hdfs:///apps/heddle (got {dir})"),
        );
        failure.causes.extend((!cause.is_empty()).then_some(cause));
        failure
    };
    let location =
        Location::resolve(&dir, &working_dir()?).map_err(|error| refused(error.to_string()))?;
    match location.as_local() {
        Some(_) => Err(refused(String::new())),
        None => Ok(location),
    }
}

fn binary(args: &Args) -> Result<Option<std::path::PathBuf>, CommandFailure> {
    match &args.binary {
        Some(binary) => Ok(Some(binary.clone())),
        None => Ok(site_defaults::text("submit.binary")?.map(Into::into)),
    }
}

/// Rejects a directory whose programs some users could not read, or every user could replace.
async fn check(dir: &ProgramDir, program: &Program) -> Result<(), CommandFailure> {
    dir.shared_by_all().await?.map_err(|[fact, next]| {
        let place = dir.place_of(program);
        CommandFailure::new(ExitCode::Input, format!("cannot install {place}: {fact}")).next(next)
    })
}

async fn needed(dir: &ProgramDir, program: &Program) -> Result<Installation, CommandFailure> {
    Ok(match dir.find(program).await? {
        StoredProgram::Recorded(_) => Installation::Present,
        StoredProgram::Unproven(_) | StoredProgram::Missing => Installation::Needed,
    })
}

async fn stored(dir: &ProgramDir, program: &Program) -> Result<Installation, CommandFailure> {
    let denied = |failure: CommandFailure| match failure.exit {
        ExitCode::Denied if failure.next.is_empty() => failure.next(
            "run heddle install as a user who may write there, such as an administrator of HDFS",
        ),
        _ => failure,
    };
    dir.create().await.map_err(denied)?;
    let before = needed(dir, program).await?;
    let (entry, _sent) = dir.store(program).await.map_err(denied)?;
    // Another user may own the directory, and one of the directories above may have changed meanwhile.
    check(dir, program).await?;
    if dir.is_readable_by_all(&entry).await? {
        return Ok(before);
    }
    let place = dir.place_of(program);
    let fact = format!("{place} must be readable by all users and not writable by them");
    Err(CommandFailure::new(ExitCode::Input, fact)
        .next(format!("hdfs dfs -chmod 644 {}", place.path())))
}

fn print(
    dir: &ProgramDir,
    program: &Program,
    installation: Installation,
    dry_run: bool,
    json: bool,
) -> Result<(), CommandFailure> {
    let place = dir.place_of(program);
    let is_needed = installation == Installation::Needed;
    if json {
        return output::json(&serde_json::json!({
            "program": place.to_string(),
            "from": program.path,
            "sha256": program.digest,
            "bytes": program.bytes,
            "installed": is_needed && !dry_run,
            "present": !is_needed,
        }));
    }
    if let Some(note) = &program.note {
        output::note(note);
    }
    let from = program.path.display();
    let size = format::size(program.bytes);
    output::line(&match (installation, dry_run) {
        (Installation::Present, _) => format!("{place} is installed already ({size})"),
        (Installation::Needed, true) => format!("would install {from} ({size}) as {place}"),
        (Installation::Needed, false) => format!("installed {from} ({size}) as {place}"),
    })?;
    if site_defaults::text(KEY)?.is_none() {
        let parent = dir.place_of(program).parent_and_name().map(|(dir, _)| dir.to_string());
        output::note(&format!(
            "jobs use it with {KEY} = {:?} in heddle-defaults.toml",
            parent.unwrap_or_default()
        ));
    }
    Ok(())
}
