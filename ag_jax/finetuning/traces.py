"""Traces: the share of attention that an adversary masked in each layer of an earlier trial, over its training.

A trial with `adversarial.method=scheduled` masks the same shares, at random places.

`adversarial.masking.trace` may name another trial for each trial: `{arms}` stands for the directory of the comparison,
`{task}` and `{trial}` for the names of the trial's own task and directory. So `{arms}/asa/{task}/{trial}` is the trial
of the arm `asa` with the same task, settings and seed.
"""

import dataclasses
from collections.abc import Set

from etils import epath

from ag_jax.finetuning.trial import Trial
from ag_jax.pretraining import mask_trace


def resolved(one: Trial, workdir: epath.Path) -> Trial:
    """Return a copy of a trial in which the path `adversarial.masking.trace` has its placeholders filled in.

    `{arms}` is replaced by the directory that holds the suites of all arms, `{task}` and `{trial}` by the trial's own
    task and name.

    The path is that of an earlier trial that recorded which share of attention was masked. A trial with another method
    than `scheduled` is returned unchanged.

    workdir: the directory of the trial's suite.
    """
    adversarial = one.recipe.adversarial
    if adversarial.method != "scheduled":
        return one
    path = adversarial.masking.trace
    for place, value in (("{arms}", str(workdir.parent)), ("{task}", one.task), ("{trial}", one.name)):
        path = path.replace(place, value)
    masking = dataclasses.replace(adversarial.masking, trace=path)
    recipe = dataclasses.replace(one.recipe, adversarial=dataclasses.replace(adversarial, masking=masking))
    return dataclasses.replace(one, recipe=recipe)


def check(one: Trial, workdir: epath.Path, layers: int, to_be_recorded: Set[epath.Path]) -> None:
    """Raise ValueError if the masked shares of an earlier trial, which a trial repeats, are not recorded before it.

    The path of the recording, a trace, is `adversarial.masking.trace`. Trials with another method than `scheduled` need
    no trace.

    layers: number of layers of the model, for each of which the trace must have the share of masked attention.
    to_be_recorded: directories of trials that are trained before this one and record a trace.
    """
    adversarial = resolved(one, workdir).recipe.adversarial
    if adversarial.method != "scheduled" or mask_trace.directory_of(adversarial) in to_be_recorded:
        return
    try:
        mask_trace.read(adversarial, layers)
    except mask_trace.FailedTrialError:
        if "{" not in one.recipe.adversarial.masking.trace:
            raise
        # A trial of another arm failed: the trial that repeats its masks fails, too, and the other trials go on.
