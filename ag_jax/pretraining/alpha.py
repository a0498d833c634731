"""Choice of the guidance coefficient alpha by `guidance.alpha_rule=auto`, from a run's losses before the first step.

alpha is the power of ten that makes the guidance loss comparable to the loss of the model (Deshpande & Narasimhan 2020,
section 4.5). The losses are measured once, on the first batch and before the first step, and stored with alpha in
`alpha.json` of the run directory, so that a resumed run has the same alpha.
"""

import dataclasses
import json
import math
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from etils import epath

from ag_jax.data.json_files import read_json
from ag_jax.distributed import hosts, storage
from ag_jax.pretraining.config import ExperimentConfig
from ag_jax.training.hyperparameters import Hyperparameters

ALPHA = "alpha.json"
GUIDANCE_LOSS = "ag_loss"


def comparable(loss: float, guidance_loss: float) -> float:
    """Return the power of ten alpha with which alpha * `guidance_loss` is nearest to `loss` on a logarithmic scale.

    Raises ValueError if there is none, because a loss is not positive and finite.
    """
    ratio = loss / guidance_loss if guidance_loss else math.inf
    if not (math.isfinite(ratio) and ratio > 0):
        raise ValueError(
            f"guidance.alpha_rule=auto: no alpha makes the guidance loss {guidance_loss:g} comparable to the loss "
            f"{loss:g} at the first step: set guidance.alpha_rule=value and guidance.alpha"
        )
    return 10.0 ** round(math.log10(ratio))


def begin(
    config: ExperimentConfig,
    workdir: epath.Path,
    metric: str,
    coefficient: float,
    losses: Callable[[], Mapping[str, Any]],
) -> Hyperparameters:
    """Return a run's hyperparameters; with `alpha_rule=auto`, a new run first chooses alpha, the weight of guidance.

    They are the same on all hosts. alpha is stored in `alpha.json`. A run that has this file reads alpha from it.

    metric: name of the loss that guidance is compared with.
    coefficient: its factor in the loss of the model, such as 50 for replaced tokens.
    losses: () -> metrics at step 0; called on all hosts, if the run has no `alpha.json`.
    """
    if config.guidance.alpha_rule == "value":
        return hyperparameters(config, workdir)
    if not hosts.from_first("whether alpha is known", (workdir / ALPHA).exists):
        losses_at_start = losses()
        hosts.from_first("alpha", lambda: _write(workdir, metric, coefficient, losses_at_start))
    alpha = hosts.from_first("alpha", lambda: float(hyperparameters(config, workdir).alpha))
    return dataclasses.replace(Hyperparameters.of(config.optimizer, config.guidance), alpha=np.float32(alpha))


def _write(workdir: epath.Path, metric: str, coefficient: float, losses: Mapping[str, Any]) -> None:
    loss, guidance_loss = coefficient * float(losses[metric]), float(losses[GUIDANCE_LOSS])
    alpha = comparable(loss, guidance_loss)
    label = metric if coefficient == 1 else f"{coefficient:g} {metric}"
    print(
        f"guidance.alpha_rule=auto: alpha {alpha:g}, because {label} is {loss:.3f} and {GUIDANCE_LOSS} "
        f"{guidance_loss:.3g} at step 0",
        file=sys.stderr,
        flush=True,
    )
    workdir.mkdir(parents=True, exist_ok=True)
    content = {"alpha": alpha, metric: loss / coefficient, "coefficient": coefficient, GUIDANCE_LOSS: guidance_loss}
    storage.write_whole(workdir / ALPHA, json.dumps(content, indent=2) + "\n")


def hyperparameters(config: ExperimentConfig, workdir: epath.Path) -> Hyperparameters:
    """Return the hyperparameters of a run that has begun; with `alpha_rule=auto`, alpha is read from its `alpha.json`.

    Not collective: any host may call it.

    Raises FileNotFoundError if this file is missing, and ValueError if it is damaged.
    """
    result = Hyperparameters.of(config.optimizer, config.guidance)
    if config.guidance.alpha_rule == "value":
        return result
    return dataclasses.replace(result, alpha=np.float32(read_json(workdir / ALPHA, fields={"alpha": float})["alpha"]))
