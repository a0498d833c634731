"""Attention maps of a text and its translation are what the model computes, and masses what one adds up by hand."""

import dataclasses
import logging

import jax
import numpy as np
import pytest

from ag_jax.analysis import maps, pairs
from ag_jax.analysis.maps import AttentionMaps
from ag_jax.attention import guidance, patterns
from ag_jax.attention.fixed import FixedConfig
from ag_jax.attention.guidance import Assignment
from ag_jax.attention.visibility import band_of
from ag_jax.models.config import DecoderConfig
from ag_jax.models.seq2seq import TranslationModel
from tests import reference, tiny
from tests.analysis import examples
from tests.analysis.examples import SECOND, WORDS, WordTokenizer
from tests.cases import some

SOURCE, TARGET = "we build roads . we build .", "strassen we build ."
SOURCE_IDS, TARGET_IDS = [7, 8, 6, 5, 7, 8, 5, 2], [1, 6, 7, 8, 5]
DECODER = DecoderConfig(layers=2)
SETTINGS = {"layers": 3, "token_types": 0, "embedding_norm": False, "embedding_scale": True}


def model_of(decoder=DECODER, **settings):
    return TranslationModel(tiny.config(**(SETTINGS | settings)), decoder)


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


def test_tokens_of_both_sides(pair):
    source = ("we", "build", "roads", ".", "we", "build", ".", "</s>")
    target = ("<start>", "roads", "we", "build", ".")
    assert [one.kind for one in pair] == ["encoder", "decoder", "cross"]
    assert [one.tokens for one in pair] == [source, target, source]
    assert [one.row_tokens for one in pair] == [source, target, target]
    assert [one.ids_L.tolist() for one in pair] == [SOURCE_IDS, TARGET_IDS, SOURCE_IDS]
    assert [one.weights_NHQK.shape for one in pair] == [(3, 3, 8, 8), (2, 3, 5, 5), (2, 3, 5, 8)]


def test_rows_sum_to_one_over_what_they_see(pair):
    for one in pair:
        assert one.weights_NHQK.dtype == np.float32 and np.ptp(one.weights_NHQK) > 0.1
        np.testing.assert_allclose(one.weights_NHQK.sum(-1), 1.0, atol=1e-6)
        visible_QK = one.visible_QK()
        assert (one.weights_NHQK[:, :, ~visible_QK] == 0).all() and (one.weights_NHQK[:, :, visible_QK] > 0).all()
    assert pair.decoder.visible_QK().sum() == 15 and pair.encoder.visible_QK().all() and pair.cross.visible_QK().all()


@pytest.mark.parametrize(
    ("decoder", "settings"),
    [
        pytest.param(DECODER, {}, marks=pytest.mark.exhaustive),
        (DecoderConfig(layers=1, start="begin", tie="none"), {"norm_position": "pre"}),
        pytest.param(
            DecoderConfig(layers=4, fixed_attention=FixedConfig((-1, 0))),
            {"fixed_attention": FixedConfig((-1, 1))},
            marks=pytest.mark.exhaustive,
        ),
    ],
    ids=["learned", "begin", "hard-coded"],
)
def test_maps_are_those_of_a_pair_in_a_packed_row(decoder, settings):
    """The weights that the model sows in a batch as training has it, where another pair and padding are around."""
    model = model_of(decoder, **settings)
    params, batch = params_of(model), packed()
    if decoder.start == "begin":
        batch["target_tokens"][1, 4] = 0
    _, sown = model.apply({"params": params}, batch, deterministic=True, mutable=["intermediates"])
    parts = sown["intermediates"]
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


def test_hard_coded_maps_are_gaussians():
    fixed = FixedConfig((-1, 0))
    model = model_of(DecoderConfig(layers=2, fixed_attention=fixed), fixed_attention=FixedConfig((-1, 1)))
    found = pair_of(model, params_of(model))
    for one, offsets in ((found.encoder, (-1, 1, -1)), (found.decoder, (-1, 0, -1))):
        for head, offset in enumerate(offsets):
            for (p, q), weight in np.ndenumerate(one.weights_NHQK[1, head]):
                density = np.exp(-0.5 * (q - p - offset) ** 2) / np.sqrt(2 * np.pi)
                assert weight == pytest.approx(density if one.visible_QK()[p, q] else 0.0, abs=1e-6)


def test_heads_of_hard_coded_attention_are_not_called_free():
    model = model_of(DecoderConfig(layers=1, fixed_attention=FixedConfig((-1, 0))))
    found = pair_of(model, params_of(model))
    assert [one.is_fixed for one in found] == [False, True, False]
    kinds = [maps.mass_table(one, tiny.SPECIAL, Assignment((("first", 1),))).splitlines()[2].split() for one in found]
    assert [(line[0], {*line[1:]}) for line in kinds] == [("guided", {word}) for word in ("free", "fixed", "free")]
    encoder = model_of(fixed_attention=FixedConfig((1,)))
    alone = maps.attention_maps(encoder, params_of(encoder), WordTokenizer(), SOURCE, 13)
    assert alone.is_fixed and "fixed" in maps.mass_table(alone, tiny.SPECIAL, Assignment())


def test_the_first_layer_in_numpy(params):
    """Vaswani et al. 2017, section 3: causal attention, then attention to the encoder's output."""
    model = model_of()
    width, length = model.config.width, len(TARGET_IDS)
    wide = tiny.float64(params)
    layer = reference.take_layer(wide["decoder"]["layers"], 0)
    words = wide["encoder"]["embeddings"]["word"]["embedding"][TARGET_IDS] * np.sqrt(width)
    words[0] = 0
    x = (words + wide["target_embeddings"]["position"]["embedding"][2 : 2 + length])[None]
    hidden = np.where(np.tril(np.ones((length, length))) > 0, 0.0, -np.inf)
    mixed, decoder_BHQK = reference.attention(x, layer["attention"], np.ones((1, length), int), hidden)
    x = reference.layer_norm(x + mixed, layer["attention_norm"], model.config.layer_norm_epsilon)

    batch = {name: np.ones((1, 8), np.int32) for name in ("tokens", "segment_ids", "token_type_ids")}
    batch["tokens"][0] = SOURCE_IDS
    source = model.apply(
        {"params": params}, batch, method=lambda model, batch: model.encoder(batch, deterministic=True)
    )
    query = reference.heads_of(x, layer["cross_attention"]["query"])
    key = reference.heads_of(np.asarray(source, np.float64), layer["cross_attention"]["key"])
    scores = np.exp(query @ key.swapaxes(-1, -2) / np.sqrt(width // 3))

    found = pair_of(model, params)
    np.testing.assert_allclose(found.decoder.weights_NHQK[0], decoder_BHQK[0], atol=1e-5)
    np.testing.assert_allclose(found.cross.weights_NHQK[0], (scores / scores.sum(-1, keepdims=True))[0], atol=1e-5)


def test_a_later_word_changes_no_earlier_row(params, pair):
    """So the rows of a target that is cut off are those of the whole target."""
    other = pair_of(model_of(), params, target="strassen we .")
    np.testing.assert_allclose(
        other.decoder.weights_NHQK[..., :3, :3], pair.decoder.weights_NHQK[..., :3, :3], atol=1e-6
    )
    np.testing.assert_allclose(other.cross.weights_NHQK[..., :3, :], pair.cross.weights_NHQK[..., :3, :], atol=1e-6)
    assert np.abs(other.cross.weights_NHQK[..., 3, :] - pair.cross.weights_NHQK[..., 3, :]).max() > 1e-3


def test_dropout_is_off(params, pair):
    thinned = pair_of(model_of(dropout=0.4, attention_dropout=0.4), params)
    for one, plain in zip(thinned, pair, strict=True):
        np.testing.assert_array_equal(one.weights_NHQK, plain.weights_NHQK)


@pytest.mark.parametrize("most", some([4, 1000], 4))
def test_long_sides_are_cut_and_say_so(params, caplog, most):
    kept = min(most, 13) - 1  # beside the end token or the start
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
    with pytest.raises(ValueError, match="at least one token, got '  '"):
        pair_of(model_of(), params, source="  ")
    with pytest.raises(ValueError, match="room for a token of the source beside .* got 0: raise max_tokens"):
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


def test_mass_is_the_one_that_training_reports():
    made_up = examples.made_up_pair([7, 8, 5, 6, 7, 2], [6, 7, 5, 8])
    config = guidance.GuidanceConfig(mode="loss")
    source_BS, target_BT = made_up.encoder.ids_L[None], made_up.decoder.ids_L[None]
    ones_BS, ones_BT = np.ones_like(source_BS), np.ones_like(target_BT)

    def decoder(name):
        return patterns.find_target(name, target_BT, ones_BT, tiny.SPECIAL)

    def cross(name):
        return patterns.find_source_target(name, source_BS, ones_BS, ones_BT, tiny.SPECIAL)

    for one, assignment, find, options in (
        (made_up.decoder, (("period", 1), ("prev", 2)), decoder, {"band": band_of(True, None)}),
        (made_up.cross, (("diagonal", 2), ("delim", 1)), cross, {"key_segments_BK": ones_BS}),
    ):
        guides = guidance.Guides(tuple(find(name) for name, _ in assignment), tuple(count for _, count in assignment))
        measure = jax.vmap(
            lambda rows, guides=guides, options=options: guidance.statistics(rows, guides, ones_BT, **options)
        )
        statistics = measure(one.weights_NHQK[:, None])
        _, reported = guidance.guidance_loss(statistics, guides, ones_BT, config, **options)
        masses = maps.attention_mass(one, tiny.SPECIAL, Assignment(assignment))
        owners = Assignment(assignment).of_layer(3)
        for (name, _), (total, weight) in zip(assignment, reported, strict=True):
            heads = [head for head, owner in enumerate(owners) if owner == name]
            np.testing.assert_allclose(masses[name][:, heads].mean(-1), total / weight, rtol=1e-5)


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


def test_tables_say_what_they_are_of():
    found = examples.made_up_pair([7, 8, 5, 2], [6, 7, 5], heads=5)
    tables = [
        maps.mass_table(one, tiny.SPECIAL, Assignment(assignment)).splitlines()
        for one, assignment in zip(found, ((("next", 1),), (("prev", 2),), (("diagonal", 1),)), strict=True)
    ]
    heading = "attention mass on the patterns' targets, for"
    assert [lines[0] for lines in tables] == [
        f"Encoder: {heading} 4 tokens",
        f"Decoder: {heading} 4 tokens that it reads",
        f"Cross-attention: {heading} 4 tokens that the decoder reads and 4 of the source",
    ]
    names = [lines[3].split() for lines in tables]
    assert names[1] == ["[Prev]", "[Prev]", "[First]", "[Delim]", "[Period]", "[Same]"]
    assert names[2] == ["[Diagonal]", "[First]", "[Delim]", "[Period]", "[Diagonal]"]
    mass = maps.attention_mass(found.cross, tiny.SPECIAL, Assignment())["diagonal"]
    rows = [line.split() for line in tables[2] if line.split()[:1] in (["1"], ["2"], ["3"])]
    assert [row[1] for row in rows] == [f"{value:.2f}" for value in mass[:, 0]]
    assert [row[-1] for row in rows] == [f"{value:.2f}" for value in mass[:, 1:].mean(-1)]
