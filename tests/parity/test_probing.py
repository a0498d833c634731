"""Scores of probes against a plain computation from the attention of `transformers`, word by word and head by head."""

import pytest

torch = pytest.importorskip("torch", reason="needs the extra: pip install 'ag_jax[parity]'")
transformers = pytest.importorskip("transformers", reason="needs the extra: pip install 'ag_jax[parity]'")

import numpy as np

from ag_jax.analysis.heads.measuring import measure
from ag_jax.analysis.heads.rows import Convention
from ag_jax.data import tokenizers
from ag_jax.data.config import TokenizerConfig
from ag_jax.data.probes.queries import Probe, Query, Window
from ag_jax.probing.models import open_model
from tests.cases import some
from tests.parity import examples

TEXTS = [
    "the unquestionably old king saw the queen before he abdicated",
    "mary washed herself",
    "nobody knew the extraordinarily rich merchants whose daughters they met yesterday",
]
# Window, word, candidates, correct ones, answers.
QUERIES = [
    (0, 7, ((3,), (5, 6)), (0,), (3,)),
    (0, 2, ((0,), (8,)), (1,), (8, 4)),
    (1, 2, ((0,), (1,)), (0,), (0,)),
    (2, 8, ((0,), (4, 5), (7,)), (1, 2), (5, 7)),
    (2, 3, ((0,), (9,)), (0,), (0, 1)),
]
CASES = [
    ("bert", "wordpiece", Convention()),
    ("bert", "wordpiece", Convention(from_="first", to="mean")),
    ("roberta", "byte_bpe", Convention()),
    ("roberta", "byte_bpe", Convention(to="mean")),
]


def encoded(tokenizer, words):
    """The tokens of a text, and for each word the positions of its tokens, by encoding every word alone."""
    ids, spans = [tokenizer.specials.begin], []
    for word in words:
        pieces = tokenizer.encode(f" {word}")
        spans.append(list(range(len(ids), len(ids) + len(pieces))))
        ids += pieces
    return [*ids, tokenizer.specials.end], spans


@pytest.mark.parametrize(("family", "kind", "convention"), some(CASES, CASES[1], CASES[2]), ids=str)
def test_scores(family, kind, convention, tmp_path):
    tokenizer = tokenizers.train(TokenizerConfig(kind=kind, vocabulary_size=270 if kind == "byte_bpe" else 60), TEXTS)
    theirs = examples.FAMILIES[family].make(
        tokenizer.vocabulary_size, tokenizer.specials.pad, 3, num_hidden_layers=2, num_attention_heads=3,
        hidden_size=12, max_position_embeddings=130,
    )  # fmt: skip
    theirs.save_pretrained(tmp_path)
    tokenizer.save(tmp_path)
    windows = tuple(Window(f"d{number}", tuple(text.split())) for number, text in enumerate(TEXTS))
    queries = tuple(Query(window, at, at, *rest, "any") for window, at, *rest in QUERIES)
    probe = Probe("parity", windows, queries, np.arange(len(queries)) % 2 == 0, {}, {})
    found = measure(open_model(str(tmp_path)), probe, ("mentions", "words", "positions"), convention)

    several = 0
    for index, (window, at, candidates, right, answers) in enumerate(QUERIES):
        ids, spans = encoded(tokenizer, windows[window].words)
        with torch.no_grad():
            attentions = theirs(torch.tensor([ids]), output_attentions=True).attentions
        several += len(spans[at]) > 1
        for layer, head in np.ndindex(2, 3):
            weights_LL = attentions[layer][0, head].numpy()
            row_L = weights_LL[spans[at][:1] if convention.from_ == "first" else spans[at]].mean(0)
            of_word = [getattr(row_L[span], convention.to)() for span in spans]
            mass = [sum(of_word[word] for word in group) for group in candidates]
            best = int(np.argmax(mass))
            assert found["mentions"].chosen_QNH[index, layer, head] == best
            assert found["mentions"].scores_QNH[index, layer, head] == (best in right)
            confusion = -np.log2(sum(mass[group] for group in right) / sum(mass))
            assert found["mentions"].confusion_QNH[index, layer, head] == pytest.approx(confusion, abs=1e-4)
            best = max((word for word in range(len(spans)) if word != at), key=lambda word: of_word[word])
            assert found["words"].chosen_QNH[index, layer, head] == best
            assert found["words"].scores_QNH[index, layer, head] == (best in answers)
            position = int(np.argmax(row_L))
            assert found["positions"].chosen_QNH[index, layer, head] == position
            assert found["positions"].scores_QNH[index, layer, head] == any(position in spans[word] for word in answers)
    assert several >= 2, "words of one token show nothing about sums and means"
    assert len(np.unique(found["words"].chosen_QNH)) > 3
