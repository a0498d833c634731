"""Schemes of tags against seqeval, and as files have them."""

import dataclasses
import itertools

import numpy as np
import pytest
import seqeval.metrics
import seqeval.scheme
import sklearn.metrics
from seqeval.metrics.sequence_labeling import get_entities

from ag_jax.data.tasks import custom, schemes
from ag_jax.data.tasks.custom import CustomTask
from ag_jax.data.tasks.task import TaggedSentence
from ag_jax.evaluation import entities
from ag_jax.finetuning import error_analysis, kinds
from tests.data.tasks.test_custom import lines
from tests.data.tasks.test_layouts import write

SCHEMES = ("bio", "iob1", "ioe1", "ioe2", "bioes", "bilou")
STRICT = {"bio": "IOB2", "iob1": "IOB1", "ioe2": "IOE2", "bioes": "IOBES", "bilou": "BILOU"}  # IOE1 there has a to-do
EXAMPLE = [("X", 0, 0), ("X", 1, 2), ("Y", 3, 5), ("Y", 7, 7)]  # entities of nine words
TAGS = {
    "bio": "B-X B-X I-X B-Y I-Y I-Y O B-Y O", "iob1": "I-X B-X I-X I-Y I-Y I-Y O I-Y O",
    "ioe1": "E-X I-X I-X I-Y I-Y I-Y O I-Y O", "ioe2": "E-X I-X E-X I-Y I-Y E-Y O E-Y O",
    "bioes": "S-X B-X E-X B-Y I-Y E-Y O S-Y O", "bilou": "U-X B-X L-X B-Y I-Y L-Y O U-Y O",
}  # fmt: skip


def drawn(rng, words):
    """Entities of a sentence of so many words, many of them adjacent."""
    found, place = [], 0
    while (place := place + int(rng.integers(0, 2))) < words:
        last = min(place + int(rng.integers(0, 3)), words - 1)
        found.append((("X", "Y")[rng.integers(2)], place, last))
        place = last + 1
    return found


@pytest.mark.parametrize("scheme", SCHEMES)
def test_entities_become_tags_and_tags_entities(scheme):
    assert schemes.tags(EXAMPLE, 9, scheme) == TAGS[scheme].split()
    rng, labels = np.random.default_rng(0), schemes.all_tags(("X", "Y"), scheme)
    for words in rng.integers(0, 12, 100):
        expected = drawn(rng, int(words))
        tags = schemes.tags(expected, int(words), scheme)
        assert list(schemes.entities(tags)) == expected
        assert list(schemes.entities([*tags, "X", "[SEP]", "LABEL_1"])) == expected
        schemes.check(tags, labels, scheme)
    sentences = [schemes.tags(drawn(rng, 12), 12, scheme) for _ in range(30)]
    assert schemes.recognised(sentences) == scheme  # also if a few are misplaced
    assert schemes.recognised([*sentences, ["I-X", "O"], ["O", "B-Y", "I-X"], ["E-X", "I-X", "O"]]) == scheme


@pytest.mark.parametrize("scheme", STRICT)
def test_scores_are_those_of_seqeval(scheme):
    rng = np.random.default_rng(1)
    gold = [drawn(rng, 12) for _ in range(60)]
    predicted = [[one for one in each if rng.random() < 0.7] or drawn(rng, 12) for each in gold]
    predicted[0] = drawn(rng, 12)
    gold, predicted = ([schemes.tags(each, 12, scheme) for each in side] for side in (gold, predicted))
    strict = {"mode": "strict", "scheme": getattr(seqeval.scheme, STRICT[scheme]), "zero_division": 0}
    ours = entities.entity_scores(gold, predicted)
    for name, value in ours.items():
        assert value == pytest.approx(getattr(seqeval.metrics, f"{name}_score")(gold, predicted, **strict))
    assert 0.3 < ours["f1"] < 0.95
    of_types = seqeval.metrics.classification_report(gold, predicted, output_dict=True, **strict)
    for kind, of_type in entities.scores_by_type(gold, predicted).items():
        theirs = [of_types[kind][name] for name in ("precision", "recall", "f1-score", "support")]
        assert [*of_type.values()] == pytest.approx(theirs)
    # Of any tags, as models predict them, the entities are those of seqeval's default mode, which has E and S for L, U.
    for _ in range(100):
        tags = [str(tag) for tag in rng.choice(schemes.all_tags(("X", "Y"), scheme), 12)]
        renamed = [tag.replace("L-", "E-").replace("U-", "S-") for tag in tags]
        assert list(schemes.entities(tags)) == get_entities(renamed)
        if scheme != "iob1":  # in which seqeval's strict mode takes an entity's second word for the first
            theirs = seqeval.scheme.Tokens(tags, strict["scheme"]).entities
            expected = [(one.tag, one.start, one.end - 1) for one in theirs]
            assert schemes.strict_entities(tags, scheme) == expected


def test_the_scheme_of_a_file_is_recognised_or_named(tmp_path):
    def settings(**given):
        return custom.resolved("own", CustomTask("tagging", train="a.jsonl", **given), str(tmp_path))

    words = [f"w{number}" for number in range(9)]
    for scheme in SCHEMES:
        write(tmp_path, {"a.jsonl": lines({"words": words, "tags": TAGS[scheme].split()})})
        found = settings()
        assert (found.scheme or "bio") == scheme and found.labels == schemes.all_tags(("X", "Y"), scheme)
        assert settings(labels=("Y", "X")).labels == schemes.all_tags(("Y", "X"), scheme)
        (sentence,) = custom.load("own", found, str(tmp_path), "train", folds=True)
        assert sentence.tags == tuple(TAGS[scheme].split())
        task = custom.make_task("own", found)
        assert task.metric == "entity_f1" and ("strict_f1" in task.metrics) == (scheme != "bio")
        task = dataclasses.replace(task, metrics=(*task.metrics, "strict_f1"))
        values = kinds.evaluate(task, [sentence], [(*sentence.tags[:7], "O", "O")])
        assert values == pytest.approx(values | {"precision": 1, "recall": 0.75, "strict_f1": values["entity_f1"]})
        for number in range(9):  # every misplaced tag is an error that names the setting
            for tag in {*found.labels} - {sentence.tags[number]}:
                wrong = [*sentence.tags[:number], tag, *sentence.tags[number + 1 :]]
                if list(schemes.entities(wrong)) == EXAMPLE:
                    with pytest.raises(
                        ValueError, match=f"{scheme.upper()}: {tag} at word {number + 1}.*custom.scheme"
                    ):
                        schemes.check(wrong, found.labels, scheme)
    write(tmp_path, {"a.jsonl": lines({"words": words, "tags": "I-X I-X O I-Y O O O O O".split()})})
    assert settings().scheme == "iob1" and settings(scheme="ioe1").scheme == "ioe1"
    with pytest.raises(ValueError, match="a.jsonl, line 1.*I-X at word 1.*custom.scheme"):
        custom.load("own", settings(scheme="bio"), str(tmp_path), "train", folds=True)
    write(tmp_path, {"a.jsonl": lines({"words": words, "tags": ["O"] * 9})})
    assert settings(labels=("X",)).labels == ("O", "B-X", "I-X")
    write(tmp_path, {"a.jsonl": lines({"words": ["a", "b"], "tags": ["NOUN", "B-X"]})})
    with pytest.raises(ValueError, match="a.jsonl, line 1.*'NOUN'.*custom.scheme.*plain"):
        settings()
    assert settings(scheme="plain").labels == ("B-X", "NOUN")
    with pytest.raises(ValueError, match="custom.scheme.*span"):
        CustomTask("span", train="a.jsonl", scheme="bio")


def test_plain_tags_have_scores_of_words(tmp_path):
    """Words that were cut off have no tag, and count as wrong."""
    labels = ("ADP", "DET", "NOUN")
    marked = CustomTask("tagging", labels=("O", "X"), scheme="plain", train="a")
    assert custom.make_task("own", marked).metrics == ("accuracy", "macro_f1", "token_f1")
    write(tmp_path, {"a.conll": "From\tADP\nthe\tDET\nAP\tNOUN\n\nof\tADP\nus\tNOUN\n"})
    found = custom.resolved("own", CustomTask("tagging", train="a.conll"), str(tmp_path))
    task = custom.make_task("own", found)
    assert (found.scheme, found.labels) == ("plain", labels)
    assert task.metrics == ("accuracy", "macro_f1")
    examples = [TaggedSentence("0", ("a", "b", "c"), ("ADP", "DET", "NOUN")), TaggedSentence("1", ("d",), ("NOUN",))]
    scores = [np.array([[9.0, 0, 0], [0, 0, 9]]), np.array([[0, 0, 9.0]])]
    predicted = [kinds.decide(task, *pair) for pair in zip(examples, scores, strict=True)]
    assert predicted == [("ADP", "NOUN", "_"), ("NOUN",)]
    flat = [[*itertools.chain(*side)] for side in ([each.tags for each in examples], predicted)]
    macro = sklearn.metrics.f1_score(*flat, labels=labels, average="macro", zero_division=0)
    assert kinds.evaluate(task, examples, predicted) == pytest.approx({"accuracy": 0.5, "macro_f1": macro})
    rows = [{"prediction": one, "scores": two.tolist()} for one, two in zip(predicted, scores, strict=True)]
    analysis = error_analysis.analysis(task, examples, rows)
    assert analysis["confusion"] == {
        "labels": [*labels, "_"],
        "counts": [[1, 0, 0, 0], [0, 0, 1, 0], [0, 0, 1, 1], [0] * 4],
    }
    assert analysis["classes"]["NOUN"] == {"precision": 0.5, "recall": 0.5, "f1": 0.5, "count": 2}
    found = {"trial": "t", "split": "validation", "score": 0.5, "examples": 2, **analysis}
    text = error_analysis.section("own", "tagging", "accuracy", found, several=False).markdown()
    assert "| Tag | Precision | Recall | F1 | Words |" in text
