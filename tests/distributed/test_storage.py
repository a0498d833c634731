"""Files on a disk and in an object store."""

import pathlib
from concurrent.futures import ThreadPoolExecutor

import pytest
from etils import epath

from ag_jax.distributed import storage
from ag_jax.training.metrics import MetricWriter, read_metrics


def test_directories(bucket, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert str(storage.directory("runs/a")) == str(tmp_path / "runs" / "a")
    assert storage.directory("~/runs") == epath.Path(pathlib.Path.home() / "runs")
    assert str(storage.directory("gs://bucket/runs/a")) == "gs://bucket/runs/a"
    assert storage.is_remote(storage.directory("gs://bucket/runs/a")) and not storage.is_remote(tmp_path)

    def missing(path):
        raise ImportError("install gcsfs")

    monkeypatch.setattr(storage, "_files", missing)
    with pytest.raises(ValueError, match=r"gs://bucket/run .*gcsfs.*ag_jax\[gcs\]"):
        storage.directory("gs://bucket/run")


@pytest.mark.parametrize("place", ["disk", "store"])
def test_whole_files(bucket, tmp_path, place):
    path = epath.Path(tmp_path if place == "disk" else "gs://bucket/run") / "file.json"
    for text in ("first", "second, longer"):
        storage.write_whole(path, text)
        assert path.read_text() == storage.read_whole(path) == text
    assert not storage.create(path, "third") and path.read_text() == text
    assert storage.create(path.with_name("new"), "fourth") and path.with_name("new").read_text() == "fourth"
    assert sorted(file.name for file in path.parent.iterdir()) == ["file.json", "new"]


def test_two_writers_of_a_whole_file(tmp_path):
    path, texts = epath.Path(tmp_path / "beats.json"), ("a" * 9000, "b" * 5)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda text: [storage.write_whole(path, text) for _ in range(200)], texts))
    assert path.read_text() in texts
    assert [file.name for file in path.parent.iterdir()] == ["beats.json"]


def test_a_whole_file_that_cannot_be_written_leaves_nothing(tmp_path):
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").touch()
    with pytest.raises(OSError, match="taken"):
        storage.write_whole(epath.Path(tmp_path / "taken"), "text")
    assert [file.name for file in tmp_path.iterdir()] == ["taken"]


def test_results_are_written_elsewhere_if_a_directory_cannot_be_written(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()

    def write(place):
        (place / "result").write_text("text")
        return place

    assert storage.write_where_possible(write, epath.Path(tmp_path / "there")) == epath.Path(tmp_path / "there")
    assert not capsys.readouterr().err
    for may_write in (True, False):
        place = storage.write_where_possible(write, epath.Path(tmp_path / "file"), may_write=may_write)
        assert (tmp_path / place / "result").read_text() == "text" and place.parts[0] == "ag-jax-output"
        assert (str(place) in capsys.readouterr().err) == may_write
    with pytest.raises(ZeroDivisionError):
        storage.write_where_possible(lambda place: 1 // 0, epath.Path(tmp_path / "there"))


def test_a_file_that_grows_in_a_store_is_written_now_and_then(bucket, monkeypatch):
    clock = [1000.0]
    monkeypatch.setattr(storage.time, "monotonic", lambda: clock[0])
    path = epath.Path("gs://bucket/run/metrics.jsonl")
    file = storage.GrowingFile(path, "0\n")
    assert path.read_text() == "0\n"
    file.flush()
    before = len(bucket.written)
    for line in range(1, 100):
        file.add(f"{line}\n")
        clock[0] += 1.0
    assert len(bucket.written) - before == 99 // (int(storage.UPLOAD_EVERY) + 1)
    file.flush()
    assert path.read_text() == "".join(f"{line}\n" for line in range(100))
    unchanged = len(bucket.written)
    file.flush()
    assert len(bucket.written) == unchanged


def test_metrics_and_events_in_a_store(bucket):
    workdir = epath.Path("gs://bucket/run")
    writer = MetricWriter(workdir, 0)
    for step in (1, 2, 3):
        writer.write({"step": step, "split": "train", "loss": 1.0 / step})
    writer.flush()
    assert [row["step"] for row in read_metrics(workdir)] == [1, 2, 3]
    writer.write({"step": 4, "split": "train", "loss": 0.1})
    writer.close()
    assert [row["step"] for row in read_metrics(workdir)] == [1, 2, 3, 4]
    (events,) = (workdir / "tensorboard").iterdir()
    assert b"train/loss" in events.read_bytes()
    MetricWriter(workdir, 2, tensorboard=False).close()
    assert [row["step"] for row in read_metrics(workdir)] == [1, 2]
