"""Verbs whose directory is in a bucket: what the same commands give on a disk, also if they are stopped and resumed.

The other verbs, and buckets that fail, are in `tests/buckets/test_runs.py`.
"""

import json
import pathlib
import signal
import sys
import types
from collections import Counter

import numpy as np
import pytest

from ag_jax.command_line import cli
from ag_jax.data.pipeline import prepare_tokenizer
from ag_jax.data.probes.queries import Probe, Query, Window
from ag_jax.pretraining import initial_weights
from ag_jax.pretraining.open_run import open_run
from ag_jax.settings import config_files
from ag_jax.training.metrics import CLOCK_FIELDS
from ag_jax.training.stopping import Interrupted, StopSignal
from tests import test_preparing
from tests.buckets.test_runs import request
from tests.commands import REPOSITORY
from tests.finetuning import tasks, tiny_tasks
from tests.probing import trained_models

# Of these only the names are compared: captions and archives name the directory or the time.
ONLY_NAMES = (".png", ".html")
# Checkpoints are written by Orbax, and the names of TensorBoard's files have the time.
LEFT_OUT = ("checkpoints/", "tensorboard/")
SUITE = """
from ag_jax.settings import schema
from ag_jax.finetuning.config import FinetuningConfig, Recipe

def get_config(*, model: str, data: str):
    config = schema.default(FinetuningConfig)
    config.checkpoint, config.data, config.seeds, config.keep = model, data, (0,), "best"
    for task in ("sst2", "rte"):
        config.tasks[task] = schema.default(Recipe)
        config.tasks[task].update(max_length=16, epochs=2, batch_sizes=(8,), learning_rates=(3e-3,))
    config.tasks.rte.initial_task = "sst2"
    return config
"""


def upload(folder, server, name):
    """Copy a directory to `gs://bucket/NAME`, and return that."""
    for path in folder.rglob("*"):
        if path.is_file():
            server.write("bucket", f"{name}/{path.relative_to(folder).as_posix()}", path.read_bytes(), {}, {})
    return f"gs://bucket/{name}"


def files(place, server):
    """Return the files of a directory, {name: content}, on a disk or in the bucket."""
    if isinstance(place, pathlib.Path):
        found = {path.relative_to(place).as_posix(): path.read_bytes() for path in place.rglob("*") if path.is_file()}
    else:
        beginning = place.removeprefix("gs://bucket/") + "/"
        stored = server.buckets["bucket"].items()
        found = {name.removeprefix(beginning): of.data for name, of in stored if name.startswith(beginning)}
    return {name: content for name, content in found.items() if not any(part in name for part in LEFT_OUT)}


def without_clock(value):
    if isinstance(value, dict):
        return {key: without_clock(of) for key, of in value.items() if key not in CLOCK_FIELDS}
    return [without_clock(of) for of in value] if isinstance(value, list) else value


def without_seconds(lines):
    """Return the lines of a report; a table whose last column has seconds loses this column."""
    found, is_timed = [], False
    for line in lines:
        is_timed = line.startswith("|") and (is_timed or line.endswith("| Seconds |"))
        found.append(line.rsplit("|", 2)[0] if is_timed else line)
    return found


def results(place, server, *moved):
    """Return the content of the files of a directory, without the clock.

    moved: further directories with other names here and there.
    """
    found = {}
    for name, content in files(place, server).items():
        if name.endswith(ONLY_NAMES):
            found[name] = None
        elif name.endswith((".json", ".jsonl", ".md", ".csv", ".txt")):
            text = content.decode()
            for number, directory in enumerate([place, *moved]):
                text = text.replace(str(directory), f"DIRECTORY{number}")
            if name.endswith((".json", ".jsonl")):
                lines = text.splitlines() if name.endswith(".jsonl") else [text]
                found[name] = [without_clock(json.loads(line)) for line in lines]
                if name.endswith("result.json") and "inputs" in found[name][0]:
                    del found[name][0]["sha256"]  # of the content, with the names of the directories
            else:
                found[name] = without_seconds(text.splitlines())
        else:
            found[name] = content
    return found


@pytest.fixture
def stopped(monkeypatch):
    """A function that runs a command, stopped as by a signal after a number of its steps, and then once more.

    No step may be done twice.
    """
    steps, stop_at = [], []

    def reached(_):
        steps.append(1)
        return "SIGTERM" if len(steps) in stop_at else None

    monkeypatch.setattr(StopSignal, "reached", reached)

    def run(command, after, between=lambda: None):
        steps.clear()
        command(0)
        whole = len(steps)
        steps.clear()
        stop_at.append(after)
        with pytest.raises(Interrupted, match="SIGTERM: stopped at step"):
            command(1)
        between()
        command(1)
        assert len(steps) == whole > after

    return run


def test_a_suite_that_is_stopped_in_its_second_trial(bucket, tmp_path, one_device, stopped, capsys):
    """The checkpoint is in the bucket, too. The second trial starts from the weights of the first one."""
    (tmp_path / "suite.py").write_text(SUITE)
    data, model = tiny_tasks.write(tmp_path / "data"), tiny_tasks.checkpoint(tmp_path)
    places = (tmp_path / "runs" / "suite", model), ("gs://bucket/runs/suite", upload(model, bucket, "model"))

    def finetune(number):
        workdir, start = places[number]
        source = f"{tmp_path / 'suite.py'}:model={start},data={data}"
        cli.run_verb(request("finetune", str(workdir), source))

    def after_the_first():
        kept = files(places[1][0], bucket)
        assert [name for name in kept if name.endswith("result.json")] == ["sst2/lr0.003-bs8-seed0/result.json"]
        assert not [name for name in kept if name.endswith("lock.json")]
        bucket.written.clear()
        assert "sst2 lr0.003-bs8-seed0: " in capsys.readouterr().err

    stopped(finetune, after=8, between=after_the_first)  # three steps an epoch, two epochs
    of_first = [name for name in bucket.written if "sst2/lr0.003-bs8-seed0/" in name]
    assert not [name for name in of_first if not name.endswith("lock.json")], "a trial that is done is left alone"
    assert "sst2 lr0.003-bs8-seed0: " not in capsys.readouterr().err
    on_disk, in_bucket = (results(workdir, bucket, start) for workdir, start in places)
    assert in_bucket.keys() == on_disk.keys() >= {"report.json", "rte/lr0.003-bs8-seed0/predictions_test.jsonl"}
    assert in_bucket == on_disk


def test_a_run_in_a_bucket_can_be_continued(bucket):
    """The config file reads its settings, its tokenizer and its weights."""
    place = upload(REPOSITORY / "tests" / "goldens" / "stored" / "finished", bucket, "runs/first")
    config = config_files.load(f"continue_pretraining:run={place},arm=plain").settings
    initial_weights.check(config)
    opened = open_run(config.training.initial_weights)
    assert opened.tokenizer.fingerprint() == prepare_tokenizer(config.data).fingerprint() and opened.step > 0


def made_up(data):
    """Ask from the third word of 14 texts of four words to the first one, the first half for development."""
    windows = tuple(
        Window(f"d{at}", tuple(map(str, words))) for at, words in enumerate(np.resize(tasks.WORDS, (14, 4)))
    )
    queries = tuple(Query(number, 2, 2, (), (), (0,), "first") for number in range(14))
    return Probe("made_up", windows, queries, development=np.arange(14) < 7, baselines={}, dropped={})


def test_probes(bucket, tmp_path, one_device, monkeypatch):
    """Attention heads; what is in the bucket is not measured again."""
    module = types.ModuleType("my_probes")
    module.made_up = made_up
    monkeypatch.setitem(sys.modules, "my_probes", module)
    trained_models.write(tmp_path / "models")
    run = tmp_path / "models" / "run"
    places = (tmp_path / "runs" / "probed", run), ("gs://bucket/runs/probed", upload(run, bucket, "run"))

    def measure(workdir, model):
        source = f"{REPOSITORY / 'configs' / 'probe.py'}:checkpoint={model},reflexives=none,custom=my_probes.made_up"
        cli.run_verb(request("evaluate", str(workdir), source, {"resamples": 100}))
        return results(workdir, bucket, model)

    on_disk, in_bucket = (measure(*place) for place in places)
    assert in_bucket.keys() == on_disk.keys() >= {"report.json", "scores.csv"}
    assert in_bucket == on_disk
    bucket.written.clear()
    monkeypatch.setattr("ag_jax.analysis.heads.measuring.measure", None)
    assert measure(*places[1]) == in_bucket
    assert not [name for name in bucket.written if name.endswith((".npz", "result.json"))]


@pytest.mark.parametrize("is_killed", [False, pytest.param(True, marks=pytest.mark.exhaustive)])
def test_two_machines_share_the_preparation_of_a_corpus(bucket, tmp_path, capsys, is_killed):
    """The text is in the bucket, too; processes with different caches on the disk stand for the machines."""
    test_preparing.write_documents(tmp_path / "text")
    settings = {"data.source": str(tmp_path / "text"), "data.cache_dir": str(tmp_path / "cache")}
    settings |= {"data.tokenizer.vocabulary_size": 320}
    cli.run_verb(request("prepare", None, str(REPOSITORY / "configs" / "quickstart.py"), settings))
    expected = json.loads(capsys.readouterr().out)
    source = upload(tmp_path / "text", bucket, "text")
    running = [
        test_preparing.start(
            source,
            tmp_path / "watched",
            part_size=1500,
            dies=is_killed and number == 0,
            slow=0.2,
            together=2,
            cache_dir="gs://bucket/cache",
            environment={"AG_JAX_CACHE": str(tmp_path / f"machine{number}")},
        )
        for number in range(2)
    ]
    ended = [one.wait() for one in running]
    begun = test_preparing.log(tmp_path / "watched")
    lines = [line.split() for line in (tmp_path / "watched" / "log").read_text().splitlines()]
    again = Counter(part for part, process in lines if is_killed and process == str(running[0].pid))
    assert len(begun) >= 6 and begun == Counter(dict.fromkeys(begun, 1)) + again, "each part once"
    assert len({process for _, process in lines}) == 2
    assert [end.returncode for end in ended] == [-signal.SIGKILL if is_killed else 0, 0], ended
    for end in ended[is_killed:]:
        assert json.loads(end.stdout.replace(source, settings["data.source"])) == expected, end.stderr
    stored = files("gs://bucket/cache", bucket)
    assert {name.split("-")[0] for name in stored} == {"files", "rows", "source", "text", "tokenizer"}
    rows = [
        {name.partition("/")[2]: of for name, of in found.items() if name.endswith(".bin") and "rows-" in name}
        for found in (stored, files(tmp_path / "cache", bucket))
    ]
    assert rows[0] == rows[1] and len(rows[0]) > 2
