"""The translation model against numpy, one pair at a time; cached decoding; and what one text may know of others."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ag_jax.models import beam_search
from ag_jax.models.config import DecoderConfig
from ag_jax.models.decoder import reorder, with_room
from ag_jax.models.decoding_config import DecodingConfig
from ag_jax.models.seq2seq import TranslationModel
from tests import tiny, vaswani
from tests import tiny_translation as small
from tests.cases import some

STYLES = {
    "vaswani": ({"attention_biases": False}, {}),
    "tensor2tensor": (
        {"sinusoid": "tensor2tensor", "activation": "silu", "feedforward_biases": False, "embedding_scale": False},
        {"angles": "tensor2tensor", "activation": "silu", "scale": False},
    ),
    # Everything that an encoder has today, and a projection of the embeddings.
    "bert": (
        {
            "positions": "learned",
            "position_offset": 2,
            "token_types": 2,
            "embedding_norm": True,
            "embedding_width": 10,
            "activation": "gelu",
        },
        {"angles": None, "offset": 2, "activation": "gelu"},
    ),
}
FIXED = {"learned": None, "fixed": False, "normalized": True}
CASES = some(
    itertools.product(("post", "pre"), ("all", "target", "none"), ("zero", "begin"), FIXED, STYLES),
    ("pre", "all", "begin", "normalized", "bert"),
    ("post", "target", "begin", "fixed", "tensor2tensor"),
    ("post", "none", "zero", "learned", "vaswani"),
)
BEAMS, STEPS = 2, 8


@dataclasses.dataclass(frozen=True)
class Case:
    """A model, parameters and the numpy model's settings."""

    model: TranslationModel
    params: dict
    design: vaswani.Design


def case(norm, tie, start, attention, style) -> Case:
    settings, design = STYLES[style]
    own, of_decoder = ({}, {})
    if attention != "learned":
        own, of_decoder = small.fixed(normalized=FIXED[attention])
        design = design | {"gauss": (-1, 1), "decoder_gauss": (-1, 0), "normalized": FIXED[attention]}
    decoder = DecoderConfig(layers=2, tie=tie, start=start, **of_decoder)
    model = small.model(decoder, norm_position=norm, **settings, **own)
    return Case(model, tiny.params(model, small.alone()), vaswani.Design(norm=norm, tie=tie, start=start, **design))


def run(case):
    """Logits of packed rows; log-probabilities of beams at every position, without a cache and with one."""
    model, batch = case.model, small.packed()
    alone = small.alone()
    rng = np.random.default_rng(1)
    rows = len(small.LENGTHS)
    tokens_BJT = rng.integers(5, small.VOCABULARY, (rows, BEAMS, STEPS)).astype(np.int32)
    tokens_BJT[:, :, 0] = small.START
    repeated = {name: np.repeat(alone[name], BEAMS, axis=0) for name in ("tokens", "segment_ids", "token_type_ids")}
    repeated["target_tokens"] = tokens_BJT.reshape(-1, STEPS)
    repeated["target_segment_ids"] = np.ones_like(repeated["target_tokens"])

    @jax.jit
    def compute(params, batch, repeated, alone):
        apply = functools.partial(model.apply, {"params": params})
        packed = apply(batch, deterministic=True).words_BTV
        whole = jax.nn.log_softmax(apply(repeated, deterministic=True).words_BTV)
        source = apply(alone, method="encode")

        def step(cache, given):
            log_probs, cache = apply(source, cache, *given, method="step")
            return cache, log_probs

        cache = apply(rows, BEAMS, STEPS + 3, method="empty_cache")  # with room that is not used
        _, stepped_TBJV = jax.lax.scan(step, cache, (jnp.moveaxis(tokens_BJT, 2, 0), jnp.arange(STEPS)))
        return packed, whole.reshape(rows, BEAMS, STEPS, -1), jnp.moveaxis(stepped_TBJV, 0, 2)

    return [np.asarray(found) for found in compute(case.params, batch, repeated, alone)]


@pytest.mark.parametrize(("norm", "tie", "start", "attention", "style"), CASES)
def test_logits_equal_numpy_and_those_of_cached_steps(norm, tie, start, attention, style):
    """Numpy gets one pair at a time; the model has several pairs in a row, or steps through them with a cache."""
    tested = case(norm, tie, start, attention, style)
    packed, whole, stepped = run(tested)
    params, batch = tiny.float64(tested.params), small.packed()
    assert ("output_words" in params, "word" in params.get("target_embeddings", {})) == {
        "all": (False, False),
        "target": (False, True),
        "none": (True, True),
    }[tie]
    pairs = small.texts(batch)
    assert len(pairs) == len(small.LENGTHS)
    for row, of_source, of_target in pairs:
        tokens = batch["tokens"][row, of_source], batch["target_tokens"][row, of_target]
        expected, _ = vaswani.translate(params, *tokens, tested.design)
        assert np.ptp(expected) > 1
        np.testing.assert_allclose(packed[row, of_target], expected, atol=1e-5 * max(1, np.abs(expected).max()))
    np.testing.assert_allclose(stepped, whole, atol=1e-5)
    np.testing.assert_allclose(np.exp(whole).sum(-1), 1, rtol=1e-5)
    assert np.abs(whole[:, 0] - whole[:, 1]).max() > 0.1, "the beams should differ"


@pytest.mark.parametrize("attention", some(FIXED, "learned", "normalized"))
def test_the_cache_follows_beams_and_grows(attention):
    """Beams that continue one another, also several the same one, against the whole forward pass of their tokens."""
    tested, alone, rng = case("post", "all", "zero", attention, "vaswani"), small.alone(), np.random.default_rng(5)
    rows, beams, room = len(small.LENGTHS), 3, 4
    tokens_TBJ = rng.integers(5, small.VOCABULARY, (STEPS, rows, beams)).astype(np.int32)
    parents_TBJ = rng.integers(beams, size=(STEPS, rows, beams))
    repeated = {name: np.repeat(alone[name], beams, axis=0) for name in ("tokens", "segment_ids", "token_type_ids")}
    apply = functools.partial(tested.model.apply, {"params": tested.params})
    whole = jax.jit(lambda batch: jax.nn.log_softmax(apply(batch, deterministic=True).words_BTV))
    source = apply(alone, method="encode")

    @jax.jit
    def step(cache, tokens_BJ, parents_BJ, index):
        log_probs, cache = apply(source, cache, tokens_BJ, index, method="step")
        return log_probs, reorder(cache, parents_BJ)

    cache = apply(rows, beams, room, method="empty_cache")
    written_BJT = np.full((rows, beams, STEPS), small.PAD, np.int32)
    for index in range(STEPS):
        written_BJT[:, :, index] = tokens_TBJ[index]
        log_probs, cache = step(cache, tokens_TBJ[index], parents_TBJ[index], index)
        batch = repeated | {"target_tokens": written_BJT.reshape(-1, STEPS)}
        batch["target_segment_ids"] = np.ones_like(batch["target_tokens"])
        expected = np.asarray(whole(batch))[:, index].reshape(rows, beams, -1)
        np.testing.assert_allclose(log_probs, expected, atol=1e-5)
        written_BJT = np.take_along_axis(written_BJT, parents_TBJ[index][:, :, None], axis=1)
        if index + 1 == room:
            cache = with_room(cache, STEPS)


@pytest.fixture(scope="module")
def tested():
    return case("post", "all", "zero", "learned", "vaswani")


def test_greedy_search_is_argmax_of_the_full_forward_pass(tested):
    """Beam search with one beam and no normalization, against a loop that runs the whole model again for each token."""
    alone, end, longest = small.alone(), 2, 9
    batch = {name: alone[name] for name in ("tokens", "segment_ids", "token_type_ids")}
    rows, forbidden = len(small.LENGTHS), (0, 1, 3)
    config = DecodingConfig(beam_size=1, normalization="none")
    limits = np.array([9, 4, 9, 9, 1, 9], np.int32)

    @jax.jit
    def search(params):
        apply = functools.partial(tested.model.apply, {"params": params})
        source = apply(batch, method="encode")
        return beam_search.search(
            lambda cache, tokens, index: apply(source, cache, tokens, index, method="step"),
            apply(rows, 1, longest, method="empty_cache"),
            config=config,
            start_B=jnp.full(rows, small.PAD),
            end=end,
            forbidden=forbidden,
            min_lengths_B=jnp.zeros(rows, jnp.int32),
            max_lengths_B=jnp.asarray(limits),
            steps=longest,
            reorder=reorder,
        )

    forward = jax.jit(lambda params, batch: tested.model.apply({"params": params}, batch, deterministic=True).words_BTV)
    read = np.full((rows, longest + 1), small.PAD, np.int32)
    for place in range(longest):
        ids = (np.arange(longest + 1) <= place) * np.ones((rows, 1), np.int32)
        scores = np.array(forward(tested.params, batch | {"target_tokens": read, "target_segment_ids": ids}))
        scores[:, :, forbidden] = -np.inf
        read[:, place + 1] = scores[:, place].argmax(-1)
    found = jax.device_get(search(tested.params))
    lengths = []
    for row, written in enumerate(read[:, 1:].tolist()):
        size = min(written.index(end) + 1 if end in written else longest, limits[row])
        assert found.tokens_BKT[row, 0, :size].tolist() == written[:size]
        assert found.lengths_BK[row, 0] == size
        lengths.append(size)
    assert len(set(lengths)) > 2, "some texts should end, and some should be cut off"


def test_a_text_changes_no_other_logits(tested):
    """To the bit, in one compiled program: another sentence of the row, on either side, and later target tokens."""
    batch = small.packed()
    forward = jax.jit(lambda batch: tested.model.apply({"params": tested.params}, batch, deterministic=True).words_BTV)
    before = np.asarray(forward(batch))
    row, of_source, of_target = small.texts(batch)[1]
    assert batch["target_segment_ids"][row, of_target[0]] == 2

    def differs(**changed):
        return (np.asarray(forward(batch | changed)) != before).any(-1)

    tokens = batch["tokens"].copy()
    tokens[row, of_source] = tokens[row, of_source] % 7 + 20
    at_source = differs(tokens=tokens)
    own = np.zeros_like(at_source)
    own[row, of_target] = True
    np.testing.assert_array_equal(at_source, own)

    row, _, of_target = small.texts(batch)[0]
    place = of_target[2]
    read = batch["target_tokens"].copy()
    read[row, place] = read[row, place] % 7 + 20
    own = np.zeros_like(at_source)
    own[row, of_target[2:]] = True
    np.testing.assert_array_equal(differs(target_tokens=read), own)

    padding = batch["target_segment_ids"] == 0
    read = np.where(padding, 17, batch["target_tokens"])
    assert not (differs(target_tokens=read) & ~padding).any()
    tokens = np.where(batch["segment_ids"] == 0, 17, batch["tokens"])
    assert not (differs(tokens=tokens) & ~padding).any()


def test_attention_weights_are_sown_for_all_three_kinds(tested):
    """As numpy has them; rows are target positions, and columns of the attention to the source are its positions."""
    batch = small.packed()
    _, sown = jax.jit(
        lambda params: tested.model.apply({"params": params}, batch, deterministic=True, mutable=["intermediates"])
    )(tested.params)
    stacks = sown["intermediates"]
    found = {
        "encoder": stacks["encoder"]["layers"]["attention"],
        "decoder": stacks["decoder"]["layers"]["attention"],
        "cross": stacks["decoder"]["layers"]["cross_attention"],
    }
    for row, of_source, of_target in small.texts(batch):
        tokens = batch["tokens"][row, of_source], batch["target_tokens"][row, of_target]
        _, expected = vaswani.translate(tiny.float64(tested.params), *tokens, tested.design)
        for kind, (queries, keys) in {
            "encoder": (of_source, of_source),
            "decoder": (of_target, of_target),
            "cross": (of_target, of_source),
        }.items():
            weights_NBHQK = np.asarray(found[kind]["attention_weights"][0])
            own = weights_NBHQK[:, row][:, :, queries][:, :, :, keys]
            np.testing.assert_allclose(own, expected[kind], atol=1e-5, err_msg=kind)
            np.testing.assert_allclose(weights_NBHQK[:, row][:, :, queries].sum(-1), 1, rtol=1e-5)


@pytest.mark.parametrize("remat", some(["layer", "dots"], "dots"))
def test_recomputation_changes_no_gradient(tested, remat):
    batch = small.packed()

    def loss(params, model):
        scores = model.apply({"params": params}, batch, deterministic=True).words_BTV
        return (jax.nn.log_softmax(scores)[..., 5] * batch["target_weights"]).sum()

    @jax.jit
    def gradients(params):
        again = small.model(remat=remat, attention_biases=False)
        return [jax.grad(loss)(params, model) for model in (tested.model, again)]

    plain, recomputed = gradients(tested.params)
    for one, other in zip(jax.tree.leaves(recomputed), jax.tree.leaves(plain), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5 * float(jnp.abs(other).max()))


def test_bfloat16_computes_in_bfloat16_and_scores_in_float32(tested):
    """Also with a cache: its arrays have the type of the computation."""
    model = small.model(dtype="bfloat16", attention_biases=False)
    batch = small.packed()
    apply = functools.partial(model.apply, {"params": tested.params})
    shapes = jax.eval_shape(lambda: apply(batch, deterministic=True))
    assert shapes.hidden_BTD.dtype == shapes.embedding_VD.dtype == jnp.bfloat16
    assert jax.eval_shape(lambda: apply(batch, deterministic=True).words_BTV).dtype == jnp.float32

    def step():
        cache = apply(len(small.LENGTHS), 1, 5, method="empty_cache")
        tokens = jnp.zeros((len(small.LENGTHS), 1), jnp.int32)
        return cache, apply(apply(small.alone(), method="encode"), cache, tokens, jnp.int32(0), method="step")

    before, (log_probs, after) = jax.eval_shape(step)
    assert log_probs.dtype == jnp.float32
    assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), before) == jax.tree.map(
        lambda leaf: (leaf.shape, leaf.dtype), after
    )
    assert before.layers[0].value_BHKW.dtype == before.layers[1].key_BHWK.dtype == jnp.bfloat16
