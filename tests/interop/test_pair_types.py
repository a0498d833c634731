"""The second text of a pair has the token type that the imported model's tokenizer gives it in transformers."""

import json

import numpy as np
import pytest
import tokenizers as huggingface
from etils import epath
from tokenizers import models, pre_tokenizers, processors

from ag_jax.data import vocabularies
from ag_jax.data.tasks.rows import RowSettings
from ag_jax.data.text import pipeline
from ag_jax.interop import exporting, finetuned, importing, names, opening
from ag_jax.interop.finetuned import FineTuned, Head
from ag_jax.pretraining import corpus
from tests.interop.test_goldens import with_tensors
from tests.interop.test_initial_weights import config, text  # noqa: F401 - a fixture
from tests.interop.test_origin import start

TYPES, NONE = ["input_ids", "token_type_ids", "attention_mask"], ["input_ids", "attention_mask"]
WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "<s>", "<pad>", "</s>", "<unk>", "<mask>", "a", "b")
BERT, ZEROS, BOTH = "[CLS] $A [SEP] $B:1 [SEP]:1", "[CLS] $A [SEP] $B [SEP]", "[CLS] $A [SEP] [SEP] $B:1 [SEP]:1"
# (model_type, tokenizer_class, model_input_names, template, type of the second text), as transformers 5.24 has it.
CASES = [
    ("bert", None, None, BERT, 1),
    ("bert", None, NONE, BERT, 0),
    ("bert", None, None, ZEROS, 1),  # the class sets its own template
    ("bert", "BertTokenizerFast", None, BERT, 1),
    ("bert", "BertTokenizer", NONE, BERT, 0),
    ("bert", "RobertaTokenizerFast", None, BOTH, 0),
    ("bert", "RobertaTokenizer", TYPES, BOTH, 0),
    ("bert", "TokenizersBackend", None, BERT, 0),
    ("bert", "TokenizersBackend", TYPES, BERT, 1),
    ("bert", "TokenizersBackend", TYPES, ZEROS, 0),
    ("bert", "PreTrainedTokenizerFast", TYPES, BOTH, 1),
    ("bert", "PreTrainedTokenizerFast", NONE, BERT, 0),
    ("electra", "ElectraTokenizer", None, BERT, 1),
    ("electra", None, None, BERT, 1),
    ("roberta", None, None, BOTH, 0),
    ("roberta", "BertTokenizer", None, BERT, 1),
    ("deberta", None, None, BERT, 0),
    ("modernbert", "BertTokenizer", None, BERT, 0),
    ("modernbert", "PreTrainedTokenizerFast", TYPES, BERT, 1),
]


def make(directory, model_type, name, inputs, template):
    """The files of a tokenizer of WordPiece with a `template` of pairs."""
    ids = {word: number for number, word in enumerate(WORDS)}
    library = huggingface.Tokenizer(models.WordPiece(ids, unk_token="[UNK]"))
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    specials = [(token, ids[token]) for token in ("[CLS]", "[SEP]")]
    library.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", template, specials)
    library.enable_padding(length=9, pad_type_id=1)
    library.save(str(directory / "tokenizer.json"))
    (directory / "config.json").write_text(json.dumps({"model_type": model_type}))
    stated = {key: value for key, value in (("tokenizer_class", name), ("model_input_names", inputs)) if value}
    if stated:
        (directory / "tokenizer_config.json").write_text(json.dumps(stated))


@pytest.mark.parametrize(("model_type", "name", "inputs", "template", "second"), CASES)
def test_the_files_decide(model_type, name, inputs, template, second, tmp_path):
    make(tmp_path, model_type, name, inputs, template)
    assert vocabularies.second_type(tmp_path) == second


@pytest.mark.parametrize(
    ("model_type", "name", "stated", "second"),
    [
        ("bert", "vocab.txt", {}, 1),
        ("bert", "vocab.txt", {"model_input_names": NONE}, 0),
        ("bert", "vocab.json", {}, 0),
        ("bert", "spm.model", {"tokenizer_class": "XLMRobertaTokenizer"}, 0),
        ("camembert", "spm.model", {}, 0),
        ("deberta-v2", "spm.model", {}, 1),
    ],
)
def test_the_files_of_older_models_decide(model_type, name, stated, second, tmp_path):
    (tmp_path / name).touch()
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(stated))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    assert vocabularies.second_type(tmp_path) == second


def test_templates_that_no_class_has(tmp_path):
    make(tmp_path, "bert", "TokenizersBackend", TYPES, "[CLS] $A [SEP] $B:1 [SEP]:0")
    with pytest.raises(ValueError, match=r"tokenizer\.json.*\[0, 0, 0, 1, 0\]"):
        vocabularies.second_type(tmp_path)
    make(tmp_path, "bert", None, "input_ids", BERT)
    with pytest.raises(ValueError, match="model_input_names"):
        vocabularies.second_type(tmp_path)


def second_types(opened):
    row = RowSettings(opened.tokenizer.specials, 16, opened.config.token_types).row([5, 6], [7])
    return row["token_type_ids"].tolist()


@pytest.mark.parametrize(("inputs", "second"), [(NONE, 0), (TYPES, 1)])
def test_the_type_follows_the_weights(inputs, second, text, tmp_path, one_device):  # noqa: F811
    """From a directory through a run that goes on from it into a trial, and out again."""
    directory = with_tensors("bert_pairs", tmp_path / "hf", lambda tensors: tensors)
    (directory / "tokenizer_config.json").write_text(json.dumps({"model_input_names": inputs}))
    importing.convert(str(directory), epath.Path(tmp_path / "imported"))
    # The weights carry the type, although the tokenizer is read without the settings beside it.
    (tmp_path / "vocab.txt").write_text((directory / "vocab.txt").read_text())
    settings = config(tmp_path / "imported", text, **{"data.tokenizer.path": str(tmp_path / "vocab.txt")})
    workdir = start(settings, tmp_path / "run")

    data = corpus.prepare(settings, workdir)
    batch = next(pipeline.validation_batches(data, settings.data, 4))
    assert batch["token_type_ids"].max() == second

    opened = opening.open_encoder(str(workdir))
    assert second_types(opened) == [0, 0, 0, 0, second, second]
    head = Head("", "classification", ("no", "yes"), opened.style)
    shapes = finetuned.shapes(head, opened.config)
    params = names.nested({path: np.zeros(shape, np.float32) for path, shape in shapes.items()})
    tuned = FineTuned(head, opened.config, opened.tokenizer, params, opened.origin)
    finetuned.save(tuned, epath.Path(tmp_path / "trial"))
    assert second_types(finetuned.load(tmp_path / "trial")) == second_types(opened)

    exporting.convert(epath.Path(tmp_path / "trial"), None, str(tmp_path / "out"))
    assert json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())["model_input_names"] == inputs
    types = huggingface.Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json")).encode("a", "b").type_ids
    assert (types[0], types[-1]) == (0, second)
    again, _ = importing.open_finetuned(str(tmp_path / "out"))
    assert second_types(again) == second_types(opened)


def test_a_type_that_the_model_lacks(tmp_path):
    directory = with_tensors("roberta", tmp_path / "hf", lambda tensors: tensors)
    stated = {"tokenizer_class": "BertTokenizer"}
    (directory / "tokenizer_config.json").write_text(json.dumps(stated))
    opened = opening.open_encoder(str(directory))
    RowSettings(opened.tokenizer.specials, 16, opened.config.token_types).row([5])
    with pytest.raises(ValueError, match=r"type_vocab_size.*model_input_names"):
        second_types(opened)


def test_roberta_with_two_types(tmp_path):
    """As its class makes it without a stated `type_vocab_size`; its tokenizer gives both texts type 0."""

    def doubled(tensors):
        name = "roberta.embeddings.token_type_embeddings.weight"
        return tensors | {name: np.concatenate([tensors[name], tensors[name] + 1])}

    directory = with_tensors("roberta", tmp_path / "hf", doubled)
    values = json.loads((directory / "config.json").read_text())
    del values["type_vocab_size"]
    (directory / "config.json").write_text(json.dumps(values))
    importing.convert(str(directory), epath.Path(tmp_path / "run"))
    assert not any(second_types(opening.open_encoder(str(tmp_path / "run"))))
    exporting.convert(epath.Path(tmp_path / "run"), None, str(tmp_path / "out"))
    values = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (values["model_type"], values["type_vocab_size"]) == ("roberta", 2)
