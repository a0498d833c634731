"""Trained models as Python functions, for notebooks: fill masks, classify, choose, tag, answer, translate, embed texts.

    from ag_jax import pipelines

    fill = pipelines.fill_mask("runs/quickstart/ag-seed0")
    fill("The state of our <mask> is strong.")  # [Guess(text="union", score=0.83), ...]

    classify = pipelines.classify("runs/glue/sst2")
    classify("A masterpiece.")                  # Guess(text="positive", score=0.99)
    classify("A masterpiece.", top_k=None)      # all classes, the most probable first
    classify.logits("A masterpiece.")           # array([-2.1, 2.4], dtype=float32), in the order of classify.labels
    help(classify)

Each pipeline takes the directory of a run, of a trial with saved weights (`--config.keep=best`), or of a Hugging Face
model, and returns an object that is called like a function; `translate` takes only a run. Of the directory of a suite
or a comparison, all pipelines but `translate` take the best model. The object takes one text, or a list of texts, for
which it returns a list. Scores are probabilities. Texts longer than those of training, or than the positions of an
imported model, are cut as in training; `answer` reads all of a long context, and `fill_mask` and `translate` reject a
text that is too long.

`batch_size` is the most texts (or windows of a context, or stacks of candidates) that are computed together, 16 by
default. It can be given with the directory or in a call.
"""

from ag_jax.pipelines.answers import Answer, answer
from ag_jax.pipelines.choices import Choose, choose
from ag_jax.pipelines.classes import Classify, classify
from ag_jax.pipelines.guesses import Guess
from ag_jax.pipelines.tags import Tag, tag
from ag_jax.pipelines.translations import Translate, translate
from ag_jax.pipelines.vectors import POOLINGS, Embed, embed
from ag_jax.pipelines.words import FillMask, fill_mask

__all__ = [
    "POOLINGS",
    "Answer",
    "Choose",
    "Classify",
    "Embed",
    "FillMask",
    "Guess",
    "Tag",
    "Translate",
    "answer",
    "choose",
    "classify",
    "embed",
    "fill_mask",
    "tag",
    "translate",
]
