"""Which pairs are held out and which are left out, counted by hand."""

import dataclasses
import json
import zlib
from collections import Counter

import pytest

from ag_jax.data import pipeline
from ag_jax.data.config import DataConfig, TokenizerConfig
from ag_jax.data.parallel import toys
from ag_jax.data.parallel.layout import TOO_LONG, UNEQUAL, WITHOUT_TEXT, Pairs
from tests.data.parallel.conftest import FILES

# (source, target, why it is left out at a ratio of 2)
PAIRS = [
    ("a b", "a b c d", ""), ("a b", "a b c d e", UNEQUAL), ("a b c d e", "a b", UNEQUAL), ("a b c", "a b", ""),
    ("", "a", WITHOUT_TEXT), ("a", " \u3000 ", WITHOUT_TEXT), ("", "", WITHOUT_TEXT), ("a", "a", ""),
]  # fmt: skip


@pytest.fixture
def config(tmp_path) -> DataConfig:
    for number, side in enumerate(("source", "target")):
        (tmp_path / f"train.{side}").write_text("".join(pair[number] + "\n" for pair in PAIRS), encoding="utf-8")
    (tmp_path / "validation.source").write_text("a b c\n" * 3 + "a\n\n")
    (tmp_path / "validation.target").write_text("a b c\n" * 3 + "a b c\na\n")
    return DataConfig(
        format="parallel",
        **{setting: str(tmp_path / name) for setting, name in FILES.items()},
        sequence_length=16,
        cache_dir=str(tmp_path / "cache"),
        tokenizer=TokenizerConfig(kind="wordpiece", vocabulary_size=30),
    )


def read(config):
    """The pieces of all parts of a parallel corpus, and the counts of what is left out."""
    layout, left_out = Pairs(config), Counter()
    parts = layout.parts()
    return [piece for part in parts for piece in layout.read(part, left_out, config.validation_fraction)], left_out


def test_reasons_and_splits(config):
    for ratio, reasons in ((2.0, {UNEQUAL, WITHOUT_TEXT}), (2.5, {WITHOUT_TEXT}), (None, {WITHOUT_TEXT})):
        pairs, left_out = read(dataclasses.replace(config, max_words_ratio=ratio))
        assert [piece.texts for piece in pairs if not piece.held_out] == [
            (source, target) for source, target, why in PAIRS if why not in reasons
        ]
        assert [piece.texts[1] for piece in pairs if piece.held_out] == ["a b c"] * (3 if ratio else 4)
        counts = Counter(why for *_, why in PAIRS if why in reasons)
        assert {why: left_out[f"train pairs {why}"] for why in reasons} == counts


def test_pairs_with_null_are_an_error_or_left_out_and_counted(config, tmp_path):
    records = [
        {"en": "a", "de": "b"},
        {"en": None, "de": "b"},
        {"en": "a"},
        {"en": "", "de": "b"},
        {"en": "c", "de": "d"},
    ]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"translation": record}) + "\n" for record in records))
    fields = {"source": str(tmp_path / "a.jsonl"), "target": None, "source_field": "en", "target_field": "de"}
    chosen = dataclasses.replace(config, **fields, skip_null=True)
    pieces, left_out = read(chosen)
    assert [piece.texts for piece in pieces if not piece.held_out] == [("a", "b"), ("c", "d")]
    assert left_out["pairs with null texts"] == 2 and left_out["train pairs without text"] == 1
    without = dataclasses.replace(chosen, skip_null=False)
    assert Pairs(chosen).identity() != Pairs(without).identity()
    with pytest.raises(ValueError, match="a.jsonl, line 2.*data.skip_null=True"):
        read(without)


def test_what_is_left_out_is_counted_and_said(config, capsys, tmp_path):
    """A letter is a token; with the end token, a side of `a b c d` has five."""
    chosen = dataclasses.replace(config, max_words_ratio=2.0, max_tokens=4)
    corpus = pipeline.prepare(chosen)
    facts, reasons = Counter(corpus.facts()), (WITHOUT_TEXT, UNEQUAL, TOO_LONG)
    assert [facts[f"train pairs {why}"] for why in reasons] == [3, 2, 1]
    assert [facts[f"validation pairs {why}"] for why in reasons] == [1, 1, 0]
    assert corpus.documents == {"train": 2, "validation": 3} and len(corpus.train) == 2
    assert facts["train documents"] == 2 and facts["train source tokens"] == 6 and facts["train tokens"] == 5
    capsys.readouterr()
    pipeline.prepare(chosen)
    assert "3 train pairs without text" in capsys.readouterr().err, "also when nothing is prepared anew"
    # As many as fit exactly are kept.
    assert pipeline.prepare(dataclasses.replace(chosen, max_tokens=5)).documents["train"] == 3
    # Characters that the tokenizer drops are no text.
    (tmp_path / "train.source").write_text("a\nb\n\u200b\nc\n")
    (tmp_path / "train.target").write_text("\u200b\nb\na\nc\n")
    facts = pipeline.prepare(config).facts()
    assert (facts["train documents"], facts["train pairs without text"]) == (2, 2)


def test_nothing_is_left(config, tmp_path):
    pipeline.prepare_tokenizer(config).save(tmp_path / "tokenizer")
    own = dataclasses.replace(config, tokenizer=TokenizerConfig(path=str(tmp_path / "tokenizer")))
    for content, changes, match in (
        ("\n\n", {}, "train.source.*for train.*2 train pairs without text"),
        ("a b c d\n", {"max_tokens": 4}, "for train.*1 train pairs too long"),
        ("a b\n", {"validation_source": None, "validation_target": None}, "validation.*data.validation_fraction"),
    ):
        for side in ("source", "target"):
            (tmp_path / f"train.{side}").write_text(content)
        with pytest.raises(ValueError, match=match):
            pipeline.prepare(dataclasses.replace(own, **changes))


def test_a_share_is_held_out_by_the_source_alone(tmp_path):
    """Translations of one text stay together, and other pairs do not change the part of a pair."""
    texts = sorted({pair.source for pair in toys.make("copy", 1500)})

    def split(sources, target):
        (tmp_path / "a.tsv").write_text("".join(f"{source}\t{target}\n" for source in sources))
        config = DataConfig(format="parallel", source=str(tmp_path / "a.tsv"), validation_fraction=0.2)
        return [{piece.texts[0] for piece in read(config)[0] if piece.held_out == part} for part in (1, 0)]

    held_out, trained = split(texts + texts[::-1], "x")
    assert trained == set(texts) - held_out
    assert held_out == {text for text in texts if zlib.crc32(text.encode()) / 2**32 < 0.2}
    assert split(texts[::2], "y")[0] == held_out & set(texts[::2])
