"""Measure fine-tuning on SST-2 and MNLI: examples/s compared with transformers, and compile time per batch shape.

    python benchmarks/finetuning_throughput.py --data=DIR

DIR contains the tasks' files, as `config.data` of a fine-tuning config. For each task, four programs take turns in one
process on the same examples:
`ag_jax`, the steps of a trial;
`huggingface`, RobertaForSequenceClassification of the same size (random weights, SDPA, AdamW, clipping) on the same
    batches;
`huggingface_padded`, the same model on batches in random order, each padded to its longest row, as in transformers'
    own examples;
`huggingface_compiled`, the same model with torch.compile, on the batches of `huggingface`.
All have float32 and dropout 0.1. To give all of them huge pages on a CPU, set GLIBC_TUNABLES=glibc.malloc.hugetlb=1, as
`ag-jax` does. Writes benchmarks/results/finetuning_throughput-DEVICE.json.
"""

import argparse
import collections
import os
import time
from collections.abc import Iterator
from typing import Any

import huggingface
import jax
import numpy as np
import record
import turns

from ag_jax.data import tokenizers
from ag_jax.data.config import TokenizerConfig
from ag_jax.data.tasks import buckets
from ag_jax.data.tasks.rows import Features
from ag_jax.data.tokenizers import Tokenizer
from ag_jax.finetuning import program, splits, task_training
from ag_jax.finetuning.config import FinetuningConfig, Recipe
from ag_jax.finetuning.encoded import TaskData, encode
from ag_jax.finetuning.trial import Trial
from ag_jax.interop.opening import Pretrained
from ag_jax.models.config import EncoderConfig
from ag_jax.training import sharding
from ag_jax.training.hyperparameters import Hyperparameters

LEARNING_RATE = 2e-5


def endless(
    features: Features, options: argparse.Namespace, lengths: tuple[int, ...] = ()
) -> Iterator[dict[str, np.ndarray]]:
    """Yield batches of one epoch after another, without end.

    lengths: lengths that batches may have; by default the best ones.
    """
    epoch = 0
    while True:
        yield from buckets.batches(
            features,
            options.batch_size,
            max_length=options.max_length,
            epoch=epoch,
            shuffle=True,
            allowed_lengths=lengths,
        )
        epoch += 1


def padded(features: Features, options: argparse.Namespace) -> Iterator[dict[str, np.ndarray]]:
    """Yield batches in random order, each padded to its longest row, without end."""
    for batch in endless(features, options, lengths=(options.max_length,)):
        longest = int((batch["segment_ids"] > 0).sum(-1).max())
        yield {name: field[:, :longest] if field.ndim == 2 else field for name, field in batch.items()}


def one_of_each_length(features: Features, options: argparse.Namespace) -> Iterator[dict[str, np.ndarray]]:
    """Yield one batch of every length that the batches of an epoch have."""
    planned = buckets.plan(features, options.batch_size, options.max_length, shuffle=True)
    for one in {plan.length: plan for plan in planned}.values():
        yield buckets.make_batch(features, one, options.batch_size)


def counts_of(batch: dict[str, np.ndarray]) -> dict[str, int]:
    """Return the numbers of examples and of tokens of a batch."""
    return {"examples": int((batch["rows"] >= 0).sum()), "tokens": int((batch["segment_ids"] > 0).sum())}


class Ours(turns.Program):
    """The compiled training steps of a trial, one per batch length, with their state."""

    name = "ag_jax"

    def __init__(self, data: TaskData, opened: Pretrained, options: argparse.Namespace):
        super().__init__()
        recipe = Recipe(epochs=3, max_length=options.max_length, batch_sizes=(options.batch_size,))
        config = FinetuningConfig(checkpoint="random", tasks={data.task.name: recipe})
        of = Trial(data.task.name, recipe, LEARNING_RATE, options.batch_size, seed=0)
        self.program = program.compiled(task_training.make_spec(of, config, opened, data)).program
        self.key = jax.random.key(0)
        self.hyperparameters = Hyperparameters.of(task_training.optimizer_config(of, data), config.guidance)
        self.state = self.program.create(self.key)
        self.batches = endless(data.train.features, options)
        self.compiled: dict[int, Any] = {}
        self.compile_seconds: dict[int, float] = {}
        for batch in one_of_each_length(data.train.features, options):
            length, placed = batch["tokens"].shape[-1], self._place(batch)
            began = time.perf_counter()
            lowered = self.program.train_step.lower(self.state, placed, self.key, self.hyperparameters)
            self.compiled[length] = lowered.compile()
            self.compile_seconds[length] = time.perf_counter() - began
        planned = buckets.plan(data.train.features, options.batch_size, options.max_length, shuffle=True)
        self.shares = {
            length: sum(plan.length == length for plan in planned) / len(planned) for length in sorted(self.compiled)
        }

    def _place(self, batch: dict[str, np.ndarray]) -> dict[str, jax.Array]:
        return sharding.place_batch({name: field for name, field in batch.items() if name != "rows"}, self.program.mesh)

    def steps(self, start: int, stop: int, counted: bool = True) -> None:
        """Run `stop - start` steps; with `counted`, add their times and counts.

        A step runs while the next batch is made, as in a trial.
        """
        times, counts, in_flight = [], collections.Counter[str](), None
        before = time.perf_counter()
        for _ in range(start, stop):
            batch = next(self.batches)
            counts.update(counts_of(batch))
            step = self.compiled[batch["tokens"].shape[-1]]
            self.state, metrics = step(self.state, self._place(batch), self.key, self.hyperparameters)
            before = turns.finish(in_flight, times, before)
            in_flight = metrics["loss"]
        turns.finish(in_flight, times, before)
        if counted:
            self.times += times
            self.counts.update(counts)

    def figures(self) -> dict[str, Any]:
        """Return the speed, and for each batch length the compile time and the share of batches."""
        compiled = {"compile_seconds": self.compile_seconds, "share_of_batches": self.shares}
        return self.speed() | compiled


class HuggingFace(huggingface.Roberta):
    """RobertaForSequenceClassification of transformers.

    compiled: compile the model with torch.compile, for each batch length anew, as here.
    """

    def __init__(
        self,
        name: str,
        batches: Iterator[dict[str, np.ndarray]],
        config: EncoderConfig,
        classes: int,
        compiled: bool = False,
    ):
        kind, words = "RobertaForSequenceClassification", config.vocabulary_size
        super().__init__(kind, config, words, LEARNING_RATE, num_labels=classes)
        self.name, self.batches = name, batches
        if compiled:
            # Without these, the lengths of a second task would exceed torch's limit and run uncompiled in silence.
            self.torch._dynamo.reset()
            self.torch._dynamo.config.fail_on_recompile_limit_hit = True
        self.forward = self.torch.compile(self.model, dynamic=False) if compiled else self.model

    def step(self, number: int) -> dict[str, int]:
        batch = next(self.batches)
        self.train(batch)
        return counts_of(batch)

    def train(self, batch: dict[str, np.ndarray]) -> None:
        """Take one training step."""
        fields = {
            "input_ids": batch["tokens"],
            "attention_mask": batch["segment_ids"] > 0,
            "labels": batch["labels"],
        }
        given = self.tensors({name: field.astype(np.int64) for name, field in fields.items()})
        self.update(self.forward(**given).loss)


def measure(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Measure the four programs in turns on a task, print the speeds and return the figures."""
    recipe = Recipe(
        train_examples=options.examples, validation_examples=options.batch_size, max_length=options.max_length
    )
    read = splits.read(name, recipe, options.data)
    texts = [text for example in read.train for text in (example.first, example.second) if text]
    tokenizer: Tokenizer = tokenizers.train(TokenizerConfig(kind="byte_bpe", vocabulary_size=options.vocabulary), texts)
    config = EncoderConfig(
        vocabulary_size=tokenizer.vocabulary_size,
        layers=options.layers,
        heads=options.heads,
        width=options.width,
        max_length=max(options.max_length, 128),
    )
    opened = Pretrained(config, tokenizer, {}, "roberta", "random weights")
    data = encode(read, tokenizer, config, recipe)
    ours, features = Ours(data, opened, options), data.train.features
    running = [
        ours,
        HuggingFace("huggingface", endless(features, options), config, len(read.task.labels)),
        HuggingFace("huggingface_padded", padded(features, options), config, len(read.task.labels)),
        HuggingFace("huggingface_compiled", endless(features, options), config, len(read.task.labels), compiled=True),
    ]
    for batch in one_of_each_length(features, options):  # compiles each length
        running[-1].train(batch)
    turns.take(running, options.rounds, options.steps)
    figures = {one.name: one.figures() for one in running}
    rate = figures["ag_jax"]["examples_per_second"]
    ratios = {name: rate / found["examples_per_second"] for name, found in figures.items() if name != "ag_jax"}
    for one, found in figures.items():
        print(
            f"{name:<6} {one:<20} {found['examples_per_second']:>9,.1f} examples/s  "
            f"{found['tokens_per_second']:>10,.0f} tokens/s"
        )
    compiled = ", ".join(f"{length}: {seconds:.1f} s" for length, seconds in sorted(ours.compile_seconds.items()))
    print(f"{name:<6} compiled by length: {compiled}", flush=True)
    return {"examples": len(read.train), "notes": list(read.notes), "faster_than": ratios, "variants": figures}


def main() -> None:
    """Measure every task, print the figures and save them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="directory with the tasks' files")
    parser.add_argument("--tasks", default="sst2,mnli")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--max_length", type=int, default=128)
    parser.add_argument("--examples", type=int, default=20_000, help="of the training split, 0 for all")
    for name, default in (("layers", 4), ("heads", 4), ("width", 256), ("vocabulary", 16_000)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    load = os.getloadavg()[0]
    tasks = {name: measure(name, options) for name in options.tasks.split(",")}
    conditions = {name: value for name, value in vars(options).items() if name not in ("data", "tasks")}
    conditions |= {
        "turns": turns.described(options.rounds, options.steps),
        "dtype": "float32",
        "load_average_at_start": load,
        "glibc_tunables": os.environ.get("GLIBC_TUNABLES"),
    }
    record.save(f"finetuning_throughput-{jax.devices()[0].platform}", {**conditions, "tasks": tasks})


if __name__ == "__main__":
    main()
