"""The command `ag-jax` as a user runs it: killed, stopped, resumed, and with invalid arguments."""

import errno
import functools
import json
import os
import pathlib
import random
import re
import shlex
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest
from etils import epath

from ag_jax import main
from ag_jax.command_line import cli, parser
from ag_jax.data import pipeline
from ag_jax.finetuning import contents
from ag_jax.pretraining import run as run_room
from ag_jax.pretraining import run_directory
from ag_jax.settings import schema
from ag_jax.training.checkpoint import Checkpoints
from ag_jax.training.metrics import CLOCK_FIELDS, read_metrics
from tests import commands
from tests import results as stored
from tests.commands import REPOSITORY, run
from tests.verbs import verb_of

STEPS = 40
WORDS = "the house of our union is strong and we will build roads . they said no ; he went home early .".split()


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """Write a file of a hundred sentences; two epochs are 40 steps of 4 rows."""
    chosen = random.Random(1)
    lines = [" ".join(chosen.choices(WORDS, k=9)).capitalize() + "." for _ in range(110)]
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("\n".join(lines))
    return path


def command(verb: str, text: pathlib.Path, workdir: pathlib.Path, *more: str) -> list[str]:
    settings = {
        "data.source": text,
        "data.sequence_length": 16,
        "data.tokenizer.vocabulary_size": 300,
        "model.layers": 2,
        "model.width": 12,
        "model.heads": 3,
        "model.remat": "none",
        "training.steps": STEPS,
        "optimizer.warmup_steps": 0,
        "training.batch_size": 4,
        "training.log_every": 1,
        "training.evaluate_every": 17,
        "training.checkpoint_every": 7,
        "guidance.fraction": 1.0,
    }
    flags = [f"--config.{key}={value}" for key, value in settings.items()]
    config = f"--config={REPOSITORY / 'configs' / 'quickstart.py'}"
    return [verb, config, *flags, f"--workdir={workdir}", *more]


@pytest.fixture
def rejected(capsys):
    """A function that runs a command line in this process, which must end with one message; (status, message)."""

    def run_here(*arguments):
        status = main.main(["ag-jax", *map(str, arguments)])
        said = capsys.readouterr().err
        assert said.count("ag-jax") and len([line for line in said.splitlines() if line.startswith("ag-jax")]) == 1
        return status, said[said.index("ag-jax") :]

    return run_here


def signalled(arguments: list[str], workdir: pathlib.Path, step: int, number: int) -> commands.Finished:
    """Run the command, send it a signal as soon as its metrics reach the step, and wait for it to end."""
    metrics, deadline = workdir / "metrics.jsonl", time.monotonic() + 240

    def is_logged() -> bool:
        return metrics.exists() and f'"step": {step},' in metrics.read_text()

    is_stale = is_logged()  # by a run that failed after its last checkpoint; a resumed run removes these rows first
    running = commands.Running(arguments)
    while time.monotonic() < deadline and running.poll() is None:
        if is_logged() and not is_stale:
            running.send_signal(number)
            break
        is_stale = is_stale and is_logged()
        time.sleep(0.002)
    return running.wait(120)


def without_clock(values):
    if isinstance(values, dict):
        return {key: without_clock(value) for key, value in values.items() if key not in CLOCK_FIELDS}
    return [without_clock(value) for value in values] if isinstance(values, list) else values


def content(workdir: pathlib.Path):
    """Return the final arrays, the metadata saved with them, and the rows of metrics, without clock fields."""
    config = run_directory.read_config(workdir)
    pretraining = run_room.PretrainingRun(config, epath.Path(workdir), pipeline.prepare(config.data))
    checkpoints = Checkpoints(pretraining.workdir / "checkpoints", read_only=True)
    restored = checkpoints.restore(STEPS, pretraining.program.abstract)
    checkpoints.close()
    return restored.state, without_clock(restored.progress | {"rows": None}), without_clock(read_metrics(workdir))


@pytest.fixture(scope="module")
def uninterrupted(text, tmp_path_factory):
    """A whole run, in a new interpreter, as a user starts it."""
    workdir = tmp_path_factory.mktemp("uninterrupted") / "run"
    interpreter = [sys.executable, "-m", "ag_jax.main", *command("train", text, workdir)]
    done = subprocess.run(interpreter, cwd=REPOSITORY, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "MLM loss" in done.stdout and len((workdir / "metrics.jsonl").read_text().splitlines()) == STEPS + 3
    return workdir


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.exhaustive)])
def test_a_run_that_is_stopped_starved_and_killed_ends_bit_identical(text, uninterrupted, tmp_path, one_device, number):
    """A signal in the first epoch, a full disk, and `kill -9` in the second; dropout and guidance are on.

    A limit on the size of files stands in for a full disk: the metrics up to the next checkpoints fit, but the index of
    a checkpoint's arrays does not.
    """
    workdir = tmp_path / "run"
    steps = random.SystemRandom().randint(5, 15), random.SystemRandom().randint(22, 30)
    stopped = signalled(command("train", text, workdir), workdir, steps[0], number)
    assert stopped.returncode == {signal.SIGTERM: 75, signal.SIGINT: 130}[number], stopped.stderr
    assert "saving" in stopped.stderr.partition("stopped at step")[0], "it says at once that it stops"
    assert "stopped at step" in stopped.stderr
    complete = sorted(int(path.name) for path in (workdir / "checkpoints").iterdir() if path.name.isdigit())
    assert complete[-1] >= steps[0]

    index = (workdir / "checkpoints" / str(complete[-1]) / "state" / "_METADATA").stat().st_size
    assert (workdir / "metrics.jsonl").stat().st_size < 0.6 * index
    full = run(command("train", text, workdir), before=functools.partial(commands.limit_file_size, index - 1024))
    assert full.returncode == 1 and "File too large" in full.stderr, full.stderr
    assert f"steps: {', '.join(map(str, complete))}." in full.stderr

    killed = signalled(command("train", text, workdir), workdir, steps[1], signal.SIGKILL)
    assert killed.returncode == -signal.SIGKILL and not (workdir / "result.json").exists(), (steps, killed.stderr)
    assert f"resumed from the checkpoint of step {complete[-1]}" in killed.stderr
    done = run(command("train", text, workdir))
    assert done.returncode == 0 and "resumed from the checkpoint of step" in done.stderr, (steps, done.stderr)

    (state, progress, rows), (other_state, other_progress, other_rows) = content(workdir), content(uninterrupted)
    assert jax.tree.structure(state) == jax.tree.structure(other_state)
    jax.tree.map(np.testing.assert_array_equal, state, other_state)
    assert progress == other_progress and rows == other_rows
    assert (workdir / "result.json").read_text() == (uninterrupted / "result.json").read_text()


def test_settings_that_may_be_none(text, tmp_path, capsys):
    changes = {"model.feedforward": "none", "optimizer.clip_norm": "none", "training.keep_every": "7e0"}
    changes |= {"data.tokenizer.path": "none", "guidance.mode": "none", "mesh.data": "2"}
    flags = [f"--config.{key}={value}" for key, value in changes.items()]
    assert main.main(["ag-jax", *command("train", text, tmp_path / "run"), *flags, "--print_config"]) == 0
    settings = schema.flat(json.loads(capsys.readouterr().out))
    assert [settings[key] for key in changes] == [None, None, 7, None, "none", 2]


def test_the_tokenizer_is_trained(text, tmp_path, capsys):
    """The command that is named at the end trains with it."""
    workdir = tmp_path / "my tokenizer"
    assert main.main(["ag-jax", *command("tokenizer", text, workdir, "--text=the house")]) == 0
    said = capsys.readouterr()
    assert str(workdir) in said.out and "the ▁h" in said.out and (workdir / "checksum.json").exists()
    verb = parser.parse(shlex.split(re.search("^next: ag-jax (.*)$", said.err, re.M)[1]))
    assert verb.name == "compare" and verb.config.settings.data.tokenizer.path == str(workdir)
    assert verb.config.settings.data.source == str(text)


@pytest.mark.parametrize(
    ("more", "status", "named"),
    [
        (["--config.training.steps=1.5"], 2, "whole number"),
        (["--config.training.milestones=0.5,nan"], 2, "training.milestones"),
        (["--config.model.heads=5"], 2, "model.heads"),
        (["--config.guidance.fraction=0.3"], 2, "guidance.fraction"),
        (["--config.data.source=/not/there.txt"], 1, "/not/there.txt"),
        (["--config.training.batch_size=4000"], 1, "4000"),
        (["--config.mesh.tensor=3"], 1, "tensor=3"),
        (["--config.model.vocabulary_size=7"], 1, "vocabulary"),
    ],
)
def test_nonsense_is_refused_in_one_line(text, tmp_path, one_device, rejected, more, status, named):
    found, message = rejected(*command("train", text, tmp_path / "run", *more))
    assert found == status and named in message and len(message) < 5000
    assert not list((tmp_path / "run").glob("checkpoints/*"))


def test_long_lines_of_messages_are_shortened():
    assert parser.shortened("x\n" + 2000 * "y") == "x\n" + 2000 * "y"
    long = 1000 * "a" + 1500 * "b" + 1000 * "c"
    assert parser.shortened(f"{long}\nz") == f"{1000 * 'a'} ... 1,500 characters left out ... {1000 * 'c'}\nz"


def test_directories_that_cannot_be_used(text, uninterrupted, tmp_path, rejected):
    (tmp_path / "file").write_text("not a directory")
    status, message = rejected(*command("train", text, tmp_path / "file"))
    assert status == 1 and str(tmp_path / "file") in message
    before = (uninterrupted / "metrics.jsonl").read_bytes()
    status, message = rejected(*command("train", text, uninterrupted, "--config.model.layers=3"))
    assert status == 1 and "model.layers: there 2, now 3" in message
    assert (uninterrupted / "metrics.jsonl").read_bytes() == before


TUNING = f"--config={REPOSITORY / 'configs/finetune/glue.py'}:checkpoint=c,tasks=rte"


@pytest.mark.parametrize(
    ("arguments", "status", "named"),
    [
        (["train", TUNING, "--print_config"], 2, "a config for pre-training"),
        (["evaluate", TUNING], 2, "a config for probes"),
        (["finetune", "--config=quickstart"], 2, "a config for fine-tuning"),
        (["evaluate", "--config=probe:checkpoint=c", "--step=3"], 2, "--config.step=3"),
        (["compare", TUNING], 1, "no arms"),
        (["compare", "--config=quickstart:arm=ag"], 1, "arm=ag"),
        (["search", "--config=quickstart_search:arm=ag"], 1, "arm=ag"),
        (["finetune", TUNING, "--config.arms=plain,plain"], 2, "--config.arms"),
        (["finetune", TUNING, "--step=3"], 2, "--config.step"),
        (["finetune", TUNING, "--config.tasks.rte.epoch=3"], 2, "'tasks.rte.epochs'"),
        (["finetune", TUNING, "--config.tasks.rte.learning_rates=(0.0,)"], 2, "tasks.rte.learning_rates"),
        (["finetune", TUNING, "--config.data=/not/there"], 1, "rte: no split 'train' below /not/there"),
        (["finetune", TUNING + ",sst3"], 2, "'sst3'"),
        (["inspect", "--layers=1", "--heads=1.1"], 1, "--layers"),
    ],
)
def test_verbs_with_wrong_flags(tmp_path, rejected, arguments, status, named):
    found, message = rejected(*arguments, f"--workdir={tmp_path / 'run'}")
    assert found == status and named in message and not (tmp_path / "run").exists()


CONTENTS = {
    contents.RUN: {"config.json": {"data": {}, "training": {}}, "metrics.jsonl": {"step": 1, "split": "train"}},
    contents.SUITE: {"config.json": {"tasks": {"rte": {}}}, "rte/lr2e-05-bs32-seed0/metrics.jsonl": {}},
    contents.COMPARISON: {"report.json": {"arms": {}, "seeds": [0]}, "ag-seed0/config.json": {}},
    contents.ARMS: {"ag-seed0/config.json": {}},
    contents.SUITES: {"report.json": {"arms": ["a"], "tasks": {}}, "a/config.json": {}},
    contents.SEARCH: {"search.json": {}, "best.json": {}},
    contents.PROBES: {"report.json": {"probes": {}}, "ag-seed0/config.json": {}},
    contents.TOKENIZER: {"checksum.json": {}},
}


@pytest.mark.parametrize("there", CONTENTS)
def test_a_directory_of_another_kind_is_named(there, tmp_path):
    for name, content in CONTENTS[there].items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(json.dumps(content))
    for kind in CONTENTS.keys() - {contents.ARMS}:
        if there in (kind, *contents.MAY_HOLD.get(kind, ())):
            assert contents.output_directory(str(tmp_path), kind) == epath.Path(tmp_path)
        else:
            with pytest.raises(ValueError, match=f"{there}, expected {kind}"):
                contents.output_directory(str(tmp_path), kind)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.EMFILE, "Too many open files"), "ulimit -n"),
        (MemoryError("Unable to allocate 9 TiB"), "not enough memory"),
        (jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: 9 TiB"), "not enough memory"),
    ],
)
def test_what_the_machine_lacks_is_named(error, said, monkeypatch, capsys):
    def fail(verb):
        raise error

    monkeypatch.setitem(cli.RUN_BY, "export", fail)
    assert cli.run_safely(verb_of("export")) == 1
    assert said in capsys.readouterr().err


def test_verbs_that_take_one_model_name_the_best_of_several(tmp_path, rejected):
    (tmp_path / "a-seed0").mkdir()
    (tmp_path / "report.json").write_text(json.dumps({"arms": {"a": {}}, "seeds": [0]}))
    summary = {"steps": 9} | dict.fromkeys(("train_loss", "validation_loss", "average_train_loss"), 1.0)
    stored.write(tmp_path / "a-seed0", summary)
    (tmp_path / "a-seed0" / "config.json").write_text(json.dumps({"data": {}, "model": {}, "training": {}}))
    for verb in (["export", f"--to={tmp_path / 'hf'}"], ["evaluate"]):
        status, message = rejected(*verb, f"--workdir={tmp_path}")
        assert status == 1 and f"--workdir={tmp_path / 'a-seed0'}" in message


STRANGER = """
import pathlib
from ag_jax.attention import segments
from ag_jax.attention.patterns import columns

(pathlib.Path(__file__).parent / "executed").touch()

def second(inputs):
    return columns(segments.order(inputs.segments_BL) == 1, inputs.segments_BL)
"""


def _import_from(folder: str) -> None:
    sys.path.insert(0, folder)


def test_the_code_that_a_run_names_is_imported_only_if_the_user_trusts_it(text, tmp_path):
    (tmp_path / "stranger.py").write_text(STRANGER)
    start = functools.partial(run, cwd=tmp_path, before=functools.partial(_import_from, str(tmp_path)))
    settings = ["--config.training.steps=1", "--config.training.checkpoint_every=1"]
    heads = "--config.guidance.heads=next:1,stranger.second:2"
    done = start(command("train", text, tmp_path / "run", *settings, heads))
    assert done.returncode == 0, done.stderr
    (tmp_path / "executed").unlink()
    evaluated = start(["evaluate", "--workdir=run"])
    assert "mlm_loss" in evaluated.stdout and "mass" not in evaluated.stdout, evaluated.stderr
    assert "stranger.second" in evaluated.stderr and "--trust_code" in evaluated.stderr
    assert (found := start(["export", "--workdir=run", "--to=out"])).returncode == 0, found.stderr
    assert not (tmp_path / "executed").exists()
    trusted = json.loads(start(["evaluate", "--workdir=run", "--trust_code"]).stdout)
    assert {"mass/stranger.second", "ag_loss"} <= trusted.keys() and (tmp_path / "executed").exists()
    assert trusted["mlm_loss"] == json.loads(evaluated.stdout)["mlm_loss"]


def _close_outputs() -> None:
    for number in (0, 1, 2):
        os.close(number)
    sys.stdin = sys.stdout = sys.stderr = None


def _break_pipe() -> None:
    read, write = os.pipe()
    os.close(read)
    os.dup2(write, 1)


def test_evaluate_also_with_outputs_that_nobody_reads(uninterrupted):
    evaluate, written = ["evaluate", f"--workdir={uninterrupted}"], uninterrupted / "evaluation.json"
    for arguments, status in ((["configs"], 0), (evaluate, 128 + signal.SIGPIPE)):
        done = run(arguments, before=_break_pipe)
        assert done.returncode == status and "rror" not in done.stderr and "Traceback" not in done.stderr, done.stderr
    found, summary = json.loads(written.read_text()), stored.facts(uninterrupted)
    recorded = json.loads((uninterrupted / "corpus.json").read_text())
    assert found["step"] == STEPS and found["mlm_loss"] == pytest.approx(summary["validation_loss"], rel=1e-6)
    assert found["evaluated_on"]["rows"] == recorded["validation rows"]
    assert found["evaluated_on"]["is_the_text_of_the_run"]
    written.unlink()
    assert run(evaluate, before=_close_outputs).returncode == 0 and json.loads(written.read_text()) == found
    assert run(["evaluate", "--workdir=absent"], before=_close_outputs).returncode == 1
