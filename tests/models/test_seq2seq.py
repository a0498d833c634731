"""The translation model against numpy, one pair at a time; cached decoding; and what one text may know of others."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ag_jax.models.config import DecoderConfig
from ag_jax.models.decoder import reorder, with_room
from tests import tiny, vaswani
from tests import tiny_translation as small
from tests.cases import some

LIKE_T2T = {"sinusoid": "tensor2tensor", "activation": "silu", "feedforward_biases": False, "embedding_scale": False}
# Everything that an encoder has today, and a projection of the embeddings.
LIKE_BERT = {
    "positions": "learned",
    "position_offset": 2,
    "token_types": 2,
    "embedding_norm": True,
    "activation": "gelu",
}
STYLES = {
    "vaswani": ({"attention_biases": False}, {}),
    "tensor2tensor": (LIKE_T2T, {"angles": "tensor2tensor", "activation": "silu", "scale": False}),
    "bert": (LIKE_BERT | {"embedding_width": 10}, {"angles": None, "offset": 2, "activation": "gelu"}),
}
FIXED = {"learned": None, "fixed": False, "normalized": True}
CASES = some(
    itertools.product(("post", "pre"), ("all", "target", "none"), ("zero", "begin"), FIXED, STYLES),
    ("pre", "all", "begin", "normalized", "bert"),
    ("post", "target", "begin", "fixed", "tensor2tensor"),
    ("pre", "none", "zero", "learned", "vaswani"),
)
ROWS, BEAMS, STEPS = len(small.LENGTHS), 3, 8


def case(norm, tie, start, attention, style):
    """A model, parameters and the numpy model's settings."""
    settings, design = STYLES[style]
    own, of_decoder = ({}, {})
    if attention != "learned":
        own, of_decoder = small.fixed(normalized=FIXED[attention])
        design = design | {"gauss": (-1, 1), "decoder_gauss": (-1, 0), "normalized": FIXED[attention]}
    decoder = DecoderConfig(layers=2, tie=tie, start=start, **of_decoder)
    model = small.model(decoder, norm_position=norm, **settings, **own)
    return model, tiny.params(model, small.alone()), vaswani.Design(norm=norm, tie=tie, start=start, **design)


@functools.partial(jax.jit, static_argnums=(0, 3))
def begin(model, params, batch, room):
    """The encoded sources, and an empty cache with room for as many tokens."""
    apply = functools.partial(model.apply, {"params": params})
    return apply(batch, method="encode"), apply(ROWS, BEAMS, room, method="empty_cache")


@functools.partial(jax.jit, static_argnums=0)
def step(model, params, source, cache, tokens_BJ, parents_BJ, index):
    """Log-probabilities of the next words, and the cache of the beams that continue others."""
    log_probs, cache = model.apply({"params": params}, source, cache, tokens_BJ, index, method="step")
    return log_probs, reorder(cache, parents_BJ)


def texts_of_packed(params, design):
    """(row, positions of the source, of the target, numpy's logits and weights) of every pair of the packed rows."""
    batch, exact = small.packed(), tiny.float64(params)
    for row, of_source, of_target in small.texts(batch):
        tokens = batch["tokens"][row, of_source], batch["target_tokens"][row, of_target]
        yield row, of_source, of_target, *vaswani.translate(exact, *tokens, design)


@pytest.mark.parametrize(("norm", "tie", "start", "attention", "style"), CASES)
def test_logits_equal_numpy_also_step_by_step(norm, tie, start, attention, style):
    """Numpy gets one pair at a time; the model has several pairs in a row, or steps through them with a cache.

    Beams continue one another, also several the same one, and the cache grows.
    """
    model, params, design = case(norm, tie, start, attention, style)
    packed = np.asarray(tiny.apply(model, params, small.packed()).words_BTV)
    shared = ("output_words" in params, "word" in params.get("target_embeddings", {}))
    assert shared == {"all": (False, False), "target": (False, True), "none": (True, True)}[tie]
    pairs = list(texts_of_packed(params, design))
    assert len(pairs) == ROWS
    for row, _, of_target, expected, _ in pairs:
        assert np.ptp(expected) > 1
        np.testing.assert_allclose(packed[row, of_target], expected, atol=1e-5 * max(1, np.abs(expected).max()))

    rng, alone, exact = np.random.default_rng(5), small.alone(), tiny.float64(params)
    tokens_TBJ = rng.integers(5, small.VOCABULARY, (STEPS, ROWS, BEAMS)).astype(np.int32)
    tokens_TBJ[0] = small.START
    parents_TBJ = rng.integers(BEAMS, size=(STEPS, ROWS, BEAMS))
    source, cache = begin(model, params, alone, 4)
    written_BJT, found = np.zeros((ROWS, BEAMS, STEPS), np.int32), []
    for index in range(STEPS):
        written_BJT[:, :, index] = tokens_TBJ[index]
        log_probs, cache = step(model, params, source, cache, tokens_TBJ[index], parents_TBJ[index], index)
        found.append((np.asarray(log_probs), written_BJT.copy()))
        written_BJT = np.take_along_axis(written_BJT, parents_TBJ[index][:, :, None], axis=1)
        if index + 1 == 4:
            cache = jax.jit(with_room, static_argnums=1)(cache, STEPS + 3)  # with room that is not used
    for index in (0, 3, STEPS - 1):
        log_probs, written = found[index]
        for row, beam in itertools.product((0, 3), range(BEAMS)):
            of_source = alone["tokens"][row, alone["segment_ids"][row] > 0]
            logits, _ = vaswani.translate(exact, of_source, written[row, beam, : index + 1], design)
            expected = logits[-1] - np.log(np.exp(logits[-1] - logits[-1].max()).sum()) - logits[-1].max()
            np.testing.assert_allclose(log_probs[row, beam], expected, atol=2e-5)


@pytest.fixture(scope="module")
def tested():
    return case("post", "all", "zero", "learned", "vaswani")


def test_attention_weights_are_sown_for_all_three_kinds(tested):
    """As numpy has them; rows are target positions, and columns of the attention to the source are its positions."""
    model, params, design = tested
    batch, settings = small.packed(), {"deterministic": True, "mutable": ["intermediates"]}
    stacks = jax.jit(lambda params: model.apply({"params": params}, batch, **settings)[1])(params)["intermediates"]
    found = {
        "encoder": stacks["encoder"]["layers"]["attention"],
        "decoder": stacks["decoder"]["layers"]["attention"],
        "cross": stacks["decoder"]["layers"]["cross_attention"],
    }
    for row, of_source, of_target, _, expected in texts_of_packed(params, design):
        places = {"encoder": (of_source, of_source), "decoder": (of_target, of_target), "cross": (of_target, of_source)}
        for kind, (queries, keys) in places.items():
            weights_NHQK = np.asarray(found[kind]["attention_weights"][0])[:, row][:, :, queries]
            np.testing.assert_allclose(weights_NHQK[:, :, :, keys], expected[kind], atol=1e-5, err_msg=kind)
            np.testing.assert_allclose(weights_NHQK.sum(-1), 1, rtol=1e-5)


@pytest.mark.exhaustive  # encoders, whose loop over layers decoders share, are tested by default
@pytest.mark.parametrize("remat", ["layer", "dots"])
def test_recomputation_changes_no_gradient(tested, remat):
    model, params, _ = tested
    batch = small.packed()

    def loss(params, model):
        scores = model.apply({"params": params}, batch, deterministic=True).words_BTV
        return (jax.nn.log_softmax(scores)[..., 5] * batch["target_weights"]).sum()

    again = small.model(remat=remat, attention_biases=False)
    plain, recomputed = jax.jit(lambda params: [jax.grad(loss)(params, of) for of in (model, again)])(params)
    for one, other in zip(jax.tree.leaves(recomputed), jax.tree.leaves(plain), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5 * np.abs(other).max())


def test_bfloat16_computes_in_bfloat16_and_scores_in_float32(tested):
    """Also with a cache: its arrays have the type of the computation."""
    model = small.model(dtype="bfloat16", attention_biases=False)
    apply = functools.partial(model.apply, {"params": tested[1]})
    shapes = jax.eval_shape(lambda: apply(small.packed(), deterministic=True))
    assert shapes.hidden_BTD.dtype == shapes.embedding_VD.dtype == jnp.bfloat16
    assert jax.eval_shape(lambda: apply(small.packed(), deterministic=True).words_BTV).dtype == jnp.float32

    def one_step():
        source, cache = begin(model, tested[1], small.alone(), 5)
        return cache, apply(source, cache, jnp.zeros((ROWS, BEAMS), jnp.int32), jnp.int32(0), method="step")

    before, (log_probs, after) = jax.eval_shape(one_step)
    assert log_probs.dtype == jnp.float32
    kinds = [jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), cache) for cache in (before, after)]
    assert kinds[0] == kinds[1]
    assert before.layers[0].value_BHKW.dtype == before.layers[1].key_BHWK.dtype == jnp.bfloat16
