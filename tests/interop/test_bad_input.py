"""What cannot be converted is refused, with the reason, and nothing is left behind."""

import errno
import json
import os
import pathlib
import re
import shutil
import struct

import numpy as np
import orbax.checkpoint as ocp
import pytest
import safetensors
from etils import epath
from safetensors.numpy import load_file, save_file

from ag_jax import cli
from ag_jax.analysis import maps
from ag_jax.attention.disentangled import DisentangledConfig
from ag_jax.attention.fixed import FixedConfig
from ag_jax.interop import catalogue, directories, exporting, importing, tensors
from ag_jax.interop.settings import Settings
from ag_jax.models.config import EncoderConfig
from ag_jax.pretraining import run
from tests.interop.test_goldens import GOLDENS, with_tensors
from tests.interop.test_verb import request

QUERY = "bert.encoder.layer.1.attention.self.query.weight"


def settings(directory, **changed):
    file = directory / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changed))


@pytest.fixture
def directory(tmp_path):
    """A copy of a good directory, to be spoilt."""
    return with_tensors("bert", tmp_path / "hf", lambda tensors: tensors)


def refused(directory, tmp_path, *parts, error=ValueError, **options):
    """The message of a conversion that must fail and leave nothing."""
    before = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(error) as caught:
        importing.convert(str(directory), epath.Path(tmp_path / "run"), **options)
    assert sorted(path.name for path in tmp_path.iterdir()) == before, "something was left behind"
    for part in parts:
        assert part in str(caught.value), str(caught.value)
    return str(caught.value)


def test_missing_extra_and_misshapen_tensors_are_told_at_once(tmp_path):
    def spoil(tensors):
        kept = {name: value for name, value in tensors.items() if name != QUERY}
        bias = {"cls.predictions.bias": np.zeros(3, np.float32), "classifier.weight": np.zeros((2, 6), np.float32)}
        return kept | bias | {"qa_outputs.bias": np.zeros(2, np.float32)}

    message = refused(
        with_tensors("bert", tmp_path / "hf", spoil),
        tmp_path,
        f"missing: {QUERY} (6, 6), for encoder/layers/attention/query/kernel (6, 3, 2) of layer 1",
        "of another shape: cls.predictions.bias (39,), for word_head/bias (39,): found (3,)",
        "without a parameter here: classifier.weight (2, 6)",
        "without a parameter here: qa_outputs.bias (2,)",
        "--expect=classifier",
    )
    assert "1 missing, 1 of another shape, 2 without a parameter" in message


def test_heads_of_others_are_left_out_where_the_call_expects_them(tmp_path):
    head = {"classifier.weight": np.zeros((2, 6), np.float32), "classifier.bias": np.zeros(2, np.float32)}
    directory = with_tensors("bert", tmp_path / "hf", lambda tensors: tensors | head)
    refused(directory, tmp_path, "classifier.bias (2,)")
    found = importing.convert(str(directory), epath.Path(tmp_path / "run"), expected=["classifier"])
    assert found.left_out == ("classifier.bias", "classifier.weight")


def test_an_empty_name_does_not_leave_everything_out(tmp_path):
    """From a trailing comma: every name begins with it."""
    head = {"classifier.weight": np.zeros((2, 6), np.float32), "surprise": np.zeros(2, np.float32)}
    directory = with_tensors("bert", tmp_path / "hf", lambda tensors: tensors | head)
    refused(directory, tmp_path, "--expect has an empty name", expected=["classifier", ""])
    for opener in (importing.open_model, importing.open_finetuned):
        with pytest.raises(ValueError, match="remove the extra comma"):
            opener(str(directory), ["classifier", ""])


def test_copies_of_tied_tensors_must_be_equal(tmp_path):
    name = "cls.predictions.decoder.weight"
    words = "bert.embeddings.word_embeddings.weight"
    directory = with_tensors("bert", tmp_path / "hf", lambda tensors: tensors | {name: tensors[words] + 1})
    refused(directory, tmp_path, name, words, "differ")


def test_files_without_the_tensors_of_layers(tmp_path):
    def adapter(tensors):
        return {f"base_model.model.{QUERY.removesuffix('weight')}lora_A.weight": np.zeros((2, 6), np.float32)}

    said = "but the tensors bert.encoder.layer.{layer}.* are of 0 layers"
    refused(with_tensors("bert", tmp_path / "a", adapter), tmp_path, said)
    both = with_tensors("bert", tmp_path / "b", lambda tensors: tensors | adapter(tensors))
    refused(both, tmp_path, "without a parameter here: ", "lora_A.weight (2, 6)")
    other = with_tensors("bert", tmp_path / "d", lambda tensors: {f"x_{name}": tensors[name] for name in tensors})
    refused(other, tmp_path, said)


@pytest.mark.parametrize("lie", ["offsets", "shape", "length", "cut", "text"])
def test_a_header_that_lies(lie, directory, tmp_path):
    file = directory / "model.safetensors"
    content = file.read_bytes()
    size = struct.unpack("<Q", content[:8])[0]
    header, data = json.loads(content[8 : 8 + size]), content[8 + size :]
    if lie == "offsets":
        header[QUERY]["data_offsets"][1] += 10**9
    elif lie == "shape":
        header[QUERY]["shape"] = [6, 60]
    text = json.dumps(header).encode()
    spoilt = struct.pack("<Q", len(text)) + text + data
    if lie == "length":
        spoilt = struct.pack("<Q", 2**62) + text + data
    elif lie == "cut":
        spoilt = content[:-40]
    elif lie == "text":
        spoilt = struct.pack("<Q", len(text)) + b"x" * len(text) + data
    file.write_bytes(spoilt)
    refused(directory, tmp_path, str(file), "is not a whole safetensors file", "copy it anew")


def test_unknown_model_types_list_the_known(directory, tmp_path):
    for unknown in ("gpt2", ["bert"], None):
        settings(directory, model_type=unknown)
        refused(directory, tmp_path, str(directory / "config.json"), f"got {unknown!r}", *catalogue.KNOWN)


def test_every_unsupported_option_is_named_at_once(directory, tmp_path):
    asked = {
        "hidden_act": "swiglu",
        "position_embedding_type": "relative_key",
        "is_decoder": True,
        "add_cross_attention": True,
        "pruned_heads": {"0": [1]},
        "tie_word_embeddings": False,
        "num_hidden_layers": "two",
    }
    settings(directory, **asked)
    message = refused(directory, tmp_path, *asked)
    assert "hidden_act='swiglu' is not supported, only 'gelu'" in message


def test_every_unsupported_option_of_deberta(tmp_path):
    directory = with_tensors("deberta_v2", tmp_path / "hf", lambda tensors: tensors)
    asked = {
        "embedding_size": 4,
        "talking_head": True,
        "pooler_dropout": 0.1,
        "pos_att_type": "c2p|p2p",
        "attention_head_size": 5,
        "conv_groups": 2,
        "conv_act": "relu",
        "norm_rel_ebd": "batch_norm",
    }
    settings(directory, **asked)
    assert "p2p is not supported" in refused(directory, tmp_path, *asked)
    settings(directory, pos_att_type=2)
    refused(directory, tmp_path, "pos_att_type must be a text or a list, got 2")


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        (
            "num_hidden_layers",
            10**6,
            "num_hidden_layers=1000000, but the tensors bert.encoder.layer.{layer}.* are of 2 layers",
        ),
        (
            "max_position_embeddings",
            10**6,
            "max_position_embeddings=1000000, but bert.embeddings.position_embeddings.weight is (20, 6)",
        ),
        ("max_position_embeddings", 10**12, "max_position_embeddings must be a number of at most"),
        ("vocab_size", 10**6, "vocab_size=1000000, but bert.embeddings.word_embeddings.weight is (39, 6)"),
        (
            "type_vocab_size",
            10**6,
            "config.json and model.safetensors are of different models:\n  type_vocab_size=1000000, but",
        ),
        ("hidden_size", 3 * 10**8, "hidden_size=300000000, but bert.encoder.layer.0.output.dense.weight is (6, 11)"),
        ("intermediate_size", 10**9, "intermediate_size=1000000000, but"),
        (
            "num_attention_heads",
            10**400,
            "num_attention_heads must be a number of at most 2147483647, got 1000",
        ),
        ("layer_norm_eps", 10**400, "layer_norm_eps must be a number of at most"),
        ("hidden_dropout_prob", float("nan"), "hidden_dropout_prob must be a number of at most 2147483647, got nan"),
        ("hidden_dropout_prob", 1.5, "model.dropout must be at least 0 and below 1, got 1.5"),
    ],
)
def test_sizes_that_are_not_those_of_the_tensors(key, value, said, directory, tmp_path, monkeypatch):
    """They are refused before a model of that size is made, even in outline."""
    settings(directory, **{key: value})
    monkeypatch.setattr(importing.jax, "eval_shape", lambda *_: pytest.fail("a model was made"))
    refused(directory, tmp_path, str(directory / "config.json"), said)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (
            {"conv_kernel_size": 2**31 - 1},
            "conv_kernel_size=2147483647, but deberta.encoder.conv.conv.weight is (6, 6, 3)",
        ),
        ({"max_relative_positions": 2**31 - 1}, "model.relative.span must be at least 1 and at most 1048576"),
        ({"ag_jax": {"decoder_passes": "two"}}, "ag_jax: decoder_passes must be of type int, got 'two'"),
    ],
)
def test_sizes_of_deberta(changed, said, tmp_path):
    directory = with_tensors("deberta_v2", tmp_path / "hf", lambda tensors: tensors)
    settings(directory, **changed)
    refused(directory, tmp_path, str(directory / "config.json"), said)
    without = {name: leaf for name, leaf in load_file(directory / "model.safetensors").items() if ".conv." not in name}
    save_file(without, directory / "model.safetensors")
    settings(directory, conv_kernel_size=2**31 - 1, max_relative_positions=-1, ag_jax={})
    refused(directory, tmp_path, "conv_kernel_size=2147483647, but there is no deberta.encoder.conv.conv.weight")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite(value, workdir, tmp_path, monkeypatch):
    """Named by their tensor, on the way in and on the way out."""

    def spoil(tensors):
        tensors[QUERY][3, 4] = value
        return tensors

    directory = with_tensors("bert", tmp_path / "hf", spoil)
    refused(directory, tmp_path, f"{QUERY} in {directory / 'model.safetensors'} holds values that are not finite")
    opened = run.open_run(workdir)
    opened.params["encoder"]["layers"]["attention"]["query"]["kernel"] *= np.float32(value)
    monkeypatch.setattr(run, "open_run", lambda *_: opened)
    with pytest.raises(
        ValueError, match=r"bert.encoder.layer.0.attention.self.query.weight .* holds values that are not finite"
    ):
        exporting.convert(workdir, None, str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


DEEP = "[" * 3000 + "]" * 3000


@pytest.mark.parametrize(
    "name",
    ["config.json", "model.safetensors.index.json", "tokenizer_config.json", "added_tokens.json", "tokenizer.json"],
)
def test_json_that_is_nested_too_deeply(name, directory, tmp_path):
    if name.startswith("model"):
        (directory / "model.safetensors").unlink()
    (directory / name).write_text(DEEP)
    refused(directory, tmp_path, str(directory / name))


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("tokenizer_config.json", {"do_lower_case": 5}, "do_lower_case must be of type bool, got 5"),
        ("tokenizer_config.json", {"strip_accents": "no"}, "strip_accents must be of type bool, got 'no'"),
        ("tokenizer_config.json", {"tokenizer_class": ["BertTokenizer"]}, "tokenizer_class must be of type str"),
        ("tokenizer_config.json", [], "expected a JSON object, got list"),
        ("added_tokens.json", {"x": 39, "y": "z"}, "'z'"),
        ("added_tokens.json", {"x": [39]}, "not 'list'"),
        ("added_tokens.json", {"\u200b": 39}, "removes every character of"),
        ("added_tokens.json", {"\ud800": 39}, "half of a surrogate pair"),
    ],
)
def test_wrong_types_beside_a_vocabulary(name, content, said, directory, tmp_path):
    (directory / name).write_text(json.dumps(content))
    refused(directory, tmp_path, str(directory / name), said)


@pytest.mark.parametrize("family", ["camembert", "deberta_v3"])
@pytest.mark.parametrize("content", [b"", b"not a model", b"\x0a\x07\x0a\x01a\x15\x00\x00\x00\x00"])
def test_a_sentencepiece_model_that_is_none(content, family, tmp_path):
    directory = with_tensors(family, tmp_path / "hf", lambda tensors: tensors)
    for name in ("tokenizer.json", "vocab.txt"):
        (directory / name).unlink(missing_ok=True)
    (directory / "spiece.model").write_bytes(content)
    refused(directory, tmp_path, str(directory / "spiece.model"), "could not be read as a tokenizer")


def test_a_tokenizer_with_more_words_than_the_embedding(directory, tmp_path):
    with (directory / "vocab.txt").open("a") as file:
        file.write("another\nand\n")
    refused(directory, tmp_path, "41 tokens", "39 rows")


def test_a_tokenizer_whose_padding_is_elsewhere(tmp_path):
    directory = with_tensors("roberta", tmp_path / "hf", lambda tensors: tensors)
    settings(directory, pad_token_id=2)
    refused(directory, tmp_path, "pad_token_id + 1 = 3", "padding is 1")


@pytest.mark.parametrize(("key", "id"), [("pad_token_id", 0), ("cls_token_id", 2), ("sep_token_id", 3)])
def test_special_tokens_whose_ids_are_others(key, id, directory, tmp_path):
    settings(directory, **{key: 5})
    refused(directory, tmp_path, f"config.json has {key}=5, but the tokenizer's id is {id}")
    settings(directory, **{key: None}, bos_token_id=9)
    importing.open_model(str(directory))


def test_a_padding_id_that_was_not_given(directory, tmp_path):
    """transformers writes 0 then, whatever the vocabulary has there."""
    first, second, *others = (directory / "vocab.txt").read_text().splitlines()
    (directory / "vocab.txt").write_text("\n".join([second, first, *others]) + "\n")
    settings(directory, pad_token_id=0)
    assert importing.open_model(str(directory)).tokenizer.specials.pad == 1
    settings(directory, pad_token_id=5)
    refused(directory, tmp_path, "config.json has pad_token_id=5, but the tokenizer's id is 1")


@pytest.mark.parametrize(
    ("settings_beside", "said"),
    [
        (
            {"tokenizer_class": "BertJapaneseTokenizer"},
            "tokenizer_class=BertJapaneseTokenizer is not one of BertTokenizer",
        ),
        ({"tokenizer_class": "BertTokenizerFast", "do_basic_tokenize": False}, "do_basic_tokenize=False"),
        ({"word_tokenizer_type": "mecab"}, "word_tokenizer_type='mecab' is not supported, only 'basic'"),
        ({"subword_tokenizer_type": "character"}, "subword_tokenizer_type='character'"),
        ({"never_split": ["union"]}, "never_split=['union']"),
        ({"clean_text": False}, "clean_text=False"),
        ({"wordpieces_prefix": "@@"}, "wordpieces_prefix='@@'"),
    ],
)
def test_a_tokenizer_that_cuts_in_another_way(settings_beside, said, directory, tmp_path):
    (directory / "tokenizer_config.json").write_text(json.dumps(settings_beside))
    refused(directory, tmp_path, said, "tokenizer.json")


def test_the_tokenizer_class_of_a_models_config(directory, tmp_path):
    """It counts where tokenizer_config.json names none."""
    settings(directory, tokenizer_class="BertJapaneseTokenizer")
    refused(directory, tmp_path, "config.json: tokenizer_class=BertJapaneseTokenizer is not one of BertTokenizer")
    neutral = {"tokenizer_class": "BertTokenizer", "word_tokenizer_type": "basic", "never_split": None}
    (directory / "tokenizer_config.json").write_text(json.dumps(neutral))
    assert importing.convert(str(directory), epath.Path(tmp_path / "run")).family == "bert"


def test_added_tokens_of_another_vocabulary(directory, tmp_path):
    (directory / "added_tokens.json").write_text(json.dumps({"unionized": 41}))
    refused(directory, tmp_path, "gives 'unionized' the id 41, but", "gets the id 39")


def test_no_tokenizer(directory, tmp_path):
    (directory / "vocab.txt").unlink()
    refused(directory, tmp_path, "no tokenizer")


def test_pickles_are_refused_with_the_way_out(directory, tmp_path):
    (directory / "model.safetensors").rename(directory / "pytorch_model.bin")
    refused(directory, tmp_path, "is a pickle", "weights_only=True")


def test_no_weights_and_no_config(directory, tmp_path):
    (directory / "model.safetensors").unlink()
    refused(directory, tmp_path, "no weights", error=FileNotFoundError)
    (directory / "config.json").unlink()
    refused(directory, tmp_path, str(directory / "config.json"), error=FileNotFoundError)


def test_an_index_that_names_other_files(directory, tmp_path):
    (directory / "model.safetensors").rename(directory / "model-1.safetensors")
    index = directory / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {QUERY: "model-2.safetensors"}}))
    refused(directory, tmp_path, "model-2.safetensors", error=FileNotFoundError)
    for wrong in ({"weight_map": {QUERY: "../hf/model-1.safetensors"}}, {"weight_map": [QUERY]}, {}):
        index.write_text(json.dumps(wrong))
        refused(directory, tmp_path, str(index))


def test_quantised_tensors(tmp_path):
    directory = with_tensors("bert", tmp_path / "hf", lambda tensors: tensors | {QUERY: tensors[QUERY].astype(np.int8)})
    refused(directory, tmp_path, QUERY, "I8")


def test_targets_that_are_taken(directory, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine.txt").write_text("mine")
    refused(directory, tmp_path, "not empty")
    assert (tmp_path / "run" / "mine.txt").read_text() == "mine"


def test_a_file_without_tensors(tmp_path):
    tensors.write({}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="model.safetensors holds no tensors"):
        tensors.open_directory(tmp_path)


def test_a_hub_that_does_not_answer(tmp_path, monkeypatch):
    import huggingface_hub

    def fail(name, **options):
        raise ConnectionError("no network here")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    refused("someone/model", tmp_path, "someone/model is no directory here", "no network here")
    refused(tmp_path / "nowhere", tmp_path, "nowhere is no directory")


def test_a_hub_that_does(directory, tmp_path, monkeypatch):
    import huggingface_hub

    asked = []

    def download(name, *, revision, allow_patterns):
        asked.append((name, revision))
        return str(directory)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert directories.find("someone/model") == directories.find("someone/model@v1") == directory
    assert directories.find("someone/model@refs/pr/3") == directory
    assert asked == [("someone/model", None), ("someone/model", "v1"), ("someone/model", "refs/pr/3")]
    refused("someone/model@", tmp_path, "someone/model@ is no directory")
    origin = importing.origin_of(importing.open_model("someone/model@v1"), "someone/model@v1")
    assert (origin.name, origin.commit, origin.base_model) == ("someone/model", directory.name, "someone/model")
    (directory / "model.safetensors").unlink()
    monkeypatch.setattr(huggingface_hub, "file_exists", lambda name, file, revision: file == "pytorch_model.bin")
    refused("someone/model", tmp_path, "someone/model has its weights only as a pickle", "hf download someone/model ")
    refused("someone/model@v1", tmp_path, "hf download someone/model --revision=v1 --local-dir=DIR")
    monkeypatch.setattr(huggingface_hub, "file_exists", lambda name, file, revision: False)
    refused("someone/model", tmp_path, "no weights", error=FileNotFoundError)


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    target = tmp_path_factory.mktemp("good") / "run"
    importing.convert(str(GOLDENS / "bert"), epath.Path(target))
    return epath.Path(target)


def test_exports_that_cannot_be(workdir, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="--dtype must be one of float32, bfloat16, float16"):
        exporting.convert(workdir, None, str(tmp_path / "out"), "int8")
    with pytest.raises(ValueError, match="no checkpoint of step 7"):
        exporting.convert(workdir, 7, str(tmp_path / "out"))
    with pytest.raises(ValueError, match="no generator"):
        exporting.convert(workdir, None, str(tmp_path / "out"), part="generator")
    opened = run.open_run(workdir)
    opened.params["word_head"]["bias"] = opened.params["word_head"]["bias"] + 1e5
    with (
        monkeypatch.context() as patch,
        pytest.raises(ValueError, match=r"cls.predictions.bias reaches 1e\+05, which float16"),
    ):
        patch.setattr(run, "open_run", lambda *_: opened)
        exporting.convert(workdir, None, str(tmp_path / "out"), "float16")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "x").touch()
    with pytest.raises(ValueError, match="not empty"):
        exporting.convert(workdir, None, str(tmp_path / "out"))


@pytest.mark.parametrize(("schedule", "said"), [("constant", ["at step 5 3 times the pattern"]), ("linear", [])])
def test_a_run_that_biased_its_attention_warns_when_opened(schedule, said, workdir, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(run, "check_settings", lambda *_: None)  # as if it had been trained with these
    changed = tmp_path / "run"
    shutil.copytree(workdir, changed)
    config = json.loads((changed / "config.json").read_text())
    config["training"]["steps"] = 5
    config["guidance"] |= {"mode": "bias", "alpha": 3.0, "schedule": schedule}
    (changed / "config.json").write_text(json.dumps(config))
    (changed / "checkpoints" / "0").rename(changed / "checkpoints" / "5")
    run.open_run(changed)
    warned = [record.message for record in caplog.records if "mode=bias" in record.message]
    assert len(warned) == len(said) and all(text in message for text, message in zip(said, warned, strict=True))


@pytest.mark.parametrize("file", ["model.safetensors", "config.json", "tokenizer.json", "README.md"])
def test_an_export_to_a_full_disk_is_one_line_and_leaves_nothing(file, workdir, tmp_path, capsys, full_disk):
    full_disk(file)
    flags = request(workdir=str(workdir), target=str(tmp_path / "out"))
    assert cli.run_safely("export", flags) == 1
    said = capsys.readouterr().err
    assert said.startswith("ag-jax export: ") and "No space left on device" in said and said.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("file", ["config.json", "tokenizer.json", "checkpoints", "origin.json"])
def test_an_import_to_a_full_disk_is_a_message_and_leaves_nothing(file, tmp_path, capsys, full_disk):
    full_disk(file)
    flags = request(source=str(GOLDENS / "bert"), workdir=str(tmp_path / "run"))
    assert cli.run_safely("import", flags) == 1
    said = capsys.readouterr().err
    assert said.startswith("ag-jax import: ") and "No space left on device" in said
    assert not list(tmp_path.iterdir())


@pytest.fixture
def full_disk(monkeypatch):
    """Has the writing of one file fail in the way of the library that writes it."""

    def fill(file):
        def no_space(*_, **__):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), file)

        def unless(real):
            def write(path, *arguments, **options):
                return (no_space if re.sub(r"\.partial(-[0-9a-f]+)?$", "", str(path)).endswith(file) else real)(
                    path, *arguments, **options
                )

            return write

        if file == "model.safetensors":  # its library raises no OSError
            message = "Error while serializing: I/O error: No space left on device (os error 28)"
            monkeypatch.setattr(tensors, "save_file", lambda *_, **__: _raise(safetensors.SafetensorError(message)))
        elif file == "checkpoints":  # nor does that of checkpoints
            error = ValueError('RESOURCE_EXHAUSTED: Error writing "x": No space left on device')
            monkeypatch.setattr(ocp.CheckpointManager, "save", lambda *_, **__: _raise(error))
        else:
            for kind in (pathlib.Path, type(epath.Path("/"))):
                for method in ("write_text", "write_bytes"):
                    monkeypatch.setattr(kind, method, unless(getattr(kind, method)))

    return fill


def _raise(error):
    raise error


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        (
            {"relative": {"terms": "c2p,p2c", "index": "paper"}, "absolute_positions": "none"},
            "model.relative.index=paper",
        ),
        ({"token_types": 0, "relative": {"terms": "c2p"}, "embedding_width": 5}, "model.embedding_width"),
        ({"positions": "sinusoidal"}, "model.positions=sinusoidal"),
        ({"activation": "relu"}, "model.activation=relu"),
        ({"norm_position": "pre"}, "model.norm_position=pre"),
        ({"embedding_norm": False}, "model.embedding_norm=False"),
        ({"embedding_scale": True}, "model.embedding_scale"),
        ({"attention_biases": False}, "model.attention_biases=False"),
        ({"feedforward_biases": False}, "model.feedforward_biases=False"),
        ({"fixed_attention": FixedConfig((-1, 1))}, "model.fixed_attention.offsets"),
    ],
)
def test_models_that_no_family_computes(changed, reason):
    relative = DisentangledConfig(**changed.get("relative", {}))
    config = EncoderConfig(vocabulary_size=9, **changed | {"relative": relative})
    with pytest.raises(ValueError, match="no family of transformers computes") as caught:
        catalogue.fitting(config, ["word_head"], 1)
    assert reason in str(caught.value) and "deberta-v2" in str(caught.value)


def test_the_family_of_a_run():
    config = EncoderConfig(vocabulary_size=9)

    def of(heads, pad, wish=""):
        return catalogue.fitting(config, heads, pad, wish).model_type

    assert of(["word_head"], 1) == "roberta"
    assert of(["word_head"], 1, "camembert") == "camembert"
    assert of([], 1, "marian") == "roberta"  # the encoder of a translation model
    with pytest.raises(ValueError, match="expected a model_type among .*, got 'gpt2'"):
        of(["word_head"], 1, "gpt2")
    assert of(["word_head"], 0) == "bert"  # positions from 2 on, but padding 0
    assert of(["word_head", "next_head"], 1) == "bert"
    assert of(["discriminator_head"], 1) == "electra"
    assert of(["word_head", "next_head"], 1, "roberta") == "bert"
    config = EncoderConfig(vocabulary_size=9, token_types=2)
    assert of(["word_head"], 1) == "bert"  # the tokenizers of RoBERTa give no token types
    assert of(["word_head"], 1, "roberta") == "roberta"
    config = EncoderConfig(vocabulary_size=9, convolution=3)
    assert of(["word_head"], 1) == "deberta-v2"


def test_evaluate_and_inspect_open_an_imported_run(workdir, tmp_path, one_device, monkeypatch):
    opened = run.open_run(workdir)
    assert (opened.step, opened.steps) == (0, (0,))
    attention = maps.attention_maps(opened.model, opened.params, opened.tokenizer, "we will rebuild", 12)
    assert np.allclose(np.asarray(attention.weights_NHQK).sum(-1), 1, atol=1e-5)
    (tmp_path / "text").mkdir()
    for number in range(9):
        (tmp_path / "text" / f"{number}.txt").write_text("the state of our union is strong. we will do it. " * 4)
    config = json.loads((workdir / "config.json").read_text())
    config["data"]["source"] = str(tmp_path / "text" / "*.txt")
    config["data"]["tokenizer"]["path"] = "/moved/away"
    (workdir / "config.json").write_text(json.dumps(config))
    said = run.evaluate(workdir)
    assert said["step"] == 0 and 0 < said["mlm_loss"] < 20


@pytest.mark.parametrize(
    ("golden", "changed", "setting"),
    [
        ("electra", {"embedding_size": 6}, "embedding_width"),
        ("deberta_v2", {"conv_kernel_size": 0}, "convolution"),
        ("deberta_v2", {"position_buckets": -1}, "relative.buckets"),
    ],
)
def test_what_means_none_in_a_config_of_transformers(golden, changed, setting):
    values = json.loads((GOLDENS / golden / "config.json").read_text()) | changed
    fields = catalogue.named(values["model_type"]).read(Settings(values), ())
    section, _, name = setting.rpartition(".")
    assert (fields[section] if section else fields)[name] is None
