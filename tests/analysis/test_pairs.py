"""Attention maps of a text and its translation are what the model computes, and masses what one adds up by hand."""

import dataclasses
import logging

import numpy as np
import pytest

from ag_jax.analysis import maps, pairs
from ag_jax.analysis.maps import AttentionMaps
from ag_jax.attention.fixed import FixedConfig
from ag_jax.attention.guidance import Assignment
from ag_jax.models.config import DecoderConfig
from ag_jax.models.seq2seq import TranslationModel
from tests import tiny
from tests.analysis import examples
from tests.analysis.examples import SECOND, WORDS, WordTokenizer

SOURCE, TARGET = "we build roads . we build .", "strassen we build ."
SOURCE_IDS, TARGET_IDS = [7, 8, 6, 5, 7, 8, 5, 2], [1, 6, 7, 8, 5]
DECODER = DecoderConfig(layers=2)
SETTINGS = {"layers": 3, "token_types": 0, "embedding_norm": False, "embedding_scale": True, "dropout": 0.4}


def model_of(decoder=DECODER, **settings):
    return TranslationModel(tiny.config(**(SETTINGS | settings)), decoder)  # whose dropout maps are without


def packed():
    """Another pair, then the pair of the texts above, then padding; in the second of two rows."""
    batch = {name: np.zeros((2, 13), np.int32) for name in ("tokens", "segment_ids", "target_tokens")}
    batch |= {"token_type_ids": batch["tokens"].copy(), "target_segment_ids": batch["tokens"].copy()}
    for tokens, ids, other, own in (
        ("tokens", "segment_ids", [6, 5, 2], SOURCE_IDS),
        ("target_tokens", "target_segment_ids", [1, 7, 7, 6], TARGET_IDS),
    ):
        both = [*other, *own]
        batch[tokens][1, : len(both)] = both
        batch[ids][1, : len(both)] = [1] * len(other) + [2] * len(own)
    return batch


def params_of(model):
    return tiny.params(model, packed())


@pytest.fixture(scope="module")
def params():
    return params_of(model_of())


def pair_of(model, params, source=SOURCE, target=TARGET, most=13):
    return pairs.pair_maps(model, params, WordTokenizer(), source, target, most)


@pytest.fixture(scope="module")
def pair(params):
    return pair_of(model_of(), params)


def test_tokens_of_both_sides_and_rows_that_sum_to_one_over_what_they_see(pair):
    source = ("we", "build", "roads", ".", "we", "build", ".", "</s>")
    target = ("<start>", "roads", "we", "build", ".")
    assert [one.kind for one in pair] == ["encoder", "decoder", "cross"]
    assert [one.tokens for one in pair] == [source, target, source]
    assert [one.row_tokens for one in pair] == [source, target, target]
    assert [one.ids_L.tolist() for one in pair] == [SOURCE_IDS, TARGET_IDS, SOURCE_IDS]
    assert [one.weights_NHQK.shape for one in pair] == [(3, 3, 8, 8), (2, 3, 5, 5), (2, 3, 5, 8)]
    for one in pair:
        assert one.weights_NHQK.dtype == np.float32 and np.ptp(one.weights_NHQK) > 0.1
        np.testing.assert_allclose(one.weights_NHQK.sum(-1), 1.0, atol=1e-6)
        visible_QK = one.visible_QK()
        assert (one.weights_NHQK[:, :, ~visible_QK] == 0).all() and (one.weights_NHQK[:, :, visible_QK] > 0).all()
    assert pair.decoder.visible_QK().sum() == 15 and pair.encoder.visible_QK().all() and pair.cross.visible_QK().all()


@pytest.mark.parametrize(
    ("decoder", "settings"),
    [
        (DecoderConfig(layers=1, start="begin", tie="none"), {"norm_position": "pre"}),
        (DecoderConfig(layers=4, fixed_attention=FixedConfig((-1, 0))), {"fixed_attention": FixedConfig((-1, 1))}),
    ],
    ids=["begin", "hard-coded"],
)
def test_maps_are_those_of_a_pair_in_a_packed_row(decoder, settings):
    """The weights that the model sows in a batch as training has it, where another pair and padding are around."""
    model = model_of(decoder, **settings)
    params, batch = params_of(model), packed()
    if decoder.start == "begin":
        batch["target_tokens"][1, 4] = 0
    parts = examples.all_sown(model, params, batch)
    found = pair_of(model, params)
    assert found.decoder.tokens[0] == ("<s>" if decoder.start == "begin" else "<start>")
    source, target = np.arange(3, 11), np.arange(4, 9)
    for one, part, rows, columns in (
        (found.encoder, parts["encoder"]["layers"]["attention"], source, source),
        (found.decoder, parts["decoder"]["layers"]["attention"], target, target),
        (found.cross, parts["decoder"]["layers"]["cross_attention"], target, source),
    ):
        wanted_NHQK = part["attention_weights"][0][:, 1][:, :, rows][..., columns]
        np.testing.assert_allclose(one.weights_NHQK, wanted_NHQK, atol=1e-6)
    assert len(found.encoder.weights_NHQK) == 3 and len(found.cross.weights_NHQK) == decoder.layers
    is_fixed = bool(settings.get("fixed_attention"))
    assert [one.is_fixed for one in found] == [is_fixed, is_fixed, False]
    for one in found:  # heads that are not learnt are not called free
        words = maps.mass_table(one, tiny.SPECIAL, Assignment((("first", 1),))).splitlines()[2].split()
        assert words[0] == "guided" and {*words[1:]} == {"fixed" if one.is_fixed else "free"}


def test_long_sides_are_cut_and_say_so(params, caplog):
    most, kept = 4, 3  # beside the end token or the start
    with caplog.at_level(logging.WARNING):
        found = pair_of(model_of(), params, "we build roads . " * 4, "we . " * 8, most)
    assert found.encoder.ids_L.tolist() == [*([7, 8, 6, 5] * 4)[:kept], 2]
    assert found.decoder.ids_L.tolist() == [1, *([7, 5] * 8)[:kept]]
    assert [one.left_out for one in found] == [16 - kept, 16 - kept, 32 - 2 * kept]
    for side in ("source", "target"):
        assert f"the {side} has 16 tokens, and {kept} fit" in caplog.text
    assert found.cross.part == f"{2 * kept + 2} of 34 tokens"
    assert f"({32 - 2 * kept} more were cut off)" in maps.mass_table(found.cross, tiny.SPECIAL, Assignment())


def test_an_empty_translation_and_no_source(params):
    found = pair_of(model_of(), params, target=" ")
    assert found.decoder.tokens == ("<start>",) and (found.decoder.weights_NHQK == 1).all()
    assert found.cross.weights_NHQK.shape == (2, 3, 1, 8)
    assert np.isnan(maps.uniform_mass(found.decoder, tiny.SPECIAL, Assignment())["prev"]).all()
    with pytest.raises(ValueError, match="at least one token"):
        pair_of(model_of(), params, source="  ")
    with pytest.raises(ValueError, match="source .* got 0: raise max_tokens"):
        pair_of(model_of(), params, most=1)


def test_mass_in_a_decoder_by_hand():
    """<start> roads . : the full stop is seen by the last row alone, and nothing is a delimiter."""
    weights_QK = np.array([[1.0, 0.0, 0.0], [0.25, 0.75, 0.0], [0.5, 0.125, 0.375]], np.float32)
    attention = AttentionMaps(("<start>", "roads", "."), np.array([1, 6, 5]), weights_QK[None, None], kind="decoder")
    masses = maps.attention_mass(attention, tiny.SPECIAL, Assignment())
    assert list(masses) == ["prev", "first", "delim", "period", "same"]
    expected = {"prev": (0.25 + 0.125) / 2, "first": 1.75 / 3, "period": 0.375, "same": (1 + 0.75 + 0.375) / 3}
    assert {name: masses[name].item() for name in expected} == pytest.approx(expected)
    third = (1 + 1 / 2 + 1 / 3) / 3
    chance = maps.uniform_mass(attention, tiny.SPECIAL, Assignment())
    by_hand = {"prev": (1 / 2 + 1 / 3) / 2, "first": third, "period": 1 / 3, "same": third}
    assert {name: chance[name] for name in by_hand} == pytest.approx(by_hand)
    assert np.isnan(masses["delim"]).all() and np.isnan(chance["delim"])
    targets = maps.targets(attention, tiny.SPECIAL, ["prev", "period"])
    np.testing.assert_allclose(targets["prev"], [[1, 0, 0], [1, 0, 0], [0, 1, 0]])
    np.testing.assert_allclose(targets["period"], [[1, 0, 0], [0.5, 0.5, 0], [0, 0, 1]])


def test_mass_on_the_source_by_hand():
    """Two rows and three columns: the second row's column on the diagonal is round(1 * 3 / 2) = 2."""
    weights_QK = np.array([[0.5, 0.375, 0.125], [0.125, 0.25, 0.625]], np.float32)
    source, target = ("roads", ".", "</s>"), ("<start>", "we")
    attention = AttentionMaps(source, np.array([6, 5, 2]), weights_QK[None, None], kind="cross", query_tokens=target)
    expected = {
        "first": (0.5 + 0.125) / 2,
        "delim": (0.125 + 0.625) / 2,
        "period": (0.375 + 0.25) / 2,
        "diagonal": (0.5 + 0.625) / 2,
        SECOND: (0.375 + 0.25) / 2,
    }
    masses = maps.attention_mass(attention, tiny.SPECIAL, Assignment(((SECOND, 1),)))
    assert {name: mass.item() for name, mass in masses.items()} == pytest.approx(expected)
    chance = maps.uniform_mass(attention, tiny.SPECIAL, Assignment(((SECOND, 1),)))
    assert chance == pytest.approx(dict.fromkeys(expected, 1 / 3))
    np.testing.assert_array_equal(maps.targets(attention, tiny.SPECIAL, ["diagonal"])["diagonal"], np.eye(3)[[0, 2]])
    with pytest.raises(ValueError, match="'next' points at neighbours"):
        maps.targets(attention, tiny.SPECIAL, ["next"])


def test_spaces_around_a_text_are_no_tokens(params, pair):
    """For tokenizers to which a space is a token, or a part of one; they are removed in training, too."""

    class Spaced(WordTokenizer):
        def encode(self, text):
            return [WORDS.index(word) for word in text.split(" ")]

    found = pairs.pair_maps(model_of(), params, Spaced(), f" {SOURCE} \n", f" {TARGET} ", 13)
    assert [one.tokens for one in found] == [one.tokens for one in pair]


def test_the_strongest_pattern_of_a_decoder_counts_all_rows():
    """A head that attends to the start, except for the full stop, which attends to itself, follows [First]."""
    decoder = examples.made_up_pair([7, 2], [6, 7, 8, 5]).decoder
    weights_QK = np.eye(5, dtype=np.float32)[[0, 0, 0, 0, 4]]
    names, masses = maps.strongest_pattern(
        dataclasses.replace(decoder, weights_NHQK=weights_QK[None, None]), tiny.SPECIAL, Assignment()
    )
    assert names.item() == "first" and masses.item() == pytest.approx(0.8)
