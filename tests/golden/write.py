#!/usr/bin/env python3
"""Writes golden files: jobs that were killed in the middle, and the bytes with which the same program ends them.

    tests/golden/write.py PROGRAM FOLDER

PROGRAM is a `heddle` with fail points (`cargo build --workspace --bins`); FOLDER is new, such as tests/golden/manifest-2. The jobs run
in PLACE, whose path stands in what they write; `tests/tests/local/golden.rs` moves them elsewhere.
"""
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

PLACE = Path("/tmp/heddle-golden-files")

LOGISTIC = 'algorithm = "logistic-regression"\nl2 = 1e-4\noptimizer = { kind = "ftrl", alpha = 0.1 }\n'
MACHINE = 'algorithm = "factorization-machine"\nrank = 2\nl2 = 1e-4\noptimizer = { kind = "adagrad" }\n'
# Sums of small integers are the same in any order, which makes the bytes of ASP comparable.
COUNTS = 'algorithm = "custom"\n[[model.table]]\nname = "counts"\ncols = 1\noptimizer = { kind = "add" }\n'
BSP = 'consistency = "bsp"\nlanes = 2\nbatch = 5\nseed = 7\n'
ASP = 'consistency = "asp"\nbatch = 5\nseed = 7\n'
TWO = "min = 1\nmax = 2\n"
COUNTING = TWO + 'command = ["./counting-trainer"]\n'
BACKUPS = "replicas = 1\n"
KEPT = 'dir = "ckpt"\nkeep = 2\n'
# Name: keys of the model, of training, of pservers, of trainers, of checkpoints. A job without checkpoint.dir has default folders,
# which its run directory names.
JOBS = {
    "bsp-standardised": (LOGISTIC + "features = 40\nstandardise = true\n", BSP, "", TWO, ""),
    "bsp-sparse-backups": (MACHINE + 'features = "any"\n', BSP, BACKUPS, TWO, KEPT + "copies = 2\n"),
    "asp-counts-backups": (COUNTS + "rows = 150\n", ASP, BACKUPS, COUNTING, KEPT + "copies = 2\n"),
    "asp-sparse-counts": (COUNTS + 'kind = "sparse"\n', ASP, "", COUNTING, KEPT),
}


def job_file(name):
    model, training, pservers, trainers, checkpoint = JOBS[name]
    output = 'model = "model"\n' if checkpoint else ""
    formats = '["safetensors", "text"]' if model.startswith(LOGISTIC) else '["safetensors"]'
    data = 'train = "data/*.dummy"\nformat = "dummy"\n'
    if model.count(COUNTS) == 0:
        data = 'train = "data/train-*.libsvm"\ntest = "data/test-*.libsvm"\n'
    return (
        f'name = "{name}"\n[data]\n{data}passes = 3\ntask-size = "2KiB"\n'
        f"[model]\n{model}[training]\n{training}[pservers]\ncount = 2\nvcores = 2\nshards = 4\n{pservers}"
        f'[trainers]\n{trainers}[checkpoint]\nevery = "7 steps"\n{checkpoint}'
        f"[output]\nformats = {formats}\n{output}"
    )


def samples(folder):
    """A record for each row of the table of counts."""
    folder.mkdir(parents=True)
    for file in range(3):
        lines = [f"1 {50 * file + row}\n" for row in range(50)]
        (folder / f"samples-{file}.dummy").write_text("".join(lines))


def data(folder):
    """Four training files and one of test data; the numbers are drawn by a linear congruential generator."""
    folder.mkdir(parents=True)
    state = 12345

    def below(bound):
        nonlocal state
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        return (state >> 33) % bound

    for file in ["train-0", "train-1", "train-2", "train-3", "test-0"]:
        lines = []
        for _ in range(30):
            indices = sorted({below(40) + 1 for _ in range(6)})
            label = sum(indices) % 2 if below(10) else below(2)
            lines.append(" ".join([str(label), *(f"{index}:{(below(8) + 1) / 4}" for index in indices)]))
        (folder / f"{file}.libsvm").write_text("\n".join(lines) + "\n")


def heddle(program, folder, arguments, slow):
    environment = {**os.environ, "XDG_STATE_HOME": str(folder / "state")}
    if slow:
        environment["FAILPOINTS"] = "step-computed=sleep(100)"
    return subprocess.Popen([program, *arguments], cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            text=True)


def is_in_the_middle(folder):
    """Whether the newest checkpoint is of the middle of the second pass."""
    for file in folder.glob("**/g1-c*/MANIFEST.json"):
        manifest = json.loads(file.read_text())
        begun = manifest.get("step", 0) if "lanes" == manifest["work"] else len(manifest["open"]) + len(manifest["done"])
        passes = manifest["progress"].get("training", {}).get("passes", [])
        if begun and len(passes) == 1:
            return True
    return False


def kill_in_the_middle(program, folder):
    run = heddle(program, folder, ["run", "job.toml"], slow=True)
    while run.poll() is None:
        try:
            if is_in_the_middle(folder):
                break
        except FileNotFoundError:
            pass  # An old checkpoint was removed.
        time.sleep(0.01)
    else:
        sys.exit("the job ended before it was killed")
    application_master = json.loads(next(folder.glob("state/heddle/runs/*/am.json")).read_text())
    os.kill(application_master["pid"], signal.SIGKILL)
    run.kill()
    run.wait()
    # Its containers notice that both have gone, and end.
    time.sleep(5)
    shutil.rmtree(next(folder.glob("state/heddle/runs/*")) / "logs")


def main():
    program, target = str(Path(sys.argv[1]).resolve()), Path(sys.argv[2])
    target.mkdir(parents=True)
    for name in JOBS:
        shutil.rmtree(PLACE, ignore_errors=True)
        counts = COUNTS in JOBS[name][0]
        if counts:
            samples(PLACE / "data")
            (PLACE / "counting-trainer").symlink_to(Path(program).with_name("counting-trainer"))
        else:
            data(PLACE / "data")
        (PLACE / "job.toml").write_text(job_file(name))
        kill_in_the_middle(program, PLACE)
        shutil.copytree(PLACE, target / name / "unfinished", ignore=shutil.ignore_patterns("counting-trainer", "secret"))
        end = heddle(program, PLACE, ["run", "job.toml"], slow=False)
        text = end.communicate()[0]
        if end.returncode != 0:
            sys.exit(f"{name}: exit code {end.returncode}\n{text}")
        model = next(path.parent for path in PLACE.rglob("model.safetensors"))
        shutil.copytree(model, target / name / "model")
        print(name)
        if counts:
            continue
        scores = heddle(program, PLACE, ["predict", str(model), "data/test-0.libsvm"], slow=False).communicate()[0]
        (target / name / "scores.txt").write_text(scores)
    shutil.rmtree(PLACE)


if __name__ == "__main__":
    main()
