"""Every family without PyTorch: stored directories of `transformers`, and what it computed from them."""

import dataclasses
import functools
import itertools
import json

import jax
import ml_dtypes
import numpy as np
import pytest
import tokenizers as huggingface
from safetensors.numpy import load_file, save_file

from ag_jax.data.config import MaskingConfig
from ag_jax.data.text import batching
from ag_jax.interop import catalogue, exporting, importing, names, tokenizer_files
from ag_jax.interop import source as sources
from ag_jax.models.encoder import Encoder
from ag_jax.models.replaced_tokens import generator_parameters
from ag_jax.objectives.config import ReplacedTokensConfig
from ag_jax.pretraining import workloads
from ag_jax.pretraining.open_run import open_run
from tests import tiny
from tests.cases import some
from tests.interop.copies import GOLDENS, exported, imported, same, with_tensors

NAMES = sorted(path.name for path in GOLDENS.iterdir())
PREFIXES = ("module.", "_orig_mod.module.", "base_model.model.", "model.")
# Of families with several models here, those with most of its parts; the others are the beginning of other tests.
USUAL = ("bert_pairs", "camembert", "deberta", "deberta_v2", "electra", "modernbert")
# Keys of config.json that may differ: names for defaults, and what is derived.
FREE = {"dtype", "bos_token_id", "eos_token_id", "position_buckets", "max_relative_positions"}
FREE |= {"conv_kernel_size", "conv_act"}


def test_all_families_are_here():
    families = {json.loads((GOLDENS / name / "config.json").read_text())["model_type"] for name in NAMES}
    assert families == set(catalogue.FAMILIES)


@functools.partial(jax.jit, static_argnums=0)
def hidden_and_heads(model, params, batch):
    hidden = Encoder(model.config).apply({"params": params["encoder"]}, batch, deterministic=True)
    return hidden, model.apply({"params": params}, batch, deterministic=True, mutable=["intermediates"])


@pytest.mark.parametrize("name", some(NAMES, *USUAL))
def test_there_and_back(name, run_of, tmp_path):
    """Compares what the run computes, what its export holds, and the export imported again."""
    theirs, opened = load_file(GOLDENS / name / "expected.safetensors"), open_run(run_of(name))
    valid = theirs["segment_ids"] > 0
    places = np.tile(np.arange(valid.shape[1]), (len(valid), 1))
    batch = {field: theirs[field] for field in ("tokens", "segment_ids", "token_type_ids")}
    hidden, (said, sown) = hidden_and_heads(opened.model, opened.params, batch | {"masked_positions": places})
    logits = said.replaced_BL if "discriminator_head" in opened.params else said.words_BMV
    np.testing.assert_allclose(hidden[valid], theirs["hidden"][valid], atol=1e-4)
    np.testing.assert_allclose(logits[valid], theirs["logits"][valid], atol=1e-4)
    weights_NBHQK = sown["intermediates"]["encoder"]["layers"]["attention"]["attention_weights"][0]
    seen = np.broadcast_to(valid[None, :, None, :, None], weights_NBHQK.shape)
    np.testing.assert_allclose(np.asarray(weights_NBHQK)[seen], theirs["attention"][seen], atol=1e-5)

    _, settings, _, after = exported(run_of(name), tmp_path / "out")
    before = load_file(GOLDENS / name / "model.safetensors")
    poolers = {key for key in before if "pooler" in key and "cls.seq_relationship.weight" not in before}
    assert before.keys() - after.keys() == poolers and not after.keys() - before.keys()
    for key, value in after.items():
        assert value.dtype == np.float32 and np.array_equal(value, before[key].astype(np.float32)), key
    stored = json.loads((GOLDENS / name / "config.json").read_text())
    assert not {key for key in stored.keys() & settings.keys() - FREE if stored[key] != settings[key]}

    again = importing.open_model(str(tmp_path / "out"))
    assert workloads.reference_model(again.config, again.tokenizer) == opened.model
    same(names.flat(again.params), names.flat(opened.params))
    text = "We will rebuild our roads."
    assert again.tokenizer.encode(text) == opened.tokenizer.encode(text)


@pytest.mark.parametrize(("name", "prefix"), [*zip(NAMES, itertools.cycle(PREFIXES), strict=False)])
def test_a_prefix_that_all_names_share_is_left_out(name, prefix, tmp_path):
    directory = with_tensors(name, tmp_path / name, lambda tensors: {f"{prefix}{key}": tensors[key] for key in tensors})
    found, expected = sources.read(directory), sources.read(GOLDENS / name)
    assert found.tensors.shapes == expected.tensors.shapes and found.heads == expected.heads


def test_a_prefix_that_the_names_have_themselves_stays(tmp_path):
    layers = sources.read(
        with_tensors("bert", tmp_path / "bert", lambda tensors: {k: v for k, v in tensors.items() if "layer." in k})
    )
    assert all(name.startswith("bert.encoder.layer.") for name in layers.tensors.shapes)


# What stands for the same parameters.


def old(tensors):
    endings = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}

    def rename(name):
        return functools.reduce(lambda name, ending: name.replace(*ending), endings.items(), name)

    return {rename(name): value for name, value in tensors.items()}


COPIES = {
    "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}


def twice(tensors):
    copies = {copy: tensors[original].copy() for copy, original in COPIES.items()}
    return tensors | copies | {"bert.embeddings.position_ids": np.arange(20)[None]}


def second(tensors):
    kept = {original: copy for copy, original in COPIES.items()}
    return {kept.get(name, name): value for name, value in tensors.items()}


def bfloat16(tensors):
    return {name: value.astype(ml_dtypes.bfloat16) for name, value in tensors.items()}


def shards(directory):
    tensors = load_file(directory / "model.safetensors")
    (directory / "model.safetensors").unlink()
    files = {name: f"model-0000{1 + number % 2}-of-00002.safetensors" for number, name in enumerate(tensors)}
    for file in set(files.values()):
        save_file({name: tensors[name] for name in tensors if files[name] == file}, directory / file)
    (directory / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))


@pytest.mark.parametrize("form", [old, twice, second, bfloat16, shards])
def test_other_forms_of_the_same_tensors(form, run_of, tmp_path):
    directory = with_tensors("bert_pairs", tmp_path / "hf", form if form is not shards else lambda tensors: tensors)
    if form is shards:
        shards(directory)
    opened, plain = importing.open_model(str(directory)), names.flat(open_run(run_of("bert_pairs")).params)
    same(names.flat(opened.params), plain, tolerance=1e-2 if form is bfloat16 else 0.0)
    assert opened.left_out == () and opened.new == ()


def test_more_words_than_tokens(tmp_path):
    """Rows that pad the vocabulary are parameters, too."""

    def longer(tensors):
        grown = ("bert.embeddings.word_embeddings.weight", "cls.predictions.bias")
        return tensors | {name: np.concatenate([tensors[name], tensors[name][:7]]) for name in grown}

    opened = importing.open_model(str(with_tensors("bert", tmp_path / "hf", longer, vocab_size=46)))
    bias = opened.params["word_head"]["bias"]
    assert opened.config.model.vocabulary_size == 46 and np.array_equal(bias[39:], bias[:7]) and bias.any()


def test_exports_of_half_the_size(run_of, tmp_path):
    _, _, _, whole = exported(run_of("bert_pairs"), tmp_path / "float32")
    for dtype in (ml_dtypes.bfloat16, np.float16):
        name = np.dtype(dtype).name
        _, settings, _, half = exported(run_of("bert_pairs"), tmp_path / name, name)
        assert settings["dtype"] == name and half.keys() == whole.keys()
        assert all(half[key].tobytes() == whole[key].astype(dtype).tobytes() for key in whole)


def test_pairs_of_a_model_without_segments_stay_in_the_first(tmp_path):
    """BERT with one segment: a second text of segment 1 would have no row in its table."""
    opened = importing.open_model(str(GOLDENS / "bert"))
    for token_types in (2, 1):
        directory = tmp_path / str(token_types)
        directory.mkdir()
        config = dataclasses.replace(opened.source.config, token_types=token_types)
        tokenizer_files.write(opened.tokenizer.with_second_type(None), directory, catalogue.BERT, config)
        library = huggingface.Tokenizer.from_file(str(directory / "tokenizer.json"))
        assert max(library.encode("our", "roads").type_ids) == token_types - 1


def export(opened, path, monkeypatch, **changed):
    """Export a run as if it had been opened with other settings and parameters."""
    monkeypatch.setattr(exporting, "open_run", lambda *_: dataclasses.replace(opened, **changed))
    return exported(opened.workdir, path)


def test_the_enhanced_mask_decoder_comes_back(tmp_path, monkeypatch):
    """transformers has none, so its passes are in a section of ours, and its positions are one tensor more."""
    positions = {"deberta.embeddings.position_embeddings.weight": np.ones((20, 6), np.float32)}
    opened = imported(
        with_tensors("deberta_v3", tmp_path / "hf", lambda tensors: tensors | positions), tmp_path / "run"
    )
    encoder = dataclasses.replace(opened.model.config, mask_decoder_passes=3)
    model = opened.model.clone(config=encoder)
    found, _, card, _ = export(opened, tmp_path / "out", monkeypatch, model=model)
    assert "mask decoder" in found.not_carried[0] and found.not_carried[0] in card
    again = importing.open_model(str(tmp_path / "out"))
    same(names.flat(again.params), names.flat(opened.params))
    assert again.source.config.mask_decoder_passes == 3


def test_the_generator_of_replaced_tokens_is_a_model_of_its_own(run_of, tmp_path, monkeypatch):
    """Its tables are the model's, its projection and layers its own; the model goes without it."""
    opened = open_run(run_of("electra"))
    replaced = ReplacedTokensConfig(generator="mlm", generator_fraction=0.5)
    encoder = dataclasses.replace(opened.model.config, heads=2, width=8, layers=1)
    data = dataclasses.replace(opened.config.data, masking=MaskingConfig())
    config = dataclasses.replace(opened.config, data=data, replaced_tokens=replaced, model=encoder)
    model = workloads.reference_model(config, opened.tokenizer)
    params = jax.tree.map(np.asarray, tiny.params(model, batching.empty_batch(config.data, 1)))
    pair = dataclasses.replace(opened, config=config, model=model, params=params)
    monkeypatch.setattr(exporting, "open_run", lambda *_: pair)
    left = exported(opened.workdir, tmp_path / "detector")[0].not_carried
    assert any("generator" in item for item in left)
    written = exported(opened.workdir, tmp_path / "writer", encoder="generator")[0]
    assert written.architecture == "ElectraForMaskedLM"
    kept = {path: leaf for path, leaf in names.flat(params).items() if not path.startswith("generator/")}
    for name, wanted in (("writer", names.flat(generator_parameters(params))), ("detector", kept)):
        same(names.flat(importing.open_model(str(tmp_path / name)).params), wanted)


def test_positions_from_two_on_lose_the_rows_of_padding_alone(run_of, tmp_path, monkeypatch):
    """A model with RoBERTa's positions and BERT's padding is written as BERT, and computes the same."""
    opened = open_run(run_of("bert_pairs"))
    encoder = dataclasses.replace(opened.model.config, max_length=18, position_offset=2)
    model = opened.model.clone(config=encoder)
    assert export(opened, tmp_path / "out", monkeypatch, model=model)[0].architecture == "BertForPreTraining"
    ours, path = names.flat(opened.params), "encoder/embeddings/position/embedding"
    theirs = names.flat(importing.open_model(str(tmp_path / "out")).params)
    assert theirs[path].shape == (18, 6)
    same({**ours, path: ours[path][2:]}, theirs)
