"""`inspect`: the attention of any encoder to a text, as a table and as figures."""

import dataclasses
from typing import Any

from etils import epath

from ag_jax import learner
from ag_jax.analysis import maps, plots
from ag_jax.data.tokenizers import Tokenizer
from ag_jax.experiment import InspectionConfig
from ag_jax.finetuning import best, weights
from ag_jax.models.pretraining import PretrainingModel
from ag_jax.objectives.adversarial.self_attention import LearntMasks
from ag_jax.training import storage


@dataclasses.dataclass(frozen=True)
class Inspected:
    """An encoder to be looked at.

    directory: of the run, the trial or the Hugging Face model.
    description: where the encoder comes from, for people.
    model, params: any model with an `encoder`, and all parameters, those of an adversary included.
    length: the longest text, in tokens, that the encoder was trained on.
    text: the sentence to look at if the user gives none.
    step: of a run's checkpoint, None for other models.
    assignment: patterns with their number of heads; empty where no head was guided.
    attacker: the adversary that a run was trained against, None where there was none.
    is_ours: whether figures belong into the directory; that of a Hugging Face model is left as it is.
    """

    directory: epath.Path
    description: str
    model: maps.Model
    params: Any
    tokenizer: Tokenizer
    length: int
    text: str = InspectionConfig().sentence
    step: int | None = None
    assignment: maps.Assignment = ()
    attacker: LearntMasks | None = None
    is_ours: bool = True


def open_any(directory: epath.Path, step: int | None = None) -> Inspected:
    """The encoder of a run (at `step`, the newest by default), a trial or a Hugging Face model; of several of them the best.

    Raises FileNotFoundError or ValueError with what was expected.
    """
    several = best.find(directory)
    place = several.directory if several else directory
    opened = weights.open_encoder(str(place), step)
    description = f"{opened.description} ({several.reason})" if several else opened.description
    if opened.run is None:
        model = PretrainingModel(opened.config, next_sentence=False)
        length, is_ours = opened.config.max_length, not weights.is_huggingface(place)
        return Inspected(place, description, model, opened.params, opened.tokenizer, length, is_ours=is_ours)
    run = opened.run
    imported = bool(run.origin.model_type)  # it was trained on all of its positions, whatever the run's rows are
    return Inspected(
        directory=place,
        description=description,
        model=run.model,
        params=run.params | run.beside,
        tokenizer=run.tokenizer,
        length=run.model.config.max_length if imported else run.config.data.sequence_length,
        text=run.config.inspection.sentence,
        step=run.step,
        assignment=run.assignment,
        attacker=run.attacker,
    )


def inspect(directory: epath.Path, step: int | None = None, text: str | None = None) -> list[epath.Path]:
    """Print the attention mass on each pattern for a text, then draw its maps; returns the paths of the figures.

    The figures go to `figures/` in the directory of the model, or elsewhere if that is not ours or cannot be written.
    """
    opened = open_any(directory, step)
    text = opened.text if text is None else text
    attention = maps.attention_maps(opened.model, opened.params, opened.tokenizer, text, opened.length)
    special = learner.special_tokens(opened.tokenizer)
    print(opened.description)
    print(maps.mass_table(attention, special, opened.assignment), flush=True)

    def draw(place: epath.Path) -> list[epath.Path]:
        folder = place / "figures"
        folder.mkdir(exist_ok=True)  # before minutes of drawing: this fails at once where nothing can be written
        figures = plots.save_inspection(attention, opened.assignment, special, folder, opened.step)
        if opened.attacker is not None:
            options = (opened.tokenizer, text, opened.length, opened.attacker)
            attacked = maps.attention_maps(opened.model, opened.params, *options)
            path = folder / f"attention_attacked_step{opened.step}.png"
            figures.append(plots.attack_figure(attention, attacked, opened.assignment, path))
        return figures

    figures = storage.write_where_possible(draw, opened.directory, is_ours=opened.is_ours)
    print("\n".join(f"drawn: {path}" for path in figures))
    return figures
