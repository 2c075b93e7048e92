//! `heddle run`: trains a job on this machine and prints its progress.
//!
//! This module decides which run is continued, checks whether the job can succeed, and creates the run directory. The
//! ApplicationMaster runs the job, as a child process that [`follow`] starts.

use std::path::PathBuf;

use heddle_am::input::PlannedInput;
use heddle_am::process::check_files;
use heddle_am::report::format;
use heddle_am::run_dir::{ResumeMode, RunDir, RunDirError, RunFile};
use heddle_am::wall_clock::wall_ms;
use heddle_input::{ValueDecision, parallelism_warning, workers};
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::handshake::Secret;
use heddle_protocol::ids::RunId;
use heddle_protocol::job_spec::file::Job;
use heddle_protocol::job_spec::{Elasticity, JobSpec, PserverSpec, SpecDigest, identity};
use heddle_protocol::manifest::InputPlan;
use heddle_telemetry::descriptors::Limit;
use uuid::Uuid;

use super::decisions::{self, effective_batch};
use super::warm_start;
use crate::am_client;
use crate::failure::{CommandFailure, CommandResult, OrFail};
use crate::job_file::JobArgs;
use crate::output;
use crate::runs::{self, LocalRun, RunRequest};

mod follow;
pub mod preflight;
mod resume;
mod watch;

use preflight::ModelRule;

#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    pub job: JobArgs,
    /// Continue an unfinished run with changed keys, if these may change on resume
    #[arg(long, conflicts_with = "fresh")]
    resume: bool,
    /// With --resume: continue from this mirror of a lost checkpoint directory, in a new one
    #[arg(long, value_name = "MIRROR", requires = "resume")]
    from: Option<String>,
    /// Start over, whatever an earlier run of the job has done
    #[arg(long)]
    fresh: bool,
    /// Replace an existing model when the new one is published
    #[arg(long)]
    overwrite: bool,
    /// Take the checkpoint directory over from a run that still runs
    #[arg(long)]
    take_over: bool,
    /// Stop on Ctrl-C without a last checkpoint
    #[arg(long)]
    no_checkpoint: bool,
    /// Show what would be done; do nothing
    #[arg(long)]
    dry_run: bool,
    /// Folder of run directories [default: run.work-dir, else heddle in the XDG state directory]
    #[arg(long, value_name = "DIR")]
    work_dir: Option<PathBuf>,
}

/// A run before its start.
struct RunPlan {
    id: RunId,
    job: Job,
    work_dir: PathBuf,
    request: RunRequest,
    earlier: ResumeMode,
    /// URL of the mirror that it continues from.
    from: Option<String>,
    input: PlannedInput,
    /// Values that the data has decided.
    decisions: Vec<ValueDecision>,
    /// Notes that are printed before it starts.
    notes: Vec<String>,
    /// What the job's events begin with.
    warnings: Vec<String>,
}

pub fn run(args: Args, json: bool) -> CommandResult {
    let plan = plan(&args)?;
    if args.dry_run {
        return dry_run(&plan, json);
    }
    output::notes(&plan.notes, json);
    if !json {
        decisions::print(&plan.decisions);
    }
    let run = create(&args, &plan)?;
    am_client::runtime()?.block_on(follow::follow(&run, &plan.job.spec, !args.no_checkpoint, json))
}

fn plan(args: &Args) -> Result<RunPlan, CommandFailure> {
    let id = RunId(Uuid::new_v4());
    let mut job = args.job.read(&id.short())?;
    check_files(&job.spec, Limit::hard())
        .map_err(|error| CommandFailure::new(ExitCode::Input, error))?;
    let work_dir = work_dir(args, &job.spec)?;
    let job_file = args.job.absolute()?;
    let mut label = id.short();
    let mut notes = Vec::new();
    if job.default_checkpoint_dir
        && !args.fresh
        && args.from.is_none()
        && let Some(found) = resume::find(&work_dir, &job_file, &job.spec.name)
    {
        let short = found.run.file.run.short();
        // Read again, with the folders of the continued run.
        let mut continued = args.job.read(&found.label)?;
        if let Ok(before) = found.run.dir.spec() {
            identity::keep_defaults(&mut continued.spec, &before, &continued.optimizer_fields);
        }
        match resume::check(&found, &continued.spec, args.resume) {
            Ok(()) => {
                job = continued;
                let was = found.run.state().word();
                notes.push(format!(
                    "continues run {short}, which {was} unfinished; --fresh starts over"
                ));
                label = found.label;
            }
            Err(refusal) => {
                if !am_client::runtime()?.block_on(resume::is_untrained(&found)) {
                    return Err(refusal);
                }
                notes.push(format!(
                    "training starts over: run {short} of this job has other values, and has not trained a step yet"
                ));
            }
        }
    }
    let from = super::checkpoint::mirror_to_continue(args.from.as_deref(), args.take_over);
    let from = am_client::runtime()?.block_on(from)?;
    // A default folder is new, or its run is the one that was found above.
    let stated =
        (!args.fresh && !job.default_checkpoint_dir).then(|| job.spec.checkpoint.dir.url());
    if let Some(dir) = from.clone().or(stated) {
        am_client::runtime()?.block_on(decisions::keep(&mut job, &dir));
    }
    let models = ModelRule::of(args.overwrite, args.fresh);
    let input = match args.dry_run {
        true => preflight::look(&job.spec, models)?,
        false => preflight::check(&job.spec, models)?,
    };
    notes.extend_from_slice(&input.warnings);
    let (init, init_notes) =
        am_client::runtime()?.block_on(warm_start::resolve(&mut job.spec, args.fresh))?;
    notes.extend(init_notes);
    let decisions = decisions::resolve(&mut job.spec, &input, init.as_ref(), &mut notes);
    let decisions = am_client::runtime()?.block_on(decisions)?;
    notes.extend(parallelism_warning(&input.plan, workers(&job.spec)));
    // Controllers are for clusters.
    job.spec.run.elastic = Elasticity::Off;
    let request =
        RunRequest { job_file, label, default_checkpoint_dir: job.default_checkpoint_dir };
    let begins = !args.fresh && from.is_none() && request.label == id.short();
    let warnings = resume::warnings(begins, &work_dir, &request, &job.spec);
    let warnings = am_client::runtime()?.block_on(warnings);
    let earlier = ResumeMode::of(args.fresh, args.resume);
    Ok(RunPlan { id, job, work_dir, request, earlier, from, input, decisions, notes, warnings })
}

/// The folder of run directories, in which one can be made.
fn work_dir(args: &Args, spec: &JobSpec) -> Result<PathBuf, CommandFailure> {
    let given = args.work_dir.as_deref().or(spec.run.work_dir.as_deref());
    let work_dir = runs::work_dir_to_write(given)?;
    preflight::spelling::check("run.work-dir", &work_dir)?;
    Ok(work_dir)
}

fn dry_run(plan: &RunPlan, json: bool) -> CommandResult {
    let spec = &plan.job.spec;
    if json {
        output::json(&serde_json::json!({
            "run_dir": runs::path_of(&plan.work_dir, plan.id.0),
            "digest": SpecDigest::of(spec),
            "effective_batch": spec.effective_batch(),
            "files": plan.input.plan.files.len(),
            "train_bytes": plan.input.plan.train_bytes(),
            "train_tasks": plan.input.plan.train.len(),
            "test_tasks": plan.input.plan.test.len(),
            "decisions": plan.decisions,
            "spec": spec,
        }))?;
        return Ok(ExitCode::Ok);
    }
    for note in &plan.notes {
        output::line(note)?;
    }
    for warning in &plan.warnings {
        output::line(&format!("warning: {warning}"))?;
    }
    let (pservers, trainers) = (&spec.pservers, &spec.trainers);
    let memory = u64::from(pservers.slots()) * pservers.memory.0
        + u64::from(trainers.slots()) * trainers.memory.0
        + spec.am.memory.0;
    let cores =
        pservers.slots() * pservers.vcores + trainers.slots() * trainers.vcores + spec.am.vcores;
    let tables: Vec<String> = spec
        .tables()
        .iter()
        .map(|table| format!("{} [{} × {}]", table.name, format::thousands(table.rows), table.cols))
        .collect();
    let rows = [
        ("job", spec.name.clone()),
        (
            "containers",
            format!(
                "{} pservers{}, {} to {} trainers, the ApplicationMaster{}; at most {cores} vcores and {}",
                pservers.count,
                bounds_in_words(pservers),
                trainers.min,
                trainers.max,
                spares_in_words(spec),
                format::size(memory)
            ),
        ),
        ("tables", format!("{} in {} shards", tables.join(", "), pservers.shards)),
        ("training", effective_batch(spec)),
        ("data", data_in_words(&plan.input.plan)),
        ("checkpoints", format!("{} every {}", spec.checkpoint.dir, spec.checkpoint.every)),
        ("model", spec.output.model.to_string()),
        ("run directory", runs::path_of(&plan.work_dir, plan.id.0).display().to_string()),
    ];
    let rows: Vec<_> = rows.map(|(name, value)| vec![name.to_owned(), value]).into();
    output::line(&output::columns(&rows))?;
    if !plan.decisions.is_empty() {
        output::line(&decisions::in_words(&plan.decisions))?;
    }
    Ok(ExitCode::Ok)
}

/// The bounds of an elastic job's pservers; empty for another job.
fn bounds_in_words(pservers: &PserverSpec) -> String {
    match (pservers.least(), pservers.most()) {
        (least, most) if least < most => format!(" (later {least} to {most})"),
        _ => String::new(),
    }
}

/// `, spares for 1 pserver and 2 trainers`; empty without spares.
fn spares_in_words(spec: &JobSpec) -> String {
    let of = |count: u32, role: &str| match count {
        0 => None,
        1 => Some(format!("1 {role}")),
        n => Some(format!("{n} {role}s")),
    };
    let spares = [of(spec.pservers.spares, "pserver"), of(spec.trainers.spares, "trainer")];
    let spares: Vec<String> = spares.into_iter().flatten().collect();
    match spares.is_empty() {
        true => String::new(),
        false => format!(", spares for {}", spares.join(" and ")),
    }
}

/// Files, bytes and tasks as text.
pub fn data_in_words(input: &InputPlan) -> String {
    let bytes = format::size(input.train_bytes());
    let files = |training: bool| {
        let mut files: Vec<u32> = input.tasks(training).iter().map(|task| task.file).collect();
        files.dedup();
        match files.len() {
            1 => "1 file".to_owned(),
            n => format!("{n} files"),
        }
    };
    let (train, test) = (input.train.len(), input.test.len());
    let tasks = |n: usize| match n {
        1 => "1 task".to_owned(),
        n => format!("{n} tasks"),
    };
    let mut text = format!("{bytes} in {}, {} a pass", files(true), tasks(train));
    if test > 0 {
        text.push_str(&format!("; test data in {}, {}", files(false), tasks(test)));
    }
    text
}

/// Creates the run directory with all files that the ApplicationMaster needs.
fn create(args: &Args, plan: &RunPlan) -> Result<LocalRun, CommandFailure> {
    let path = runs::path_of(&plan.work_dir, plan.id.0);
    let unwritable = |fact: &str, error: &RunDirError| {
        CommandFailure::caused(error.exit_code(), fact, error)
            .next("pass another folder with --work-dir")
    };
    let secret =
        Secret::random().or_fail(ExitCode::Internal, "cannot generate the job's secret")?;
    let file = RunFile {
        run: plan.id,
        name: plan.job.spec.name.clone(),
        started_ms: wall_ms(),
        job_dir: args.job.job_dir()?,
        earlier: plan.earlier,
        overwrite: args.overwrite,
        take_over: args.take_over,
        from: plan.from.clone(),
        default_output: plan.job.default_output,
        warnings: plan.warnings.clone(),
        parts: plan.input.parts.clone(),
    };
    let fact = format!("cannot create the run directory {}", path.display());
    let dir =
        RunDir::create(&path, &file, &plan.job.spec, &secret).or_fail_with(unwritable, fact)?;
    let run = LocalRun { dir, file };
    run.remember(&plan.request)?;
    Ok(run)
}
