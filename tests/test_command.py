"""The command `ag-jax` as a user runs it: killed, stopped, resumed, and with invalid arguments."""

import errno
import functools
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest
from etils import epath

from ag_jax import cli, config_reader
from ag_jax.data.text import pipeline
from ag_jax.pretraining import run as run_room
from ag_jax.training.checkpoint import Checkpoints
from ag_jax.training.metrics import CLOCK_FIELDS, read_metrics
from tests import commands
from tests.commands import run

REPOSITORY = pathlib.Path(__file__).parent.parent
STEPS = 120
WORDS = "the house of our union is strong and we will build roads . they said no ; he went home early .".split()


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """Write a file of a few hundred sentences; two epochs are 120 steps of 4 rows."""
    chosen = random.Random(1)
    lines = [" ".join(chosen.choices(WORDS, k=9)).capitalize() + "." for _ in range(330)]
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
        "training.steps": STEPS,
        "optimizer.warmup_steps": 0,
        "training.batch_size": 4,
        "training.log_every": 1,
        "training.evaluate_every": 50,
        "training.checkpoint_every": 7,
        "guidance.fraction": 1.0,
    }
    flags = [f"--config.{key}={value}" for key, value in settings.items()]
    config = f"--config={REPOSITORY / 'configs' / 'quickstart.py'}"
    return [verb, config, *flags, f"--workdir={workdir}", *more]


def signalled(arguments: list[str], workdir: pathlib.Path, step: int, number: int) -> commands.Finished:
    """Run the command, send it a signal as soon as its metrics reach the step, and wait for it to end."""
    running = commands.Running(arguments)
    metrics, deadline = workdir / "metrics.jsonl", time.monotonic() + 240
    while time.monotonic() < deadline and running.poll() is None:
        if metrics.exists() and f'"step": {step},' in metrics.read_text():
            running.send_signal(number)
            break
        time.sleep(0.002)
    return running.wait(120)


def content(workdir: pathlib.Path):
    """Return the final arrays, the metadata saved with them, and the rows of metrics, without clock fields."""
    config = run_room.read_config(workdir)
    job = run_room.make_job(config, epath.Path(workdir), pipeline.prepare(config.data))
    checkpoints = Checkpoints(job.workdir / "checkpoints", read_only=True)
    restored = checkpoints.restore(STEPS, job.program.abstract)
    checkpoints.close()
    rows = [{key: value for key, value in row.items() if key not in CLOCK_FIELDS} for row in read_metrics(workdir)]
    return restored.state, without_clock(restored.progress | {"rows": None}), rows


def without_clock(values):
    if isinstance(values, dict):
        return {key: without_clock(value) for key, value in values.items() if key not in CLOCK_FIELDS}
    return [without_clock(value) for value in values] if isinstance(values, list) else values


def assert_same_run(left: pathlib.Path, right: pathlib.Path) -> None:
    (state, progress, rows), (other_state, other_progress, other_rows) = content(left), content(right)
    assert jax.tree.structure(state) == jax.tree.structure(other_state)
    jax.tree.map(np.testing.assert_array_equal, state, other_state)
    assert progress == other_progress
    assert rows == other_rows
    assert (left / "summary.json").read_text() == (right / "summary.json").read_text()


@pytest.fixture(scope="module")
def uninterrupted(text, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("uninterrupted") / "run"
    # In a new interpreter, as a user starts it.
    interpreter = [sys.executable, "-m", "ag_jax.main", *command("train", text, workdir)]
    done = subprocess.run(interpreter, cwd=REPOSITORY, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "MLM loss" in done.stdout
    rows = len((workdir / "metrics.jsonl").read_text().splitlines())
    assert rows == STEPS + 3
    return workdir


def test_killed_in_both_epochs_and_restarted_is_bit_identical(text, uninterrupted, tmp_path, one_device):
    """`kill -9` at a random step of the first epoch, then of the second; dropout and guidance are on."""
    workdir = tmp_path / "run"
    steps = random.SystemRandom().randint(8, 50), random.SystemRandom().randint(64, 100)
    for step in steps:
        killed = signalled(command("train", text, workdir), workdir, step, signal.SIGKILL)
        assert killed.returncode == -signal.SIGKILL, f"kill at {step}: {killed.stderr}"
        assert not (workdir / "summary.json").exists()
    done = run(command("train", text, workdir))
    assert done.returncode == 0 and "resumed from the checkpoint of step" in done.stderr, (steps, done.stderr)
    assert_same_run(workdir, uninterrupted)


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.exhaustive)])
def test_a_signal_and_a_full_disk_lose_nothing(text, uninterrupted, tmp_path, one_device, number):
    """After a signal, and after an attempt on a full disk, the same command ends with the same state.

    A limit on the size of files stands in for a full disk: the metrics up to the next checkpoints fit, but the index of
    a checkpoint's arrays does not.
    """
    workdir = tmp_path / "run"
    stopped = signalled(command("train", text, workdir), workdir, 30, number)
    assert stopped.returncode == 0, stopped.stderr
    assert "To go on, run the same command again" in stopped.stderr
    complete = sorted(int(path.name) for path in (workdir / "checkpoints").iterdir() if path.name.isdigit())
    assert complete[-1] >= 30

    index = (workdir / "checkpoints" / str(complete[-1]) / "state" / "_METADATA").stat().st_size
    assert (workdir / "metrics.jsonl").stat().st_size < 0.6 * index
    full = run(command("train", text, workdir), before=functools.partial(commands.limit_file_size, index - 1024))
    assert full.returncode == 1, full.stderr
    assert "cannot write a checkpoint" in full.stderr and "File too large" in full.stderr
    assert f"Complete checkpoints are those of the steps: {', '.join(map(str, complete))}." in full.stderr
    assert "Free some disk space and run the same command again" in full.stderr

    done = run(command("train", text, workdir))
    assert f"resumed from the checkpoint of step {complete[-1]}" in done.stderr
    assert_same_run(workdir, uninterrupted)


def test_settings_that_may_be_none(text, tmp_path):
    changes = {"model.feedforward": "none", "optimizer.clip_norm": "none", "training.keep_every": "7e0"}
    changes |= {
        "data.tokenizer.path": "none",
        "guidance.mode": "none",
        "mesh.data": "2",
        "training.step_timeout": "none",
    }
    flags = [f"--config.{key}={value}" for key, value in changes.items()]
    done = run([*command("train", text, tmp_path / "run"), *flags, "--print_config"])
    settings = config_reader.flat(json.loads(done.stdout))
    assert [settings[key] for key in changes] == [None, None, 7, None, "none", 2, None]
    for flag, message in (
        ("--config.training.steps=none", "training.steps must be a whole number, got None"),
        ("--config.model.feedforward=0", "model.feedforward must be at least 1 and at most 1048576, or none, got 0"),
        ("--config.training.steps=1.5", "expected a whole number"),
        ("--config.optimizer.learning_rate=fast", "expected a number"),
        ("--config.model.scan_layers=maybe", "expected True or False"),
        ("--config.training.milestones=0.5,nan", "training.milestones must be a finite number, got nan"),
        ("--model.layers=3", "--config.model.layers"),
    ):
        done = run([*command("train", text, tmp_path / "run"), flag, "--print_config"])
        assert done.returncode and message in done.stderr


def test_evaluate_finds_the_summarys_loss(uninterrupted):
    done = run(["evaluate", f"--workdir={uninterrupted}"])
    assert done.returncode == 0, done.stderr
    summary = json.loads((uninterrupted / "summary.json").read_text())
    found = json.loads(done.stdout)
    assert found["mlm_loss"] == pytest.approx(summary["validation_loss"], rel=1e-6)
    recorded = json.loads((uninterrupted / "corpus.json").read_text())
    assert (
        found["evaluated_on"]["rows"] == recorded["validation rows"] and found["evaluated_on"]["is_the_text_of_the_run"]
    )


@pytest.mark.exhaustive
def test_inspect_draws(uninterrupted):
    done = run(["inspect", f"--workdir={uninterrupted}", "--text=The house is strong."])
    assert done.returncode == 0, done.stderr
    drawn = [line.removeprefix("drawn: ") for line in done.stdout.splitlines() if line.startswith("drawn: ")]
    assert drawn and all(pathlib.Path(path).read_bytes().startswith(b"\x89PNG") for path in drawn)


def test_tokenizer_is_trained_and_can_be_used(text, tmp_path):
    done = run(command("tokenizer", text, tmp_path / "tokenizer", "--text=the house"))
    assert done.returncode == 0, done.stderr
    assert "tokens, saved in" in done.stdout and "the ▁h" in done.stdout
    again = run(
        command(
            "train", text, tmp_path / "run", f"--config.data.tokenizer.path={tmp_path / 'tokenizer'}", "--print_config"
        )
    )
    assert json.loads(again.stdout)["data"]["tokenizer"]["path"] == str(tmp_path / "tokenizer")


def test_a_message_does_not_repeat_a_huge_value_whole(text, tmp_path):
    huge = [f"--config.guidance.heads={'ne' * 9000}xt:1", f"--config.guidance.mode={'x' * 9000}"]
    done = run(command("train", text, tmp_path / "run", *huge))
    assert done.returncode == 1 and "characters left out" in done.stderr and len(done.stderr) < 5000, done.stderr[:5000]


def test_another_config_is_refused_and_nothing_is_lost(text, uninterrupted):
    before = (uninterrupted / "metrics.jsonl").read_bytes()
    done = run(command("train", text, uninterrupted, "--config.model.layers=3"))
    assert done.returncode == 1
    assert "model.layers: there 2, now 3" in done.stderr
    assert (uninterrupted / "metrics.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--config.training.stpes=3"], "unknown setting 'training.stpes'; did you mean 'training.steps'?"),
        (["--config.training.steps=many"], "flag --config.training.steps=many"),
        (["--wrokdir=x"], "Did you mean: workdir"),
        (["--config.model.heads=5"], "model.heads must divide model.width=12, got 5"),
        (["--config.guidance.fraction=0.3"], "at least 2 are needed"),
        (["--config.guidance.heads=nxt:1"], "expected an attention pattern (next, prev, "),
        (["--config.data.sequence_length=65"], "is longer than the model's"),
        (["--config.data.source=/not/there.txt"], "does not exist"),
        (["--config.training.batch_size=4000"], "fewer than one batch of 4000"),
        (["--config.mesh.tensor=3"], "the mesh data=1 x fsdp=1 x tensor=3 needs 3 devices"),
        (["--config.model.vocabulary_size=7"], "smaller than the tokenizer's 300 tokens"),
        (["--config.optimizer.warmup_steps=500"], "optimizer.warmup_steps must be below training.steps=120"),
        (["--config.data.masking.rate=1.5"], "data.masking.rate must be above 0 and below 1, got 1.5"),
    ],
)
def test_nonsense_is_refused_in_one_line(text, tmp_path, more, message):
    done = run(command("train", text, tmp_path / "run", *more))
    assert done.returncode in (1, 2)
    assert message in done.stderr, done.stderr
    assert "Traceback" not in done.stderr
    assert not list((tmp_path / "run").glob("checkpoints/*"))


def test_an_unwritable_workdir_is_named(text, tmp_path):
    (tmp_path / "file").write_text("not a directory")
    done = run(command("train", text, tmp_path / "file"))
    assert done.returncode == 1 and str(tmp_path / "file") in done.stderr and "Traceback" not in done.stderr


def test_help_and_no_verb():
    done = run(["--help"])
    assert done.returncode == 0 and "Usage: ag-jax VERB" in done.stdout
    done = run(["trian"])
    assert done.returncode == 2 and "expected one verb of" in done.stderr


def test_each_verb_names_the_one_that_a_config_is_for(tmp_path):
    tuning = f"--config={REPOSITORY / 'configs/finetune/glue.py'}:checkpoint={tmp_path},tasks=rte"
    workdir = f"--workdir={tmp_path / 'run'}"
    for arguments, status, message in (
        (["train", tuning], 1, "is for fine-tuning, which finetune and compare read"),
        (["evaluate", tuning], 1, "is for fine-tuning, which finetune and compare read"),
        (["compare", tuning], 1, "names no arms to compare"),
        (["compare", "--config=quickstart:arm=ag"], 1, "leave out arm=ag"),
        (["search", "--config=quickstart_search:arm=ag"], 1, "leave out arm=ag"),
        (["finetune", tuning, "--config.arms=plain,plain"], 1, "--config.arms has no effect here"),
        (["train", "--config=quickstart", "--config.search.seeds=1"], 1, "--config.search.seeds has no effect here"),
        (["train", "--config=quickstart", "--workdir=a"], 2, "--workdir is given more than once"),
        (["train", tuning, "--print_config"], 1, "is for fine-tuning, which finetune and compare read"),
        (["compare", tuning, "--print_config"], 1, "names no arms to compare"),
        (["finetune", "--config=quickstart"], 1, "is for pre-training, which train, compare and search read"),
        (
            ["finetune", tuning, "--step=3"],
            2,
            "does not read --step; give the step of the checkpoint as --config.step=N",
        ),
        (["evaluate", "--config=quickstart"], 1, "expected a config for probes of attention heads"),
        (["evaluate", "--config=quickstart", "--print_config"], 1, "expected a config for probes of attention heads"),
        (
            ["finetune", tuning, "--config.tasks.rte.epoch=3"],
            2,
            "unknown setting 'tasks.rte.epoch'; did you mean 'tasks.rte.epochs'?",
        ),
        (
            ["finetune", tuning, "--config.tasks.rte.learning_rates=(0.0,)"],
            1,
            "tasks.rte.learning_rates must be at least 1e-12",
        ),
        (["finetune", tuning, "--config.data=/not/there"], 1, "task rte: no split 'train' below /not/there"),
        (["finetune", tuning, f"--config.data={tmp_path}"], 1, "no split 'train' below"),
        (["finetune", tuning + ",sst3"], 2, "or all, got 'sst3'"),
    ):
        done = run([*arguments, workdir])
        assert done.returncode == status and message in done.stderr, (arguments, done.stderr)
        assert "Traceback" not in done.stderr and not (tmp_path / "run").exists()


CONTENTS = {
    cli.RUN: {"config.json": {"data": {}, "training": {}}, "metrics.jsonl": {"step": 1, "split": "train"}},
    cli.SUITE: {"config.json": {"tasks": {"rte": {}}}, "rte/lr2e-05-bs32-seed0/metrics.jsonl": {}},
    cli.COMPARISON: {"report.json": {"arms": {}, "seeds": [0]}, "ag-seed0/config.json": {}},
    cli.ARMS: {"ag-seed0/config.json": {}},
    cli.SUITES: {"report.json": {"arms": ["a"], "tasks": {}}, "a/config.json": {}},
    cli.SEARCH: {"search.json": {}, "best.json": {}},
    cli.PROBES: {"report.json": {"probes": {}}, "ag-seed0/config.json": {}},
    cli.TOKENIZER: {"checksum.json": {}},
}


@pytest.mark.parametrize("there", CONTENTS)
def test_a_directory_of_another_kind_is_named(there, tmp_path):
    for name, content in CONTENTS[there].items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(json.dumps(content))
    request = cli.Request(None, {}, str(tmp_path), None, None)
    may_hold = {kind for kind in CONTENTS if there in (kind, *cli.MAY_HOLD.get(kind, ()))}
    for kind in CONTENTS.keys() - {cli.ARMS}:
        if kind in may_hold:
            assert request.directory(kind) == epath.Path(tmp_path)
        else:
            with pytest.raises(ValueError, match=f"holds {there}, expected {kind} or nothing"):
                request.directory(kind)
    assert request.directory() == epath.Path(tmp_path)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.EMFILE, "Too many open files"), "ulimit -n"),
        (MemoryError("Unable to allocate 9 TiB"), "not enough memory"),
        (jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: 9 TiB"), "not enough memory"),
    ],
)
def test_what_the_machine_lacks_is_named(error, said, monkeypatch, capsys):
    def fail(request):
        raise error

    monkeypatch.setitem(cli.VERBS, "export", fail)
    assert cli.run_safely("export", cli.Request(None, {}, None, None, None)) == 1
    assert said in capsys.readouterr().err


def test_verbs_that_take_one_model_name_it(tmp_path):
    (tmp_path / "a-seed0").mkdir()
    (tmp_path / "report.json").write_text(json.dumps({"arms": {"a": {}}, "seeds": [0]}))
    summary = {"steps": 9} | dict.fromkeys(("train_loss", "validation_loss", "average_train_loss"), 1.0)
    (tmp_path / "a-seed0" / "summary.json").write_text(json.dumps(summary))
    (tmp_path / "a-seed0" / "config.json").write_text(json.dumps({"data": {}, "model": {}, "training": {}}))
    for arguments, said in (
        (["export", f"--workdir={tmp_path}", f"--to={tmp_path / 'hf'}"], f"--workdir={tmp_path / 'a-seed0'}"),
        (["evaluate", f"--workdir={tmp_path}"], f"--workdir={tmp_path / 'a-seed0'}"),
        (
            ["import", f"--from={tmp_path / 'a-seed0'}", f"--workdir={tmp_path / 'x'}"],
            "expected a model_type among bert",
        ),
    ):
        done = run(arguments)
        assert done.returncode == 1 and said in done.stderr, done.stderr


STRANGER = """
import pathlib
from ag_jax.attention import segments
from ag_jax.attention.patterns import columns

(pathlib.Path(__file__).parent / "executed").touch()

def second(tokens_BL, segments_BL, special):
    return columns(segments.order(segments_BL) == 1, segments_BL)

def three(tokens_BL, segments_BL, special):
    return 3
"""


def _import_from(folder: str) -> None:
    sys.path.insert(0, folder)


def test_the_code_that_a_run_names_is_imported_only_if_the_user_trusts_it(text, tmp_path):
    (tmp_path / "stranger.py").write_text(STRANGER)
    start = functools.partial(run, cwd=tmp_path, before=functools.partial(_import_from, str(tmp_path)))
    settings = ["--config.training.steps=1", "--config.training.checkpoint_every=1", "--config.guidance.fraction=1"]

    def heads(name):
        return [*settings, f"--config.guidance.heads=next:1,stranger.{name}:2"]

    wrong = start(command("train", text, tmp_path / "wrong", *heads("three")))
    assert wrong.returncode == 1 and wrong.stderr.splitlines()[-1].startswith("ag-jax train: the attention pattern")
    assert "'stranger.three' returned an object of type int" in wrong.stderr
    done = start(command("train", text, tmp_path / "run", *heads("second")))
    assert done.returncode == 0, done.stderr
    (tmp_path / "executed").unlink()
    evaluated = start(["evaluate", "--workdir=run"])
    assert "mlm_loss" in evaluated.stdout and "mass" not in evaluated.stdout, evaluated.stderr
    assert "stranger.second is imported only with --trust_code" in evaluated.stderr
    inspected = start(["inspect", "--workdir=run", "--text=we will build roads", "--html"])
    assert "[Second]" in inspected.stdout and "stranger.second is not shown" in inspected.stderr, inspected.stderr
    for arguments in (
        ["export", "--workdir=run", "--to=out"],
        command("train", text, tmp_path / "next", *settings, f"--config.training.initial_weights={tmp_path / 'run'}"),
    ):
        assert (found := start(arguments)).returncode == 0, found.stderr
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


def test_outputs_that_nobody_reads(uninterrupted):
    for arguments, status in ((["configs"], 0), (["evaluate", f"--workdir={uninterrupted}"], 128 + signal.SIGPIPE)):
        done = run(arguments, before=_break_pipe)
        assert done.returncode == status and "Traceback" not in done.stderr and "rror" not in done.stderr, done.stderr
    assert json.loads((uninterrupted / "evaluation.json").read_text())["step"] == STEPS
    (uninterrupted / "evaluation.json").unlink()
    assert run(["--version"], before=_close_outputs).returncode == 0
    assert run(["evaluate", f"--workdir={uninterrupted}"], before=_close_outputs).returncode == 0
    assert (uninterrupted / "evaluation.json").exists()
    assert run(["evaluate", "--workdir=absent"], before=_close_outputs).returncode == 1
