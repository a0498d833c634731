"""Which trial's masks a trial with `adversarial.method=scheduled` repeats at random.

`adversarial.masking.trace` may name a trial of its own for each: `{arms}` stands for the directory of the comparison, `{task}` and
`{trial}` for those of the trial itself. So `{arms}/asa/{task}/{trial}` is the trial of the arm `asa` with the same task, settings
and seed.
"""

import dataclasses
from collections.abc import Set

from etils import epath

from ag_jax.finetuning.trial import Trial
from ag_jax.pretraining import mask_trace


def resolved(one: Trial, workdir: epath.Path) -> Trial:
    """The trial of the suite in `workdir`, with the path of its trace written out; itself if it has none."""
    adversarial = one.recipe.adversarial
    if adversarial.method != "scheduled":
        return one
    path = adversarial.masking.trace
    for place, value in (("{arms}", str(workdir.parent)), ("{task}", one.task), ("{trial}", one.name)):
        path = path.replace(place, value)
    masking = dataclasses.replace(adversarial.masking, trace=path)
    recipe = dataclasses.replace(one.recipe, adversarial=dataclasses.replace(adversarial, masking=masking))
    return dataclasses.replace(one, recipe=recipe)


def check(one: Trial, workdir: epath.Path, layers: int, promised: Set[epath.Path]) -> None:
    """Raise ValueError unless the trace of a trial is there and of so many layers, or is promised by its directory."""
    adversarial = resolved(one, workdir).recipe.adversarial
    if adversarial.method == "scheduled" and mask_trace.directory_of(adversarial) not in promised:
        mask_trace.read(adversarial, layers)
