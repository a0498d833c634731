"""Initial weights of a pre-training run: the parameters of another run, `training.initial_weights`."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from etils import epath

from ag_jax.data.tokenizers import Tokenizer
from ag_jax.distributed import hosts, storage
from ag_jax.pretraining import build, run_directory
from ag_jax.pretraining import origin as origins
from ag_jax.pretraining.config import ExperimentConfig
from ag_jax.pretraining.open_run import open_run
from ag_jax.settings import schema
from ag_jax.training.checkpoint import Checkpoints
from ag_jax.training.hyperparameters import Hyperparameters
from ag_jax.training.program import Program
from ag_jax.training.state import create_state
from ag_jax.training.trainee import Progress

# Settings of the encoder that do not change the meaning of its parameters.
MODEL_MAY_DIFFER = ("dropout", "attention_dropout", "initializer_range", "dtype", "remat", "scan_layers", "attention")
# Others may be changed on purpose when training goes on: slower rotations for longer sequences.
MODEL_MAY_CHANGE = ("rotary_base", "rotary_base_local")


def check(config: ExperimentConfig) -> None:
    """Raise ValueError, with the settings that differ, if `training.initial_weights` names a run with another model.

    Of runs that translate, the decoders are compared, too. Prints the bases of rotary positions if they differ.
    """
    source = storage.directory(config.training.initial_weights)
    runs = run_directory.read_config(source), config
    sections = ("model", "decoder") if all(one.translates for one in runs) else ("model",)
    settings = (schema.to_dict(one) for one in runs)
    before, after = (schema.flat({section: of[section] for section in sections}) for of in settings)
    if None in (before["model.vocabulary_size"], after["model.vocabulary_size"]):  # that of a tokenizer not loaded yet
        before["model.vocabulary_size"] = after["model.vocabulary_size"]
    different = {
        key: f"  {key}: there {before[key]!r}, here {after[key]!r}"
        for key in after
        if before[key] != after[key] and key.removeprefix("model.") not in MODEL_MAY_DIFFER
    }
    changed = [different.pop(key) for name in MODEL_MAY_CHANGE if (key := f"model.{name}") in different]
    if different:
        raise ValueError(
            f"training.initial_weights={source} is a run of another encoder:\n" + "\n".join(different.values()) + "\n"
            f"Set these settings as in that run (configs/continue_pretraining.py:run={source} does this)"
        )
    if changed:
        hosts.tell(f"going on from {source} with other settings of the encoder:\n" + "\n".join(changed))


def read(config: ExperimentConfig, workdir: epath.Path, tokenizer: Tokenizer, program: Program) -> dict[str, Any]:
    """Return the parameters from `training.initial_weights`; print which parts (`word_head`, ...) are new or dropped.

    A part is a top-level key of the parameters; those that both runs have are taken. The origin of the weights is
    copied to this run. A new head for sentence pairs takes over the pooler of a BERT.

    Raises ValueError for another tokenizer, and if a part that both runs have differs in its parameters or shapes.
    """
    if not config.training.initial_weights:
        return {}
    opened = open_run(storage.directory(config.training.initial_weights))
    if opened.tokenizer.fingerprint() != tokenizer.fingerprint():
        raise ValueError(
            f"the weights of {opened.workdir} go with another tokenizer: set "
            f"--config.data.tokenizer.path={opened.workdir}/tokenizer"
        )
    expected = program.abstract.params
    shared = [name for name in opened.params if name in expected]  # heads of only one of the runs are no error
    stored_shapes, expected_shapes = (
        build.shapes_of({name: tree[name] for name in shared}) for tree in (opened.params, expected)
    )
    if different := build.differences(stored_shapes, expected_shapes):
        raise ValueError(
            f"the weights of {opened.workdir} do not fit this run:\n" + "\n".join(different) + "\n"
            f"Set these parts of the model as in {opened.workdir / 'config.json'}, or choose other weights"
        )
    params = {name: jax.device_get(opened.params[name]) for name in shared}
    new = sorted(expected.keys() - set(shared))
    if opened.pooler and "next_head" in new:
        params["next_head"] = {"pooler": jax.device_get(opened.pooler)}
    if hosts.is_first():
        untrained = sorted({*new, *opened.untrained} & expected.keys())
        origin = dataclasses.replace(opened.origin, new=tuple(untrained))
        origins.write(workdir, origin, {} if "next_head" in shared else opened.pooler)
        dropped = sorted(opened.params.keys() - set(shared))
        notes = [f"{what}: {', '.join(which)}" for what, which in (("new", new), ("dropped", dropped)) if which]
        hosts.say("; ".join([f"starting from step {opened.step} of {opened.workdir}", *notes]))
    return params


def write(config: ExperimentConfig, workdir: epath.PathLike, tokenizer: Tokenizer, params: Any) -> None:
    """Write a run directory of `config` at step 0, with the given parameters and a new optimizer state.

    `train` resumes from this checkpoint.
    """
    workdir = storage.directory(workdir)
    run_directory.claim(config, workdir)
    tokenizer.save(workdir / "tokenizer")
    optimizer = build.optimizer_of(config, Hyperparameters())
    params = jax.tree.map(jnp.asarray, params)
    checkpoints = Checkpoints(workdir / "checkpoints")
    checkpoints.save(create_state(params, optimizer), Progress(settings=schema.to_dict(config)).to_json())
    checkpoints.close()
