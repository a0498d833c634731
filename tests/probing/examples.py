"""A small model with its tokenizer, and made-up queries."""

import functools

import numpy as np

from ag_jax.attention.assignment import Assignment
from ag_jax.data import tokenizers
from ag_jax.data.config import TokenizerConfig
from ag_jax.data.probes.queries import Probe, Query, Window
from ag_jax.models.config import EncoderConfig
from ag_jax.models.masked_lm import PretrainingModel
from ag_jax.probing.models import ProbedModel
from tests import tiny

TEXTS = [
    "Mary saw herself in the mirror because she likes mirrors .",
    "The unquestionably old king , who ruled Ruritania , said that he would abdicate tomorrow .",
    "He left .",
    "Then the boys washed themselves and the girls washed themselves and all of them went home to eat their dinner .",
    "Nobody went .",
]


@functools.cache
def tokenizer():
    return tokenizers.train(TokenizerConfig(vocabulary_size=300), TEXTS)


@functools.cache
def probed(seed=5) -> ProbedModel:
    """Two layers of three heads, with weights so large that heads differ."""
    config = EncoderConfig(vocabulary_size=tokenizer().vocabulary_size, layers=2, heads=3, width=12, max_length=97)
    model = PretrainingModel(config)
    example = {name: np.ones((1, 6), np.int32) for name in ("tokens", "segment_ids", "token_type_ids")}
    params = tiny.params(model, example | {"masked_positions": np.ones((1, 2), np.int32)}, seed)
    return ProbedModel("an example", model, params, tokenizer(), 97, Assignment((("next", 1),)))


def windows(documents=(0, 0, 1, 2, 2)) -> tuple[Window, ...]:
    return tuple(Window(f"d{name}", tuple(text.split())) for name, text in zip(documents, TEXTS, strict=True))


def probe(queries=None, **settings) -> Probe:
    queries = (
        (
            Query(0, 6, 6, ((0,), (2,), (4, 5)), (0, 1), (0, 2), "she"),
            Query(1, 11, 11, ((3,), (7,)), (0,), (3,), "he"),
            Query(3, 3, 3, ((1, 2), (8,)), (0,), (1, 2), "themselves"),
            Query(3, 9, 9, ((2,), (7,)), (1,), (7,), "themselves"),
            Query(3, 19, 18, ((2,), (7,), (13, 14)), (2,), (13, 14), "their"),
            Query(2, 1, 1, ((0,),), (0,), (0,), "root"),
        )
        if queries is None
        else tuple(queries)
    )
    count = len(queries)
    chosen = {"development": np.arange(count) % 2 == 0, "baselines": {}, "dropped": {}} | settings
    return Probe("made up", windows(), queries, **chosen)
