"""Translation models as MarianMT without PyTorch: what is computed, what changes on the way, and what is refused."""

import dataclasses
import functools
import json
import pathlib

import jax
import numpy as np
import pytest
from etils import epath

from ag_jax.attention.config import FixedConfig
from ag_jax.data import pipeline, tokenizers
from ag_jax.data.config import DataConfig, TokenizerConfig
from ag_jax.data.parallel import batching
from ag_jax.data.tokenizer_backends import SentencePiece
from ag_jax.data.tokenizers import SpecialTokens
from ag_jax.interop import catalogue, exporting, importing, marian, marian_tokenizer, names, opening
from ag_jax.models.config import DecoderConfig, EncoderConfig
from ag_jax.models.decoding_config import DecodingConfig
from ag_jax.objectives.config import TranslationConfig
from ag_jax.pretraining import build, initial_weights, translate, workloads
from ag_jax.pretraining.config import ExperimentConfig
from ag_jax.pretraining.open_run import open_run
from ag_jax.settings import config_files
from ag_jax.training.checkpoint import Checkpoints
from ag_jax.training.config import TrainingConfig
from ag_jax.training.hyperparameters import Hyperparameters
from ag_jax.training.state import TrainState
from ag_jax.training.trainee import Progress
from tests import marian_files, tiny
from tests.cases import some
from tests.data.conftest import sentencepiece_model
from tests.interop.copies import CONFIGS, change, exported, imported, refused, same, start

ENCODER, DECODER, OUTPUT = "model.encoder.embed_tokens", "model.decoder.embed_tokens", "lm_head"
TIES = {
    "all": (("model.shared",), {}),
    "target": ((ENCODER, DECODER), {"share_encoder_decoder_embeddings": False}),
    "none": ((ENCODER, DECODER, OUTPUT), {"share_encoder_decoder_embeddings": False, "tie_word_embeddings": False}),
}
GENERATION = "generation_config.json"
UNTIED = TIES["none"][1] | {"tables": TIES["none"][0]}  # imported by several tests, which share compiled programs
HALF = marian_files.WIDTH // 2
MARIANS, OTHERS = marian_files.sinusoids(HALF), marian_files.sinusoids(HALF - 1)


def norm(x, of, name):
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * of[f"{name}.weight"] + of[f"{name}.bias"]


def linear(x, of, name):
    return x @ of[f"{name}.weight"].T + of[f"{name}.bias"]


def attention(x, source, of, name, hidden):
    query, key, value = (linear(y, of, f"{name}.{part}_proj") for y, part in ((x, "q"), (source, "k"), (source, "v")))
    width = marian_files.WIDTH // marian_files.HEADS
    mixed = np.zeros_like(x)
    for head in range(marian_files.HEADS):
        part = slice(head * width, (head + 1) * width)
        scores = np.where(hidden, -np.inf, query[:, part] @ key[:, part].T / np.sqrt(width))
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        mixed[:, part] = weights / weights.sum(-1, keepdims=True) @ value[:, part]
    return linear(mixed, of, f"{name}.out_proj")


def logits(of, source, target):
    """The logits of a MarianMT with ReLU for one pair, computed in float64 from tensors by their names there."""
    of = {name: value.astype(np.float64) for name, value in of.items()}
    shared = of.get("model.shared.weight")
    tables = [of.get(f"{name}.weight", shared) for name in (ENCODER, DECODER)]
    output = of.get("lm_head.weight", tables[1])
    hidden = {}
    for side, ids, table in zip(("encoder", "decoder"), (source, target), tables, strict=True):
        x = table[ids] * np.sqrt(marian_files.WIDTH) + MARIANS[: len(ids)]
        later = np.triu(np.ones((len(ids), len(ids)), bool), 1) if side == "decoder" else False
        for layer in range(marian_files.LAYERS[side]):
            name = f"model.{side}.layers.{layer}"
            x = norm(x + attention(x, x, of, f"{name}.self_attn", later), of, f"{name}.self_attn_layer_norm")
            if side == "decoder":
                read = attention(x, hidden["encoder"], of, f"{name}.encoder_attn", False)
                x = norm(x + read, of, f"{name}.encoder_attn_layer_norm")
            features = np.maximum(linear(x, of, f"{name}.fc1"), 0)
            x = norm(x + linear(features, of, f"{name}.fc2"), of, f"{name}.final_layer_norm")
        hidden[side] = x
    return hidden["decoder"] @ output.T + of["final_logits_bias"]


def our_logits(model, params, source, target, pad):
    """Our logits for one pair, in a batch with a longer one."""
    length = max(len(source), len(target)) + 3
    batch = {"token_type_ids": np.zeros((2, length), np.int32)}
    for side, ids in (("", source), ("target_", target)):
        batch[f"{side}tokens"] = np.tile(np.resize(ids, length), (2, 1)).astype(np.int32)
        batch[f"{side}segment_ids"] = np.ones((2, length), np.int32)
        batch[f"{side}tokens"][0, len(ids) :], batch[f"{side}segment_ids"][0, len(ids) :] = pad, 0
    return tiny.apply(model, params, batch).words_BTV[0, : len(target)]


@pytest.mark.parametrize("tie", some(TIES, "none"))
def test_there_and_back(tie, tmp_path):
    """Compares what the run computes, what its export holds, and the export imported again.

    The run can be inspected, but no task can start from its encoder.
    """
    tables, changed = TIES[tie]
    theirs = marian_files.write_model(tmp_path / "theirs", tables=tables, **changed)
    opened, before = imported(theirs, tmp_path / "run"), marian_files.read_tensors(theirs)
    config, pad = opened.config, opened.tokenizer.specials.pad
    assert config.decoder == DecoderConfig(layers=3, tie=tie, start="zero") and opened.origin.model_type == "marian"
    assert config.decoding == DecodingConfig(6, "power", 1.0, ends="first")
    assert (config.data.source, config.data.target) == ("train.eng", "train.deu")
    source, target = [5, 9, 3, 11, 0], [pad, 7, 8, 2]
    expected = logits(before, source, target)
    assert np.abs(expected).max() > 1
    np.testing.assert_allclose(our_logits(opened.model, opened.params, source, target, pad), expected, atol=1e-5)

    _, ours, _, after = exported(tmp_path / "run", tmp_path / "ours")
    for side in ("encoder", "decoder"):
        np.testing.assert_allclose(after.pop(f"model.{side}.embed_positions.weight"), MARIANS, atol=1e-5)
    assert before.keys() == after.keys()
    for name, value in before.items():
        assert value.tobytes() == after[name].tobytes(), name
    stored = json.loads((theirs / "config.json").read_text())
    assert {key for key in stored.keys() & ours.keys() if stored[key] != ours[key]} == {"forced_eos_token_id"}
    assert ours["forced_eos_token_id"] is None
    for name, read in (("vocab.json", json.loads), ("source.spm", bytes), ("target.spm", bytes)):
        assert read((theirs / name).read_bytes()) == read((tmp_path / "ours" / name).read_bytes())

    again = importing.open_model(str(tmp_path / "ours"))
    assert workloads.reference_model(again.config, again.tokenizer) == opened.model
    assert again.config.decoding == config.decoding
    same(names.flat(again.params), names.flat(opened.params))
    for text in (*marian_files.SOURCES, ">>deu<< a dog"):
        assert again.tokenizer.encode(text) == opened.tokenizer.encode(text)
        assert again.tokenizer.encode_targets([text]) == opened.tokenizer.encode_targets([text])

    for directory in ("run", "theirs"):
        inspected = opening.open_for_inspection(epath.Path(tmp_path / directory))
        assert (inspected.length, inspected.tokenizer.specials.pad) == (marian_files.POSITIONS, pad)
        assert inspected.is_ours == (directory == "run") and "encoder" in inspected.params
        with pytest.raises(ValueError, match="begin and mask"):
            opening.open_encoder(str(tmp_path / directory))


@pytest.mark.exhaustive
def test_an_imported_run_translates(tmp_path):
    imported(marian_files.write_model(tmp_path / "theirs"), tmp_path / "run")
    found = translate.open_translator(tmp_path / "run")(["a cat", "", "the red dog"])
    assert [len(each) for each in found] == [6, 1, 6] and found[1][0].text == ""
    assert any(each.text for each in found[0])


# Export of a model that was trained here.


def own_config(**changed) -> ExperimentConfig:
    """A small run that translates and whose model has no biases in attention; `changed` has settings by their paths."""
    encoder = dataclasses.replace(
        EncoderConfig(layers=2, heads=2, width=8, feedforward=11, max_length=21, position_offset=0, token_types=0),
        **{"positions": "sinusoidal", "embedding_norm": False, "embedding_scale": True, "activation": "silu"},
        attention_biases=False,
    )
    config = ExperimentConfig(
        data=DataConfig(format="parallel", source="text/train.en", target="text/train.de", sequence_length=16),
        model=encoder,
        decoder=DecoderConfig(layers=1),
    )
    for path, value in changed.items():
        section, _, name = path.rpartition(".")
        value = {name: value}
        if section:
            value = {section: dataclasses.replace(getattr(config, section), **value)}
        config = dataclasses.replace(config, **value)
    return config


@functools.cache
def own_tokenizer(kind="sentencepiece_unigram"):
    """A tokenizer that is trained here or, as `loaded`, made of the file of a sentencepiece model."""
    size = {"byte_bpe": 290, "sentencepiece_unigram": 60, "sentencepiece_bpe": 60, "wordpiece": 90}
    texts = [*marian_files.SOURCES, *marian_files.TARGETS] * 5
    if kind == "loaded":
        return tokenizers.Tokenizer(SentencePiece(sentencepiece_model(texts, vocab_size=60)), kind)
    return tokenizers.train(TokenizerConfig(kind=kind, vocabulary_size=size[kind]), texts)


def written_run(workdir, config, tokenizer=None):
    """A run directory with random parameters, of three rows more than the tokenizer has tokens."""
    tokenizer = tokenizer or own_tokenizer()
    encoder = dataclasses.replace(config.model, vocabulary_size=tokenizer.vocabulary_size + 3)
    config = dataclasses.replace(config, model=encoder)
    model = workloads.reference_model(config, tokenizer)
    params = jax.tree.map(np.asarray, tiny.params(model, batching.empty_batch(config.data, 1)))
    workdir = epath.Path(workdir)
    workdir.mkdir(parents=True)
    initial_weights.write(config, workdir, tokenizer, params)
    return workdir, model, params


def tokens_of(directory) -> dict[str, int]:
    if (directory / "vocab.json").exists():
        return json.loads((directory / "vocab.json").read_text())
    vocabulary = json.loads((directory / "tokenizer.json").read_text())["model"]["vocab"]
    return vocabulary if isinstance(vocabulary, dict) else {token: id for id, (token, _) in enumerate(vocabulary)}


KINDS = ["sentencepiece_unigram", "loaded", "sentencepiece_bpe", "byte_bpe", "wordpiece"]


@pytest.mark.parametrize("kind", some(KINDS, "sentencepiece_unigram", "loaded"))
def test_padding_becomes_the_last_word(kind, tmp_path):
    """Vectors, biases and tokens move together; rows without a token get one that is never predicted."""
    tokenizer = own_tokenizer(kind)
    size, rows, pad = tokenizer.vocabulary_size, tokenizer.vocabulary_size + 3, tokenizer.specials.pad
    assert pad < size - 1
    workdir, model, params = written_run(tmp_path / "run", own_config(), tokenizer)
    _, config, _, tensors = exported(workdir, tmp_path / "out")
    generation, tokens = json.loads((tmp_path / "out" / GENERATION).read_text()), tokens_of(tmp_path / "out")
    assert sorted(tokens.values()) == list(range(rows)) and tokens["<pad>"] == rows - 1
    words, bias = params["encoder"]["embeddings"]["word"]["embedding"], params["output_bias"]
    readable = {tokenizer._backend.id(token): token for token in tokens if tokenizer._backend.id(token) is not None}
    assert len(readable) >= size - 1
    for id, token in readable.items():
        if id != pad:
            np.testing.assert_array_equal(tensors["model.shared.weight"][tokens[token]], words[id], token)
            assert tensors["final_logits_bias"][0, tokens[token]] == bias[id]
    assert not tensors["model.shared.weight"][-1].any()
    assert (tensors["final_logits_bias"][0, size - 1 :] == -100).all()  # padding's, and those without a token
    special = {role: readable.get(id, "<pad>") for role, id in vars(tokenizer.specials).items()}
    assert config["pad_token_id"] == config["decoder_start_token_id"] == generation["pad_token_id"] == rows - 1
    assert config["eos_token_id"] == generation["eos_token_id"] == tokens[special["end"]]
    forbidden = {rows - 1, tokens[special["begin"]], tokens[special["mask"]]}
    assert generation["bad_words_ids"] == [[id] for id in sorted(forbidden)]
    for side, layers in (("encoder", 2), ("decoder", 1)):
        for layer in range(layers):
            bias = tensors[f"model.{side}.layers.{layer}.self_attn.k_proj.bias"]
            assert bias.shape == (8,) and not bias.any()
            assert tensors[f"model.{side}.layers.{layer}.fc1.bias"].any()

    again = importing.open_model(str(tmp_path / "out"))
    assert again.config.decoder.start == "zero" and again.config.model.attention_biases
    new = {id: tokens[token] for id, token in readable.items()}
    for text in ("the red dog, verläßt", "Katze sees it.", "漢字"):
        for encode in (lambda of, text=text: of.encode(text), lambda of, text=text: of.encode_targets([text])[0]):
            assert encode(again.tokenizer) == [new[id] for id in encode(tokenizer)], text
        decoded = [of.decode(of.encode(text)).strip() for of in (again.tokenizer, tokenizer)]
        assert decoded[0] == decoded[1]
    # The probabilities of padding and of rows without a token aside, the model predicts what it did before.
    source, target = [7, 9, 30, tokenizer.specials.end], [pad, 12, 9]
    ours = np.delete(our_logits(model, params, source, target, pad), [pad, *range(size, rows)], axis=-1)
    moved = [[rows - 1 if id == pad else id - (id > pad) for id in ids] for ids in (source, target)]
    model = workloads.reference_model(again.config, again.tokenizer)
    theirs = our_logits(model, again.params, *moved, rows - 1)[:, : size - 1]
    np.testing.assert_allclose(theirs, ours, atol=1e-5)


@pytest.mark.parametrize("starts", ["zero", "begin"])
@pytest.mark.parametrize("tie", TIES)
def test_the_tables_that_change_in_an_export(tie, starts):
    """The target's table begins from zero; where the output has vectors of its own, padding keeps bias and vector."""
    rng, rows, pad, tokens = np.random.default_rng(0), 9, 2, 7
    paths = ["encoder/embeddings/word/embedding", "target_embeddings/word/embedding", "output_words/embedding"]
    paths = paths[: {"all": 1, "target": 2, "none": 3}[tie]]
    params = {path: rng.standard_normal((rows, 3)) for path in paths} | {"output_bias": rng.standard_normal(rows)}
    expected = {path: leaf.copy() for path, leaf in params.items()}
    found = marian.reordered(params, DecoderConfig(layers=1, tie=tie, start=starts), pad, tokens)
    expected["output_bias"][tokens:] = -100
    if starts == "zero":
        expected[paths[min(len(paths), 2) - 1]][pad] = 0
        expected["output_bias"][pad] = -100 if tie != "none" else params["output_bias"][pad]
    order = [0, 1, 3, 4, 5, 6, 7, 8, 2] if starts == "zero" else [*range(rows)]
    same(found, {path: leaf[order] for path, leaf in expected.items()})


def test_a_decoder_that_begins_with_a_token(tmp_path):
    """Its ids stay, so that CTranslate2 rejects it instead of starting from zero; the export says so."""
    workdir, _, params = written_run(tmp_path / "run", own_config(**{"decoder.start": "begin"}))
    found, config, card, tensors = exported(workdir, tmp_path / "out")
    specials = own_tokenizer().specials
    assert (config["pad_token_id"], config["decoder_start_token_id"]) == (specials.pad, specials.begin)
    generation = json.loads((tmp_path / "out" / GENERATION).read_text())
    assert generation["decoder_start_token_id"] == specials.begin
    assert any("CTranslate2" in item for item in found.not_carried) and "CTranslate2" in card
    np.testing.assert_array_equal(tensors["model.shared.weight"], params["encoder"]["embeddings"]["word"]["embedding"])
    again = importing.open_model(str(tmp_path / "out"))
    assert again.config.decoder.start == "begin"
    assert workloads.start_token(again.config, again.tokenizer) == specials.begin


def test_a_fine_tuned_marian_begins_with_padding(tmp_path):
    """transformers trains padding's vector through the output; such a decoder does not begin with zero."""

    def trained(tensors):
        tensors[f"{DECODER}.weight"][-1] = 0.1
        return tensors

    opened = imported(marian_files.write_model(tmp_path / "theirs", trained, **UNTIED), tmp_path / "run")
    pad = opened.tokenizer.specials.pad
    assert opened.config.decoder.start == "begin" and translate.open_translator(tmp_path / "run").start == pad
    source, target = [5, 9, 3, 0], [pad, 7, 8]
    expected = logits(marian_files.read_tensors(tmp_path / "theirs"), source, target)
    np.testing.assert_allclose(our_logits(opened.model, opened.params, source, target, pad), expected, atol=1e-5)


@pytest.mark.parametrize("dtype", some(["float32", "float16", "bfloat16"], "bfloat16"))
def test_sinusoids_of_tensor2tensor(dtype, tmp_path):
    """They are in the file, from which transformers takes them, and are recognised in it in every type."""
    workdir, *_ = written_run(tmp_path / "run", own_config(**{"model.sinusoid": "tensor2tensor"}))
    table = exported(workdir, tmp_path / "out", dtype)[3]["model.decoder.embed_positions.weight"]
    expected = marian_files.sinusoids(4 - 1, 21, 8)
    np.testing.assert_allclose(table.astype(np.float32), expected, atol=1e-5 if dtype == "float32" else 4e-3)
    again = importing.open_model(str(tmp_path / "out"))
    assert again.config.model.sinusoid == "tensor2tensor" and again.left_out == ()


def test_checkpoints_are_averaged_unless_a_step_is_chosen(tmp_path):
    training = TrainingConfig(steps=30, checkpoint_every=10, keep_last=3)
    config = own_config(translation=TranslationConfig(average=2), training=training)
    workdir, _, params = written_run(tmp_path / "run", config)
    checkpoints = Checkpoints(workdir / "checkpoints", keep_last=3)
    for step in (10, 20):
        moved = jax.tree.map(lambda leaf, step=step: jax.numpy.asarray(leaf + step), params)
        state = TrainState(jax.numpy.int32(step), moved, build.optimizer_of(config, Hyperparameters()).init(moved))
        checkpoints.save(state, Progress().to_json())
    checkpoints.close()
    for step, name, shift, said in ((None, "mean", 15, "steps 10, 20"), (10, "one", 10, "step 10")):
        exporting.convert(workdir, step, str(tmp_path / name))
        found = marian_files.read_tensors(tmp_path / name)["model.encoder.layers.1.fc1.weight"]
        expected = np.asarray(params["encoder"]["layers"]["feedforward_in"]["kernel"])[1].T + shift
        np.testing.assert_allclose(found, expected, rtol=1e-6)
        card = (tmp_path / name / "README.md").read_text()
        assert said in card and "`train.en` and `train.de`" in card and "text/" not in card
    for options in ({"encoder": "generator"}, {"dtype": "int8"}):
        with pytest.raises(ValueError, match=f"--{next(iter(options))}"):
            exporting.convert(workdir, None, str(tmp_path / "no"), **options)


@pytest.mark.parametrize(
    "changed",
    [
        {"model.fixed_attention.offsets": FixedConfig((-1, 1))},
        {"decoder.fixed_attention.offsets": FixedConfig((-1, 0))},
        {"model.norm_position": "pre"},
        {"model.embedding_norm": True},
        {"model.positions": "learned"},
        {"model.embedding_width": 6},
        {"model.token_types": 1},
        {"model.layer_norm_epsilon": 1e-6},
        {"model.gated": True},
        {"model.norm_biases": False},
    ],
)
def test_what_a_marian_does_not_compute_is_refused(changed):
    config = own_config()
    assert catalogue.translating(config.model, config.decoder) is marian.MARIAN["all"]
    config = own_config(**{path.removesuffix(".offsets"): value for path, value in changed.items()})
    with pytest.raises(ValueError, match=next(iter(changed))) as caught:
        catalogue.translating(config.model, config.decoder)
    assert str(caught.value).count("\n  ") == 1


SPECIALS = SpecialTokens(begin=19, pad=19, end=0, unknown=1, mask=3, pair_separators=1)


SINGLE = DecodingConfig(1, "power", 1.0, "full", "first")
EVEN = DecodingConfig(2, "power", 0.0, ends="first", max_length="7")  # hypotheses of all lengths are alike
LONG = DecodingConfig(3, "power", 1.5, "full", "first", min_length="2", max_length="90")
GENERATIONS = [  # (settings, beams, maximum, further keys, what they cannot say, as what they are read)
    (
        DecodingConfig(5, "power", 0.9, "bound", "first", max_length="15"),
        *(5, 16, {"length_penalty": 0.9, "early_stopping": "never"}, [], None),
    ),
    (
        LONG,
        *(3, 21, {"length_penalty": 1.5, "early_stopping": True, "min_length": 2}, []),
        dataclasses.replace(LONG, max_length=DecodingConfig.max_length),
    ),
    (SINGLE, 1, 20, {}, ["max_length=1.0x+50"], None),
    (
        DecodingConfig(min_length="0.5x"),
        *(4, 20, {"early_stopping": "never"}),
        ["normalization=gnmt", "ends=all", "max_length=1.0x+50", "min_length=0.5x"],
        DecodingConfig(4, "power", 1.0, ends="first"),
    ),
    *(
        (
            DecodingConfig(2, *normalization, ends="first", max_length="7"),
            *(2, 8, {"length_penalty": 0.0, "early_stopping": "never"}, [], EVEN),
        )
        for normalization in (["none"], ["gnmt", 0.0])
    ),
    (
        DecodingConfig(1, "power", 1.0, max_length="7"),
        *(1, 8, {}, ["single beam"], dataclasses.replace(SINGLE, max_length="7")),
    ),
]


@pytest.mark.parametrize(("decoding", "beams", "maximum", "written", "lost", "read"), GENERATIONS)
def test_settings_of_generation(decoding, beams, maximum, written, lost, read):
    """Settings are read back as they were written, except for those that the file cannot express."""
    found, said = marian.write_generation(decoding, 20, [3, 19], {"pad_token_id": 19})
    always = {"bad_words_ids": [[3], [19]], "forced_eos_token_id": None, "pad_token_id": 19}
    assert found == always | {"num_beams": beams, "max_length": maximum} | written
    assert len(said) == len(lost) and all(part in item for part, item in zip(lost, said, strict=True))
    generation = marian.read_generation(found, 20, SPECIALS, pathlib.Path(GENERATION))
    assert generation == marian.Generation(read or decoding, ())


@pytest.mark.parametrize(
    ("given", "least"),
    [({}, "0"), ({"min_length": 5}, "5"), ({"min_new_tokens": 2, "min_length": 5}, "3"), ({"min_new_tokens": 0}, "1")],
)
def test_the_minimum_length_counts_the_end_token(given, least):
    """As `min_length` of transformers, which counts the start token instead; `min_new_tokens` counts neither."""
    found = marian.read_generation(given, 20, SPECIALS, pathlib.Path(GENERATION))
    assert found.decoding.min_length == least and not found.notes


# Import of what other programs wrote.

NOT_MARIANS = {
    "activation_function": "gelu_new",
    "normalize_before": True,
    "normalize_embedding": True,
    "add_final_layer_norm": True,
    "static_position_embeddings": False,
    "activation_dropout": 0.1,
    "encoder_layerdrop": 0.1,
    "decoder_layerdrop": 0.1,
    "is_encoder_decoder": False,
    "tie_word_embeddings": False,
    "decoder_vocab_size": 7,
    "decoder_attention_heads": 4,
    "decoder_ffn_dim": 20,
    "architectures": ["MarianForCausalLM"],
    "d_model": "wide",
}
CROSS = "model.decoder.layers.2.encoder_attn.q_proj.weight"


def spoilt(tensors):
    kept = {name: value for name, value in tensors.items() if name not in (CROSS, "final_logits_bias")}
    kept["model.encoder.layers.0.fc1.bias"] = np.zeros(3, np.float32)
    return kept | {"model.encoder.layer_norm.weight": np.zeros(12, np.float32)}


def copies(tensors, off=0.0):
    words = tensors["model.shared.weight"] + np.float32(off)
    return tensors | {f"{name}.weight": words for name in (ENCODER, OUTPUT)}


def with_positions(**tables):
    return lambda tensors: (
        tensors | {f"model.{side}.embed_positions.weight": table.astype(np.float32) for side, table in tables.items()}
    )


INTERLEAVED = MARIANS.reshape(-1, 2, HALF).swapaxes(1, 2).reshape(-1, 12)
# (change of the tensors, keys of config.json, keys of generation_config.json, words of the message)
REFUSED = [
    (None, NOT_MARIANS, {}, NOT_MARIANS),
    (None, {"encoder_layers": None}, {}, ["encoder_layers"]),
    (None, {"decoder_layers": 9}, {}, ["decoder_layers=9", "3 layers"]),
    (None, {"encoder_layers": 1}, {}, ["model.encoder.layers.1.fc1.bias (17,)"]),
    (
        None,
        {"encoder_ffn_dim": 18, "decoder_ffn_dim": 18},
        {},
        ["encoder_ffn_dim=18", "decoder_ffn_dim=18", "(17, 12)"],
    ),
    (None, {"encoder_attention_heads": 5, "decoder_attention_heads": 5}, {}, ["model.heads"]),
    (None, {"d_model": 16}, {}, ["d_model=16", "model.shared.weight"]),
    (None, {"pad_token_id": 4}, {}, ["config.json", "pad_token_id=4"]),
    (None, {"eos_token_id": 3}, {}, ["eos_token_id=3", "is 0"]),
    (
        spoilt,
        {},
        {},
        [f"{CROSS} (12, 12)", "(12, 3, 4) of layer 2", "final_logits_bias (1, ", "(17,) of layer 0: found (3,)"],
    ),
    (lambda tensors: copies(tensors, 1.0), {}, {}, ["model.shared.weight", ENCODER]),
    (with_positions(encoder=MARIANS, decoder=MARIANS[::-1]), {}, {}, ["model.decoder.embed_positions.weight"]),
    (with_positions(decoder=INTERLEAVED), {}, {}, ["model.decoder.embed_positions.weight"]),
    (with_positions(encoder=MARIANS + 0.01), {}, {}, ["model.encoder.embed_positions.weight"]),
    (with_positions(encoder=MARIANS * np.nan), {}, {}, ["model.encoder.embed_positions.weight"]),
    (with_positions(encoder=MARIANS, decoder=OTHERS), {}, {}, ["of marian", "of tensor2tensor"]),
    (with_positions(decoder=MARIANS[:-1]), {}, {}, ["(37, 12)", "(36, 12)"]),
    (with_positions(encoder=MARIANS[:-1]), {}, {}, ["max_position_embeddings=37", "(36, 12)"]),
    (None, {}, {"decoder_start_token_id": 7}, [GENERATION, "got 7"]),
    (None, {}, {"decoder_start_token_id": 10**6}, [GENERATION, "decoder_start_token_id"]),
    (None, {}, {"num_beams": "six"}, [GENERATION, "num_beams"]),
    (None, {}, {"num_beams": 0}, [GENERATION, "beam_size"]),
    (None, {}, {"early_stopping": 1}, [GENERATION, "early_stopping"]),
    (None, {}, {"eos_token_id": [0, 7]}, [GENERATION, "eos_token_id=[0, 7]"]),
    (None, {}, {"length_penalty": -1.0}, [GENERATION, "length_penalty"]),
    (None, {}, {"max_new_tokens": 3, "min_new_tokens": 3}, [GENERATION, "min_length='4'", "max_length='3'"]),
]


@pytest.mark.parametrize(("change_tensors", "changed", "generation", "parts"), REFUSED)
def test_what_does_not_fit_is_named(change_tensors, changed, generation, parts, tmp_path):
    directory = marian_files.write_model(tmp_path / "hf", change_tensors or (lambda tensors: tensors), **changed)
    change(directory, GENERATION, **generation)
    refused(directory, tmp_path, *parts)


def test_a_tokenizer_with_two_vocabularies_and_one_for_translation_alone(tmp_path):
    directory = marian_files.write_model(tmp_path / "hf")
    data = DataConfig(tokenizer=TokenizerConfig(path=str(directory)), cache_dir=str(tmp_path / "cache"))
    with pytest.raises(ValueError, match=r"begin and mask.*data\.format=parallel"):
        pipeline.prepare(data, quiet=True)
    change(directory, "tokenizer_config.json", separate_vocabs=True)
    refused(directory, tmp_path, "separate_vocabs=True")


def test_equal_copies_of_tied_tensors_and_settings_of_generation_that_are_not_taken_over(tmp_path):
    """Without generation_config.json, the settings in config.json hold, as in older models."""
    directory = marian_files.write_model(tmp_path / "hf", copies, num_beams=2, length_penalty=0.5, max_length=20)
    changed = {
        "no_repeat_ngram_size": 3,
        "bad_words_ids": [[5], [6, 7]],
        "do_sample": False,
        "renormalize_logits": True,
        "exponential_decay_length_penalty": [2, 1.5],
        "num_beams": None,
    }
    change(directory, GENERATION, **changed)
    opened = importing.open_model(str(directory))
    lost = [f"{key}={value}" for key, value in changed.items() if value]
    assert len(opened.notes) == len(lost) == 4 and opened.left_out == ()
    assert all(any(note.startswith(setting) for note in opened.notes) for setting in lost)
    # None of the settings in config.json holds, not even of those that generation_config.json lacks.
    assert opened.config.decoding == DecodingConfig(1, "power", 1.0, "full", "first")
    (directory / GENERATION).unlink()
    decoding = importing.open_model(str(directory)).config.decoding
    assert decoding == DecodingConfig(2, "power", 0.5, ends="first", max_length="19")


def test_padding_that_is_left_out_of_the_probabilities(tmp_path):
    """The models converted from Marian, which knows no padding: transformers gives it none of the probability."""
    directory = marian_files.write_model(tmp_path / "hf", **UNTIED)
    before = importing.open_model(str(directory))
    change(directory, GENERATION, renormalize_logits=True)
    opened, pad = imported(directory, tmp_path / "run"), before.tokenizer.specials.pad
    assert opened.config == dataclasses.replace(before.config, data=opened.config.data)
    ours, theirs = np.array(opened.params["output_bias"]), np.array(before.params["output_bias"])
    assert ours[pad] == -100 and np.array_equal(np.delete(ours, pad), np.delete(theirs, pad))
    exported(tmp_path / "run", tmp_path / "out")
    assert np.array_equal(importing.open_model(str(tmp_path / "out")).params["output_bias"], ours)


def test_going_on_with_an_imported_model(tmp_path, one_device):
    """Guided, from the given weights; targets are encoded with the target's model."""
    given = imported(marian_files.write_model(tmp_path / "hf", **UNTIED), tmp_path / "start")
    for name, texts in (("en", marian_files.SOURCES), ("de", marian_files.TARGETS)):
        (tmp_path / f"train.{name}").write_text("".join(f"{text}\n" for text in texts * 20))
    arguments = f"run={tmp_path / 'start'},arm=ag,source={tmp_path / 'train.en'},target={tmp_path / 'train.de'}"
    few = {"training.steps": 2, "training.batch_size": 2, "data.sequence_length": 36, "optimizer.warmup_steps": 0}
    held_out = {
        f"data.validation_{side}": str(tmp_path / f"train.{name}")
        for side, name in zip(("source", "target"), ("en", "de"), strict=True)
    }
    source = f"{CONFIGS / 'continue_translation.py'}:{arguments}"
    config = config_files.load(source, few | held_out).settings
    assert config.decoding.beam_size == 6 and config.guidance.heads == "next:1,prev:1"
    workdir = start(config, tmp_path / "on", step=2, prepare=pipeline.prepare)
    on = open_run(workdir)
    same(names.flat(on.params), names.flat(given.params))
    rows = pipeline.prepare(config.data, quiet=True).train.target
    stored = {
        tuple(row)
        for number in range(len(rows))
        for row in np.split(rows.row(number), np.flatnonzero(rows.row(number) == 0) + 1)
    }
    for text in marian_files.TARGETS[:2]:  # the last one is too long for the model's positions
        wanted = on.tokenizer.encode_targets([text])[0]
        assert (*wanted, on.tokenizer.specials.end) in stored and wanted != on.tokenizer.encode(text)
    _, _, card, _ = exported(workdir, tmp_path / "out")
    assert "`hf` (marian)" in card and "from eng to deu" in card and "2 steps of 2 rows" in card
    assert "next: 1, prev: 1" in card and "`train.en` and `train.de`" in card


def test_a_library_whose_tokens_cannot_be_renumbered(monkeypatch):
    """The converted tokenizer is compared with the original one."""
    tokenizer = own_tokenizer("byte_bpe")
    monkeypatch.setattr(tokenizer, "encode", lambda text: [7, 8])
    order = marian.vocabulary_order(tokenizer.vocabulary_size, tokenizer.specials.pad, "zero")
    with pytest.raises(ValueError, match=r"\[7, 8\]|data\.tokenizer"):
        marian_tokenizer.write(tokenizer, pathlib.Path("nowhere"), order, 9)
