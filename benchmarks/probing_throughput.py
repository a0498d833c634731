"""Measure the time of a probe relative to that of its forward passes: coreference of LitBank, modes mentions and words.

    python benchmarks/probing_throughput.py --data=DIR

DIR contains LitBank's `.conll` files, or their archive; without --data, documents are generated. Two programs take
turns in one process, with the same model, which has random weights, on the same batches of windows:
`probing`, the whole measurement of a model: tokens of the words, forward passes, attention between words, and the
    score of every head on every query in both modes. Reading the texts and making the queries, once for all models of
    a comparison, is timed apart.
`forward`, the encoder alone, compiled for the same batches.
The figure to look at is `ratio`, the time of `probing` divided by that of `forward`; the goal is at most 1.20. Writes
benchmarks/results/probing_throughput-DEVICE.json.
"""

import argparse
import cProfile
import json
import os
import pathlib
import pstats
import tempfile
import time
from typing import Any

import jax
import numpy as np
import record
import turns

from ag_jax.analysis.heads import measuring, rows
from ag_jax.analysis.heads.encoding import encode, word_lengths
from ag_jax.data import tokenizers
from ag_jax.data.config import TokenizerConfig
from ag_jax.data.probes import coreference
from ag_jax.data.probes.queries import Probe
from ag_jax.models.config import EncoderConfig
from ag_jax.models.masked_lm import PretrainingModel
from ag_jax.probing import models
from ag_jax.probing.models import ProbedModel
from ag_jax.probing.probes import SPECIALS

GOAL = 1.20
MODES = ("mentions", "words")


def generated(path: pathlib.Path, documents: int) -> None:
    """Write documents with about as many mentions as LitBank has: 2,000 words, every seventh one a mention."""
    draws = np.random.default_rng(0)
    lines = []
    for _ in range(documents):
        sentences = [[f"w{word}" for word in draws.zipf(1.3, 20) % 5_000] for _ in range(100)]
        clusters: list[list[list[int]]] = [[] for _ in range(80)]
        for sentence in range(100):
            for word in draws.permutation(20)[:3].tolist():
                clusters[int(draws.zipf(1.5)) % len(clusters)].append([sentence, word, word + 1])
        lines.append(json.dumps({"sentences": sentences, "mention_clusters": clusters}))
    path.write_text("\n".join(lines))


class Probing(turns.Program):
    """The measurement of a model by a probe."""

    def __init__(self, probed: ProbedModel, probe: Probe):
        super().__init__()
        self.probed, self.probe = probed, probe

    def step(self, number: int) -> dict[str, int]:
        measuring.measure(self.probed, self.probe, MODES)
        return {"queries": len(self.probe.queries)}


class Forward(turns.Program):
    """The forward passes of the measurement."""

    def __init__(self, probed: ProbedModel, probe: Probe):
        super().__init__()
        self.windows = len(probe.windows)
        windows = [window for window in encode(probe.windows, probed.tokenizer, probed.longest).windows if window]
        if len(windows) < len(probe.windows):
            raise ValueError("a window is longer than the model can read: lower --window")
        window_Q = np.array([query.window for query in probe.queries])
        self.batches = [
            rows.batch_of([windows[index] for index in chunk.windows], chunk.length)
            for chunk in rows.chunks(windows, window_Q, probed.model)
        ]
        self.params = jax.device_put(probed.params)
        self.encode = jax.jit(
            lambda params, batch: probed.model.apply(
                {"params": params}, batch, method=lambda model, batch: model.encoder(batch, deterministic=True)
            )
        )

    def step(self, number: int) -> dict[str, int]:
        for batch in self.batches:
            jax.block_until_ready(self.encode(self.params, batch))
        return {"windows": self.windows}


def measure(path: pathlib.Path, options: argparse.Namespace) -> dict[str, Any]:
    """Measure both programs in turns, print the times and return the figures."""
    reading = coreference.read(path)
    texts = [" ".join(document.words) for document in reading.documents]
    tokenizer = tokenizers.train(TokenizerConfig(vocabulary_size=options.vocabulary), texts)
    config = EncoderConfig(
        vocabulary_size=tokenizer.vocabulary_size,
        layers=options.layers,
        heads=options.heads,
        width=options.width,
        max_length=options.window,
    )
    model = PretrainingModel(config)
    probed = ProbedModel("random weights", model, models.random_params(model, 0), tokenizer, options.window)
    began = time.perf_counter()
    probe = coreference.coreference(path, lengths=word_lengths(tokenizer), window=options.window - SPECIALS)
    making = time.perf_counter() - began
    probing, forward = Probing(probed, probe), Forward(probed, probe)
    if options.profile:
        probing.steps(0, 1, counted=False)
        profile = cProfile.Profile()
        profile.runcall(probing.steps, 0, 1, counted=False)
        pstats.Stats(profile).sort_stats("tottime").print_stats(25)
    turns.take([probing, forward], options.rounds, 1)
    ratio = sum(probing.times) / sum(forward.times)
    print(f"{len(probe.queries):,} queries in {len(probe.windows):,} windows, made in {making:.1f} s")
    for name, times in (("probing", probing.times), ("forward", forward.times)):
        print(f"{name:<8} {np.median(times):>8.2f} s")
    print(f"ratio    {ratio:>8.2f}   (goal: at most {GOAL:.2f})", flush=True)
    return {
        "documents": len(reading.documents),
        "windows": len(probe.windows),
        "queries": len(probe.queries),
        "seconds_to_read_and_ask": making,
        "variants": {
            "probing": probing.speed(),
            "forward": forward.speed(),
        },
        "ratio": ratio,
        "goal": GOAL,
    }


def main() -> None:
    """Measure, print the figures and save them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="directory with LitBank's .conll files; without it, documents are generated")
    parser.add_argument("--documents", type=int, default=100, help="number of generated documents")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--profile", action="store_true", help="print where Python's time goes, before measuring")
    parser.add_argument("--dry", action="store_true", help="print the figures without saving them")
    for name, default in (("layers", 8), ("heads", 6), ("width", 96), ("vocabulary", 4_096), ("window", 128)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(options.data or f"{folder}/generated.jsonl")
        if not options.data:
            generated(path, options.documents)
        figures = measure(path, options)
    if options.dry:
        return
    conditions = {name: value for name, value in vars(options).items() if name not in ("data", "dry", "profile")}
    conditions |= {
        "data": "litbank_coref" if options.data else "generated",
        "modes": list(MODES),
        "turns": turns.described(options.rounds, 1),
        "dtype": "float32",
        "load_average_at_start": load,
        "glibc_tunables": os.environ.get("GLIBC_TUNABLES"),
    }
    record.save(f"probing_throughput-{jax.devices()[0].platform}", {**conditions, **figures})


if __name__ == "__main__":
    main()
