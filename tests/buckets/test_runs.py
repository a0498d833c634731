"""Run directories in a bucket of Google Cloud Storage: files, runs, kills, and a bucket that fails.

The server of `tests/bucket.py` answered the requests of a small client as googleapis/storage-testbench did: simple,
multipart and resumable uploads, ranges, conditions, listings and their pages, copies, deletions. The answers differed
in the status of deletions (204 in place of 200) and of wrong checksums (400 in place of 412), in the headers and fields
of whole downloads, of simple uploads and of empty objects, in a multipart body with bare newlines, which the testbench
rejects, and in the words of errors.
"""

import dataclasses
import json
import random
import statistics
import tempfile
import threading
import time
import types
from collections import Counter
from unittest import mock

import fsspec
import gcsfs.retry
import google.auth.exceptions
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from etils import epath

from ag_jax.command_line import cli
from ag_jax.data import tokenizers
from ag_jax.data.config import TokenizerConfig
from ag_jax.distributed import bucket as bucket_files
from ag_jax.distributed import interruption, storage
from ag_jax.pretraining.open_run import open_run
from ag_jax.settings.schema import shown
from ag_jax.training import journal
from ag_jax.training.checkpoint import Checkpoints
from ag_jax.training.metrics import CLOCK_FIELDS, MetricWriter, read_metrics
from ag_jax.training.state import create_state
from ag_jax.training.stopping import Interrupted, StopSignal
from ag_jax.training.train import train as train_here
from tests import commands, marian_files
from tests import results as stored
from tests.bucket import CUT, FROZEN, LOST
from tests.commands import REPOSITORY
from tests.training.trainees import tiny_trainee
from tests.verbs import verb_of

CONFIG = str(REPOSITORY / "configs" / "quickstart.py")
TEXT = "The state of the union is strong. We will build roads, and we will build them well. Thank you. "


@pytest.fixture
def overrides(tmp_path):
    (tmp_path / "text").mkdir()
    for number in range(12):
        (tmp_path / "text" / f"{number}.txt").write_text(TEXT * 4 + f"It is number {number}.")
    return {
        "data.source": str(tmp_path / "text"),
        "data.sequence_length": 16,
        "data.tokenizer.vocabulary_size": 300,
        "model.layers": 1,
        "model.width": 12,
        "model.heads": 6,
        "training.steps": 4,
        "optimizer.warmup_steps": 0,
        "training.batch_size": 4,
        "training.log_every": 1,
        "training.evaluate_every": None,
        "training.milestones": (0.0, 1.0),
        "inspection.sentence": "The union is strong.",
    }


def request(name, workdir, config=None, overrides=None, **more):
    more |= {"workdir": workdir} if workdir is not None else {}
    return verb_of(name, config, overrides, **more)


def test_compare_evaluate_inspect_export_and_import(bucket, overrides, capsys, tmp_path, one_device):
    cli.run_verb(request("compare", "gs://bucket/runs", CONFIG, overrides))
    assert "gs://bucket/runs/report.md" in capsys.readouterr().out
    report = epath.Path("gs://bucket/runs/report.md")
    assert "| Validation |" in report.read_text() and json.loads((report.parent / "report.json").read_text())
    figures = list((report.parent / "figures").iterdir())
    pictures = [path for path in figures if path.name != "maps.html"]
    assert len(figures) - 1 == len(pictures) >= 4
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in pictures)
    workdir = report.parent / "ag-seed0"
    assert [row["step"] for row in read_metrics(workdir)] == [1, 2, 3, 4, 4]
    assert list((workdir / "tensorboard").iterdir())

    cli.run_verb(request("evaluate", str(workdir)))
    found, summary = json.loads((workdir / "evaluation.json").read_text()), stored.facts(workdir)
    assert found["mlm_loss"] == pytest.approx(summary["validation_loss"], rel=1e-6)
    cli.run_verb(request("inspect", str(workdir)))
    assert f"{workdir}/figures/attention_overview_step4.png" in capsys.readouterr().out
    with pytest.raises(ValueError, match="model.layers: there 1, now 2"):
        cli.run_verb(request("train", str(workdir), CONFIG, overrides | {"model.layers": 2}))

    model = tmp_path / "model"
    with pytest.raises(ValueError, match="gs://bucket/model"):
        cli.run_verb(request("export", str(workdir), destination="gs://bucket/model"))
    cli.run_verb(request("export", str(workdir), destination=str(model)))
    cli.run_verb(request("import", "gs://bucket/imported", source=str(model)))
    imported, trained = (open_run(epath.Path(path)).params for path in ("gs://bucket/imported", workdir))
    for one, other in zip(jax.tree.leaves(imported["encoder"]), jax.tree.leaves(trained["encoder"]), strict=True):
        np.testing.assert_array_equal(one, other)
    with pytest.raises(ValueError, match="gs://bucket/imported exists"):
        cli.run_verb(request("import", "gs://bucket/imported", source=str(model)))
    bucket.plan = lambda asked: 403 if asked.is_write and "checkpoints" in asked.name else None
    with pytest.raises(storage.StoreError, match="Forbidden"):
        cli.run_verb(request("import", "gs://bucket/again", source=str(model)))


def test_tokenizers_come_back(bucket, tmp_path):
    marian_files.write_tokenizer(tmp_path)
    trained = [tokenizers.load(tmp_path)]
    for kind, size in (("byte_bpe", 270), ("wordpiece", 60), ("sentencepiece_bpe", 60)):
        trained.append(tokenizers.train(TokenizerConfig(kind=kind, vocabulary_size=size), [TEXT]))
    for number, tokenizer in enumerate(trained):
        tokenizer.save(f"gs://bucket/{number}")
        loaded = tokenizers.load(f"gs://bucket/{number}")
        assert loaded.fingerprint() == tokenizer.fingerprint()
        assert loaded.encode_targets([TEXT]) == tokenizer.encode_targets([TEXT])
        assert loaded.encode(TEXT) == tokenizer.encode(TEXT)
    with pytest.raises(FileNotFoundError, match="gs://bucket/other"):
        tokenizers.load("gs://bucket/other")
    folder = epath.Path("gs://bucket/layout")
    (folder / "tokenizer.json").write_bytes(trained[2].file()[1])
    tokenizers.load(folder)
    (folder / "tokenizer_config.json").write_text('{"mask_token": "[NEW]"}')
    with pytest.raises(ValueError, match="mask_token"):
        tokenizers.load(folder)


def test_files_of_any_size_come_back_whole_and_in_parts(bucket):
    store, path = fsspec.filesystem("gs"), epath.Path("gs://bucket/a folder/größe.bin")
    content = random.Random(0).randbytes(7 * 2**20 + 3)  # more than a resumable upload sends in one part
    for data in (b"", b"\r\n--==0==\r", content):
        path.write_bytes(data)
        assert path.read_bytes() == data and store.size(str(path)) == len(data)
    assert store.cat_file(str(path), 5, 2**20) == content[5 : 2**20]
    with path.open("rb") as file:
        file.seek(-9, 2)
        assert file.read() == content[-9:]
    store.cp_file(str(path), "gs://bucket/copy")
    assert bucket.buckets["bucket"]["copy"].data == content


def test_listings(bucket):
    store = fsspec.filesystem("gs")
    for name in ("a/1", "a/2/3", "a/2/4", "a0", "b"):
        bucket.write("bucket", name, b"x", {}, {})
    assert store.ls("gs://bucket/a", detail=False) == ["bucket/a/1", "bucket/a/2"]
    assert store.find("gs://bucket/a") == ["bucket/a/1", "bucket/a/2/3", "bucket/a/2/4"]
    assert {path.name for path in epath.Path("gs://bucket/a").iterdir()} == {"1", "2"}
    assert epath.Path("gs://bucket/a").is_dir() and not epath.Path("gs://bucket/a/1").is_dir()
    bucket.write("bucket", "a/5", b"x", {}, {})  # by another process, so the first listing must not be remembered
    assert {path.name for path in epath.Path("gs://bucket/a").iterdir()} == {"1", "2", "5"}


def without_pauses():
    """Let gcsfs repeat requests at once."""
    gcsfs.retry.asyncio = mock.Mock(sleep=mock.AsyncMock())


@pytest.fixture
def impatient(monkeypatch):
    """Let gcsfs repeat requests at once, and end one that is not answered after a second."""
    monkeypatch.setattr(gcsfs.retry, "asyncio", gcsfs.retry.asyncio)
    without_pauses()
    monkeypatch.setattr(bucket_files, "ANSWER_WITHIN", 1.0)
    bucket_files.Bucket.clear_instance_cache()
    yield
    bucket_files.Bucket.clear_instance_cache()


@pytest.mark.parametrize("fault", [503, LOST, pytest.param(CUT, marks=pytest.mark.exhaustive), FROZEN])
def test_failures_that_pass_are_not_noticed(bucket, impatient, fault):
    failed = set()

    def plan(asked):
        """The first request of each kind fails."""
        is_first = asked.kind not in failed
        failed.add(asked.kind)
        return fault if is_first else None

    bucket.plan = plan
    path, content = epath.Path("gs://bucket/run/file"), random.Random(0).randbytes(3 * 2**20)
    path.write_bytes(content)
    assert path.read_bytes() == content and path.exists()
    bucket.plan = lambda asked: None
    path.unlink()
    assert not path.exists()


FAULTS = {403: "^Forbidden: .*{}.*Storage Object Admin", 401: "{} without credentials", 400: "{}: planned failure"}
FAULTS |= dict.fromkeys((503, FROZEN), "{}, because the store does not answer")


@pytest.mark.parametrize(
    "fault", [pytest.param(fault, marks=pytest.mark.exhaustive if fault == FROZEN else ()) for fault in FAULTS]
)
def test_failures_that_last_are_one_line(bucket, impatient, fault):
    path = epath.Path("gs://bucket/run/file")
    path.write_text("content")
    bucket.plan = lambda asked: fault
    asked = {
        "read": (path.exists, path.is_dir, lambda: storage.read_whole(path)),
        "written": (lambda: storage.write_whole(path, "x"), lambda: storage.create(path, "x")),
        "deleted": (lambda: fsspec.filesystem("gs").rm_file(str(path)),),
    }
    for done, attempts in asked.items():
        expected = FAULTS[fault].format(f"gs://bucket/run/file cannot be {done}")
        for attempt in attempts:
            with pytest.raises(storage.StoreError, match=expected) as raised:
                attempt()
            assert "\n" not in str(raised.value)
            assert isinstance(raised.value, storage.StoreUnavailableError) == (fault in (503, FROZEN))
    bucket.plan = lambda asked: None
    assert path.read_text() == "content"


def test_a_server_of_credentials_that_does_not_answer_is_no_missing_right():
    kinds = google.auth.exceptions.TransportError, google.auth.exceptions.RefreshError
    found = [bucket_files._explained(kind("no route"), "GET", "gs://bucket/file") for kind in kinds]
    assert [isinstance(error, storage.StoreUnavailableError) for error in found] == [True, False]


def test_directories_that_cannot_be_used(bucket, capsys):
    bucket.write("bucket", "file", b"x", {}, {})
    bucket.write("bucket", "filed/other", b"x", {}, {})
    assert storage.directory("gs://bucket/filed") and storage.directory("gs://bucket/fil")
    for workdir, named in {"gs://none/run": "no bucket none", "gs://bucket/file": "gs://bucket/file is"}.items():
        for verb in ("train", "evaluate", "inspect", "export"):
            more = {"train": {"config": CONFIG}, "export": {"destination": "model"}}.get(verb, {})
            assert cli.run_safely(request(verb, workdir, **more)) == 1
            printed = capsys.readouterr().err
            assert named in printed and printed.count("\n") == 1, printed
    bucket.plan = lambda asked: 403 if asked.is_write else None  # credentials that may only read
    assert cli.run_safely(request("train", "gs://bucket/run", CONFIG)) == 1
    printed = capsys.readouterr().err
    assert "Forbidden: gs://bucket/run/lock.json" in printed and printed.count("\n") == 1


def small_state(step=0):
    state = create_state({"a": jnp.arange(6.0).reshape(2, 3)}, optax.sgd(0.1))
    return dataclasses.replace(state, step=jnp.int32(step))


# TensorStore repeats a request for an array for a quarter of an hour.
PARTS = ("state", "progress", "_CHECKPOINT_METADATA", "commit_success.txt")
FAILURES = [(part, fault) for part in PARTS for fault in (403, CUT, FROZEN) if part != "state" or fault == 403]
SHORT = [("state", 403), ("progress", 403), ("commit_success.txt", CUT)]


@pytest.mark.parametrize(
    ("part", "fault"), [pytest.param(*case, marks=() if case in SHORT else pytest.mark.exhaustive) for case in FAILURES]
)
def test_a_checkpoint_that_cannot_be_saved(bucket, impatient, part, fault):
    """Whichever of its files fails: Orbax writes some with gcsfs, and the arrays with TensorStore."""
    directory = epath.Path("gs://bucket/run/checkpoints")
    bucket.plan = lambda asked: fault if asked.is_write and part in asked.name else None
    checkpoints = Checkpoints(directory)
    with pytest.raises(storage.StoreError, match=f"^cannot write a checkpoint to {directory}: ") as error:
        checkpoints.save(small_state(), {"n": 1})
        checkpoints.wait()
    helps = "role Storage Object Admin" if fault == 403 else "check the network"
    assert helps in str(error.value) and "\n" not in str(error.value)
    bucket.plan = lambda asked: None
    again = Checkpoints(directory)
    assert again.steps() == []
    again.save(small_state(), {"n": 2})
    again.close()
    found = Checkpoints(directory).restore_latest(small_state())
    assert found.progress == {"n": 2}
    np.testing.assert_array_equal(found.state.params["a"], small_state().params["a"])


def test_checkpoints_need_no_permission_to_describe_the_bucket(bucket):
    bucket.plan = lambda asked: 403 if asked.kind == "bucket" else None
    checkpoints = Checkpoints(epath.Path("gs://bucket/checkpoints"))
    for step in range(3):
        checkpoints.save(small_state(step), {})
    checkpoints.close()
    assert {name.split("/")[1] for name in bucket.buckets["bucket"]} == {"2"}, "older ones are deleted"


def test_metrics_that_cannot_be_uploaded_cost_no_checkpoint(bucket, tmp_path, monkeypatch):
    """An upload fails while the checkpoint of step 4 is being saved: it is saved, and nothing else stays open."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    ended = []
    wandb = types.SimpleNamespace(log=lambda step, values: None, finish=ended.append)
    monkeypatch.setattr(journal, "WandbRun", lambda *_: wandb)
    trainee = tiny_trainee("gs://bucket/run", tensorboard=True, log_every=1, wandb="a project")

    def plan(asked):
        if asked.is_write and asked.name == "run/checkpoints/4/commit_success.txt":
            return 1.5
        is_begun = any(name.startswith("run/checkpoints/4") for name in bucket.written)
        return 403 if is_begun and asked.is_write and asked.name == "run/metrics.jsonl" else None

    bucket.plan = plan
    with pytest.raises(storage.StoreError, match="metrics: Forbidden: gs://bucket/run/metrics.jsonl"):
        train_here(trainee, trainee.workdir)
    assert "run/checkpoints/4/commit_success.txt" in bucket.written
    assert ended == [True] and not list(tmp_path.glob("ag_jax-*"))


def train(overrides, workdir, server, *more):
    """Start `ag-jax train` with a bucket."""
    settings = [f"--config.{key}={shown(value)}" for key, value in overrides.items()]
    arguments = ["train", f"--config={CONFIG}", *settings, "--config.training.tensorboard=False", *more]
    environment = {"JAX_NUM_CPU_DEVICES": "1"} | server.environment
    return commands.Running([*arguments, f"--workdir={workdir}"], environment=environment, before=without_pauses)


def content(workdir, step):
    """Rows of metrics without their clock, and the parameters of a checkpoint."""
    checkpoints = Checkpoints(epath.Path(workdir) / "checkpoints", read_only=True)
    params = checkpoints.restore_params(step)
    checkpoints.close()
    return [{key: row[key] for key in row.keys() - CLOCK_FIELDS} for row in read_metrics(workdir)], params


def test_requests_of_a_run_are_few(bucket, overrides, one_device, monkeypatch):
    """The guide names these numbers; each request that training waits for takes tens of milliseconds."""
    counted, save, flush, steps = {}, Checkpoints.save, MetricWriter.flush, []

    def count(name, before):
        kinds = Counter(asked.kind for asked in bucket.asked[before:])
        counted.setdefault(name, []).append(kinds.total())
        print(f"{name}: {kinds.total()} requests, {dict(kinds)}")

    def saved(checkpoints, *arguments):
        """Save while nothing else is under way."""
        checkpoints.wait()
        before = len(bucket.asked)
        waited = save(checkpoints, *arguments)
        count("begin of a save", before)
        checkpoints.wait()
        count("save", before)
        return waited

    def flushed(writer):
        before = len(bucket.asked)
        flush(writer)
        count("upload", before)

    def reached(_):
        if not steps or len(steps) == 5:  # the first step of the run, and of the resumed run
            count("start", 0)
        steps.append(1)
        return "SIGTERM" if len(steps) == 5 else None

    monkeypatch.setattr(Checkpoints, "save", saved)
    monkeypatch.setattr(MetricWriter, "flush", flushed)
    monkeypatch.setattr(StopSignal, "reached", reached)
    overrides |= {"training.steps": 8, "training.checkpoint_every": 2}
    with pytest.raises(Interrupted):
        cli.run_verb(request("train", "gs://bucket/run", CONFIG, overrides))
    bucket.asked.clear()
    cli.run_verb(request("train", "gs://bucket/run", CONFIG, overrides))
    assert set(counted["upload"]) <= {0, 2, 4} and 4 in counted["upload"], "two for each of the two files"
    # The rest of a save is under way while it begins, and is counted in part.
    assert 50 < max(counted["save"]) <= 220 and statistics.median(counted["begin of a save"]) <= 30
    assert 50 < counted["start"][1] <= 400  # about 285, and more where saves still poll while it starts


@pytest.mark.parametrize(
    ("kills", "steps", "every"), [(1, 12, 40), pytest.param(20, 40, 8, marks=pytest.mark.exhaustive)]
)
def test_a_run_that_is_killed_ends_with_the_same_numbers(bucket, overrides, tmp_path, kills, steps, every):
    """Killed while requests are under way, chosen at random, of which one in `every` fails."""
    chosen = random.Random(kills)
    overrides |= {"training.steps": steps, "training.checkpoint_every": 3, "training.evaluate_every": steps // 2}
    assert train(overrides, tmp_path / "run", bucket).wait().returncode == 0
    faults = {index: chosen.choice((503, CUT, LOST, 0.2)) for index in range(0, 100_000, every)}
    bucket.plan = lambda asked: faults.get(asked.number)
    for number in range(kills):
        running = train(overrides, "gs://bucket/run", bucket)
        running.wait_for(f"step {(number + 1) * (steps - 4) // kills}/{steps}")
        seen, more = len(bucket.asked), chosen.randrange(12)  # while a checkpoint is saved, or rows are uploaded
        while running.poll() is None and len(bucket.asked) < seen + more:
            time.sleep(0.001)
        running.kill()
    last = train(overrides, "gs://bucket/run", bucket).wait()
    assert last.returncode == 0 and "resumed from the checkpoint of step" in last.stderr, last.stderr
    rows, params = content("gs://bucket/run", steps)
    expected_rows, expected_params = content(tmp_path / "run", steps)
    assert rows == expected_rows
    for one, other in zip(jax.tree.leaves(params), jax.tree.leaves(expected_params), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("fault", "where"),
    [(403, "checkpoints/6"), pytest.param(503, "checkpoints/6/progress", marks=pytest.mark.exhaustive)],
)
def test_a_store_that_fails_in_the_middle_of_a_run(bucket, overrides, fault, where):
    """The command ends with one line, and resumes afterwards."""
    overrides |= {"training.steps": 12, "training.checkpoint_every": 3}
    failing = threading.Event()

    def plan(asked):
        if asked.name.startswith(f"run/{where}"):
            failing.set()
        return fault if failing.is_set() else None

    bucket.plan = plan
    found = train(overrides, "gs://bucket/run", bucket).wait(120)
    problems = found.stderr[found.stderr.index("ag-jax train:") :]
    assert (
        found.returncode == (1 if fault == 403 else interruption.AGAIN)
        and "Traceback" not in found.stderr
        and problems.count("\n") == 1
    ), found.stderr
    assert ("role Storage Object Admin" if fault == 403 else "check the network") in problems
    bucket.plan = lambda asked: None
    again = train(overrides, "gs://bucket/run", bucket).wait()
    assert again.returncode == 0 and "resumed from the checkpoint of step 3" in again.stderr, again.stderr
    rows = read_metrics(epath.Path("gs://bucket/run"))
    assert [row["step"] for row in rows if row["split"] == "train"] == [*range(1, 13)]
