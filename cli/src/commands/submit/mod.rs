//! `heddle submit`: trains a job on a YARN cluster and prints its progress.
//!
//! This module checks whether the job can succeed ([`preflight`]), computes what it needs ([`plan`]), uploads files
//! ([`upload`], [`staging`]) and submits the application ([`launch`]). The ApplicationMaster runs the job;
//! [`crate::application`] follows it. A rejected job leaves nothing on the cluster. Each submission removes leftovers
//! of killed applications ([`staging_gc`]).

use std::sync::Arc;
use std::time::Duration;

use heddle_am::input::PlannedInput;
use heddle_am::run_dir::RunFile;
use heddle_am::wall_clock::wall_ms;
use heddle_input::{parallelism_warning, workers};
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::handshake::Secret;
use heddle_protocol::ids::RunId;
use heddle_protocol::job_spec::file::Job;
use heddle_protocol::job_spec::{JobSpec, Location, identity};
use heddle_yarn::ApplicationReport;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinHandle;
use uuid::Uuid;

use super::checkpoint;
use super::decisions;
use super::run::preflight::{ModelRule, on_storage, outputs_take};
use super::warm_start;
use crate::am_client;
use crate::application::{self, Application};
use crate::cluster::{ClusterContext, client_failure};
use crate::failure::{CommandFailure, CommandResult, OrFail};
use crate::file_systems::STAGING;
use crate::output;
use crate::private_home;
use crate::program;
use crate::rm_calls;
use crate::site_defaults;
use crate::waiting::{self, HDFS};

mod announce;
mod checked;
mod controller_grant;
mod credentials;
mod flags;
mod foreign_keys;
mod hosts;
mod keytab;
mod launch;
mod log_directory;
mod oozie;
mod plan;
mod preflight;
mod program_source;
mod properties;
mod renewal;
pub mod resume;
mod shipped;
mod staging;
mod staging_gc;
mod token;
mod tokens_note;
mod tool_flags;
mod total_memory;
mod upload;
mod user_secrets;

pub use flags::{Args, Keys};

use checked::CheckedJob;
use plan::{ClusterCheck, SubmitPlan};
use resume::ResumePoint;
use token::TokenFile;
use upload::{Upload, Uploads};

/// How long the trial of the outputs may continue after Ctrl-C.
const TIDY_LIMIT: Duration = Duration::from_secs(10);

/// The trial of the outputs, which must run to its end.
type OutputTrial = JoinHandle<Result<(), CommandFailure>>;

/// Waits for SIGINT or SIGTERM.
async fn interrupted() -> ExitCode {
    let Ok(mut terminations) = signal(SignalKind::terminate()) else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = tokio::signal::ctrl_c() => ExitCode::Interrupted,
        _ = terminations.recv() => ExitCode::Terminated,
    }
}

pub fn submit(args: &Args, json: bool) -> CommandResult {
    announce::with_format(args, json, || submit_job(args, json))
}

fn submit_job(args: &Args, json: bool) -> CommandResult {
    am_client::runtime()?.block_on(async {
        let cluster = Arc::new(cluster_of(args)?);
        credentials::check_session(&cluster)?;
        cluster.reach().await?;
        cluster.has_home().await?;
        private_home::check(&cluster).await?;
        let token = match &args.submit_token {
            Some(token) if !args.dry_run => Some(TokenFile::of(&cluster, token).await?),
            _ => None,
        };
        let earlier = async |id| token::report(&cluster, id).await;
        if let Some(token) = &token
            && let Some(found) = token.find(earlier).await?
        {
            return attach(args, found, json).await;
        }
        let mut trying = None;
        let interrupted = tokio::select! {
            job = checked(&cluster, args, &mut trying) => Ok(job?),
            exit = interrupted() => Err(exit),
        };
        let job = match (interrupted, trying) {
            (Ok(job), _) => job,
            (Err(exit), trying) => {
                // The trial removes its files if it runs to its end.
                if let Some(trying) = trying {
                    let _tidied = tokio::time::timeout(TIDY_LIMIT, trying).await;
                }
                return Ok(exit);
            }
        };
        if args.dry_run {
            job.plan.print(&job.spec, json)?;
            return Ok(ExitCode::Ok);
        }
        output::notes(&job.plan.cluster.notes, json);
        if !json {
            decisions::print(&job.plan.decisions);
        }
        if let Some(token) = &token
            && let Some(found) = token.take(job.application, earlier).await?
        {
            return attach(args, found, json).await;
        }
        let report = match hand_over(&cluster, &job).await {
            Ok(report) => report,
            Err(failure) => {
                if let Some(token) = &token {
                    token.give_back(job.application).await?;
                }
                return Err(failure);
            }
        };
        announce::submitted(args, &report, Some(job.run.run), json)?;
        let collecting = tokio::spawn(staging_gc::collect(Arc::clone(&cluster)));
        if args.detach {
            let _best_effort = collecting.await;
            return Ok(ExitCode::Ok);
        }
        // The suggested next command names the data of the job file, not the uploaded copy.
        let mut spec = job.spec;
        [spec.data.train, spec.data.test] = job.given;
        let application = Application::of(cluster, report, Some(spec));
        application::follow(application, args.waiting, json).await
    })
}

/// Follows the application that was submitted before with the same token.
async fn attach(args: &Args, report: ApplicationReport, json: bool) -> CommandResult {
    if !json {
        eprintln!("{} was submitted with this token before", report.id);
    }
    announce::submitted(args, &report, None, json)?;
    if args.detach {
        return Ok(ExitCode::Ok);
    }
    let application = Application::find(report.id).await?;
    application::follow(application, args.waiting, json).await
}

/// Reads the job and makes all checks.
async fn checked(
    cluster: &Arc<ClusterContext>,
    args: &Args,
    trying: &mut Option<OutputTrial>,
) -> Result<CheckedJob, CommandFailure> {
    let run = RunId(Uuid::new_v4());
    let (job, continued) = read_job(cluster, args, run).await?;
    let mut spec = cluster.whole_spec(job.spec.clone())?;
    oozie::add_child_tags(&mut spec)?;
    preflight::outputs_are_shared(&spec)?;
    preflight::init_is_shared(&spec)?;
    controller_grant::check(&spec).await?;
    // Wiped at once, and read again when they are sent: the checks in between take a while.
    drop(user_secrets::read(&spec.yarn.secrets)?);
    preflight::trainer_program(&mut spec)?;
    let keytab = keytab::read(cluster, &spec)?;
    let binary = spec.submit.binary.clone();
    let program = tokio::task::spawn_blocking(move || program::read(binary.as_deref()));
    let mut future = spec.clone();
    let from = checkpoint::mirror_to_continue(args.from.as_deref(), args.take_over).await?;
    let JobChecks { cluster: mut cleared, input, data, base } =
        check(cluster, args, from.as_deref(), &spec, &mut future, trying).await?;
    if let Some(base) = &base {
        if let Some(before) = &base.before {
            identity::keep_defaults(&mut future, before, &job.optimizer_fields);
        }
        let (earlier, take_over) = args.earlier();
        resume::check_resume(
            base,
            earlier,
            take_over,
            &future,
            data.is_empty().then_some(&input.plan),
        )?;
    }
    let (init, init_notes) = warm_start::resolve(&mut future, args.fresh).await?;
    let program = program.await.or_fail(ExitCode::Internal, "cannot read the program")??;
    let notes = &mut cleared.notes;
    let source = program_source::of(cluster, &spec, &program, notes).await?;
    if let Some(label) = continued {
        let name = &spec.name;
        notes.push(format!(
            "continues run {name}-{label}, which is unfinished; --fresh starts over"
        ));
    }
    notes.extend(init_notes);
    let decisions = decisions::resolve(&mut future, &input, init.as_ref(), notes).await?;
    notes.extend(parallelism_warning(&input.plan, workers(&spec)));
    let PlannedInput { plan: input, parts, .. } = input;
    notes.extend(program.note.clone().into_iter().chain(cluster.short_ticket_note()));
    let uploads = Uploads { program, source, data, files: preflight::local_files(&future)? };
    if !uploads.data.is_empty() {
        notes.push(format!("uploads {}", uploads.data_in_words()));
    }
    let base = base.map(|base| base.manifest.cut.to_string());
    let tokens = credentials::in_words(cluster)?;
    Ok(CheckedJob {
        application: cleared.new.id,
        staging: cluster.staging(cluster.user.short_name(), cleared.new.id)?,
        run: RunFile { parts, ..run_file(args, run, &job, from) },
        spec: future,
        secret: Secret::random().or_fail(ExitCode::Internal, "cannot generate the job's secret")?,
        keytab,
        plan: SubmitPlan { cluster: cleared, input, uploads, base, tokens, decisions },
        given: [spec.data.train, spec.data.test],
    })
}

/// Run and options, as the ApplicationMaster reads them.
fn run_file(args: &Args, run: RunId, job: &Job, from: Option<String>) -> RunFile {
    let (earlier, take_over) = args.earlier();
    RunFile {
        run,
        name: job.spec.name.clone(),
        started_ms: wall_ms(),
        job_dir: ".".into(),
        earlier,
        overwrite: args.overwrite,
        take_over,
        from,
        default_output: job.default_output,
        warnings: Vec::new(),
        parts: None,
    }
}

/// The cluster, with the directory for the job's files that the job file states.
fn cluster_of(args: &Args) -> Result<ClusterContext, CommandFailure> {
    let flags = args.keys.stated()?.job;
    let of_job = args.job.read_with("", None, &flags)?.spec.submit;
    if let Some(wait) = of_job.rm_wait {
        rm_calls::state_rm_wait(wait.as_duration());
    }
    let stated = of_job.staging;
    let of_site = site_defaults::text(STAGING)?;
    if let Some(stated) = stated.as_ref().filter(|stated| of_site.as_ref() != Some(stated)) {
        output::note(&format!(
            "{STAGING} = {stated:?} is not that of the site: other commands find this job's report and secret only with that value in heddle-defaults.toml"
        ));
    }
    ClusterContext::with_staging(stated)
}

/// The parent of default output folders on a cluster.
///
/// # Errors
/// The user's name is not valid in a path.
pub fn outputs(cluster: &ClusterContext) -> Result<Location, CommandFailure> {
    Ok(cluster.home()?.join("heddle"))
}

/// Reads the job file with the flags, and the label of the run that it continues.
async fn read_job(
    cluster: &ClusterContext,
    args: &Args,
    run: RunId,
) -> Result<(Job, Option<String>), CommandFailure> {
    let outputs = outputs(cluster)?;
    let flags = args.keys.stated()?.job;
    let job = args.job.read_with(&run.short(), Some(outputs.clone()), &flags)?;
    if !job.default_checkpoint_dir || args.fresh || args.from.is_some() {
        return Ok((job, None));
    }
    match resume::label(cluster, &outputs, &job.spec.name).await? {
        // Read again, with the folders of the continued run.
        Some(label) => Ok((args.job.read_with(&label, Some(outputs), &flags)?, Some(label))),
        None => Ok((job, None)),
    }
}

/// The results of the checks of cluster, data and outputs.
struct JobChecks {
    cluster: ClusterCheck,
    input: PlannedInput,
    data: Vec<Upload>,
    base: Option<ResumePoint>,
}

/// Makes the checks of cluster, data and outputs in parallel. Writes the locations of uploaded data into `future`. `mirror`: the
/// URL of the folder that the job continues from instead of its own.
async fn check(
    cluster: &ClusterContext,
    args: &Args,
    mirror: Option<&str>,
    spec: &JobSpec,
    future: &mut JobSpec,
    trying: &mut Option<OutputTrial>,
) -> Result<JobChecks, CommandFailure> {
    let models = ModelRule::of(args.overwrite, args.fresh);
    // Runs in parallel and to its end, because it removes the files that it creates.
    *trying = (!args.dry_run).then(|| {
        let spec = spec.clone();
        tokio::spawn(async move { outputs_take(&spec, models).await })
    });
    let checked = async {
        tokio::try_join!(
            preflight::cluster(cluster, spec),
            waiting::on("HDFS: data and outputs", on_storage(spec, models, false)),
            upload::local_data(cluster, future),
            async {
                let own = spec.checkpoint.dir.url();
                match args.fresh {
                    true => Ok(None),
                    false => waiting::on(HDFS, resume::base(mirror.unwrap_or(&own))).await,
                }
            },
        )
    };
    let checked = checked.await;
    if let Some(trying) = trying {
        let tried = trying.await.or_fail(ExitCode::Internal, "cannot test the outputs")?;
        // The other checks have better messages.
        if checked.is_ok() {
            tried?;
        }
    }
    let (mut cleared, input, data, base) = checked?;
    cleared.notes.extend_from_slice(&input.warnings);
    cleared.notes.extend(log_directory::log_in(cluster).await);
    Ok(JobChecks { cluster: cleared, input, data, base })
}

/// Stages and submits. On any failure and on Ctrl-C it removes the staging directory.
async fn hand_over(
    cluster: &Arc<ClusterContext>,
    job: &CheckedJob,
) -> Result<ApplicationReport, CommandFailure> {
    let handed = tokio::select! {
        handed = stage_and_submit(cluster, job) => handed,
        exit = interrupted() => Err(CommandFailure::new(exit, "interrupted before the submission")),
    };
    if let Err(failure) = &handed {
        if matches!(failure.exit, ExitCode::Interrupted | ExitCode::Terminated) {
            // The submission may have arrived.
            let _dead = cluster.client.kill(job.application, "interrupted while submitting").await;
        }
        controller_grant::remove(job).await;
        let reports = cluster.reports(cluster.user.short_name(), job.application)?;
        for dir in [&job.staging, &reports] {
            if let Err(left) = cluster.remove_dir(dir).await {
                eprintln!("warning: {}", left.fact);
            }
        }
    }
    handed
}

async fn stage_and_submit(
    cluster: &Arc<ClusterContext>,
    job: &CheckedJob,
) -> Result<ApplicationReport, CommandFailure> {
    controller_grant::write(job).await?;
    let staged = staging::stage(cluster, job).await?;
    let user_secrets = user_secrets::read(&job.spec.yarn.secrets)?;
    let collected = credentials::collect(cluster, &job.secret, user_secrets, &staged.carried).await;
    let credentials = collected?;
    let has_keytab = job.keytab.is_some();
    if let Some(note) = credentials.until_ms.and_then(|until_ms| {
        tokens_note::of(cluster, until_ms, has_keytab, !staged.carried.is_empty())
    }) {
        output::note(&note);
    }
    let submission = launch::submission(cluster, job, &staged.am, credentials)?;
    let named = cluster.client_naming(job.application)?;
    let client = named.as_ref().unwrap_or(&cluster.client);
    // From here on the application may have them, also if the answer is lost.
    heddle_storage::keep_fetched_tokens();
    client.submit(&submission).await.or_fail_with(client_failure, "the cluster refused the job")
}
