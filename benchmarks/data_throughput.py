"""Measure the data pipeline: tokens/s of tokenising and of masked batches, peak memory of filling a cache.

    python benchmarks/data_throughput.py          # where gigatoken is not installed
    python benchmarks/data_throughput.py --fast   # gigatoken (pip install 'ag_jax[fast]') next to tokenizers

Speeds are the best of `REPETITIONS`, because other programs can only slow a measurement down. Tokenising also has
tokens per second of processor time, which other programs slow down less. Peak memory is measured in a separate process
for each size of a synthetic corpus. Writes benchmarks/results/data_throughput.json, or data_throughput-fast.json.
"""

import argparse
import itertools
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version

import numpy as np
import record

from ag_jax.data import fast_tokenizer, pipeline, tokenizers
from ag_jax.data.config import DataConfig, MaskingConfig, TokenizerConfig
from ag_jax.data.records import sources
from ag_jax.data.text.sentences import split_sentences

REPETITIONS = 3
BATCH_TOKENS = 2**14
CORPUS_WORDS = (20_000_000, 80_000_000)
FAST_CHARACTERS = 50_000_000


def tokenising(tokenizer: tokenizers.Tokenizer) -> dict[str, float]:
    """Return tokens/s over the embedded corpus, with and without splitting it into sentences first."""
    documents = list(sources.documents("sotu"))
    result = {}
    for name, texts in {
        "tokenise": lambda: documents,
        "split_and_tokenise": lambda: list(itertools.chain.from_iterable(map(split_sentences, documents))),
    }.items():
        by_clock = by_processor = 0.0
        for _ in range(REPETITIONS):
            clock, processor = time.perf_counter(), time.process_time()
            tokens = sum(map(len, tokenizer.encode_batch(texts())))
            by_clock = max(by_clock, tokens / (time.perf_counter() - clock))
            by_processor = max(by_processor, tokens / (time.process_time() - processor))
        result[f"{name}_tokens_per_second"] = round(by_clock)
        result[f"{name}_tokens_per_core_second"] = round(by_processor)
    return result


def fast_tokenising(path: str) -> dict[str, dict[str, float]]:
    """Return tokens/s of `tokenizers` and of gigatoken, turn by turn, over shuffled sentences of the embedded corpus.

    The corpus is repeated until it has `FAST_CHARACTERS` characters. Sentences are encoded in batches, as for a cache.
    """
    sentences = list(itertools.chain.from_iterable(map(split_sentences, sources.documents("sotu"))))
    repeats = -(-FAST_CHARACTERS // sum(map(len, sentences)))
    order = np.random.default_rng(0).permutation(len(sentences) * repeats) % len(sentences)
    batches = [[sentences[number] for number in part] for part in np.array_split(order, repeats * 6)]
    fast = tokenizers.load(path)
    fast_tokenizer.gigatoken_encoder = lambda values: None
    encoders = {"tokenizers": tokenizers.load(path), "gigatoken": fast}
    for tokenizer in encoders.values():
        tokenizer.encode_batch(batches[0])  # the comparison of the first ids
    result = {name: {"tokens_per_second": 0, "tokens_per_core_second": 0} for name in encoders}
    for _, (name, tokenizer) in itertools.product(range(REPETITIONS), encoders.items()):
        clock, processor = time.perf_counter(), time.process_time()
        tokens = sum(len(ids) for batch in batches for ids in tokenizer.encode_batch(batch))
        seconds = {"second": time.perf_counter() - clock, "core_second": time.process_time() - processor}
        for unit, value in seconds.items():
            key = f"tokens_per_{unit}"
            result[name][key] = max(result[name][key], round(tokens / value))
    return result


def encoders(tokenizer: tokenizers.Tokenizer, threads: tuple[int, ...]) -> dict[str, dict]:
    """Return the figures of `fast_tokenising` by number of threads, each measured in a process of its own."""
    results = {}
    with tempfile.TemporaryDirectory() as directory:
        tokenizer.save(directory)
        for count in threads:
            child = [sys.executable, __file__, "--encode", directory]
            settings = os.environ | {"RAYON_NUM_THREADS": str(count)}  # of both libraries
            done = subprocess.run(child, check=True, stdout=subprocess.PIPE, text=True, env=settings)
            results[f"{count} threads"] = json.loads(done.stdout.splitlines()[-1])
    return results


def batching(length: int, count: str, unit: str, threads: int) -> float:
    """Return tokens/s of making masked batches from cached rows."""
    config = DataConfig(format="fixed_blocks", sequence_length=length, masking=MaskingConfig(count=count, unit=unit))
    corpus = pipeline.prepare(config)
    batches = pipeline.Batches(corpus.train, corpus.tokenizer, config, BATCH_TOKENS // length, seed=0)
    batches.at(0)  # the permutation of the first epoch
    steps, best = 150, 0.0
    for _ in range(REPETITIONS):
        started = time.perf_counter()
        tokens = sum(int((batch["segment_ids"] > 0).sum()) for batch in batches.iterate(0, steps, threads=threads))
        best = max(best, tokens / (time.perf_counter() - started))
    return round(best)


def write_synthetic(path: pathlib.Path, words: int) -> None:
    """Write files of 200,000 random words each in sentences of 20 words, `words` in total."""
    random = np.random.default_rng(0)
    vocabulary = np.array(["".join(random.choice(list("etaoinshrdlu"), random.integers(2, 9))) for _ in range(5000)])
    path.mkdir()
    for number in range(words // 200_000):
        drawn = vocabulary[random.integers(0, 5000, 200_000)].tolist()
        lines = (" ".join(drawn[at : at + 20]).capitalize() + "." for at in range(0, len(drawn), 20))
        (path / f"{number:05}.txt").write_text("\n".join(lines))


def peak_memory() -> int:
    """Return the largest resident size of this process so far in MiB.

    Linux only. getrusage would include the size of the parent process.
    """
    status = pathlib.Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) // 1024


def fill_cache(source: str, cache: str, tokenizer: str) -> None:
    """Fill a cache and print tokens, speed and peak memory as JSON; runs in a child process."""
    config = DataConfig(
        source=source,
        cache_dir=cache,
        format="full_sentences",
        sequence_length=512,
        tokenizer=TokenizerConfig(path=tokenizer),
    )
    before = peak_memory()
    started = time.perf_counter()
    corpus = pipeline.prepare(config)
    seconds = time.perf_counter() - started
    tokens = len(corpus.train.tokens) + len(corpus.validation.tokens)
    print(
        json.dumps(
            {
                "tokens": tokens,
                "tokens_per_second": round(tokens / seconds),
                "peak_MiB_before": before,
                "peak_MiB": peak_memory(),
            }
        )
    )


def memory() -> list[dict[str, float]]:
    """Measure speed and peak memory of filling a cache for each size of the corpus, with a tokenizer trained before."""
    results = []
    with tempfile.TemporaryDirectory() as directory:
        root = pathlib.Path(directory)
        for words in CORPUS_WORDS:
            source, tokenizer = root / f"text-{words}", root / "tokenizer"
            write_synthetic(source, words)
            if not tokenizer.exists():
                few = sorted(source.iterdir())[:5]
                tokenizers.train(TokenizerConfig(), (file.read_text() for file in few)).save(tokenizer)
            child = ["--fill", str(source), "--cache", str(root / f"cache-{words}"), "--tokenizer", str(tokenizer)]
            done = subprocess.run([sys.executable, __file__, *child], check=True, stdout=subprocess.PIPE, text=True)
            results.append(json.loads(done.stdout.splitlines()[-1]))
    return results


def main() -> None:
    """Measure, print the figures and save them."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--fast", action="store_true", help="measure gigatoken next to tokenizers, nothing else")
    for name in ("--fill", "--encode", "--cache", "--tokenizer"):
        arguments.add_argument(name, help=argparse.SUPPRESS)
    given = arguments.parse_args()
    if given.fill:
        fill_cache(given.fill, given.cache, given.tokenizer)
        return
    if given.encode:
        print(json.dumps(fast_tokenising(given.encode)))
        return
    tokenizer = pipeline.prepare_tokenizer(DataConfig(tokenizer=TokenizerConfig(vocabulary_size=8192)))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    conditions = {
        "corpus": "sotu, byte-level BPE of 8192; memory: synthetic words, full_sentences, L=512",
        "tokens_per_batch": BATCH_TOKENS,
        "best_of": REPETITIONS,
        "load_average_at_start": round(os.getloadavg()[0], 1),
        "cores": cores,
        **{package: version(package) for package in ("grain", "tokenizers", "sentencepiece")},
    }
    if given.fast:
        conditions |= {"characters": FAST_CHARACTERS, "gigatoken": version("gigatoken")}
        figures = {"conditions": conditions, **encoders(tokenizer, (1, cores))}
        print(json.dumps(figures, indent=2))
        record.save("data_throughput-fast", figures)
        return
    figures = {
        "conditions": conditions,
        **tokenising(tokenizer),
        "masked_batches_tokens_per_second": [
            {
                "length": length,
                "count": count,
                "unit": unit,
                "threads": threads,
                "tokens_per_second": batching(length, count, unit, threads),
            }
            for length, count, unit, threads in itertools.product(
                (64, 512), ("fixed", "bernoulli"), ("token", "word"), (1, 2)
            )
        ],
        "filling_the_cache": memory(),
    }
    print(json.dumps(figures, indent=2))
    record.save("data_throughput", figures)


if __name__ == "__main__":
    main()
