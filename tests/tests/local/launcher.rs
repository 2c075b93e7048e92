//! `yarn jar heddle.jar …` through Hadoop's own RunJar: exit codes, arguments, streams, signals, the end of a killed
//! launcher, the cache. Without a cluster.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use heddle_tests::hadoop::{RunJar, javas, launcher_jar, wait_until};
use heddle_tests::local::{heddle, program};
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(60);

/// A job whose trainers do nothing, so that it runs until it is stopped.
const IDLE: &str = "name = \"idle\"\n[data]\ntrain = \"d.libsvm\"\n[model]\n\
    algorithm = \"custom\"\n\
    [[model.table]]\nname = \"t\"\nrows = 10\n[trainers]\ncommand = [\"sleep\", \"600\"]\n";

/// The jar without a program, made once.
fn launcher() -> Result<&'static Path> {
    static JAR: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let make = || launcher_jar(Path::new(env!("CARGO_TARGET_TMPDIR")));
    let made = JAR.get_or_init(|| make().map_err(|error| format!("{error:#}")));
    made.as_deref().map_err(|error| anyhow!(error.clone()))
}

/// A folder with a job, a configuration and a home of its own.
struct Bench {
    dir: TempDir,
    run_jar: RunJar,
}

impl Bench {
    fn new() -> Result<Self> {
        let bench = Self { dir: tempfile::tempdir()?, run_jar: RunJar::prepare()? };
        for folder in ["conf", "tmp", "home"] {
            std::fs::create_dir(bench.path(folder))?;
        }
        std::fs::write(bench.path("conf/yarn-site.xml"), "<configuration/>")?;
        std::fs::write(bench.path("job.toml"), IDLE)?;
        std::fs::write(bench.path("d.libsvm"), "1 1:1\n")?;
        Ok(bench)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// `yarn jar JAR` with these arguments.
    fn yarn_jar(&self, jar: &Path, arguments: &[&str]) -> Command {
        self.yarn_jar_with(&javas()[0], &[], jar, arguments)
    }

    fn yarn_jar_with(
        &self,
        java: &Path,
        options: &[&str],
        jar: &Path,
        arguments: &[&str],
    ) -> Command {
        let (conf, work) = (self.path("conf"), self.path("tmp"));
        let mut command = self.run_jar.command(java, &conf, options, &work, jar);
        command
            .args(arguments)
            .current_dir(self.dir.path())
            .env("HOME", self.path("home"))
            .env("XDG_STATE_HOME", self.path("state"))
            .env_remove("XDG_CACHE_HOME")
            .env_remove("HEDDLE_BINARY")
            // A group of its own, as a scheduler gives it.
            .process_group(0);
        command
    }

    /// A shell script as the program, named by `HEDDLE_BINARY`.
    fn script(&self, text: &str) -> Result<PathBuf> {
        let path = self.path("program.sh");
        std::fs::write(&path, format!("#!/bin/sh\n{text}\n"))?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755))?;
        Ok(path)
    }

    /// A program that is a jar too: `echo` with the launcher appended.
    fn echo_jar(&self, mode: u32) -> Result<PathBuf> {
        let mut bytes = std::fs::read("/bin/echo")?;
        bytes.extend(std::fs::read(launcher()?)?);
        let jar = self.path("heddle.jar");
        std::fs::write(&jar, bytes)?;
        std::fs::set_permissions(&jar, std::fs::Permissions::from_mode(mode))?;
        Ok(jar)
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The command failed in the launcher; its message.
fn refused(output: &Output) -> Result<String> {
    let stderr = text(&output.stderr);
    ensure!(output.status.code() == Some(10) && output.stdout.is_empty(), "{output:?}");
    let line = stderr.lines().find(|line| line.starts_with("error: cannot start heddle: "));
    Ok(line.with_context(|| stderr.clone())?.to_owned())
}

#[test]
fn exit_codes_are_those_of_the_program() -> Result<()> {
    let bench = Bench::new()?;
    let script = bench.script("exit \"$1\"")?;
    let jar = launcher()?;
    let codes = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 124, 130, 141, 143];
    std::thread::scope(|scope| {
        let run = |codes: Vec<i32>| {
            for code in codes {
                let mut command = bench.yarn_jar(jar, &[&code.to_string()]);
                let output = command.env("HEDDLE_BINARY", &script).output()?;
                ensure!(output.status.code() == Some(code), "{code}: {output:?}");
            }
            Ok(())
        };
        let halves = [0, 1].map(|half| codes.iter().copied().skip(half).step_by(2).collect());
        let runs = halves.map(|codes| scope.spawn(move || run(codes)));
        runs.into_iter().try_for_each(|run| run.join().map_err(|_| anyhow!("panicked"))?)
    })?;
    // The program itself: a wrong command line, and the file that is beside the jar.
    let beside = bench.path("beside");
    std::fs::create_dir(&beside)?;
    std::os::unix::fs::symlink(program("heddle")?, beside.join("heddle"))?;
    std::fs::copy(jar, beside.join("heddle.jar"))?;
    let output = bench.yarn_jar(&beside.join("heddle.jar"), &["stattus"]).output()?;
    ensure!(output.status.code() == Some(2), "{output:?}");
    ensure!(text(&output.stderr).contains("unrecognized subcommand"), "{output:?}");
    Ok(())
}

#[test]
fn arguments_streams_and_settings_pass_with_every_java() -> Result<()> {
    let bench = Bench::new()?;
    let script = bench.script(
        "for word in \"$@\"; do printf '<%s>' \"$word\"; done\n\
         echo \" $KRB5_CONFIG $HADOOP_CONF_DIR $OOZIE_ACTION_CONF_XML\"; cat; echo \"to stderr\" >&2",
    )?;
    let words = ["a b", "\"q\"", "$HOME", "", "*", "'", "\\", "-Dx=y", "--", "\u{fc}", "trailing "];
    let options = ["-Djava.security.krb5.conf=/k.conf", "-Doozie.action.conf.xml=/a.xml"];
    let javas = javas();
    println!("{javas:?}");
    for java in &javas {
        for client_class_loader in ["false", "true"] {
            let mut command = bench.yarn_jar_with(java, &options, launcher()?, &words);
            let mut child = command
                .env("HEDDLE_BINARY", &script)
                .env("HADOOP_USE_CLIENT_CLASSLOADER", client_class_loader)
                .stdin(Stdio::piped())
                .spawn()?;
            std::io::Write::write_all(&mut child.stdin.take().context("piped")?, b"input\n")?;
            let output = child.wait_with_output()?;
            let all: String = words.iter().map(|word| format!("<{word}>")).collect();
            let conf = bench.path("conf").display().to_string();
            let expected = format!("{all} /k.conf {conf} /a.xml\ninput\n");
            ensure!(text(&output.stdout) == expected, "{java:?}: {output:?}");
            ensure!(text(&output.stderr).contains("to stderr"), "{java:?}: {output:?}");
            ensure!(output.status.success(), "{java:?}: {output:?}");
        }
    }
    Ok(())
}

#[test]
fn signals_reach_the_program_and_return_its_code() -> Result<()> {
    let bench = Bench::new()?;
    let script = bench.script(
        "trap 'echo TERM; exit 143' TERM; trap 'echo INT; exit 130' INT; trap 'echo HUP; exit 129' HUP\n\
         echo ready >ready; while :; do sleep 0.1; done",
    )?;
    let ready = bench.path("ready");
    for (signal, name, code) in
        [(Signal::SIGTERM, "TERM", 143), (Signal::SIGINT, "INT", 130), (Signal::SIGHUP, "HUP", 129)]
    {
        for to_group in [false, true] {
            let mut command = bench.yarn_jar(launcher()?, &[]);
            let child = command.env("HEDDLE_BINARY", &script).spawn()?;
            let launcher = pid(&child);
            wait_until("the program runs", LIMIT, || Ok(std::fs::remove_file(&ready)?))?;
            match to_group {
                true => killpg(launcher, signal)?,
                false => kill(launcher, signal)?,
            }
            let output = child.wait_with_output()?;
            let printed = text(&output.stdout);
            ensure!(printed.lines().next() == Some(name), "{signal}, {to_group}: {output:?}");
            ensure!(output.status.code() == Some(code), "{signal}, {to_group}: {output:?}");
        }
    }
    Ok(())
}

fn pid(child: &Child) -> Pid {
    Pid::from_raw(child.id().cast_signed())
}

/// Processes whose parent is this one.
fn children(parent: Pid) -> Vec<Pid> {
    let parent_of = |pid: i32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let fields = stat.rsplit_once(") ")?.1.to_owned();
        fields.split(' ').nth(1)?.parse::<i32>().ok()
    };
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| parent_of(*pid) == Some(parent.as_raw())).map(Pid::from_raw).collect()
}

/// A local run behind the launcher that has committed a checkpoint: the JVM, the program, its ApplicationMaster.
fn started(bench: &Bench) -> Result<(Child, Pid, Pid)> {
    let child = bench
        .yarn_jar(launcher()?, &["run", "job.toml"])
        .env("HEDDLE_BINARY", program("heddle")?)
        .spawn()?;
    wait_until("the first checkpoint", LIMIT, || {
        let ends = std::fs::read_dir(bench.path("out"))?.flatten();
        let checkpoints = ends.map(|run| run.path().join("checkpoints/g1-c1"));
        ensure!(checkpoints.into_iter().any(|dir| dir.exists()), "none yet");
        Ok(())
    })?;
    let only = |parent| children(parent).first().copied().context("no child");
    let program = only(pid(&child))?;
    let am = only(program)?;
    Ok((child, program, am))
}

fn is_gone(process: Pid, limit: Duration) -> Result<()> {
    wait_until("the process is gone", limit, || {
        let status = std::fs::read_to_string(format!("/proc/{process}/status"));
        // An orphan that nothing reaps is dead all the same.
        let lives = status.is_ok_and(|status| !status.contains("State:\tZ"));
        ensure!(!lives, "{process} lives");
        Ok(())
    })
}

#[test]
fn the_program_ends_with_a_killed_launcher() -> Result<()> {
    let bench = Bench::new()?;
    let (mut launcher, program, am) = started(&bench)?;
    kill(pid(&launcher), Signal::SIGKILL)?;
    ensure!(launcher.wait()?.signal() == Some(9), "killed");
    is_gone(program, Duration::from_secs(2))?;
    is_gone(am, LIMIT)?;
    Ok(())
}

#[test]
fn a_signal_to_the_group_ends_a_run_in_order() -> Result<()> {
    let bench = Bench::new()?;
    let (launcher, program, _) = started(&bench)?;
    // As NodeManagers and Airflow do: the program gets it from the group and from the launcher.
    killpg(pid(&launcher), Signal::SIGTERM)?;
    let output = launcher.wait_with_output()?;
    let stderr = text(&output.stderr);
    ensure!(output.status.code() == Some(143), "{output:?}");
    ensure!(stderr.contains("saving a checkpoint and stopping"), "{stderr}");
    ensure!(!stderr.contains("killed;"), "the second signal counts once: {stderr}");
    is_gone(program, LIMIT)?;
    let listed = heddle(bench.dir.path(), &["list"])?;
    ensure!(listed.stdout.contains("stopped"), "{listed:?}");
    Ok(())
}

/// Starts a command at a terminal of its own and types Ctrl-C after a text was printed.
const TERMINAL: &str = "
import os, pty, sys
pid, fd = pty.fork()
if pid == 0:
    os.execvp(sys.argv[2], sys.argv[2:])
printed, typed = b'', False
while True:
    try:
        some = os.read(fd, 4096)
    except OSError:
        break
    if not some:
        break
    printed += some
    if not typed and sys.argv[1].encode() in printed:
        typed = True
        os.write(fd, b'\\x03')
sys.stdout.buffer.write(printed)
sys.stdout.flush()
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
";

#[test]
fn ctrl_c_at_a_terminal_is_one_signal() -> Result<()> {
    let bench = Bench::new()?;
    let mut yarn = bench.yarn_jar(launcher()?, &["run", "job.toml"]);
    yarn.env("HEDDLE_BINARY", program("heddle")?);
    let mut terminal = Command::new("python3");
    terminal.args(["-c", TERMINAL, "checkpoint g1-c1"]).arg(yarn.get_program());
    terminal.args(yarn.get_args()).current_dir(bench.dir.path());
    for (name, value) in yarn.get_envs() {
        match value {
            Some(value) => terminal.env(name, value),
            None => terminal.env_remove(name),
        };
    }
    let output = terminal.stdin(Stdio::null()).output()?;
    let printed = text(&output.stdout);
    ensure!(output.status.code() == Some(130), "{output:?}");
    ensure!(printed.matches("saving a checkpoint and stopping").count() == 1, "{printed}");
    ensure!(!printed.contains("killed;"), "{printed}");
    Ok(())
}

#[test]
fn a_cold_cache_is_filled_once_by_eight_at_once() -> Result<()> {
    let bench = Bench::new()?;
    let jar = bench.echo_jar(0o644)?;
    let started: Result<Vec<Child>> =
        (0..8).map(|n| Ok(bench.yarn_jar(&jar, &[&format!("run {n}")]).spawn()?)).collect();
    for (n, child) in started?.into_iter().enumerate() {
        let output = child.wait_with_output()?;
        ensure!(text(&output.stdout) == format!("run {n}\n"), "{output:?}");
    }
    let cache = bench.path("home/.cache/heddle/bin");
    let files: Vec<_> = std::fs::read_dir(&cache)?.flatten().collect();
    ensure!(files.len() == 1, "{files:?}");
    let name = files[0].file_name().to_string_lossy().into_owned();
    ensure!(name.len() == "heddle-".len() + 64, "{name}");
    for (path, mode) in [(files[0].path(), 0o700), (cache, 0o700)] {
        ensure!(std::fs::metadata(&path)?.permissions().mode() & 0o777 == mode, "{path:?}");
    }
    Ok(())
}

#[test]
fn an_executable_jar_is_the_program_itself() -> Result<()> {
    let bench = Bench::new()?;
    let jar = bench.echo_jar(0o755)?;
    for mut command in [bench.yarn_jar(&jar, &["a  b"]), {
        let mut command = Command::new(&javas()[0]);
        command.args(["-Xmx64m", "-jar"]).arg(&jar).arg("a  b").env("HOME", bench.path("home"));
        command
    }] {
        let output = command.output()?;
        ensure!(text(&output.stdout) == "a  b\n", "{output:?}");
    }
    ensure!(!bench.path("home/.cache").exists(), "nothing is copied");
    Ok(())
}

#[test]
fn a_home_that_cannot_be_written_is_no_obstacle() -> Result<()> {
    let bench = Bench::new()?;
    let jar = bench.echo_jar(0o644)?;
    // No user can create a folder there.
    let output = bench.yarn_jar(&jar, &["x"]).env("HOME", "/proc/self").output()?;
    ensure!(text(&output.stdout) == "x\n", "{output:?}");
    Ok(())
}

#[test]
fn a_cache_that_is_not_private_or_not_stated_is_not_used() -> Result<()> {
    let bench = Bench::new()?;
    let jar = bench.echo_jar(0o644)?;
    let mode =
        |path: &Path, mode| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode));
    let [home, wide, sticky] = ["home", "wide", "sticky"].map(|name| bench.path(name));
    for (path, bits) in [(&wide, 0o777), (&sticky, 0o1777)] {
        std::fs::create_dir(path)?;
        mode(path, bits)?;
        std::fs::create_dir(path.join("own"))?;
    }
    let uid = nix::unistd::getuid();
    let tmp = bench.path(&format!("tmp/heddle-{uid}/bin"));
    let of = |path: &Path| path.display().to_string();
    for (variables, place) in [
        (vec![("XDG_CACHE_HOME", String::new())], home.join(".cache/heddle/bin")),
        (vec![("XDG_CACHE_HOME", "rel".to_owned())], home.join(".cache/heddle/bin")),
        (vec![("XDG_CACHE_HOME", of(&home.join("new/cache")))], home.join("new/cache/heddle/bin")),
        (vec![("HOME", of(&sticky.join("own")))], sticky.join("own/.cache/heddle/bin")),
        (vec![("HOME", of(&wide.join("own")))], tmp.clone()),
        (vec![("HOME", of(&wide))], tmp.clone()),
        (vec![("HOME", of(&bench.path("absent")))], tmp.clone()),
        (vec![("HOME", String::new())], tmp.clone()),
    ] {
        let mut command = bench.yarn_jar(&jar, &["x"]);
        command.envs(variables.iter().map(|(name, value)| (name, value)));
        let output = command.output()?;
        ensure!(text(&output.stdout) == "x\n", "{variables:?}: {output:?}");
        ensure!(place.is_dir(), "{variables:?}: no {place:?}");
        std::fs::remove_dir_all(place.parent().context("a folder")?)?;
    }
    let output = bench.yarn_jar(&jar, &["x"]).env_remove("HOME").output()?;
    ensure!(text(&output.stdout) == "x\n" && tmp.is_dir(), "{output:?}");
    for name in ["null", "rel", "absent", "heddle", ".cache"] {
        ensure!(!bench.path(name).exists(), "{name} was made");
    }
    Ok(())
}

#[test]
fn a_copy_with_other_content_is_replaced() -> Result<()> {
    let bench = Bench::new()?;
    let jar = bench.echo_jar(0o644)?;
    let runs = || -> Result<()> {
        let output = bench.yarn_jar(&jar, &["x"]).output()?;
        ensure!(text(&output.stdout) == "x\n", "{output:?}");
        Ok(())
    };
    runs()?;
    let copy =
        std::fs::read_dir(bench.path("home/.cache/heddle/bin"))?.next().context("a copy")??;
    let good = std::fs::read(copy.path())?;
    let mut other = good.clone();
    *other.last_mut().context("not empty")? ^= 1;
    for bad in [Vec::new(), b"#!/bin/sh\necho other\n".to_vec(), other] {
        std::fs::write(copy.path(), bad)?;
        runs()?;
        ensure!(std::fs::read(copy.path())? == good, "it was not replaced");
    }
    std::fs::set_permissions(copy.path(), std::fs::Permissions::from_mode(0o600))?;
    runs()
}

/// Needs root.
#[test]
fn a_home_without_execution_is_no_obstacle() -> Result<()> {
    let bench = Bench::new()?;
    let jar = bench.echo_jar(0o644)?;
    let yarn = bench.yarn_jar(&jar, &["x"]);
    let mut command = Command::new("unshare");
    let mount = "mount -t tmpfs -o noexec tmpfs \"$HOME\" && exec \"$@\"";
    command.args(["--mount", "sh", "-c", mount, "sh"]).arg(yarn.get_program());
    command.args(yarn.get_args()).current_dir(bench.dir.path());
    for (name, value) in yarn.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let output = command.output()?;
    ensure!(text(&output.stdout) == "x\n", "{output:?}");
    Ok(())
}

#[test]
fn what_cannot_start_is_exit_10_with_words() -> Result<()> {
    let bench = Bench::new()?;
    let jar = bench.echo_jar(0o644)?;
    let cache = bench.path("home/.cache/heddle");
    std::fs::create_dir_all(&cache)?;
    std::fs::set_permissions(&cache, std::fs::Permissions::from_mode(0o777))?;
    let mut texts = vec![refused(&bench.yarn_jar(&jar, &[]).output()?)?];
    ensure!(texts[0].contains("other users can change the cache directory"), "{texts:?}");

    let mut bytes = std::fs::read(&jar)?;
    bytes[18] = 243;
    std::fs::write(&jar, bytes)?;
    texts.push(refused(&bench.yarn_jar(&jar, &[]).output()?)?);
    ensure!(texts[1].contains("is not for this machine"), "{texts:?}");

    std::fs::copy(launcher()?, &jar)?;
    texts.push(refused(&bench.yarn_jar(&jar, &[]).output()?)?);
    ensure!(texts[2].contains("contains no program"), "{texts:?}");

    let mut command = bench.yarn_jar(&jar, &[]);
    texts.push(refused(&command.env("HEDDLE_BINARY", "/nowhere/heddle").output()?)?);
    ensure!(texts[3].contains("HEDDLE_BINARY = /nowhere/heddle is not a file"), "{texts:?}");
    Ok(())
}

#[test]
fn the_launchers_main_stays_small() -> Result<()> {
    let main = std::fs::read_to_string(
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../launcher/Launcher.java"),
    )?;
    ensure!(main.lines().count() <= 200, "{} lines", main.lines().count());
    Ok(())
}
