"""The development examples of a finished fine-tuning trial."""

from etils import epath

from ag_jax.data.json_files import reading
from ag_jax.data.tasks.task import Examples, Task
from ag_jax.finetuning import results, splits, suite_directory, trial
from ag_jax.finetuning.config import Recipe
from ag_jax.interop import finetuned
from ag_jax.settings import schema


def read(directory: epath.Path, most: int | None = None) -> tuple[Task, Examples]:
    """Return (task, at most `most` development examples) of a finished trial, read again from the suite's data.

    directory: of the trial, or its folder of weights.
    most: number of examples to take, drawn by a hash; None takes all.

    Raises ValueError if the directory is not of a trial, or if the examples have changed since its training.
    """
    place = directory.parent if directory.name == finetuned.FOLDER else directory
    path = place.parent.parent / "config.json"
    result = trial.read(place)
    if result is None or not path.exists():
        raise ValueError(
            f"{directory} is fine-tuned, but no trial of a suite, so its development examples are not known: give the "
            "directory of a trial that kept its weights (`ag-jax finetune --config.keep=best`)"
        )
    settings, name = suite_directory.read_settings(path), result.facts["task"]
    with reading(path, "put back the file as `ag-jax finetune` wrote it"):
        recipe, data = schema.parse(Recipe, settings["tasks"][name]), settings["data"]
    examples = splits.read(name, recipe, data)
    if recipe.folds:
        examples = splits.of_fold(examples, result.facts["fold"], recipe.folds)
    results.read_predictions(place, result, "validation", examples.validation)  # raises if the examples have changed
    return examples.task, splits.subset(examples.validation, most, recipe.subset_seed)
