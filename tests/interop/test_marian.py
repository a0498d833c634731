"""Translation models as MarianMT without PyTorch: what is computed, what changes on the way, and what is refused."""

import dataclasses
import functools
import json
import pathlib

import jax
import numpy as np
import pytest
from etils import epath

from ag_jax import cli, config_reader
from ag_jax.attention.fixed import FixedConfig
from ag_jax.data import tokenizers
from ag_jax.data.config import DataConfig, TokenizerConfig
from ag_jax.data.parallel import batching
from ag_jax.data.parallel import pipeline as parallel
from ag_jax.data.text import pipeline as text_pipeline
from ag_jax.data.tokenizer_backends import SentencePiece
from ag_jax.data.tokenizers import SpecialTokens
from ag_jax.interop import exporting, importing, marian, marian_tokenizer, names, opening
from ag_jax.models.config import DecoderConfig, EncoderConfig
from ag_jax.models.decoding_config import DecodingConfig
from ag_jax.objectives.translation import TranslationConfig
from ag_jax.pretraining import build, run, translate, workloads
from ag_jax.pretraining import config as pretraining_config
from ag_jax.pretraining.config import ExperimentConfig
from ag_jax.training.checkpoint import Checkpoints
from ag_jax.training.config import TrainingConfig
from ag_jax.training.hyperparameters import Hyperparameters
from ag_jax.training.job import Progress
from ag_jax.training.state import TrainState
from tests import marian_files, tiny
from tests.cases import some
from tests.data.conftest import sentencepiece_model
from tests.interop.test_verb import request

CONFIGS = pathlib.Path(__file__).parent.parent.parent / "configs"
ENCODER, DECODER, OUTPUT = "model.encoder.embed_tokens", "model.decoder.embed_tokens", "lm_head"
TIES = {
    "all": (("model.shared",), {}),
    "target": ((ENCODER, DECODER), {"share_encoder_decoder_embeddings": False}),
    "none": ((ENCODER, DECODER, OUTPUT), {"share_encoder_decoder_embeddings": False, "tie_word_embeddings": False}),
}


def imported(directory, workdir, **options):
    importing.convert(str(directory), epath.Path(workdir), **options)
    return run.open_run(workdir)


@pytest.fixture(scope="module", params=some(TIES, "none"))
def round_trip(request, tmp_path_factory):
    """A directory, the run that it became, and the directory that the run became."""
    folder = tmp_path_factory.mktemp(request.param)
    tables, changed = TIES[request.param]
    marian_files.write_model(folder / "theirs", tables=tables, **changed)
    opened = imported(folder / "theirs", folder / "run")
    assert opened.config.decoder == DecoderConfig(layers=3, tie=request.param)
    exporting.convert(epath.Path(folder / "run"), None, str(folder / "ours"))
    return folder, opened


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
        x = table[ids] * np.sqrt(marian_files.WIDTH) + marian_files.sinusoids(marian_files.WIDTH // 2)[: len(ids)]
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


def our_logits(opened, source, target):
    """The logits of a run for one pair, in a batch with a longer one."""
    rows = {"tokens": source, "target_tokens": target}
    length = max(len(source), len(target)) + 3
    batch = {}
    for name, ids in rows.items():
        segments = name.replace("tokens", "segment_ids")
        batch[name] = np.array([np.resize(ids, length), np.resize(ids, length)], np.int32)
        batch[segments] = np.ones((2, length), np.int32)
        batch[name][0, len(ids) :] = opened.tokenizer.specials.pad
        batch[segments][0, len(ids) :] = 0
    batch["token_type_ids"] = np.zeros_like(batch["tokens"])
    return tiny.apply(opened.model, opened.params, batch).words_BTV[0, : len(target)]


def test_what_it_computes(round_trip):
    folder, opened = round_trip
    of = marian_files.read_tensors(folder / "theirs")
    pad = opened.tokenizer.specials.pad
    source, target = [5, 9, 3, 11, 0], [pad, 7, 8, 2]
    expected = logits(of, source, target)
    assert np.abs(expected).max() > 1
    np.testing.assert_allclose(our_logits(opened, source, target), expected, atol=1e-5)


def test_the_export_has_the_same_tensors_and_settings(round_trip):
    folder, _ = round_trip
    before, after = (marian_files.read_tensors(folder / name) for name in ("theirs", "ours"))
    for side in ("encoder", "decoder"):
        table = after.pop(f"model.{side}.embed_positions.weight")
        np.testing.assert_allclose(table, marian_files.sinusoids(marian_files.WIDTH // 2), atol=1e-5)
    assert before.keys() == after.keys()
    for name, value in before.items():
        assert value.tobytes() == after[name].tobytes(), name
    theirs, ours = (json.loads((folder / name / "config.json").read_text()) for name in ("theirs", "ours"))
    different = {key for key in theirs.keys() & ours.keys() if theirs[key] != ours[key]}
    assert different == {"forced_eos_token_id"} and ours["forced_eos_token_id"] is None
    vocabularies = [json.loads((folder / name / "vocab.json").read_text()) for name in ("theirs", "ours")]
    assert vocabularies[0] == vocabularies[1]
    for name in ("source.spm", "target.spm"):
        assert (folder / "theirs" / name).read_bytes() == (folder / "ours" / name).read_bytes()


def test_import_export_import_is_bit_equal(round_trip):
    folder, opened = round_trip
    again = imported(folder / "ours", folder / "again")
    assert again.model == opened.model and again.config.decoding == opened.config.decoding
    first, second = names.flat(opened.params), names.flat(again.params)
    assert first.keys() == second.keys()
    for path, leaf in first.items():
        assert np.asarray(leaf).tobytes() == np.asarray(second[path]).tobytes(), path
    for text in (*marian_files.SOURCES, ">>deu<< a dog"):
        assert again.tokenizer.encode(text) == opened.tokenizer.encode(text)
        assert again.tokenizer.encode_targets([text]) == opened.tokenizer.encode_targets([text])


@pytest.mark.parametrize("round_trip", some(TIES, "none"), indirect=True)
def test_an_imported_run(round_trip):
    """An imported run translates, and has the settings of the Hugging Face files; its decoder starts from zeros."""
    folder, opened = round_trip
    config = opened.config
    assert config.decoding == DecodingConfig(6, "power", 1.0, ends="first")
    assert (config.decoder.start, config.data.source, config.data.target) == ("zero", "train.eng", "train.deu")
    assert opened.origin.model_type == "marian"
    found = translate.open_translator(folder / "run")(["a cat", "", "the red dog"])
    assert [len(each) for each in found] == [6, 1, 6] and found[1][0].text == ""
    assert any(each.text for each in found[0])
    inspected = opening.open_for_inspection(epath.Path(folder / "run"))
    assert (
        inspected.length == marian_files.POSITIONS
        and inspected.tokenizer.specials.pad == config.model.vocabulary_size - 1
    )
    inspected = opening.open_for_inspection(epath.Path(folder / "theirs"))
    assert not inspected.is_ours and "encoder" in inspected.params
    for directory in ("run", "theirs"):
        with pytest.raises(ValueError, match="has no token for begin and mask, with which every text of a task begins"):
            opening.open_encoder(str(folder / directory))


# Export of a model that was trained here.


def own_config(**changed) -> ExperimentConfig:
    """A small run that translates and whose model has no biases in attention; `changed` has settings by their paths."""
    config = ExperimentConfig(
        data=DataConfig(format="parallel", source="text/train.en", target="text/train.de", sequence_length=16),
        model=EncoderConfig(
            layers=2,
            heads=2,
            width=8,
            feedforward=11,
            max_length=21,
            position_offset=0,
            positions="sinusoidal",
            token_types=0,
            embedding_norm=False,
            embedding_scale=True,
            activation="silu",
            attention_biases=False,
        ),
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
def own_tokenizer(kind):
    """A tokenizer that is trained here or, as `loaded`, made of the file of a sentencepiece model."""
    size = {"byte_bpe": 290, "sentencepiece_unigram": 60, "sentencepiece_bpe": 60, "wordpiece": 90}
    texts = [*marian_files.SOURCES, *marian_files.TARGETS] * 5
    if kind == "loaded":
        return tokenizers.Tokenizer(SentencePiece(sentencepiece_model(texts, vocab_size=60)), kind)
    return tokenizers.train(TokenizerConfig(kind=kind, vocabulary_size=size[kind]), texts)


def written_run(workdir, config, tokenizer, seed=0):
    """A run directory with random parameters."""
    model = workloads.reference_model(config, tokenizer)
    example = batching.empty_batch(config.data, 1)
    shapes = jax.eval_shape(lambda: build.unboxed(model.init(jax.random.key(0), example, deterministic=True))["params"])
    rng = np.random.default_rng(seed)
    params = jax.tree.map(lambda leaf: rng.standard_normal(leaf.shape).astype(np.float32), shapes)
    workdir = epath.Path(workdir)
    workdir.mkdir(parents=True)
    run.write(config, workdir, tokenizer, params)
    return workdir, params


def exported(workdir, path, **options):
    """What was said of an export, and its files that are JSON."""
    found = exporting.convert(workdir, None, str(path), **options)
    read = {name: json.loads((path / name).read_text()) for name in ("config.json", "generation_config.json")}
    return found, read["config.json"], read["generation_config.json"]


def tokens_of(directory) -> dict[str, int]:
    if (directory / "vocab.json").exists():
        return json.loads((directory / "vocab.json").read_text())
    vocabulary = json.loads((directory / "tokenizer.json").read_text())["model"]["vocab"]
    return vocabulary if isinstance(vocabulary, dict) else {token: id for id, (token, _) in enumerate(vocabulary)}


@pytest.mark.parametrize(
    "kind",
    some(
        ["sentencepiece_unigram", "loaded", "sentencepiece_bpe", "byte_bpe", "wordpiece"],
        *("sentencepiece_unigram", "loaded"),
    ),
)
def test_padding_becomes_the_last_word(kind, tmp_path):
    """Vectors, biases and tokens move together; padding's vector is zero; rows without a token get one that is never
    predicted.
    """
    tokenizer = own_tokenizer(kind)
    size, rows, pad = tokenizer.vocabulary_size, tokenizer.vocabulary_size + 3, tokenizer.specials.pad
    assert pad < size - 1
    workdir, params = written_run(tmp_path / "run", own_config(**{"model.vocabulary_size": rows}), tokenizer)
    _, config, generation = exported(workdir, tmp_path / "out")
    tensors, tokens = marian_files.read_tensors(tmp_path / "out"), tokens_of(tmp_path / "out")
    assert sorted(tokens.values()) == list(range(rows)) and tokens["<pad>"] == rows - 1
    words, bias = params["encoder"]["embeddings"]["word"]["embedding"], params["output_bias"]
    readable = {tokenizer._backend.id(token): token for token in tokens if tokenizer._backend.id(token) is not None}
    assert len(readable) >= size - 1
    for id, token in readable.items():
        if id != pad:
            np.testing.assert_array_equal(tensors["model.shared.weight"][tokens[token]], words[id], token)
            assert tensors["final_logits_bias"][0, tokens[token]] == bias[id]
    assert not tensors["model.shared.weight"][-1].any() and tensors["final_logits_bias"][0, -1] == -100
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

    again = imported(tmp_path / "out", tmp_path / "again")
    assert again.config.decoder.start == "zero" and again.model.config.attention_biases
    new = {id: tokens[token] for id, token in readable.items()}
    for text in ("the red dog, verläßt", "Katze sees it.", "漢字"):
        for encode in (lambda of, text=text: of.encode(text), lambda of, text=text: of.encode_targets([text])[0]):
            assert encode(again.tokenizer) == [new[id] for id in encode(tokenizer)], text
        assert (
            again.tokenizer.decode(again.tokenizer.encode(text)).strip()
            == tokenizer.decode(tokenizer.encode(text)).strip()
        )
    # The probabilities of padding and of rows without a token aside, the model predicts what it did before.
    opened = run.open_run(workdir)
    source, target = [7, 9, 30, opened.tokenizer.specials.end], [pad, 12, 9]
    ours = np.delete(our_logits(opened, source, target), [pad, *range(size, rows)], axis=-1)
    moved = [[np.arange(rows)[-1] if id == pad else id - (id > pad) for id in ids] for ids in (source, target)]
    np.testing.assert_allclose(our_logits(again, *moved)[:, : size - 1], ours, atol=1e-5)


@pytest.mark.parametrize("tie", ["target", "none"])
def test_only_the_table_of_the_target_begins_from_zero(tie, tmp_path):
    tokenizer = own_tokenizer("sentencepiece_unigram")
    workdir, params = written_run(tmp_path / "run", own_config(**{"decoder.tie": tie}), tokenizer)
    exporting.convert(workdir, None, str(tmp_path / "out"))
    tensors, pad = marian_files.read_tensors(tmp_path / "out"), tokenizer.specials.pad
    np.testing.assert_array_equal(
        tensors[f"{ENCODER}.weight"][-1], params["encoder"]["embeddings"]["word"]["embedding"][pad]
    )
    assert not tensors[f"{DECODER}.weight"][-1].any()
    if tie == "none":  # the output's own vector of padding stays, and so does its bias
        np.testing.assert_array_equal(tensors["lm_head.weight"][-1], params["output_words"]["embedding"][pad])
        assert tensors["final_logits_bias"][0, -1] == params["output_bias"][pad]
    else:
        assert tensors["final_logits_bias"][0, -1] == -100


def test_a_decoder_that_begins_with_a_token(tmp_path):
    """Its ids stay, so that CTranslate2 rejects it instead of starting from zero; the command says so."""
    tokenizer = own_tokenizer("sentencepiece_unigram")
    workdir, params = written_run(tmp_path / "run", own_config(**{"decoder.start": "begin"}), tokenizer)
    found, config, generation = exported(workdir, tmp_path / "out")
    specials = tokenizer.specials
    assert (config["pad_token_id"], config["decoder_start_token_id"]) == (specials.pad, specials.begin)
    assert generation["decoder_start_token_id"] == specials.begin
    assert any("CTranslate2 cannot run this model" in item for item in found.not_carried)
    assert "CTranslate2 cannot run this model" in (tmp_path / "out" / "README.md").read_text()
    tensors = marian_files.read_tensors(tmp_path / "out")
    np.testing.assert_array_equal(tensors["model.shared.weight"], params["encoder"]["embeddings"]["word"]["embedding"])
    again = imported(tmp_path / "out", tmp_path / "again")
    assert again.config.decoder.start == "begin"
    assert translate.open_translator(tmp_path / "again").start == specials.begin


def test_a_fine_tuned_marian_begins_with_padding(tmp_path):
    """transformers trains padding's vector through the output; such a decoder does not begin with zero."""

    def trained(tensors):
        tensors["model.shared.weight"][-1] = 0.1
        return tensors

    opened = imported(marian_files.write_model(tmp_path / "theirs", trained), tmp_path / "run")
    pad = opened.tokenizer.specials.pad
    assert opened.config.decoder.start == "begin" and translate.open_translator(tmp_path / "run").start == pad
    source, target = [5, 9, 3, 0], [pad, 7, 8]
    expected = logits(marian_files.read_tensors(tmp_path / "theirs"), source, target)
    np.testing.assert_allclose(our_logits(opened, source, target), expected, atol=1e-5)


@pytest.mark.parametrize("dtype", some(["float32", "float16", "bfloat16"], "bfloat16"))
def test_sinusoids_of_tensor2tensor(dtype, tmp_path):
    """They are in the file, from which transformers takes them, and are recognised in it in every type."""
    tokenizer = own_tokenizer("sentencepiece_unigram")
    workdir, _ = written_run(tmp_path / "run", own_config(**{"model.sinusoid": "tensor2tensor"}), tokenizer)
    exporting.convert(workdir, None, str(tmp_path / "out"), dtype)
    table = marian_files.read_tensors(tmp_path / "out")["model.decoder.embed_positions.weight"]
    expected = marian_files.sinusoids(4 - 1, 21, 8)
    np.testing.assert_allclose(table.astype(np.float32), expected, atol=1e-5 if dtype == "float32" else 4e-3)
    assert imported(tmp_path / "out", tmp_path / "again").model.config.sinusoid == "tensor2tensor"


def test_checkpoints_are_averaged_unless_a_step_is_chosen(tmp_path):
    tokenizer = own_tokenizer("sentencepiece_unigram")
    config = own_config(
        translation=TranslationConfig(average=2), training=TrainingConfig(steps=30, checkpoint_every=10, keep_last=3)
    )
    workdir, params = written_run(tmp_path / "run", config, tokenizer)
    checkpoints = Checkpoints(workdir / "checkpoints", keep_last=3)
    for step in (10, 20):
        moved = jax.tree.map(lambda leaf, step=step: jax.numpy.asarray(leaf + step), params)
        state = TrainState(jax.numpy.int32(step), moved, build.optimizer_of(config, Hyperparameters()).init(moved))
        checkpoints.save(state, Progress().to_json())
    checkpoints.close()
    for step, name, shift, said in (
        (None, "mean", 15, "the mean of the checkpoints of steps 10, 20"),
        (10, "one", 10, "from step 10"),
    ):
        exporting.convert(workdir, step, str(tmp_path / name))
        found = marian_files.read_tensors(tmp_path / name)["model.encoder.layers.1.fc1.weight"]
        expected = np.asarray(params["encoder"]["layers"]["feedforward_in"]["kernel"])[1].T + shift
        np.testing.assert_allclose(found, expected, rtol=1e-6)
        card = (tmp_path / name / "README.md").read_text()
        assert said in card and "`train.en` and `train.de`" in card and "text/" not in card


REFUSED = [
    (
        {"model.fixed_attention": FixedConfig((-1, 1))},
        ["hard-coded heads have neither queries nor keys", "(model.fixed_attention"],
    ),
    ({"decoder.fixed_attention": FixedConfig((-1, 0))}, ["(decoder.fixed_attention.offsets)"]),
    ({"model.norm_position": "pre", "model.embedding_norm": True}, ["model.norm_position", "model.embedding_norm"]),
    ({"model.positions": "learned"}, ["its positions are sinusoidal (model.positions)"]),
    ({"model.embedding_width": 6}, ["model.embedding_width"]),
    ({"model.token_types": 1}, ["model.token_types"]),
    ({"model.layer_norm_epsilon": 1e-6}, ["epsilon of its LayerNorm is 1e-05 (model.layer_norm_epsilon=1e-06)"]),
]


@pytest.mark.parametrize(("changed", "reasons"), some(REFUSED, REFUSED[2]))
def test_what_a_marian_does_not_compute_is_refused(changed, reasons, tmp_path):
    workdir, _ = written_run(tmp_path / "run", own_config(**changed), own_tokenizer("sentencepiece_unigram"))
    with pytest.raises(ValueError, match="as MarianMT, and that does not compute what this model does") as caught:
        exporting.convert(workdir, None, str(tmp_path / "out"))
    assert str(caught.value).count("\n  ") == len(changed)
    for reason in reasons:
        assert reason in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_parts_and_types_of_an_export(tmp_path):
    workdir, _ = written_run(tmp_path / "run", own_config(), own_tokenizer("sentencepiece_unigram"))
    with pytest.raises(ValueError, match="a run that translates has no parts"):
        exporting.convert(workdir, None, str(tmp_path / "out"), part="generator")
    with pytest.raises(ValueError, match="--dtype must be one of float32"):
        exporting.convert(workdir, None, str(tmp_path / "out"), dtype="int8")


@pytest.mark.parametrize(
    ("decoding", "written", "lost", "read"),
    [
        (
            DecodingConfig(5, "power", 0.9, "bound", "first", max_length="15"),
            {"num_beams": 5, "length_penalty": 0.9, "early_stopping": "never", "max_length": 16},
            [],
            None,
        ),
        (
            DecodingConfig(3, "power", 1.5, "full", "first", min_length="2", max_length="90"),
            {"num_beams": 3, "length_penalty": 1.5, "early_stopping": True, "min_length": 2, "max_length": 21},
            [],
            DecodingConfig(3, "power", 1.5, "full", "first", min_length="2"),
        ),
        (
            DecodingConfig(1, "power", 1.0, "full", "first"),
            {"num_beams": 1, "max_length": 20},
            ["max_length=1.0x+50"],
            None,
        ),
        (
            DecodingConfig(min_length="0.5x"),
            {"num_beams": 4, "early_stopping": "never", "max_length": 20},
            ["normalization=gnmt", "ends=all", "max_length=1.0x+50", "min_length=0.5x"],
            DecodingConfig(4, "power", 1.0, ends="first"),
        ),
        (
            DecodingConfig(2, "none", ends="first", max_length="7"),
            {"num_beams": 2, "length_penalty": 0.0, "early_stopping": "never", "max_length": 8},
            [],
            DecodingConfig(2, "power", 0.0, ends="first", max_length="7"),
        ),
        (
            DecodingConfig(2, "gnmt", 0.0, ends="first", max_length="7"),
            {"num_beams": 2, "length_penalty": 0.0, "early_stopping": "never", "max_length": 8},
            [],
            DecodingConfig(2, "power", 0.0, ends="first", max_length="7"),
        ),
        (
            DecodingConfig(1, "power", 1.0, max_length="7"),
            {"num_beams": 1, "max_length": 8},
            ["Beam search with a single beam"],
            DecodingConfig(1, "power", 1.0, "full", "first", max_length="7"),
        ),
    ],
)
def test_settings_of_generation(decoding, written, lost, read):
    """What is written, what that cannot express, and what it is read as: the same settings where nothing is lost."""
    specials = SpecialTokens(begin=19, pad=19, end=0, unknown=1, mask=3, pair_separators=1)
    found, said = marian.write_generation(decoding, 20, [3, 19], {"pad_token_id": 19})
    assert found == written | {"bad_words_ids": [[3], [19]], "forced_eos_token_id": None, "pad_token_id": 19}
    assert len(said) == len(lost) and all(part in item for part, item in zip(lost, said, strict=True))
    generation = marian.read_generation(found, 20, specials, pathlib.Path("generation_config.json"))
    assert generation == marian.Generation(read or decoding, ())


@pytest.mark.parametrize(
    ("given", "least"),
    [({}, "0"), ({"min_length": 5}, "5"), ({"min_new_tokens": 2, "min_length": 5}, "3"), ({"min_new_tokens": 0}, "1")],
)
def test_the_minimum_length_counts_the_end_token(given, least):
    """As `min_length` of transformers, which counts the start token instead; `min_new_tokens` counts neither."""
    specials = SpecialTokens(begin=19, pad=19, end=0, unknown=1, mask=3, pair_separators=1)
    found = marian.read_generation(given, 20, specials, pathlib.Path("generation_config.json"))
    assert found.decoding.min_length == least and not found.notes


# Import of what other programs wrote.


def refused(directory, tmp_path, *parts, error=ValueError, **options):
    """The message of an import that must fail and leave nothing."""
    before = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(error) as caught:
        importing.convert(str(directory), epath.Path(tmp_path / "run"), **options)
    assert sorted(path.name for path in tmp_path.iterdir()) == before, "something was left behind"
    for part in parts:
        assert part in str(caught.value), str(caught.value)
    return str(caught.value)


def changed_file(directory, name, **changed):
    values = json.loads((directory / name).read_text()) | changed
    (directory / name).write_text(json.dumps(values))


def test_every_unsupported_option_is_named_at_once(tmp_path):
    asked = {
        "activation_function": "gelu_new",
        "normalize_before": True,
        "normalize_embedding": True,
        "add_final_layer_norm": True,
        "static_position_embeddings": False,
        "activation_dropout": 0.1,
        "encoder_layerdrop": 0.1,
        "is_encoder_decoder": False,
        "tie_word_embeddings": False,
        "decoder_vocab_size": 7,
        "architectures": ["MarianForCausalLM"],
        "d_model": "wide",
    }
    message = refused(marian_files.write_model(tmp_path / "hf", **asked), tmp_path, *asked)
    assert "activation_function='gelu_new' is not supported, only 'gelu', 'relu', 'swish', 'silu'" in message


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (
            {"decoder_attention_heads": 4},
            "encoder_attention_heads=3 and decoder_attention_heads=4 are not supported, only equal",
        ),
        ({"decoder_ffn_dim": 20}, "encoder_ffn_dim=17 and decoder_ffn_dim=20 are not supported, only equal"),
        ({"encoder_layers": None}, "encoder_layers is missing"),
        (
            {"decoder_layers": 9},
            "decoder_layers=9, but the tensors model.decoder.layers.{layer}.* are of 3 layers",
        ),
        ({"encoder_layers": 1}, "without a parameter here: model.encoder.layers.1.fc1.bias (17,)"),
        (
            {"encoder_ffn_dim": 18, "decoder_ffn_dim": 18},
            "encoder_ffn_dim=18, but model.encoder.layers.0.fc1.weight is (17, 12)",
        ),
        ({"encoder_attention_heads": 5, "decoder_attention_heads": 5}, "model.heads must divide model.width=12"),
        ({"d_model": 16}, "d_model=16, but model.shared.weight is"),
        ({"dropout": 1.5}, "model.dropout must be at least 0 and below 1, got 1.5"),
        ({"pad_token_id": 4}, "pad_token_id=4, but the tokenizer's id is"),
        ({"eos_token_id": 3}, "eos_token_id=3, but the tokenizer's id is 0"),
    ],
)
def test_settings_that_do_not_fit(changed, said, tmp_path):
    refused(marian_files.write_model(tmp_path / "hf", **changed), tmp_path, said)


def test_missing_extra_and_misshapen_tensors_are_told_at_once(tmp_path):
    query = "model.decoder.layers.2.encoder_attn.q_proj.weight"

    def spoil(tensors):
        kept = {name: value for name, value in tensors.items() if name not in (query, "final_logits_bias")}
        kept["model.encoder.layers.0.fc1.bias"] = np.zeros(3, np.float32)
        return kept | {"model.encoder.layer_norm.weight": np.zeros(12, np.float32)}

    refused(
        marian_files.write_model(tmp_path / "hf", spoil),
        tmp_path,
        f"missing: {query} (12, 12), for decoder/layers/cross_attention/query/kernel (12, 3, 4) of layer 2",
        "missing: final_logits_bias (1, ",
        "of another shape: model.encoder.layers.0.fc1.bias (17,), for encoder/layers/feedforward_in/bias (17,) of "
        "layer 0: found (3,)",
        "without a parameter here: model.encoder.layer_norm.weight (12,)",
        "2 missing, 1 of another shape, 1 without a parameter",
    )


def test_copies_of_tied_tensors(tmp_path):
    """They are dropped if they are equal, an error if not."""

    def copies(tensors, off=0.0):
        return tensors | {
            f"{name}.weight": tensors["model.shared.weight"] + np.float32(off) for name in (ENCODER, OUTPUT)
        }

    opened = imported(marian_files.write_model(tmp_path / "same", copies), tmp_path / "same_run")
    assert opened.origin.left_out == ()
    spoilt = marian_files.write_model(tmp_path / "hf", lambda tensors: copies(tensors, 1.0))
    refused(spoilt, tmp_path, "model.shared.weight", "differ")


def with_positions(**tables):
    return lambda tensors: (
        tensors | {f"model.{side}.embed_positions.weight": table.astype(np.float32) for side, table in tables.items()}
    )


HALF = marian_files.WIDTH // 2
MARIANS, OTHERS = marian_files.sinusoids(HALF), marian_files.sinusoids(HALF - 1)


@pytest.mark.parametrize(
    ("tables", "said"),
    [
        ({"encoder": MARIANS, "decoder": MARIANS[::-1]}, "model.decoder.embed_positions.weight in"),
        (
            {"decoder": MARIANS.reshape(-1, 2, HALF).swapaxes(1, 2).reshape(-1, 12)},
            "is no table of sinusoids, it is up to",
        ),
        ({"encoder": MARIANS + 0.01}, "choose a model without learned positions"),
        ({"encoder": MARIANS * np.nan}, "is no table of sinusoids"),
        ({"encoder": MARIANS, "decoder": OTHERS}, "encoder and decoder have different sinusoids"),
        ({"decoder": MARIANS[:-1]}, "must have the shape (37, 12)"),
        ({"encoder": MARIANS[:-1]}, "max_position_embeddings=37, but model.encoder.embed_positions.weight is (36, 12)"),
    ],
)
def test_positions_that_are_no_sinusoids(tables, said, tmp_path):
    refused(marian_files.write_model(tmp_path / "hf", with_positions(**tables)), tmp_path, said)


def test_tables_of_positions_are_no_parameters(tmp_path):
    directory = marian_files.write_model(tmp_path / "hf", with_positions(encoder=OTHERS, decoder=OTHERS))
    opened = imported(directory, tmp_path / "run")
    assert opened.model.config.sinusoid == "tensor2tensor" and opened.origin.left_out == ()


def test_a_decoder_that_starts_elsewhere(tmp_path):
    directory = marian_files.write_model(tmp_path / "hf")
    for start, said in ((7, "zero vector, got 7"), (10**6, "must be a token id below")):
        changed_file(directory, "generation_config.json", decoder_start_token_id=start)
        refused(directory, tmp_path, str(directory / "generation_config.json"), said)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"num_beams": "six"}, "num_beams must be of type int, got 'six'"),
        ({"num_beams": 0}, "decoding.beam_size must be at least 1 and at most 1024, got 0"),
        ({"early_stopping": "soon"}, "early_stopping must be true, false or 'never', got 'soon'"),
        ({"early_stopping": 1}, "early_stopping must be true, false or 'never', got 1"),
        ({"eos_token_id": [0, 7]}, "eos_token_id=[0, 7], but the tokenizer's id is 0"),
        ({"length_penalty": -1.0}, "decoding.length_penalty must be at least 0 and at most 5, got -1.0"),
        ({"max_new_tokens": 3, "min_length": 5}, "decoding.min_length must be at most decoding.max_length"),
        ({"max_new_tokens": 3, "min_new_tokens": 3}, "got min_length='4' and max_length='3'"),
    ],
)
def test_settings_of_generation_that_are_wrong(changed, said, tmp_path):
    directory = marian_files.write_model(tmp_path / "hf")
    changed_file(directory, "generation_config.json", **changed)
    refused(directory, tmp_path, str(directory / "generation_config.json"), said)


def test_settings_of_generation_that_are_not_taken_over(tmp_path, capsys):
    """They are printed; without generation_config.json, the settings in config.json hold, as in older models."""
    directory = marian_files.write_model(tmp_path / "hf", num_beams=2, length_penalty=0.5, max_length=20)
    changed = {
        "no_repeat_ngram_size": 3,
        "bad_words_ids": [[5], [6, 7]],
        "do_sample": False,
        "renormalize_logits": True,
        "exponential_decay_length_penalty": [2, 1.5],
        "num_beams": None,
    }
    changed_file(directory, "generation_config.json", **changed)
    assert cli.run_safely("import", request(source=str(directory), workdir=str(tmp_path / "run"))) == 0
    said = capsys.readouterr().out
    assert "parameters of marian, in" in said and said.count("not taken over") == 4
    for setting in (
        "no_repeat_ngram_size=3",
        "bad_words_ids=[[5], [6, 7]]",
        "renormalize_logits=True",
        "exponential_decay_length_penalty=[2, 1.5]",
    ):
        assert f"not taken over: {setting} (generation_config.json)" in said
    # None of the settings in config.json holds, not even of those that generation_config.json lacks.
    assert run.open_run(tmp_path / "run").config.decoding == DecodingConfig(1, "power", 1.0, "full", "first")
    (directory / "generation_config.json").unlink()
    opened = imported(directory, tmp_path / "again")
    assert opened.config.decoding == DecodingConfig(2, "power", 0.5, ends="first", max_length="19")


def test_padding_that_is_left_out_of_the_probabilities(tmp_path):
    """The models converted from Marian, which knows no padding: transformers gives it none of the probability."""
    directory = marian_files.write_model(tmp_path / "hf")
    before = imported(directory, tmp_path / "with")
    changed_file(directory, "generation_config.json", renormalize_logits=True)
    opened, pad = imported(directory, tmp_path / "run"), before.tokenizer.specials.pad
    assert opened.config == dataclasses.replace(before.config, data=opened.config.data)
    ours, theirs = np.array(opened.params["output_bias"]), np.array(before.params["output_bias"])
    assert ours[pad] == -100 and np.array_equal(np.delete(ours, pad), np.delete(theirs, pad))
    exporting.convert(epath.Path(tmp_path / "run"), None, str(tmp_path / "out"))
    again = imported(tmp_path / "out", tmp_path / "again")
    assert np.array_equal(again.params["output_bias"], ours)


def test_a_tokenizer_with_two_vocabularies(tmp_path):
    directory = marian_files.write_model(tmp_path / "hf")
    changed_file(directory, "tokenizer_config.json", separate_vocabs=True)
    refused(directory, tmp_path, "separate_vocabs=True is not supported", "whose languages share a vocabulary")


# Further training.


def test_going_on_with_an_imported_model(tmp_path, one_device):
    """Guided, from the given weights; targets are encoded with the target's model; another decoder is refused."""
    imported(marian_files.write_model(tmp_path / "hf"), tmp_path / "start")
    for name, texts in (("en", marian_files.SOURCES), ("de", marian_files.TARGETS)):
        (tmp_path / f"train.{name}").write_text("".join(f"{text}\n" for text in texts * 20))
    arguments = f"run={tmp_path / 'start'},arm=ag,source={tmp_path / 'train.en'},target={tmp_path / 'train.de'}"
    few = {
        "training.steps": 2,
        "training.batch_size": 2,
        "training.evaluate_every": None,
        "training.checkpoint_every": 1,
        "training.tensorboard": False,
        "optimizer.warmup_steps": 0,
        "data.sequence_length": 36,
        "data.validation_source": str(tmp_path / "train.en"),
        "data.validation_target": str(tmp_path / "train.de"),
    }
    config = pretraining_config.parse(config_reader.load(f"{CONFIGS / 'continue_translation.py'}:{arguments}", few))
    assert config.decoding.beam_size == 6 and config.guidance.heads == "next:1,prev:1"
    run.train(config, epath.Path(tmp_path / "on"))
    given, first, last = (
        names.flat(run.open_run(tmp_path / name, step).params)
        for name, step in (("start", None), ("on", 0), ("on", None))
    )
    assert given.keys() == first.keys()
    for path, leaf in given.items():
        assert np.array_equal(leaf, first[path]), path
    assert not np.array_equal(
        first["decoder/layers/attention/value/kernel"], last["decoder/layers/attention/value/kernel"]
    )
    tokenizer = run.open_run(tmp_path / "on").tokenizer
    rows = parallel.prepare(config.data, quiet=True).train.target
    stored = {
        tuple(row)
        for number in range(len(rows))
        for row in np.split(rows.row(number), np.flatnonzero(rows.row(number) == 0) + 1)
    }
    for text in marian_files.TARGETS[:2]:  # the last one is too long for the model's positions
        wanted = tokenizer.encode_targets([text])[0]
        assert (*wanted, tokenizer.specials.end) in stored and wanted != tokenizer.encode(text)
    exporting.convert(epath.Path(tmp_path / "on"), None, str(tmp_path / "out"))
    card = (tmp_path / "out" / "README.md").read_text()
    assert "It began as `hf` (marian)" in card and "from eng to deu" in card and "2 steps of 2 rows" in card
    assert "next: 1, prev: 1" in card and "`train.en` and `train.de`" in card


def test_no_run_to_go_on_with(tmp_path):
    with pytest.raises(ValueError, match=f"{tmp_path}/config.json"):
        config_reader.load(f"{CONFIGS / 'continue_translation.py'}:run={tmp_path},source=a,target=b")


def test_a_tokenizer_for_translation_alone(tmp_path):
    """Without begin and mask tokens it serves no other format."""
    marian_files.write_tokenizer(tmp_path)
    data = DataConfig(tokenizer=TokenizerConfig(path=str(tmp_path)), cache_dir=str(tmp_path / "cache"))
    with pytest.raises(ValueError, match="has no token for begin and mask, so only data.format=parallel can use it"):
        text_pipeline.prepare(data, quiet=True)


def test_a_library_whose_tokens_cannot_be_renumbered(monkeypatch):
    """The converted tokenizer is compared with the original one."""
    tokenizer = own_tokenizer("byte_bpe")
    monkeypatch.setattr(tokenizer, "encode", lambda text: [7, 8])
    with pytest.raises(ValueError, match="with its new ids, the tokenizer encodes"):
        order = marian.vocabulary_order(tokenizer.vocabulary_size, tokenizer.specials.pad, "zero")
        marian_tokenizer.write(tokenizer, pathlib.Path("nowhere"), order, 9)
