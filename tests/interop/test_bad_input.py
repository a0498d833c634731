"""What cannot be converted is refused by name, and nothing is left behind."""

import dataclasses
import json
import shutil
import struct
from unittest import mock

import numpy as np
import orbax.checkpoint as ocp
import pytest
import safetensors
from etils import epath
from safetensors.numpy import load_file, save_file

from ag_jax.analysis import maps
from ag_jax.attention.config import DisentangledConfig, FixedConfig
from ag_jax.command_line import cli
from ag_jax.interop import catalogue, directories, exporting, importing, tensors
from ag_jax.interop.settings import Settings
from ag_jax.models.config import EncoderConfig
from ag_jax.pretraining import run
from ag_jax.pretraining.open_run import open_run
from tests import tiny
from tests.interop.copies import GOLDENS, change, refused, with_tensors
from tests.verbs import verb_of

QUERY = "bert.encoder.layer.1.attention.self.query.weight"
WORDS, OUTPUT = "bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"
CONVOLUTION = "deberta.encoder.conv.conv.weight"


def spoil(directory, changes):
    """Set keys of a JSON file (a dict), write a file (text or bytes), set a tensor (an array) or remove one (None)."""
    for name, value in changes.items():
        file = directory / name
        if callable(value):
            value(file)
        elif isinstance(value, dict):
            change(directory, name, **value)
        elif isinstance(value, str | bytes):
            file.write_bytes(value if isinstance(value, bytes) else value.encode())
        elif value is None and file.exists():
            file.unlink()
        else:
            found = load_file(directory / "model.safetensors") | {name: value}
            kept = {name: value for name, value in found.items() if value is not None}
            save_file(kept, directory / "model.safetensors")


def renamed(file):
    save_file({f"x_{name}": value for name, value in load_file(file).items()}, file)


def lying(file):
    """The header gives a tensor another shape."""
    content = file.read_bytes()
    size = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8 : 8 + size])
    header[QUERY]["shape"] = [6, 60]
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + content[8 + size :])


NOT_ENCODERS = {
    "hidden_act": "swiglu",
    "position_embedding_type": "relative_key",
    "is_decoder": True,
    "is_encoder_decoder": True,
    "add_cross_attention": True,
    "pruned_heads": {"0": [1]},
    "tie_word_embeddings": False,
    "quantization_config": {"bits": 8},
    "num_hidden_layers": "two",
}
NOT_DEBERTAS = {
    "embedding_size": 4,
    "talking_head": True,
    "pooler_dropout": 0.1,
    "pos_att_type": "c2p|p2p",
    "attention_head_size": 5,
    "conv_groups": 2,
    "conv_act": "relu",
    "norm_rel_ebd": "batch_norm",
}
OTHER_SIZES = {
    "num_hidden_layers": 3,
    "max_position_embeddings": 21,
    "vocab_size": 40,
    "type_vocab_size": 4,
    "hidden_size": 9,
    "intermediate_size": 12,
}
NO_NUMBERS = {
    "max_position_embeddings": 10**12,
    "num_attention_heads": 10**400,
    "layer_norm_eps": 10**400,
    "hidden_dropout_prob": float("nan"),
}
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
CONFIG, BESIDE, ADDED = "config.json", "tokenizer_config.json", "added_tokens.json"
NO_VOCABULARY = dict.fromkeys(("vocab.txt", "tokenizer.json"))
NO_MODEL = {"camembert": b"\x0a\x07\x0a\x01a\x15\x00\x00\x00\x00", "deberta_v3": b"not a model"}
CUTS_OTHERWISE = {
    "tokenizer_class": "BertJapaneseTokenizer",
    "do_basic_tokenize": False,
    "word_tokenizer_type": "mecab",
    "subword_tokenizer_type": "character",
    "never_split": ["union"],
    "clean_text": False,
    "wordpieces_prefix": "@@",
}

# (golden, changes of it, words of the message)
REFUSED = [
    (
        "bert",
        {QUERY: None, "cls.predictions.bias": np.zeros(3, "f"), "classifier.weight": np.zeros((2, 6), "f")},
        [f"{QUERY} (6, 6)", "(6, 3, 2) of layer 1", "cls.predictions.bias (39,)", "(3,)", "classifier.weight (2, 6)"],
    ),
    ("bert", {OUTPUT: np.zeros((39, 6), "f")}, [OUTPUT, WORDS]),
    ("bert", {WEIGHTS: renamed}, ["0 layers"]),
    ("bert", {WEIGHTS: lying}, [WEIGHTS]),
    ("bert", {WEIGHTS: lambda file: file.write_bytes(file.read_bytes()[:-40])}, [WEIGHTS]),
    ("bert", {QUERY: np.diag([1, 1, 1, np.nan, 1, 1]).astype("f")}, [QUERY, WEIGHTS]),
    ("bert", {QUERY: np.zeros((6, 6), np.int8)}, [QUERY, "I8"]),
    ("bert", {CONFIG: {"model_type": "gpt2"}}, ["'gpt2'", *catalogue.KNOWN]),
    ("bert", {CONFIG: {"model_type": ["bert"]}}, ["['bert']"]),
    ("bert", {CONFIG: NOT_ENCODERS}, NOT_ENCODERS),
    ("deberta_v2", {CONFIG: NOT_DEBERTAS}, NOT_DEBERTAS),
    *(("deberta_v2", {CONFIG: {"conv_kernel_size": size}}, [f"conv_kernel_size={size}"]) for size in (4, 5)),
    ("deberta_v3", {CONFIG: {"conv_kernel_size": 3}}, ["conv_kernel_size=3", CONVOLUTION]),
    ("deberta_v2", {CONFIG: {"ag_jax": {"decoder_passes": "two"}}}, ["ag_jax: decoder_passes"]),
    ("deberta_v2", {CONFIG: {"position_biased_input": False, "relative_attention": False}}, ["position_biased_input"]),
    ("bert", {CONFIG: OTHER_SIZES}, [f"{key}={value}," for key, value in OTHER_SIZES.items()]),
    ("bert", {CONFIG: NO_NUMBERS}, NO_NUMBERS),
    ("bert", {CONFIG: {"hidden_dropout_prob": 1.5}}, ["dropout", "1.5"]),
    ("bert", {CONFIG: {"classifier_dropout": 1.0}}, ["classifier_dropout"]),
    ("roberta", {CONFIG: {"max_position_embeddings": 2}}, ["max_position_embeddings=2"]),
    # Tokenizers.
    ("bert", {"vocab.txt": None}, ["no tokenizer"]),
    ("bert", {"tokenizer.json": "[" * 3000 + "]" * 3000}, ["tokenizer.json"]),
    ("bert", {BESIDE: {"do_lower_case": 5}}, [BESIDE, "do_lower_case"]),
    ("bert", {"vocab.txt": lambda file: file.write_text(file.read_text().upper())}, ["vocab.txt", '"do_lower_case"']),
    ("bert", {ADDED: {"x": 39, "y": "z"}}, [ADDED, "'z'"]),
    ("bert", {ADDED: {"\u200b": 39}}, ["vocab.txt"]),
    ("bert", {ADDED: {"unionized": 41}}, ["'unionized'", "41", "39"]),
    ("bert", {"vocab.txt": lambda file: file.write_text(f"{file.read_text()}another\nand\n")}, ["41", "39 rows"]),
    ("roberta", {CONFIG: {"pad_token_id": 2}}, ["pad_token_id + 1 = 3", "is 1"]),
    *(
        ("bert", {CONFIG: {f"{token}_token_id": 5}}, [f"{token}_token_id=5", f"is {id}"])
        for token, id in (("pad", 0), ("cls", 2), ("sep", 3))
    ),
    *(("bert", {BESIDE: {key: value}}, [key, BESIDE]) for key, value in CUTS_OTHERWISE.items()),
    ("bert", {CONFIG: {"tokenizer_class": "BertJapaneseTokenizer"}}, [CONFIG, "BertJapaneseTokenizer"]),
    *((family, NO_VOCABULARY | {"spiece.model": model}, ["spiece.model"]) for family, model in NO_MODEL.items()),
    # Files of weights.
    ("bert", {WEIGHTS: lambda file: file.rename(file.with_name("pytorch_model.bin"))}, ["'map_location': 'cpu'"]),
    *(
        ("bert", {WEIGHTS: lambda file: file.rename(file.with_name("model-1.safetensors")), INDEX: index}, [INDEX])
        for index in ({"weight_map": {QUERY: "../hf/model-1.safetensors"}}, {"weight_map": [QUERY]}, {})
    ),
]
MISSING = [
    ("bert", {WEIGHTS: None}, ["no weights"]),
    ("bert", {CONFIG: None}, [CONFIG]),
    ("bert", {WEIGHTS: None, INDEX: {"weight_map": {QUERY: "a.safetensors"}}}, ["a.safetensors"]),
]


@pytest.mark.parametrize(("golden", "changes", "parts"), REFUSED + MISSING)
def test_what_does_not_fit_is_named(golden, changes, parts, tmp_path):
    directory = with_tensors(golden, tmp_path / "hf")
    spoil(directory, changes)
    is_missing = (golden, changes, parts) in MISSING
    refused(directory, tmp_path, *parts, error=FileNotFoundError if is_missing else ValueError)


def test_tensors_of_others_are_left_out_where_the_call_expects_them(tmp_path):
    """But an empty name, from a trailing comma, is that with which every name begins."""
    head = {"classifier.weight": np.zeros((2, 6), np.float32), "classifier.bias": np.zeros(2, np.float32)}
    directory = with_tensors("bert", tmp_path / "hf", lambda tensors: tensors | head)
    refused(directory, tmp_path, "classifier.bias (2,)", "--expect")
    refused(directory, tmp_path, "--expect", expected=["classifier", ""])
    for opener in (importing.open_model, importing.open_finetuned):
        with pytest.raises(ValueError, match="--expect"):
            opener(str(directory), ["classifier", ""])
    found = importing.open_model(str(directory), ["classifier"])
    assert found.left_out == ("classifier.bias", "classifier.weight")


def test_special_tokens_that_the_config_need_not_name(tmp_path):
    """transformers writes the padding id 0 if none was given, whatever the vocabulary has there."""
    directory = with_tensors("bert", tmp_path / "hf", pad_token_id=0, cls_token_id=None, bos_token_id=9)
    first, second, *others = (directory / "vocab.txt").read_text().splitlines()
    (directory / "vocab.txt").write_text("\n".join([second, first, *others]) + "\n")
    neutral = {"tokenizer_class": "BertTokenizer", "word_tokenizer_type": "basic", "never_split": None}
    change(directory, BESIDE, **neutral)
    assert importing.open_model(str(directory)).tokenizer.specials.pad == 1
    change(directory, pad_token_id=5)
    refused(directory, tmp_path, "pad_token_id=5", "is 1")


def test_targets_that_are_taken_and_files_without_tensors(tmp_path):
    directory = with_tensors("bert", tmp_path / "hf")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine.txt").write_text("mine")
    refused(directory, tmp_path, str(tmp_path / "run"))
    assert (tmp_path / "run" / "mine.txt").read_text() == "mine"
    tensors.write({}, directory / "model.safetensors")
    with pytest.raises(ValueError, match=r"model\.safetensors"):
        tensors.open_directory(directory)


def test_models_of_the_hub(tmp_path, monkeypatch):
    import huggingface_hub

    directory, asked = with_tensors("bert", tmp_path / "hf"), []
    monkeypatch.setattr(huggingface_hub, "snapshot_download", mock.Mock(side_effect=ConnectionError("no network here")))
    refused("someone/model", tmp_path, "someone/model", "no network here")
    refused(tmp_path / "nowhere", tmp_path, "nowhere")

    def download(name, *, revision, allow_patterns):
        asked.append((name, revision))
        return str(directory)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert directories.find("someone/model") == directories.find("someone/model@refs/pr/3") == directory
    assert asked == [("someone/model", None), ("someone/model", "refs/pr/3")]
    refused("someone/model@", tmp_path, "someone/model@")
    origin = importing.origin_of(importing.open_model("someone/model@v1"), "someone/model@v1")
    assert (origin.name, origin.commit, origin.base_model) == ("someone/model", directory.name, "someone/model")
    (directory / "model.safetensors").unlink()
    monkeypatch.setattr(huggingface_hub, "file_exists", lambda name, file, revision: file == "pytorch_model.bin")
    refused("someone/model@v1", tmp_path, "pickle", "hf download someone/model --revision=v1 --local-dir=DIR")
    monkeypatch.setattr(huggingface_hub, "file_exists", lambda name, file, revision: False)
    refused("someone/model", tmp_path, "no weights", error=FileNotFoundError)


@pytest.mark.parametrize(
    ("options", "added", "parts"),
    [
        ({"dtype": "int8"}, 0, ["--dtype", "int8"]),
        ({"step": 7}, 0, ["step 7"]),
        ({"encoder": "generator"}, 0, ["--encoder"]),
        ({"dtype": "float16"}, 1e5, ["cls.predictions.bias", "1e+05"]),
        ({}, np.inf, ["cls.predictions.bias", "word_head/bias"]),
    ],
)
def test_exports_that_cannot_be(options, added, parts, run_of, tmp_path, monkeypatch):
    if added:
        opened = open_run(run_of("bert_pairs"))
        opened.params["word_head"]["bias"] = opened.params["word_head"]["bias"] + np.float32(added)
        monkeypatch.setattr(exporting, "open_run", lambda *_: opened)
    with pytest.raises(ValueError) as caught:
        exporting.convert(run_of("bert_pairs"), path=str(tmp_path / "out"), **{"step": None} | options)
    assert all(part in str(caught.value) for part in parts) and not list(tmp_path.iterdir())


@pytest.mark.parametrize("verb", ["export", "import"])
def test_a_full_disk_leaves_nothing(verb, run_of, tmp_path, capsys, monkeypatch):
    """The libraries of tensors and of checkpoints raise no OSError."""

    def full(*_, **__):
        raise safetensors.SafetensorError("I/O error: No space left on device (os error 28)")

    def exhausted(*_, **__):
        raise ValueError('RESOURCE_EXHAUSTED: Error writing "x": No space left on device')

    places = {"destination": str(tmp_path / "out"), "workdir": str(run_of("bert_pairs"))}
    places = places if verb == "export" else {"source": str(GOLDENS / "bert_pairs"), "workdir": str(tmp_path / "run")}
    monkeypatch.setattr(tensors, "save_file", full)
    monkeypatch.setattr(ocp.CheckpointManager, "save", exhausted)
    assert cli.run_safely(verb_of(verb, **places)) == 1
    assert "No space left on device" in capsys.readouterr().err and not list(tmp_path.iterdir())


# Families: a model of this config fits, and each change of it is a reason against the family.
PLAIN = EncoderConfig(vocabulary_size=9)
FITTING = {
    "roberta": PLAIN,
    "bert": PLAIN,
    "electra": dataclasses.replace(PLAIN, embedding_width=5),
    "deberta": tiny.config(**tiny.DEBERTA_V1),
    "deberta-v2": tiny.config(**tiny.DEBERTA_V3),
}
OF_ALL = [
    {"positions": "sinusoidal"},
    {"activation": "relu"},
    {"norm_position": "pre"},
    {"norm_biases": False},
    {"gated": True},
    {"query_key_norm": True},
    {"window": 4, "global_every": None},
    {"embedding_norm": False},
    {"embedding_scale": True},
    {"attention_biases": False},
    {"feedforward_biases": False},
    {"fixed_attention": FixedConfig((-1, 1))},
]
WITHOUT_RELATIVE = [
    {"mask_decoder_passes": 2, "absolute_positions": "decoder"},
    {"convolution": 3},
    {"token_types": 0},
    {"relative": DisentangledConfig(terms="c2p")},
]
OF_DEBERTA = [{"embedding_width": 5}, {"relative.index": "paper"}]
MISFITS = [
    *(("bert", changed) for changed in [*OF_ALL, *WITHOUT_RELATIVE, {"embedding_width": 5}]),
    ("roberta", {"position_offset": 3}),
    ("electra", {"convolution": 3}),
    *(("deberta", changed) for changed in [*OF_DEBERTA, {"positions": "sinusoidal"}, {"convolution": 3}]),
    *(("deberta", {f"relative.{name}": True}) for name in ("key_bias", "shared", "normalized")),
    ("deberta", {"relative.buckets": 4}),
    *(("deberta-v2", changed) for changed in [*OF_DEBERTA, {"relative.key_bias": False}]),
]


@pytest.mark.parametrize(("family", "changed"), MISFITS)
def test_models_that_a_family_does_not_compute(family, changed):
    """The message names the setting that does not fit, and no other."""
    config, fields = FITTING[family], {}
    for path, value in changed.items():
        section, _, name = path.rpartition(".")
        inner = dataclasses.replace(getattr(config, section), **{name: value}) if section else value
        fields[section or name] = inner
    family = catalogue.named(family)
    assert not catalogue.misfits(family, config, [*family.heads], 1)
    reasons = catalogue.misfits(family, dataclasses.replace(config, **fields), [*family.heads], 1)
    named = [path for path in changed if path != "global_every"]
    assert len(reasons) == len(named) and all(f"model.{path}" in " ".join(reasons) for path in named)


def test_the_family_of_a_run():
    config = EncoderConfig(vocabulary_size=9)

    def of(heads, pad, wish=""):
        return catalogue.fitting(config, heads, pad, wish).model_type

    assert of(["word_head"], 1) == "roberta"
    assert of(["word_head"], 1, "camembert") == "camembert"
    assert of([], 1, "marian") == "roberta"  # the encoder of a translation model
    with pytest.raises(ValueError, match="gpt2"):
        of(["word_head"], 1, "gpt2")
    assert of(["word_head"], 0) == "bert"  # positions from 2 on, but padding 0
    assert of(["word_head", "next_head"], 1, "roberta") == "bert"
    assert of(["discriminator_head"], 1) == "electra"
    config = EncoderConfig(vocabulary_size=9, token_types=2)
    assert of(["word_head"], 1) == "bert"  # the tokenizers of RoBERTa give no token types
    assert of(["word_head"], 1, "roberta") == "roberta"
    config = EncoderConfig(vocabulary_size=9, convolution=3)
    assert of(["word_head"], 1) == "deberta-v2"
    config = EncoderConfig(vocabulary_size=9, positions="sinusoidal")
    with pytest.raises(ValueError, match=r"deberta-v2: .*model\.positions"):
        of(["word_head"], 1)


def test_evaluate_and_inspect_open_an_imported_run(run_of, text, tmp_path, one_device):
    workdir = epath.Path(shutil.copytree(run_of("bert_pairs"), tmp_path / "run"))
    opened = open_run(workdir)
    assert (opened.step, opened.steps) == (0, (0,))
    attention = maps.attention_maps(opened.model, opened.params, opened.tokenizer, "we will rebuild", 12)
    assert np.allclose(np.asarray(attention.weights_NHQK).sum(-1), 1, atol=1e-5)
    config = json.loads((workdir / "config.json").read_text())
    config["data"]["source"], config["data"]["tokenizer"]["path"] = text, "/moved/away"
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
