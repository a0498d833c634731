"""Greedy and beam search against `generate` of transformers, with the same random model.

The search calls the PyTorch model in each step, so that only the search can differ.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the extra: pip install 'ag_jax[parity]'")
transformers = pytest.importorskip("transformers", reason="needs the extra: pip install 'ag_jax[parity]'")

from ag_jax.models import beam_search
from ag_jax.models.decoding_config import DecodingConfig
from tests.cases import some

VOCABULARY, END, PAD, SHORTEST, STEPS = 23, 3, 22, 3, 9
LENGTHS = [3, 7, 5, 9, 1, 4] * 4


@pytest.fixture(scope="module")
def theirs():
    """A model that ends some of its outputs early."""
    config = transformers.MarianConfig(
        vocab_size=VOCABULARY,
        pad_token_id=PAD,
        eos_token_id=END,
        decoder_start_token_id=PAD,
        forced_eos_token_id=None,
        scale_embedding=False,
        d_model=12,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=3,
        decoder_attention_heads=3,
        encoder_ffn_dim=22,
        decoder_ffn_dim=22,
        max_position_embeddings=32,
        dropout=0.0,
        attn_implementation="eager",
    )
    model = transformers.MarianMTModel(config).eval()
    torch.manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.zero_()
            elif "norm" not in name and "embed_positions" not in name:
                # Large enough that outputs depend on the source, and do not repeat one token.
                gain = 5.0 if "encoder_attn" in name else 1.0
                scale = 0.7 if "shared" in name else gain / parameter.shape[-1] ** 0.5
                parameter.copy_(scale * torch.randn(parameter.shape))
        model.final_logits_bias[0, END] = 3.5
    return model


@pytest.fixture(scope="module")
def sources():
    """Tokens of 24 sources with end token and padding, and the mask of their tokens."""
    rng = np.random.default_rng(0)
    inside = np.arange(max(LENGTHS) + 1)[None, :] <= np.array(LENGTHS)[:, None]
    tokens = np.where(inside, rng.integers(4, PAD, inside.shape), PAD)
    tokens[np.arange(len(LENGTHS)), LENGTHS] = END
    return torch.tensor(tokens), torch.tensor(inside)


def generate(model, sources, beams, length_penalty):
    tokens, mask = sources
    with torch.no_grad():
        return model.generate(
            input_ids=tokens,
            attention_mask=mask,
            num_beams=beams,
            do_sample=False,
            num_return_sequences=beams,
            min_new_tokens=SHORTEST - 1,  # without the end token
            max_new_tokens=STEPS,
            bad_words_ids=[[PAD]],
            return_dict_in_generate=True,
            output_scores=True,
            # Without several beams, transformers warns that these settings have no effect.
            **({"length_penalty": length_penalty, "early_stopping": "never"} if beams > 1 else {}),
        )


def search(model, sources, config):
    tokens, mask = sources
    shape = (len(tokens), config.beam_size)
    with torch.no_grad():
        encoded = model.get_encoder()(input_ids=tokens, attention_mask=mask).last_hidden_state
    encoded = encoded.repeat_interleave(config.beam_size, dim=0)
    mask = mask.repeat_interleave(config.beam_size, dim=0)

    def log_probs(prefixes, index):
        prefixes = torch.tensor(np.array(prefixes)).reshape(len(mask), -1)[:, : int(index) + 1].long()
        with torch.no_grad():
            out = model(encoder_outputs=(encoded,), attention_mask=mask, decoder_input_ids=prefixes)
        return torch.log_softmax(out.logits[:, -1], dim=-1).reshape(*shape, -1).numpy()

    def step(cache, last, index):
        cache = cache.at[0, :, :, index].set(last)
        out = jax.ShapeDtypeStruct((*shape, VOCABULARY), jnp.float32)
        return jax.pure_callback(log_probs, out, cache[0], index), cache

    found = jax.jit(
        lambda cache: beam_search.search(
            step,
            cache,
            config=config,
            start_B=jnp.full(shape[:1], PAD),
            end=END,
            forbidden=(PAD,),
            min_lengths_B=np.full(shape[0], SHORTEST, np.int32),
            max_lengths_B=np.full(shape[0], STEPS, np.int32),
            steps=STEPS,
        )
    )(jnp.zeros((1, *shape, STEPS), jnp.int32))
    return jax.tree.map(np.asarray, found)


@pytest.mark.parametrize(
    ("beams", "length_penalty"), some([(1, 1.0), (4, 0.6), (4, 1.0), (3, 0.0)], (1, 1.0), (4, 0.6), (3, 0.0))
)
def test_generate(theirs, sources, beams, length_penalty):
    """With one beam, transformers searches greedily, and stops at the first end token."""
    config = DecodingConfig(
        beam_size=beams,
        normalization="power",
        length_penalty=length_penalty,
        stop="full" if beams == 1 else "bound",
        ends="first",
    )
    wanted, found = generate(theirs, sources, beams, length_penalty), search(theirs, sources, config)
    outputs = wanted.sequences[:, 1:].reshape(len(LENGTHS), beams, -1).numpy()
    lengths = np.where((outputs == END).any(-1), (outputs == END).argmax(-1) + 1, STEPS)
    assert len(set(lengths[:, 0].tolist())) >= 4 and len({tuple(output) for output in outputs[:, 0].tolist()}) >= 8
    np.testing.assert_array_equal(found.lengths_BK, lengths)
    outputs = np.where(outputs == PAD, END, outputs)
    np.testing.assert_array_equal(found.tokens_BKT[:, :, : outputs.shape[-1]], outputs)
    if beams > 1:
        np.testing.assert_allclose(found.scores_BK.reshape(-1), wanted.sequences_scores.numpy(), rtol=1e-4)
