"""Pronouns and the phrases to which they may refer: found in texts, read from files, and encoded with masks."""

import json

import numpy as np
import pytest

from ag_jax.data import tokenizers
from ag_jax.data.config import TokenizerConfig
from ag_jax.data.tasks import ranking, referents
from ag_jax.data.tasks.catalogue import TASKS
from ag_jax.data.tasks.phrases import candidates, noun_phrases
from ag_jax.data.tasks.readers import load
from ag_jax.data.tasks.task import Examples, Referent
from ag_jax.finetuning.kinds import encode
from tests.data.tasks.test_layouts import rows, write

COUNCIL = "The city councilmen refused the demonstrators a permit because they feared violence."
CARROT = "I stuck a pin through a carrot. When I pulled the pin out, it had a hole."


PHRASES = {
    COUNCIL: ["The city councilmen", "the demonstrators", "a permit"],
    CARROT: ["a pin", "a carrot", "the pin", "a hole"],
    "Joan made sure to thank Susan for all the help she had given.": ["Joan", "Susan", "the help"],
    "Although Sam Goodman's book on the Spartan general Xeno sold, it didn't.": ["Sam Goodman",
        "the Spartan general Xeno"],
    "Pam saw her hat, the very old one. The": ["Pam", "her hat"],
    "We saw a big old grey brick house.": ["a big old grey"],  # three words behind the determiner
    "so it is": [],
}  # fmt: skip


def test_noun_phrases_and_candidates():
    found = {text: [text[begin:end] for begin, end in noun_phrases(text)] for text in PHRASES}
    assert found == PHRASES
    text = "The pin is by the old pen and her hat, so Ann took a cup and a pin."
    her = text.index("her")
    assert candidates(text, (her, her + 3), "the cup") == ("The pin", "the old pen", "Ann")
    assert candidates(text, (0, 0), "Pen") == ("The pin", "her hat", "Ann", "a cup"), "none that contain the phrase"
    assert "a cup" not in candidates(text, (0, 0), "cup of tea"), "and none that the phrase contains"


STEVE, PAM = "Steve follows Fred's example. He {} him{}.", "Pam and Paul went to his house, where Pam's dog met them."
REPLACED = [  # text, hypothesis, what is before the pronoun, the phrase
    (CARROT, "The carrot had a hole.", "pin out, ", "the carrot"),
    (CARROT, "The pin had a hole", "pin out, ", "the pin"),
    (STEVE.format("influences", " hugely"), "Fred influences him hugely.", "example. ", "Fred"),
    (STEVE.format("likes", ""), "He likes Fred.", "He likes ", "Fred"),
    (PAM, "Pam and Paul went to Paul's house.", "went to ", "Paul's"),
    ("They were many. The men saw them.", "The children were many.", "", "The children"),
]


def test_the_pronoun_of_a_pair_and_its_phrase():
    for text, hypothesis, before, phrase in REPLACED:
        span, found = referents.replaced(text, hypothesis)
        assert found == phrase and text[: span.begin].endswith(before)
        assert text[slice(*span)].lower() in ("it", "he", "him", "his", "they")


def test_wsc_and_wnli_from_their_files(tmp_path):
    target = {"span1_index": 0, "span1_text": "The city councilmen", "span2_index": 9, "span2_text": "they"}
    other = target | {"span1_index": 4, "span1_text": "the demonstrators,"}
    rain = target | {"span1_text": "It", "span2_index": 2, "span2_text": "he"}
    lines = [
        {"text": COUNCIL, "target": target, "idx": 3, "label": True},
        {"text": COUNCIL, "target": other, "idx": 4, "label": False},
        {"text": "It rains, he said", "target": rain, "idx": 5, "label": True},
    ]
    table = rows(("index", "sentence1", "sentence2", "label"), (7, CARROT, "The carrot had a hole.", 1))
    root = write(
        tmp_path,
        {"WSC/train.jsonl": "\n".join(map(json.dumps, lines)), "WNLI/train.tsv": table}
        | {"WNLI/test.tsv": rows(("index", "sentence1", "sentence2"), (0, CARROT, "The pin had a hole."))}
        | {"WNLI/dev.tsv": table + "8\tIt rains.\tNo word alike\t1\n"},
    )
    wsc, wnli = (ranking.ranked(TASKS[name]) for name in ("wsc", "wnli"))
    assert (wsc.kind, wsc.metric, wnli.labels) == ("referent", "accuracy", ("not_entailment", "entailment"))
    before, after = "The city councilmen refused the demonstrators a permit because ", " feared violence."
    first = Referent("3", before, after, ("The city councilmen", "the demonstrators", "a permit"), 1)
    second = Referent("4", before, after, ("the demonstrators", "The city councilmen", "a permit"), 0)
    found = load(wsc, root, "train")
    assert found[:2] == (first, second) and found[2].phrases == ("It",)
    assert ranking.learnable(found) == (Examples((first,), found.source), 2), "neither wrong nor single phrases"
    with pytest.raises(ValueError, match="WSC/train.jsonl.*phrase"):
        ranking.learnable(found.take([1, 2]))
    before, after = CARROT.split("it had")
    expected = Referent("7", before, " had" + after, ("the carrot", "a pin", "a hole"), 1)
    assert load(wnli, root, "train").items == (expected,)
    assert load(wnli, root, "test")[0].label is None
    with pytest.raises(ValueError, match="line 3.*'No word alike'"):
        load(wnli, root, "validation")


@pytest.mark.parametrize("kind", ["byte_bpe", "wordpiece"])
def test_masks_stand_for_the_tokens_of_a_phrase_in_this_text(kind):
    texts = ["the cat sat on the mat while it purred", "a carpet of velvet was there"] * 3
    tokenizer = tokenizers.train(TokenizerConfig(kind=kind, vocabulary_size=300), texts)
    example = Referent("0", "the cat sat, while ", " purred.", ("the velvet carpet", "a mat"), 1)
    wrong = Referent("1", "", " sat.", ("the cat", "a mat", "velvet"), 0)
    task, given = ranking.ranked(TASKS["wsc"]), Examples((example, wrong), "a test")
    features, special = encode(task, given, tokenizer, 48, 1), tokenizer.specials
    assert features.truncated == 0
    for row, source in zip(features.rows, given, strict=True):
        assert row["labels"].tolist() == [1.0, *[0.0] * (len(source.phrases) - 1)] and row["weights"] == source.label
        for number, phrase in enumerate(source.phrases):
            whole = tokenizer.encode(f"{source.before}{phrase}{source.after}")
            count = int(row["segment_ids"][number].sum())
            tokens, ids, masks = (row[name][number, :count] for name in ("tokens", "word_ids", "word_weights"))
            assert np.where(masks > 0, ids, tokens).tolist() == [special.begin, *whole, special.end]
            assert set(tokens[masks > 0]) == {special.mask} and special.mask not in tokens[masks == 0]
            assert tokenizer.decode(ids[masks > 0]).strip() == phrase
            assert not row["word_weights"][number, count:].any()
    # Too long: the beginning goes, so that the phrase stays.
    long = Referent("2", "the cat sat on " * 9, " purred on the mat." * 9, ("the velvet carpet", "a mat"), 1)
    short = encode(task, Examples((long,), "a test"), tokenizer, 24, 1)
    (row,) = short.rows
    assert short.truncated == 1 and row["tokens"].shape == (2, 24)
    for phrase, ids, masks in zip(long.phrases, row["word_ids"], row["word_weights"], strict=True):
        assert tokenizer.decode(ids[masks > 0]).strip() == phrase
