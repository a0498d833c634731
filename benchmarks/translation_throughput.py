"""Measure training and decoding of translation models: tokens/s and sentences/s, compared with other programs.

    GLIBC_TUNABLES=glibc.malloc.hugetlb=1 python benchmarks/translation_throughput.py --data=DIR --run=RUN

DIR contains Multi30k (train.en, train.de and so on, compressed or not). `--parts=train` or `--parts=decode` measures
one part; what the results file has of the other part stays. All programs have float32, the same number of threads and,
from GLIBC_TUNABLES, huge pages; those of a part take turns, so that all see the same load of the machine. Writes
benchmarks/results/translation_throughput-DEVICE.json.

train: steps of ag/table7_translation:scale=small, on Multi30k; padding does not count as tokens.
    `base`, `ag` and `hard_coded` are the arms, with packed rows;
    `base-pairs` has one pair in a row and as many rows as hold the same tokens;
    `base-texts16` has the packed batches as rows of 16 tokens without padding, each a text: what attention across a
        packed row costs;
decode: beam search with 4 beams by the model of RUN, a training run, on the test set test_2016_flickr, from texts to
    texts. Programs sort texts by length, into batches of the size that is best for them. A search ends by one of two
    rules: `bound`, when no further hypothesis can be better, or `full`, when 4 hypotheses have ended.
    `ag_jax-bound`, `ag_jax-full`: `Translator`;
    `transformers-bound`, `transformers-full`: `generate` of the exported model, early_stopping "never" and True;
    `ctranslate2`: the exported model, full.
    Before, the logits of transformers must equal ours to 1e-4.

Programs that are not installed are left out, which is printed.
"""

import argparse
import dataclasses
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import record
import turns
from etils import epath
from pretraining_throughput import Runner, Variant
from translation_peers import CTranslate2, ExportedModel, Peer, Transformers, export

from ag_jax.data import pipeline
from ag_jax.data.corpus import Corpus
from ag_jax.data.parallel import layouts, pairs
from ag_jax.data.text.batching import HostBatch
from ag_jax.models.decoding_config import DecodingConfig
from ag_jax.pretraining import translate
from ag_jax.pretraining.config import ExperimentConfig
from ag_jax.pretraining.translate import Translator
from ag_jax.settings import config_files

CONFIG = "ag/table7_translation:scale=small,dataset=multi30k,data={data},arm={arm}"
SETTINGS = {"data.cache_dir": None, "training.tensorboard": False}
ARMS = ("base", "ag", "hard_coded")
TEXT = 16  # tokens of a text in `base-texts16`; those of Multi30k have 15 on average
TEST_SET, CHECKED = "test_2016_flickr", 8  # pairs whose logits are compared
TOLERANCE = 1e-4
SEARCH = {"beam_size": 4, "normalization": "power", "length_penalty": 1.0, "ends": "first"}
# (program, peer): the speed of the first divided by that of the second should be at least this.
TRAINING_GOALS = {("ag", "base"): 1 / 1.03, ("base", "base-texts16"): 1 / 1.2}
DECODING_GOALS = {
    ("ag_jax-bound", "transformers-bound"): 2.0,
    ("ag_jax-full", "transformers-full"): 2.0,
    ("ag_jax-full", "ctranslate2"): 0.4,
}


class TrainingRunner(Runner):
    """A compiled training step; target tokens are counted.

    texts: cut the rows of a batch into rows of `TEXT` tokens, each one text.
    """

    def __init__(self, variant: Variant, config: ExperimentConfig, corpus: Corpus, workdir: epath.Path, texts: bool):
        self.texts = texts
        super().__init__(variant, config, corpus, workdir)

    def tokens_of(self, batch: HostBatch) -> int:
        return int(batch["target_weights"].sum())

    def changed(self, batch: HostBatch) -> HostBatch:
        """Return the batch, or for `texts` a batch of the same tokens in which each row of `TEXT` tokens is a text."""
        if not self.texts:
            return batch
        cut = {name: field.reshape(-1, TEXT) for name, field in batch.items()}
        ones = np.ones_like(cut["segment_ids"])
        whole = {"segment_ids": ones, "target_segment_ids": ones, "target_weights": ones.astype(np.float32)}
        return cut | whole


def training_config(data: str, arm: str, settings: Mapping[str, Any]) -> ExperimentConfig:
    """Return the config of an arm of table 7, with other settings over it."""
    source = CONFIG.format(data=data, arm=arm)
    return config_files.load(source, SETTINGS | dict(settings)).settings


def trainers(options: argparse.Namespace, workdir: pathlib.Path) -> Iterator[TrainingRunner]:
    """Yield each program that trains, ready to run."""
    packed = training_config(options.data, "base", {})
    corpus = pipeline.prepare(packed.data)
    for arm in ARMS:
        config = training_config(options.data, arm, {})
        yield TrainingRunner(Variant(arm, arm), config, corpus, epath.Path(workdir), texts=False)
    yield TrainingRunner(Variant("base-texts16", "base"), packed, corpus, epath.Path(workdir), texts=True)

    unpacked = training_config(options.data, "base", {"data.pack": False})
    of_pairs = pipeline.prepare(unpacked.data)
    tokens = packed.training.batch_size * corpus.train.target.lengths.mean()
    rows = round(tokens / of_pairs.train.target.lengths.mean())
    unpacked = training_config(options.data, "base", {"data.pack": False, "training.batch_size": rows})
    yield TrainingRunner(Variant("base-pairs", "base"), unpacked, of_pairs, epath.Path(workdir), texts=False)


def measure_training(options: argparse.Namespace) -> dict[str, Any]:
    """Measure all programs that train, print the speeds and return the figures."""
    with tempfile.TemporaryDirectory() as folder:
        running = list(trainers(options, pathlib.Path(folder)))
        turns.take(running, options.rounds, options.steps)
    figures = {one.name: one.figures(None) for one in running}
    for one in running:
        found = figures[one.name] | {"target_tokens_a_step": one.counts["tokens"] / len(one.times)}
        figures[one.name] = found
        print(
            f"{one.name:<14} {found['tokens_per_second']:>10,.0f} target tokens/s "
            f"{found['target_tokens_a_step']:>7,.0f} a step  step {found['step_seconds_p50'] * 1e3:.1f} ms"
        )
    speeds = {name: found["tokens_per_second"] for name, found in figures.items()}
    described = turns.described(options.rounds, options.steps)
    return {"turns": described, **compared(speeds, TRAINING_GOALS), "variants": figures}


def compared(speeds: Mapping[str, float], goals: Mapping[tuple[str, str], float]) -> dict[str, Any]:
    """Return, and print, the ratios of the speeds of pairs of programs, beside their goals."""
    ratios = {}
    for (one, other), goal in goals.items():
        if one in speeds and other in speeds:
            ratio = speeds[one] / speeds[other]
            ratios[f"{one} / {other}"] = {"speed_ratio": ratio, "goal": goal}
            print(f"{one} has {ratio:.3f} times the speed of {other}; the goal is {goal:.3f}")
    return {"ratios": ratios}


class Ours:
    """Our translator, with a rule by which the search of a sentence ends."""

    def __init__(self, translator: Translator, stop: str):
        self.name = f"ag_jax-{stop}"
        self.translator = dataclasses.replace(translator, config=DecodingConfig(**SEARCH, stop=stop))

    def __call__(self, lines: Sequence[str]) -> list[str]:
        return [found[0].text for found in self.translator(lines)]


def our_logits(translator: Translator, source: list[int], target: list[int]) -> np.ndarray:
    """Return our logits of a pair, without a cache."""
    tokens = np.array([[*source, translator.tokenizer.specials.end]])
    inputs = np.array([[translator.start, *target]])
    batch = {
        "tokens": tokens,
        "segment_ids": np.ones_like(tokens),
        "token_type_ids": np.zeros_like(tokens),
        "target_tokens": inputs,
        "target_segment_ids": np.ones_like(inputs),
    }
    found = translator.model.apply({"params": translator.params}, batch, deterministic=True)
    return np.asarray(found.words_BTV[0])


def check_logits(translator: Translator, peer: Transformers, lines: Sequence[tuple[str, str]]) -> None:
    """Raise ValueError if a program's logits differ from ours, those of tokens that are never generated excepted."""
    specials = translator.tokenizer.specials
    compared_V = np.delete(np.arange(translator.tokenizer.vocabulary_size), [specials.pad, specials.begin])
    largest = 0.0
    for pair in lines:
        source, target = translator.tokenizer.encode_batch(list(pair))
        ours, theirs = our_logits(translator, source, target), peer.logits(source, target)
        largest = max(largest, float(np.abs(ours - theirs)[:, compared_V].max()))
    if not largest <= TOLERANCE:
        raise ValueError(f"{peer.name} has other weights or computes something else: logits differ by {largest:.2g}")
    print(f"{peer.name}: logits of {len(lines)} pairs equal ours to {largest:.1g}", flush=True)


def installed(package: str) -> bool:
    """Return whether a package is installed; print that its program is left out if it is not."""
    found = importlib.util.find_spec(package) is not None
    if not found:
        print(f"{package}: left out, because it is not installed")
    return found


def peers(
    exported: ExportedModel, options: argparse.Namespace, workdir: pathlib.Path, checked: Sequence[tuple[str, str]]
) -> Iterator[Peer]:
    """Yield each other program that is installed, with the exported weights."""
    translator, threads = exported.translator, options.threads
    rules = {stop: DecodingConfig(**SEARCH, stop=stop) for stop in ("bound", "full")}
    if installed("torch") and installed("transformers"):
        for stop in rules:
            peer = Transformers(exported, rules[stop], threads)
            check_logits(translator, peer, checked)
            yield peer
        if installed("ctranslate2"):
            yield CTranslate2(exported, rules["full"], threads)


def choose_rows(peer: Peer, lines: Sequence[str], candidates: Sequence[int]) -> dict[int, float]:
    """Set the number of rows of a batch to the fastest of `candidates`; return the seconds of each."""
    seconds = {}
    for rows in candidates:
        peer.rows = rows
        peer(lines[: 2 * rows])  # what is done once, such as choosing an implementation for a shape
        seconds[rows] = timed(peer, lines)[0]
    peer.rows = min(seconds, key=lambda rows: seconds[rows])
    print(f"{peer.name}: {peer.rows} sentences a batch", flush=True)
    return seconds


def timed(program: Callable[[Sequence[str]], list[str]], lines: Sequence[str]) -> tuple[float, list[str]]:
    """Return the seconds that a program took to translate lines, and the translations."""
    began = time.perf_counter()
    texts = program(lines)
    return time.perf_counter() - began, texts


def measure_decoding(options: argparse.Namespace) -> dict[str, Any]:
    """Measure all programs that decode, print the speeds and return the figures."""
    test = pairs.read_test_set(layouts.find("multi30k", options.data, "en", "de").tests[TEST_SET])
    lines, references = test.sources[: options.lines], test.references[: options.lines]
    translator = translate.open_translator(options.run)
    with tempfile.TemporaryDirectory() as folder:
        workdir = pathlib.Path(folder)
        exported = export(options.run, translator, workdir / "exported")
        ours = [Ours(translator, stop) for stop in ("bound", "full")]
        compiled = {one.name: timed(one, lines)[0] for one in ours}
        others = list(peers(exported, options, workdir, list(zip(lines, references, strict=True))[:CHECKED]))
        tried = {
            peer.name: choose_rows(peer, lines[:: options.tune_every], [int(rows) for rows in options.rows.split(",")])
            for peer in others
        }
        seconds: dict[str, list[float]] = {one.name: [] for one in (*ours, *others)}
        texts: dict[str, list[str]] = {}
        # In turns, so that a change in the load of the machine meets all programs alike.
        for number in range(options.rounds):
            for one in (*ours, *others):
                took, texts[one.name] = timed(one, lines)
                seconds[one.name].append(took)
            print(f"round {number + 1} of {options.rounds}", flush=True)
    figures = {}
    for name, times in seconds.items():
        # Lines are compared under the same rule for the end of a search, on which translations depend.
        same = texts["ag_jax-bound" if name.endswith("-bound") else "ag_jax-full"]
        tokens = sum(len(ids) + 1 for ids in translator.tokenizer.encode_batch(texts[name]))
        figures[name] = {
            "sentences_per_second": len(lines) * len(times) / sum(times),
            "tokens_per_second": tokens * len(times) / sum(times),
            "output_tokens": tokens,
            "seconds": times,
            "identical_lines": sum(one == other for one, other in zip(texts[name], same, strict=True)) / len(lines),
        }
        if name in tried:
            figures[name]["seconds_by_rows"] = tried[name]
        else:
            figures[name]["seconds_with_compilation"] = compiled[name]
        found = figures[name]
        speed = f"{found['sentences_per_second']:,.1f} sentences/s  {found['tokens_per_second']:,.0f} tokens/s"
        print(f"{name:<18} {speed}  {found['identical_lines']:.1%} of the lines as ours")
    speeds = {name: found["sentences_per_second"] for name, found in figures.items()}
    return {
        "run": record.cleaned([translator.name])[0],
        "sentences": len(lines),
        "search": SEARCH | {"max_length": translator.config.max_length},
        "turns": f"{options.rounds} rounds of all sentences, after one that is not counted",
        **compared(speeds, DECODING_GOALS),
        "variants": figures,
    }


PARTS = {"train": measure_training, "decode": measure_decoding}


def conditions(options: argparse.Namespace) -> dict[str, Any]:
    """Return what a part was measured under."""
    packages = [name for name in ("torch", "transformers", "ctranslate2") if importlib.util.find_spec(name)]
    return {
        "command": record.command(),
        "threads": options.threads,
        "dtype": "float32",
        "rounds": options.rounds,
        "load_average_at_start": os.getloadavg()[0],
        "glibc_tunables": os.environ.get("GLIBC_TUNABLES"),
        "versions": {name: importlib.metadata.version(name) for name in packages},
    }


def main() -> None:
    """Measure the chosen parts and save the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="folder with the files of Multi30k")
    parser.add_argument("--run", help="training run whose model and tokenizer translate")
    parser.add_argument("--parts", default="train,decode")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=10, help="training steps of a round")
    parser.add_argument("--lines", type=int, default=1000, help="sentences that are decoded")
    parser.add_argument("--rows", default="16,32,64,128,256", help="batch sizes that the other programs try")
    parser.add_argument("--tune_every", type=int, default=2, help="batch sizes are tried on every so many sentences")
    options = parser.parse_args()
    options.threads = len(os.sched_getaffinity(0))
    chosen = options.parts.split(",")
    unknown = set(chosen) - set(PARTS)
    if unknown or ("decode" in chosen and not options.run):
        parser.error(f"--parts may have {', '.join(PARTS)}, and decode needs --run=RUN; got --parts={options.parts}")
    name = f"translation_throughput-{jax.devices()[0].platform}"
    for part in chosen:
        measured_under = conditions(options)
        figures = {part: measured_under | PARTS[part](options)}
        # The other part stays as it was measured, with the conditions of then.
        earlier = record.RESULTS / f"{name}.json"
        parts = json.loads(earlier.read_text())["parts"] if earlier.exists() else {}
        print(record.save(name, {"parts": parts | figures}), flush=True)


if __name__ == "__main__":
    main()
