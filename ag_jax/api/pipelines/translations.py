"""The pipeline `translate`, which translates texts."""

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

from ag_jax.api.pipelines.arguments import one_or_many
from ag_jax.api.pipelines.pipeline import Pipeline
from ag_jax.pretraining.translate import Translator


@dataclasses.dataclass(frozen=True, repr=False, eq=False, match_args=False)
class Translate(Pipeline):
    """Function that translates a text, or each of a list of texts.

        translate("A dog runs through the snow.")                  # -> a text
        translate(["A dog runs.", "It snows."])                    # a list -> a list
        translate("A dog runs.", beams=8)                          # a wider search than the run's `decoding.beam_size`
        translate("A dog runs.", alternatives=3)                   # the best three translations as a list

    The other settings of the search are the run's (`decoding`).
    """

    name: ClassVar[str] = "translate"

    _translator: Translator

    def __call__(self, texts: str | Sequence[str], beams: int | None = None, alternatives: int = 1) -> Any:
        """Return a text's translation (a list of the best ones if `alternatives` > 1); for a list of texts, a list.

        texts: a text without a line break, or a list of these.
        beams: number of beams of the search; by default the run's.
        alternatives: 1 returns the best translation as a text; a larger number returns a list of the best ones.

        Raises ValueError for other arguments, for a text with a line break, and for one with more tokens than the model
        has positions.
        """
        lines, single = one_or_many(texts)
        for number, line in enumerate(lines, 1):
            if "\n" in line:
                raise ValueError(f"text {number} of {len(lines)} has a line break: translate its lines one by one")
        translator = self._translator if beams is None else self._translator.with_decoding(beam_size=beams)
        size = translator.config.beam_size
        if not isinstance(alternatives, int) or not 1 <= alternatives <= size:
            raise ValueError(f"alternatives must be between 1 and the number of beams, {size}, got {alternatives}")
        lists = [[hypothesis.text for hypothesis in of_line[:alternatives]] for of_line in translator(lines)]
        results: list[Any] = [*lists] if alternatives > 1 else [texts_of_line[0] for texts_of_line in lists]
        return results[0] if single else results


def translate(translator: Translator, directory: str) -> Translate:
    """Return a model that translates as a function of texts."""
    model, languages = translator.model.config, translator.tokenizer.languages
    about = f"from {languages[0]} to {languages[1]}; " if all(languages) else ""
    about += f"{model.layers} layers of width {model.width}; texts of up to {model.max_length - 1} tokens"
    about += f"; {translator.config.beam_size} beams"
    return Translate(directory, about, translator)
