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
import importlib.metadata
import os
import time
from collections.abc import Iterator
from typing import Any

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


class Ours:
    """The compiled training steps of a trial, one per batch length, with their state and times."""

    name = "ag_jax"

    def __init__(self, data: TaskData, opened: Pretrained, options: argparse.Namespace):
        recipe = Recipe(epochs=3, max_length=options.max_length, batch_sizes=(options.batch_size,))
        config = FinetuningConfig(checkpoint="random", tasks={data.task.name: recipe})
        of = Trial(data.task.name, recipe, LEARNING_RATE, options.batch_size, seed=0)
        self.program = program.compiled(task_training.make_spec(of, config, opened, data)).program
        self.key = jax.random.key(0)
        self.hyperparameters = Hyperparameters.of(task_training.optimizer_config(of, data), config.guidance)
        self.state = self.program.create(self.key)
        self.batches = endless(data.train.features, options)
        self.times: list[float] = []
        self.examples = self.tokens = 0
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
        """Run `stop - start` steps; with `counted`, add their times, examples and tokens.

        A step runs while the next batch is made, as in a trial.
        """
        times, examples, tokens, in_flight = [], 0, 0, None
        before = time.perf_counter()
        for _ in range(start, stop):
            batch = next(self.batches)
            examples, tokens = (
                examples + int((batch["rows"] >= 0).sum()),
                tokens + int((batch["segment_ids"] > 0).sum()),
            )
            step = self.compiled[batch["tokens"].shape[-1]]
            self.state, metrics = step(self.state, self._place(batch), self.key, self.hyperparameters)
            before = turns.finish(in_flight, times, before)
            in_flight = metrics["loss"]
        turns.finish(in_flight, times, before)
        if counted:
            self.times, self.examples, self.tokens = self.times + times, self.examples + examples, self.tokens + tokens

    def figures(self) -> dict[str, Any]:
        """Return the speed, and for each batch length the compile time and the share of batches."""
        compiled = {"compile_seconds": self.compile_seconds, "share_of_batches": self.shares}
        return turns.speed(self.times, examples=self.examples, tokens=self.tokens) | compiled


class HuggingFace:
    """RobertaForSequenceClassification of transformers, trained as in transformers' examples.

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
        import torch
        import transformers

        self.name, self.batches, self.torch = name, batches, torch
        settings = transformers.RobertaConfig(
            vocab_size=config.vocabulary_size,
            hidden_size=config.width,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            intermediate_size=config.feedforward or 4 * config.width,
            max_position_embeddings=config.max_length + config.position_offset,
            hidden_dropout_prob=config.dropout,
            attention_probs_dropout_prob=config.attention_dropout,
            type_vocab_size=config.token_types,
            layer_norm_eps=config.layer_norm_epsilon,
            num_labels=classes,
            attn_implementation="sdpa",
        )
        self.model = transformers.RobertaForSequenceClassification(settings).train()
        if compiled:
            # Without these, the lengths of a second task would exceed torch's limit and run uncompiled in silence.
            torch._dynamo.reset()
            torch._dynamo.config.fail_on_recompile_limit_hit = True
        self.forward = torch.compile(self.model, dynamic=False) if compiled else self.model
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=LEARNING_RATE)
        self.times: list[float] = []
        self.examples = self.tokens = 0

    def steps(self, start: int, stop: int, counted: bool = True) -> None:
        """Run `stop - start` steps; with `counted`, add their times, examples and tokens."""
        times, examples, tokens = [], 0, 0
        for _ in range(start, stop):
            began = time.perf_counter()
            batch = next(self.batches)
            self.step(batch)
            times.append(time.perf_counter() - began)
            examples, tokens = (
                examples + int((batch["rows"] >= 0).sum()),
                tokens + int((batch["segment_ids"] > 0).sum()),
            )
        if counted:
            self.times, self.examples, self.tokens = self.times + times, self.examples + examples, self.tokens + tokens

    def step(self, batch: dict[str, np.ndarray]) -> None:
        """Take one training step."""
        torch = self.torch
        fields = {
            "input_ids": batch["tokens"],
            "attention_mask": batch["segment_ids"] > 0,
            "labels": batch["labels"],
        }
        given = {name: torch.from_numpy(np.ascontiguousarray(field, np.int64)) for name, field in fields.items()}
        loss = self.forward(**given).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        loss.item()

    def figures(self) -> dict[str, Any]:
        """Return the speed, the versions of torch and transformers, and the number of threads."""
        versions = {package: importlib.metadata.version(package) for package in ("torch", "transformers")}
        speed = turns.speed(self.times, examples=self.examples, tokens=self.tokens)
        return speed | {"versions": versions, "threads": self.torch.get_num_threads()}


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
        running[-1].step(batch)
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
