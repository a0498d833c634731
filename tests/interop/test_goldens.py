"""Every family without PyTorch: stored directories of `transformers`, and what it computed from them."""

import dataclasses
import json
import pathlib

import jax
import ml_dtypes
import numpy as np
import pytest
import tokenizers as huggingface
from etils import epath
from safetensors.numpy import load_file, save_file

from ag_jax.data.text import batching
from ag_jax.interop import catalogue, exporting, importing, names
from ag_jax.interop import source as sources
from ag_jax.models.encoder import Encoder
from ag_jax.models.replaced_tokens import generator_parameters
from ag_jax.objectives.replaced_tokens import ReplacedTokensConfig
from ag_jax.pretraining import build, run, workloads
from tests.cases import some

GOLDENS = pathlib.Path(__file__).parent / "goldens"
NAMES = sorted(path.name for path in GOLDENS.iterdir())
ALL_HEADS = {"word_head", "next_head", "discriminator_head"}


# Of families with several models here, those with most of its parts; the others are the beginning of other tests.
USUAL = ("bert_pairs", "camembert", "deberta", "deberta_v2", "electra", "modernbert")


@pytest.fixture(scope="module", params=some(NAMES, *USUAL))
def golden(request, tmp_path_factory):
    """The directory, the run that it became and the directory that the run became."""
    directory = tmp_path_factory.mktemp(request.param)
    importing.convert(str(GOLDENS / request.param), epath.Path(directory / "run"))
    exporting.convert(epath.Path(directory / "run"), None, str(directory / "out"))
    return GOLDENS / request.param, directory / "run", directory / "out"


def test_all_families_are_here():
    assert {json.loads((GOLDENS / name / "config.json").read_text())["model_type"] for name in NAMES} == set(
        catalogue.FAMILIES
    )


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.module.", "base_model.model.", "model."])
@pytest.mark.parametrize("name", NAMES)
def test_a_prefix_that_all_names_share_is_left_out(name, prefix, tmp_path):
    directory = with_tensors(name, tmp_path / name, lambda tensors: {f"{prefix}{key}": tensors[key] for key in tensors})
    found, expected = sources.read(directory), sources.read(GOLDENS / name)
    assert found.tensors.shapes == expected.tensors.shapes and found.heads == expected.heads


def test_a_prefix_that_the_names_have_themselves_stays(tmp_path):
    layers = sources.read(
        with_tensors("bert", tmp_path / "bert", lambda tensors: {k: v for k, v in tensors.items() if "layer." in k})
    )
    assert all(name.startswith("bert.encoder.layer.") for name in layers.tensors.shapes)


def test_what_it_computes(golden):
    theirs, opened = load_file(golden[0] / "expected.safetensors"), run.open_run(golden[1])
    valid = theirs["segment_ids"] > 0
    places = np.tile(np.arange(valid.shape[1]), (len(valid), 1))
    batch = {name: theirs[name] for name in ("tokens", "segment_ids", "token_type_ids")} | {"masked_positions": places}
    said, sown = opened.model.apply({"params": opened.params}, batch, deterministic=True, mutable=["intermediates"])
    hidden = Encoder(opened.model.config).apply({"params": opened.params["encoder"]}, batch, deterministic=True)
    logits = said.replaced_BL if "discriminator_head" in opened.params else said.words_BMV
    np.testing.assert_allclose(hidden[valid], theirs["hidden"][valid], atol=1e-4)
    np.testing.assert_allclose(logits[valid], theirs["logits"][valid], atol=1e-4)
    weights_NBHQK = sown["intermediates"]["encoder"]["layers"]["attention"]["attention_weights"][0]
    seen = np.broadcast_to(valid[None, :, None, :, None], weights_NBHQK.shape)
    np.testing.assert_allclose(np.asarray(weights_NBHQK)[seen], theirs["attention"][seen], atol=1e-5)


def test_the_export_has_the_same_tensors_and_settings(golden):
    before, after = (load_file(directory / "model.safetensors") for directory in (golden[0], golden[2]))
    dropped = {name for name in before if "pooler" in name} if "cls.seq_relationship.weight" not in before else set()
    assert before.keys() - after.keys() == dropped and not after.keys() - before.keys()
    for name, value in after.items():
        assert value.dtype == np.float32 and np.array_equal(value, before[name].astype(np.float32)), name
    theirs, ours = (json.loads((directory / "config.json").read_text()) for directory in (golden[0], golden[2]))
    free = {
        "dtype",
        "bos_token_id",
        "eos_token_id",
        "position_buckets",
        "max_relative_positions",
        "conv_kernel_size",
        "conv_act",
    }
    different = {key for key in theirs.keys() & ours.keys() - free if theirs[key] != ours[key]}
    assert not different


def test_import_export_import_is_bit_equal(golden, tmp_path):
    importing.convert(str(golden[2]), epath.Path(tmp_path / "again"))
    first, second = run.open_run(golden[1]), run.open_run(tmp_path / "again")
    assert first.model == second.model
    ours, theirs = names.flat(first.params), names.flat(second.params)
    assert ours.keys() == theirs.keys()
    for path, leaf in ours.items():
        assert np.asarray(leaf).tobytes() == np.asarray(theirs[path]).tobytes(), path
    text = "We will rebuild our roads."
    assert first.tokenizer.encode(text) == second.tokenizer.encode(text)


def with_tensors(golden: str, directory: pathlib.Path, change) -> pathlib.Path:
    """A copy of a golden directory with `change(tensors)` for its tensors."""
    directory.mkdir()
    for file in (GOLDENS / golden).iterdir():
        (directory / file.name).write_bytes(file.read_bytes())
    tensors = change(load_file(GOLDENS / golden / "model.safetensors"))
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    return directory


def converted(directory: pathlib.Path, workdir: pathlib.Path, **options):
    importing.convert(str(directory), epath.Path(workdir), **options)
    return names.flat(run.open_run(workdir).params)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """Our parameters of the golden `bert`."""
    return converted(GOLDENS / "bert", tmp_path_factory.mktemp("plain") / "run")


def same(ours, theirs, tolerance=0.0):
    assert ours.keys() == theirs.keys()
    for path in ours:
        np.testing.assert_allclose(ours[path], theirs[path], rtol=tolerance, atol=tolerance, err_msg=path)


def test_bfloat16(plain, tmp_path):
    def round16(tensors):
        return {name: value.astype(ml_dtypes.bfloat16) for name, value in tensors.items()}

    same(converted(with_tensors("bert", tmp_path / "hf", round16), tmp_path / "run"), plain, tolerance=1e-2)


def test_names_of_old(plain, tmp_path):
    def old(tensors):
        def rename(name):
            return name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")

        return {rename(name): value for name, value in tensors.items()}

    same(converted(with_tensors("bert", tmp_path / "hf", old), tmp_path / "run"), plain)


def test_tied_tensors_that_are_there_twice_and_buffers(plain, tmp_path):
    def twice(tensors):
        copies = {
            "cls.predictions.decoder.weight": tensors["bert.embeddings.word_embeddings.weight"].copy(),
            "cls.predictions.decoder.bias": tensors["cls.predictions.bias"].copy(),
            "bert.embeddings.position_ids": np.arange(20)[None],
        }
        return tensors | copies

    same(converted(with_tensors("bert", tmp_path / "hf", twice), tmp_path / "run"), plain)


def test_tied_tensors_of_which_the_second_copy_was_kept(plain, tmp_path):
    def second(tensors):
        kept = {"bert.embeddings.word_embeddings.weight": "cls.predictions.decoder.weight"}
        kept["cls.predictions.bias"] = "cls.predictions.decoder.bias"
        return {kept.get(name, name): value for name, value in tensors.items()}

    same(converted(with_tensors("bert", tmp_path / "hf", second), tmp_path / "run"), plain)


def test_shards(plain, tmp_path):
    directory = with_tensors("bert", tmp_path / "hf", lambda tensors: tensors)
    tensors = load_file(directory / "model.safetensors")
    (directory / "model.safetensors").unlink()
    files = {name: f"model-0000{1 + number % 2}-of-00002.safetensors" for number, name in enumerate(tensors)}
    for file in set(files.values()):
        save_file({name: tensors[name] for name in tensors if files[name] == file}, directory / file)
    (directory / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))
    same(converted(directory, tmp_path / "run"), plain)


@pytest.mark.exhaustive
def test_an_encoder_alone_gets_a_fresh_head(plain, tmp_path):
    directory = with_tensors(
        "bert",
        tmp_path / "hf",
        lambda tensors: {
            name.removeprefix("bert."): value for name, value in tensors.items() if name.startswith("bert.")
        },
    )
    config = json.loads((directory / "config.json").read_text()) | {"architectures": ["BertModel"]}
    (directory / "config.json").write_text(json.dumps(config))
    found = importing.convert(str(directory), epath.Path(tmp_path / "run"))
    assert found.new == ("word_head",)
    ours = names.flat(run.open_run(tmp_path / "run").params)
    same(
        {path: ours[path] for path in plain if path.startswith("encoder/")},
        {p: v for p, v in plain.items() if p.startswith("encoder/")},
    )
    assert ours["word_head/dense/kernel"].std() > 0


def test_head_width_48_longer_positions_and_more_words(tmp_path):
    def wider(tensors):
        rng, grown = np.random.default_rng(0), {}
        sizes = {6: 96, 11: 11, 20: 50}
        for name, value in tensors.items():
            words = value.shape[0] if "word_embeddings" in name or name == "cls.predictions.bias" else -1
            shape = tuple(words + 7 if size == words else sizes.get(size, size) for size in value.shape)
            grown[name] = rng.standard_normal(shape).astype(np.float32)
        return grown

    directory = with_tensors("bert", tmp_path / "hf", wider)
    config = json.loads((directory / "config.json").read_text())
    config |= {
        "hidden_size": 96,
        "num_attention_heads": 2,
        "max_position_embeddings": 50,
        "vocab_size": config["vocab_size"] + 7,
    }
    (directory / "config.json").write_text(json.dumps(config))
    ours = converted(directory, tmp_path / "run")
    assert ours["encoder/layers/attention/query/kernel"].shape == (2, 96, 2, 48)
    exporting.convert(epath.Path(tmp_path / "run"), None, str(tmp_path / "out"))
    before, after = (load_file(where / "model.safetensors") for where in (directory, tmp_path / "out"))
    for name, value in after.items():
        assert np.array_equal(value, before[name]), name
    same(converted(tmp_path / "out", tmp_path / "again"), ours)


def test_pairs_of_a_model_without_segments_stay_in_the_first(tmp_path):
    """BERT with one segment: a second text of segment 1 would have no row in its table."""
    opened = run.open_run(_imported(tmp_path, "bert"))
    params = names.flat(opened.params)
    params["encoder/embeddings/segment/embedding"] = params["encoder/embeddings/segment/embedding"][:1]
    config = dataclasses.replace(opened.config, model=dataclasses.replace(opened.model.config, token_types=1))
    workdir = epath.Path(tmp_path / "one")
    workdir.mkdir()
    run.write(config, workdir, opened.tokenizer, names.nested(params))
    for directory, second in ((tmp_path / "imported", 1), (workdir, 0)):
        exporting.convert(epath.Path(directory), None, f"{directory}_out")
        library = huggingface.Tokenizer.from_file(f"{directory}_out/tokenizer.json")
        assert max(library.encode("our", "roads").type_ids) == second


@pytest.mark.parametrize("dtype", some(["bfloat16", "float16"], "bfloat16"))
def test_exports_of_half_the_size(dtype, plain, tmp_path):
    importing.convert(str(GOLDENS / "bert"), epath.Path(tmp_path / "run"))
    exporting.convert(epath.Path(tmp_path / "run"), None, str(tmp_path / "out"), dtype)
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == dtype
    same(converted(tmp_path / "out", tmp_path / "again"), plain, tolerance=0.0 if dtype == "float16" else 1e-2)


def test_the_enhanced_mask_decoder_comes_back(tmp_path, monkeypatch):
    """transformers has none, so its passes are in a section of ours, and its positions are one tensor more."""
    monkeypatch.setattr(run, "check_settings", lambda *_: None)  # as if it had been trained with these
    positions = {"deberta.embeddings.position_embeddings.weight": np.ones((20, 6), np.float32)}
    directory = with_tensors("deberta_v3", tmp_path / "hf", lambda tensors: tensors | positions)
    ours = converted(directory, tmp_path / "run")
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    config["model"]["mask_decoder_passes"] = 3
    (tmp_path / "run" / "config.json").write_text(json.dumps(config))
    found = exporting.convert(epath.Path(tmp_path / "run"), None, str(tmp_path / "out"))
    assert (
        "enhanced mask decoder" in found.not_carried[0]
        and found.not_carried[0] in (tmp_path / "out" / "README.md").read_text()
    )
    same(converted(tmp_path / "out", tmp_path / "again"), ours)
    assert run.open_run(tmp_path / "again").model.config.mask_decoder_passes == 3


def test_the_generator_of_replaced_tokens_is_a_model_of_its_own(tmp_path):
    """Its tables are the model's, its projection and layers its own; the model goes without it."""
    opened = run.open_run(_imported(tmp_path, "electra_generator"))
    replaced = ReplacedTokensConfig(generator="mlm", generator_fraction=0.5)
    config = dataclasses.replace(
        opened.config,
        replaced_tokens=replaced,
        model=dataclasses.replace(opened.model.config, heads=2, width=8, layers=1),
    )
    model = workloads.reference_model(config, opened.tokenizer)
    example = batching.empty_batch(config.data, 1)
    params = build.unboxed(jax.jit(lambda: model.init(jax.random.key(1), example, deterministic=True))()["params"])
    workdir = epath.Path(tmp_path / "pair")
    workdir.mkdir()
    run.write(config, workdir, opened.tokenizer, params)
    left = exporting.convert(workdir, None, str(tmp_path / "detector")).not_carried
    assert any("generator" in item for item in left)
    written = exporting.convert(workdir, None, str(tmp_path / "writer"), part="generator")
    assert written.architecture == "ElectraForMaskedLM"
    same(converted(tmp_path / "writer", tmp_path / "writer_run"), names.flat(generator_parameters(params)))
    kept = {path: leaf for path, leaf in names.flat(params).items() if not path.startswith("generator/")}
    same(converted(tmp_path / "detector", tmp_path / "detector_run"), kept)


def _imported(tmp_path, name):
    importing.convert(str(GOLDENS / name), epath.Path(tmp_path / "imported"))
    return tmp_path / "imported"


def test_positions_from_two_on_lose_the_rows_of_padding_alone(tmp_path):
    """A model with RoBERTa's positions and BERT's padding is written as BERT, and computes the same."""
    opened = run.open_run(_imported(tmp_path, "bert"))
    config = dataclasses.replace(
        opened.config,
        data=dataclasses.replace(opened.config.data, sequence_length=18),
        model=dataclasses.replace(opened.model.config, max_length=18, position_offset=2),
    )
    workdir = epath.Path(tmp_path / "shifted")
    workdir.mkdir()
    run.write(config, workdir, opened.tokenizer, opened.params)
    assert exporting.convert(workdir, None, str(tmp_path / "out")).architecture == "BertForMaskedLM"
    path = "encoder/embeddings/position/embedding"
    ours, theirs = names.flat(opened.params), converted(tmp_path / "out", tmp_path / "again")
    assert theirs[path].shape == (18, 6)
    same({**ours, path: ours[path][2:]}, theirs)
