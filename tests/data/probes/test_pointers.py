"""Probes of pointers: the words and queries made of annotated text, against a treebank written by hand."""

import json

import pytest

from ag_jax.analysis.heads.encoding import encode
from ag_jax.data import tokenizers
from ag_jax.data.config import TokenizerConfig
from ag_jax.data.probes.pointers import OUTSIDE, UNDIRECTED, pointers
from ag_jax.data.records import sources
from ag_jax.data.records.annotated import PUNCTUATION

# Form, part of speech, head, and 1 if a space follows; a blank line ends a sentence. $ is a symbol, no punctuation.
TREES = """
I     PRON  3 1
do    AUX   4 0
n't   PART  2 1
know  VERB  0 0
.     PUNCT 4 1

zum   -     - 1
zu    ADP   3 1
dem   DET   4 1
gold  NOUN  0 1
$     SYM   5 0
9     NUM   3 0
!     PUNCT 3 1
"""
COLUMNS = ("head", "antecedent")
# Token 2 of the first sentence is " don" and token 3 is "'t", so that n't begins in the token of do.
WORDS = [("I", "don't", "know", "."), ("zum", "gold", "$", "9", "!")]
SPACES = [(True, True, False, True), (True, True, False, False, False)]


def conllu():
    lines, number = [], 0
    for row in TREES.strip().splitlines():
        if not row:
            lines, number = [*lines, ""], 0
            continue
        form, part, head, space = row.split()
        number += head != "-"
        columns = ["1-2" if head == "-" else str(number), form, "_", part, "_", "_", head, "x", "_"]
        lines.append("\t".join([*columns, "_" if space == "1" else "SpaceAfter=No"]))
    return "\n".join([*lines, ""])


@pytest.fixture(scope="module")
def tokenizer():
    texts = ["I don't know. zum gold $9!"] * 50
    return tokenizers.train(TokenizerConfig(kind="byte_bpe", vocabulary_size=400), texts)


def read(tmp_path, name, content):
    (tmp_path / name).write_text(content)
    return list(sources.documents(str(tmp_path / name), pointers=(*COLUMNS, PUNCTUATION)))


def queries_of(probe, kind):
    return [(query.window, query.at, query.answers) for query in probe.queries if query.kind == kind]


def test_words_with_tokens_of_their_own_and_their_queries(tmp_path, tokenizer):
    texts = read(tmp_path, "a.conllu", conllu())
    [(probe, punctuation_Q, sentences, is_alone)] = pointers([*texts, "no annotation"], COLUMNS, tokenizer, 40, 9)
    assert [window.words for window in probe.windows] == WORDS and sentences == 2 and is_alone
    assert [window.spaces for window in probe.windows] == SPACES
    # The heads of I, don't and the full stop; know and gold are roots, and n't is asked as a part of don't.
    expected = [(0, 0, (1,)), (0, 1, (2,)), (0, 3, (2,)), (1, 0, (1,)), (1, 2, (3,)), (1, 3, (1,)), (1, 4, (1,))]
    assert queries_of(probe, "head") == expected
    children = {(0, 1): (0,), (1, 3): (2,)}
    assert queries_of(probe, UNDIRECTED) == [
        (window, at, answers + children.get((window, at), ())) for window, at, answers in expected
    ]
    assert {probe.windows[query.window].words[query.at] for query in probe.queries} - {
        probe.windows[query.window].words[query.at]
        for query, is_mark in zip(probe.queries, punctuation_Q, strict=True)
        if not is_mark
    } == {".", "!"}
    assert probe.development.tolist() == [query.window == 0 for query in probe.queries]
    assert probe.baselines["offset +1"].tolist() == [float(q.at + 1 in q.answers) for q in probe.queries]
    # A model reads what it was trained on: the sentences as the file writes them.
    for window, sentence in zip(encode(probe.windows, tokenizer, 40).windows, texts[0].sentences(), strict=True):
        assert window.ids[1:-1].tolist() == tokenizer.encode(f" {sentence.strip()}")
    for most in (1, 3):
        [(first, *_)] = pointers(texts * 2, COLUMNS, tokenizer, 40, most)
        assert [window.words for window in first.windows] == (WORDS * 2)[:most]


def test_pointers_to_other_sentences_are_asked_in_several_sentences(tmp_path, tokenizer):
    words = [word for of_sentence in WORDS for word in of_sentence]
    record = {"words": words, "sentences": [4, 9], "head": [2, 0, 0, 2, 6, 0, 0, 6, 6], "antecedent": [0] * 9}
    record["antecedent"][5:9] = [1, 6, 2, 0]  # of gold, $ and 9
    texts = read(tmp_path, "a.jsonl", json.dumps(record) + "\n")
    alone, together = pointers(texts, COLUMNS, tokenizer, 40, 500)
    assert [window.words for window in alone.probe.windows] == WORDS and alone.is_alone
    assert [window.words for window in together.probe.windows] == [tuple(words)] and not together.is_alone
    assert queries_of(together.probe, "antecedent") == [(0, 5, (0,)), (0, 6, (5,)), (0, 7, (1,))]
    # Without parts of speech, words without a letter or digit are punctuation marks.
    assert together.punctuation_Q.tolist() == [False, True, False]
    # The two sentences do not fit into 12 tokens, with begin and end tokens.
    _, together = pointers(texts, COLUMNS, tokenizer, 12, 500)
    assert queries_of(together.probe, "antecedent") == [(1, 2, (1,))]
    assert together.probe.dropped == {f"antecedent: {OUTSIDE}": 2}
