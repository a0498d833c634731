"""Attention maps of a text and its translation are what the model computes, and masses what one adds up by hand."""

import dataclasses
import logging

import numpy as np
import pytest

from ag_jax.analysis import maps, pairs
from ag_jax.attention.assignment import Assignment
from ag_jax.attention.config import FixedConfig
from ag_jax.models.config import DecoderConfig
from ag_jax.models.seq2seq import TranslationModel
from tests import tiny
from tests.analysis import examples
from tests.analysis.examples import SECOND, WORDS, WordTokenizer

# As many tokens as in other tests of maps, whose programs are used again.
SOURCE, TARGET = "we build roads . we build roads .", "strassen we build ."
SOURCE_IDS, TARGET_IDS = [7, 8, 6, 5, 7, 8, 6, 5, 2], [1, 6, 7, 8, 5]
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
    source = (*["we", "build", "roads", "."] * 2, "</s>")
    target = ("<start>", "roads", "we", "build", ".")
    assert [one.kind for one in pair] == ["encoder", "decoder", "cross"]
    assert [one.tokens for one in pair] == [source, target, source]
    assert [one.row_tokens for one in pair] == [source, target, target]
    assert [one.ids_L.tolist() for one in pair] == [SOURCE_IDS, TARGET_IDS, SOURCE_IDS]
    assert [one.weights_NHQK.shape for one in pair] == [(3, 3, 9, 9), (2, 3, 5, 5), (2, 3, 5, 9)]
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
    source, target = np.arange(3, 12), np.arange(4, 9)
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


def test_long_sides_are_cut_and_say_so(params, pair, caplog):
    most, kept = 4, 3  # beside the end token or the start
    with caplog.at_level(logging.WARNING):
        found = pair_of(model_of(), params, "we build roads . " * 4, "we . " * 8, most)
    assert found.encoder.ids_L.tolist() == [*([7, 8, 6, 5] * 4)[:kept], 2]
    assert found.decoder.ids_L.tolist() == [1, *([7, 5] * 8)[:kept]]
    assert [one.left_out for one in found] == [16 - kept, 16 - kept, 32 - 2 * kept]
    for side in ("source", "target"):
        assert f"the {side} has 16 tokens, and {kept} fit" in caplog.text
    assert found.cross.part == f"{2 * kept + 2} of 34 tokens"
    cross = dataclasses.replace(pair.cross, left_out=17)
    assert "(17 more were cut off)" in maps.mass_table(cross, tiny.SPECIAL, Assignment())


def test_an_empty_translation_and_no_source(params):
    found = pair_of(model_of(), params, target=" ")
    assert found.decoder.tokens == ("<start>",) and (found.decoder.weights_NHQK == 1).all()
    assert found.cross.weights_NHQK.shape == (2, 3, 1, 9)
    with pytest.raises(ValueError, match="at least one token"):
        pair_of(model_of(), params, source="  ")
    with pytest.raises(ValueError, match="source .* got 0: raise max_tokens"):
        pair_of(model_of(), params, most=1)


def test_mass_in_a_decoder_by_hand():
    """<start> roads we build . : the full stop is seen by the last row alone, and nothing is a delimiter."""
    decoder = examples.made_up_pair(SOURCE_IDS, TARGET_IDS[1:]).decoder
    masses = maps.attention_mass(decoder, tiny.SPECIAL, Assignment())
    assert list(masses) == ["prev", "first", "delim", "period", "same"]
    rows, weights_NHQK = np.arange(5), decoder.weights_NHQK
    expected = {
        "prev": weights_NHQK[:, :, rows[1:], rows[:-1]].mean(-1),
        "first": weights_NHQK[..., 0].mean(-1),
        "period": weights_NHQK[:, :, 4, 4],
        "same": weights_NHQK[:, :, rows, rows].mean(-1),
    }
    chance = {name: of.chance_N for name, of in maps.measured(decoder, tiny.SPECIAL, Assignment()).items()}
    each = (1 + 1 / 2 + 1 / 3 + 1 / 4 + 1 / 5) / 5
    by_hand = {"prev": (1 / 2 + 1 / 3 + 1 / 4 + 1 / 5) / 4, "first": each, "period": 1 / 5, "same": each}
    for name in expected:
        np.testing.assert_allclose(masses[name], expected[name], rtol=1e-6)
        np.testing.assert_allclose(chance[name], by_hand[name], rtol=1e-6)
    assert np.isnan(masses["delim"]).all() and np.isnan(chance["delim"]).all()
    targets = maps.targets(decoder, tiny.SPECIAL, ["prev", "period"])
    before, even = np.eye(5, k=-1), np.tri(5) / np.arange(1, 6)[:, None]
    np.testing.assert_allclose(targets["prev"], [even[0], *before[1:]])
    np.testing.assert_allclose(targets["period"], [*even[:4], np.eye(5)[4]])


def test_mass_on_the_source_by_hand():
    """Five rows and nine columns, of which row p has the column round(9 p / 5) on its diagonal."""
    cross = examples.made_up_pair(SOURCE_IDS, TARGET_IDS[1:]).cross
    weights_NHQK, columns = cross.weights_NHQK, [0, 2, 4, 5, 7]
    expected = {
        "first": weights_NHQK[..., 0].mean(-1),
        "delim": weights_NHQK[..., 8].mean(-1),
        "period": weights_NHQK[..., [3, 7]].sum(-1).mean(-1),
        "diagonal": weights_NHQK[:, :, np.arange(5), columns].mean(-1),
        SECOND: weights_NHQK[..., 1].mean(-1),
    }
    found = maps.measured(cross, tiny.SPECIAL, Assignment(((SECOND, 1),)))
    assert list(found) == list(expected)
    for name, mass_NH in expected.items():
        np.testing.assert_allclose(found[name].mass_NH, mass_NH, rtol=1e-6)
        np.testing.assert_allclose(found[name].chance_N, 2 / 9 if name == "period" else 1 / 9, rtol=1e-6)
    diagonal = maps.targets(cross, tiny.SPECIAL, ["diagonal"])["diagonal"]
    np.testing.assert_array_equal(diagonal, np.eye(9)[columns])
    with pytest.raises(ValueError, match="'next' points from"):
        maps.targets(cross, tiny.SPECIAL, ["next"])


def test_spaces_around_a_text_are_no_tokens(params, pair):
    """For tokenizers to which a space is a token, or a part of one; they are removed in training, too."""

    class Spaced(WordTokenizer):
        def encode(self, text):
            return [WORDS.index(word) for word in text.split(" ")]

    found = pairs.pair_maps(model_of(), params, Spaced(), f" {SOURCE} \n", f" {TARGET} ", 13)
    assert [one.tokens for one in found] == [one.tokens for one in pair]


def test_the_strongest_pattern_of_a_decoder_counts_all_rows():
    """A head that attends to the start, except for the full stop, which attends to itself, follows [First]."""
    decoder = examples.made_up_pair(SOURCE_IDS, TARGET_IDS[1:]).decoder
    weights_QK = np.eye(5, dtype=np.float32)[[0, 0, 0, 0, 4]]
    names, masses = maps.strongest_pattern(
        dataclasses.replace(decoder, weights_NHQK=weights_QK[None, None]), tiny.SPECIAL, Assignment()
    )
    assert names.item() == "first" and masses.item() == pytest.approx(0.8)
