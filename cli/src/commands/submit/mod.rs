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
use heddle_protocol::manifest::InputPlan;
use heddle_protocol::spec::file::Job;
use heddle_protocol::spec::{JobSpec, Location, identity};
use heddle_yarn::{ApplicationId, ApplicationReport};
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
mod upload;
mod user_secrets;

pub use flags::{Args, Keys};

use keytab::JobKeytab;
use plan::SubmitPlan;
use preflight::ClusterCheck;
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

/// A job before its submission.
struct Ready {
    run: RunId,
    application: ApplicationId,
    spec: JobSpec,
    plan: SubmitPlan,
    /// What the ApplicationMaster fetches tokens by.
    keytab: Option<JobKeytab>,
    /// URL of the mirror that it continues from.
    from: Option<String>,
    /// Whether `output.model` has its default value.
    default_output: bool,
    /// `data.train` and `data.test` of the job file.
    given: (Vec<Location>, Vec<Location>),
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
            ready = ready(&cluster, args, &mut trying) => Ok(ready?),
            exit = interrupted() => Err(exit),
        };
        let ready = match (interrupted, trying) {
            (Ok(ready), _) => ready,
            (Err(exit), trying) => {
                // The trial removes its files if it runs to its end.
                if let Some(trying) = trying {
                    let _tidied = tokio::time::timeout(TIDY_LIMIT, trying).await;
                }
                return Ok(exit);
            }
        };
        if args.dry_run {
            ready.plan.print(&ready.spec, json)?;
            return Ok(ExitCode::Ok);
        }
        output::notes(&ready.plan.notes, json);
        if !json {
            decisions::print(&ready.plan.decisions);
        }
        if let Some(token) = &token
            && let Some(found) = token.take(ready.application, earlier).await?
        {
            return attach(args, found, json).await;
        }
        let report = match hand_over(&cluster, args, &ready).await {
            Ok(report) => report,
            Err(failure) => {
                if let Some(token) = &token {
                    token.give_back(ready.application).await?;
                }
                return Err(failure);
            }
        };
        announce::submitted(args, &report, Some(ready.run), json)?;
        let collecting = tokio::spawn(staging_gc::collect(Arc::clone(&cluster)));
        if args.detach {
            let _best_effort = collecting.await;
            return Ok(ExitCode::Ok);
        }
        // The suggested next command names the data of the job file, not the uploaded copy.
        let mut spec = ready.spec;
        (spec.data.train, spec.data.test) = ready.given;
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
async fn ready(
    cluster: &Arc<ClusterContext>,
    args: &Args,
    trying: &mut Option<OutputTrial>,
) -> Result<Ready, CommandFailure> {
    let run = RunId(Uuid::new_v4());
    let (job, continued) = read_job(cluster, args, run).await?;
    let mut spec = cluster.whole_spec(job.spec)?;
    oozie::add_child_tags(&mut spec)?;
    preflight::outputs_are_shared(&spec)?;
    preflight::init_is_shared(&spec)?;
    // Wiped at once, and read again when they are sent: the checks in between take a while.
    drop(user_secrets::read(&spec.yarn.secrets)?);
    preflight::trainer_program(&mut spec)?;
    let keytab = keytab::read(cluster, &spec)?;
    let binary = spec.submit.binary.clone();
    let program = tokio::task::spawn_blocking(move || program::read(binary.as_deref()));
    let mut future = spec.clone();
    let from = checkpoint::mirror_to_continue(args.from.as_deref(), args.take_over).await?;
    let JobChecks { cleared, input, data, base } =
        check(cluster, args, from.as_deref(), &spec, &mut future, trying).await?;
    if let Some(base) = &base {
        if let Some(before) = &base.before {
            identity::keep_defaults(&mut future, before, &job.optimizer_fields);
        }
        let (earlier, take_over) = args.earlier();
        resume::check_resume(base, earlier, take_over, &future, data.is_empty().then_some(&input))?;
    }
    let (init, init_notes) = warm_start::resolve(&mut future, args.fresh).await?;
    let program = program.await.or_fail(ExitCode::Internal, "cannot read the program")??;
    let mut notes = cleared.notes;
    let source = program_source::of(cluster, &spec, &program, &mut notes).await?;
    if let Some(label) = continued {
        let name = &spec.name;
        notes.push(format!(
            "continues run {name}-{label}, which is unfinished; --fresh starts over"
        ));
    }
    notes.extend(init_notes);
    let decisions = decisions::resolve(&mut future, &input, init.as_ref(), &mut notes).await?;
    notes.extend(parallelism_warning(&input, workers(&spec)));
    notes.extend(program.note.clone().into_iter().chain(cluster.short_ticket_note()));
    let uploads = Uploads { program, source, data, files: preflight::local_files(&future)? };
    if !uploads.data.is_empty() {
        notes.push(format!("uploads {}", uploads.data_in_words()));
    }
    Ok(Ready {
        run,
        given: (spec.data.train, spec.data.test),
        application: cleared.new.id,
        keytab,
        from,
        default_output: job.default_output,
        spec: future,
        plan: SubmitPlan {
            roles: cleared.roles,
            steps: cleared.steps,
            steps_known: cleared.steps_known,
            queue: cleared.queue,
            input,
            uploads,
            base: base.map(|base| base.manifest.cut.to_string()),
            tokens: credentials::in_words(cluster)?,
            decisions,
            notes,
        },
    })
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
    cleared: ClusterCheck,
    input: InputPlan,
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
    let (mut cleared, PlannedInput { plan: input, warnings }, data, base) = checked?;
    cleared.notes.extend(warnings);
    cleared.notes.extend(log_directory::log_in(cluster).await);
    Ok(JobChecks { cleared, input, data, base })
}

/// Stages and submits. On any failure and on Ctrl-C it removes the staging directory.
async fn hand_over(
    cluster: &Arc<ClusterContext>,
    args: &Args,
    ready: &Ready,
) -> Result<ApplicationReport, CommandFailure> {
    let staging = cluster.staging(cluster.user.short_name(), ready.application)?;
    let handed = tokio::select! {
        handed = stage_and_submit(cluster, args, ready, &staging) => handed,
        exit = interrupted() => Err(CommandFailure::new(exit, "interrupted before the submission")),
    };
    if let Err(failure) = &handed {
        if matches!(failure.exit, ExitCode::Interrupted | ExitCode::Terminated) {
            // The submission may have arrived.
            let _dead =
                cluster.client.kill(ready.application, "interrupted while submitting").await;
        }
        let reports = cluster.reports(cluster.user.short_name(), ready.application)?;
        for dir in [&staging, &reports] {
            if let Err(left) = cluster.remove_dir(dir).await {
                eprintln!("warning: {}", left.fact);
            }
        }
    }
    handed
}

async fn stage_and_submit(
    cluster: &Arc<ClusterContext>,
    args: &Args,
    ready: &Ready,
    staging: &Location,
) -> Result<ApplicationReport, CommandFailure> {
    let secret =
        Secret::random().or_fail(ExitCode::Internal, "cannot generate the job's secret")?;
    let (earlier, take_over) = args.earlier();
    let run = RunFile {
        run: ready.run,
        name: ready.spec.name.clone(),
        started_ms: wall_ms(),
        job_dir: ".".into(),
        earlier,
        overwrite: args.overwrite,
        take_over,
        from: ready.from.clone(),
        default_output: ready.default_output,
        warnings: Vec::new(),
    };
    let content = staging::StagingContent {
        application: ready.application,
        staging,
        run: &run,
        spec: &ready.spec,
        secret: &secret,
        keytab: ready.keytab.as_ref(),
    };
    let staged = staging::stage(cluster, &content, &ready.plan.uploads).await?;
    let user_secrets = user_secrets::read(&ready.spec.yarn.secrets)?;
    let collected = credentials::collect(cluster, &secret, user_secrets, &staged.carried).await;
    let credentials = collected?;
    let has_keytab = ready.keytab.is_some();
    if let Some(note) = credentials.until_ms.and_then(|until_ms| {
        tokens_note::of(cluster, until_ms, has_keytab, !staged.carried.is_empty())
    }) {
        output::note(&note);
    }
    let submission = launch::submission(
        cluster,
        &ready.spec,
        ready.application,
        &ready.plan.roles[0].asked,
        &staged.am,
        credentials,
    )?;
    let named = cluster.client_naming(ready.application)?;
    let client = named.as_ref().unwrap_or(&cluster.client);
    // From here on the application may have them, also if the answer is lost.
    heddle_storage::keep_fetched_tokens();
    client
        .submit(&submission)
        .await
        .or_fail_with(client_failure, "the cluster refused the job")
}
