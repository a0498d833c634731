"""What each verb of the command does, and what becomes of its errors."""

import dataclasses
import json
import sys
from typing import Any

from etils import epath

from ag_jax import comparison, experiment, run
from ag_jax.analysis import maps, plots
from ag_jax.data import pipeline
from ag_jax.planning import plan, text, topology
from ag_jax.training.checkpoint import CorruptCheckpointError
from ag_jax.training.loop import Interrupted, NonFiniteError


@dataclasses.dataclass(frozen=True)
class Request:
    """The command line: config file with its arguments, settings on top of it, and the other flags."""

    config: str | None
    overrides: dict[str, Any]
    workdir: str | None
    step: int | None
    text: str | None
    print_config: bool
    topology: str | None
    search_batch: bool

    def experiment(self) -> experiment.ExperimentConfig:
        """The checked config."""
        if self.config is None:
            raise ValueError("this verb needs --config=FILE, such as --config=configs/quickstart.py")
        return experiment.parse(experiment.load(self.config, self.overrides))

    def directory(self) -> epath.Path:
        """The run directory."""
        if not self.workdir:
            raise ValueError("this verb needs --workdir=DIR, such as --workdir=runs/first")
        return epath.Path(self.workdir).resolve()


def run_verb(verb: str, request: Request) -> None:
    """Do it. Raises ValueError or OSError for what the user can mend."""
    if request.print_config:
        print(json.dumps(experiment.to_dict(request.experiment()), indent=2))
        return
    VERBS[verb](request)


def _train(request: Request) -> None:
    config, workdir = request.experiment(), request.directory()
    summary = run.train(config, workdir)
    print(
        f"{workdir.name}: MLM loss {summary['train_loss']:.3f} train, {summary['validation_loss']:.3f} validation, "
        f"{summary['average_train_loss']:.3f} average over training; everything is in {workdir}"
    )


def _compare(request: Request) -> None:
    request.experiment()
    report = comparison.compare(request.config, request.overrides, request.directory())
    print(f"the report is {report}")


def _evaluate(request: Request) -> None:
    metrics = run.evaluate(request.directory(), request.step)
    (request.directory() / "evaluation.json").write_text(json.dumps(metrics, indent=2) + "\n")
    print(json.dumps(metrics, indent=2))


def _inspect(request: Request) -> None:
    opened = run.open_run(request.directory(), request.step)
    text = request.text or opened.config.inspection.sentence
    length = opened.config.data.sequence_length
    attention = maps.attention_maps(opened.model, opened.params, opened.tokenizer, text, length)
    special = run.special_tokens(opened.tokenizer)
    print(maps.mass_table(attention, special, opened.assignment))
    figures = plots.save_inspection(attention, opened.assignment, special, opened.workdir / "figures", opened.step)
    print("\n".join(f"drawn: {path}" for path in figures))


def _tokenizer(request: Request) -> None:
    config, workdir = request.experiment(), request.directory()
    tokenizer = pipeline.prepare_tokenizer(config.data)
    tokenizer.save(workdir)
    text = request.text or config.inspection.sentence
    print(f"{tokenizer.vocabulary_size} tokens, saved in {workdir}; use it with --config.data.tokenizer.path={workdir}")
    print(" ".join(tokenizer.tokens(tokenizer.encode(text))))


def _plan(request: Request) -> None:
    config = request.experiment()
    if not request.topology:
        raise ValueError("this verb needs --topology=SLICE, such as --topology=v5e:4x4 or --topology=v4-8")
    directory = request.directory() if request.workdir else None
    found = plan.make_plan(config, topology.parse(request.topology), request.search_batch)
    print(text.report(found))
    if directory:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "plan.json").write_text(json.dumps(text.as_json(found), indent=2) + "\n")


VERBS = {
    "train": _train,
    "compare": _compare,
    "evaluate": _evaluate,
    "inspect": _inspect,
    "tokenizer": _tokenizer,
    "plan": _plan,
}


def run_safely(verb: str, request: Request) -> int:
    """`run_verb` with its errors as one message; the exit status of the program."""
    try:
        run_verb(verb, request)
    except Interrupted as stop:
        print(f"{stop}. To go on, run the same command again", file=sys.stderr)
        return 0
    except (ValueError, OSError, NonFiniteError, CorruptCheckpointError) as error:
        print(f"ag-jax {verb}: {error}", file=sys.stderr)
        return 1
    return 0
