"""The second text of a pair has the token type that the imported model's tokenizer gives it in transformers."""

import json
import shutil

import numpy as np
import pytest
import tokenizers as huggingface
from safetensors.numpy import load_file
from tokenizers import models, pre_tokenizers, processors

from ag_jax.data import pipeline
from ag_jax.data.tasks.rows import RowSettings
from ag_jax.interop import finetuned, importing, opening, tokenizer_files
from ag_jax.interop.finetuned import Head
from ag_jax.pretraining import corpus
from tests.interop.copies import change, continuing, exported, imported, start, tune, with_tensors

TYPES, NONE = ["input_ids", "token_type_ids", "attention_mask"], ["input_ids", "attention_mask"]
WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "<s>", "<pad>", "</s>", "<unk>", "<mask>", "a", "b")
BERT, ZEROS, BOTH = "[CLS] $A [SEP] $B:1 [SEP]:1", "[CLS] $A [SEP] $B [SEP]", "[CLS] $A [SEP] [SEP] $B:1 [SEP]:1"
# (model_type, tokenizer_class, model_input_names, template, type of the second text), as transformers 5.24 has it.
CASES = [
    ("bert", None, None, BERT, 1),
    ("bert", None, NONE, BERT, 0),
    ("bert", None, None, ZEROS, 1),  # the class sets its own template
    ("bert", "BertTokenizerFast", None, BERT, 1),
    ("bert", "RobertaTokenizer", TYPES, BOTH, 0),
    ("bert", "TokenizersBackend", None, BERT, 0),
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
    # Of older models, with another file in place of tokenizer.json.
    ("bert", None, None, "vocab.txt", 1),
    ("bert", None, NONE, "vocab.txt", 0),
    ("bert", None, None, "vocab.json", 0),
    ("bert", "XLMRobertaTokenizer", None, "spm.model", 0),
    ("camembert", None, None, "spm.model", 0),
    ("deberta-v2", None, None, "spm.model", 1),
]


def make(directory, model_type, name, inputs, template):
    """The files of a tokenizer of WordPiece with a `template` of pairs."""
    ids = {word: number for number, word in enumerate(WORDS)}
    library = huggingface.Tokenizer(models.WordPiece(ids, unk_token="[UNK]"))
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    if " " in template:
        specials = [(token, ids[token]) for token in ("[CLS]", "[SEP]")]
        library.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", template, specials)
        library.enable_padding(length=9, pad_type_id=1)
        library.save(str(directory / "tokenizer.json"))
    else:
        (directory / template).touch()
    change(directory, model_type=model_type)
    stated = {key: value for key, value in (("tokenizer_class", name), ("model_input_names", inputs)) if value}
    (directory / "tokenizer_config.json").write_text(json.dumps(stated))


@pytest.mark.parametrize(("model_type", "name", "inputs", "template", "second"), CASES)
def test_the_files_decide(model_type, name, inputs, template, second, tmp_path):
    make(tmp_path, model_type, name, inputs, template)
    assert tokenizer_files.second_type(tmp_path) == second


def test_templates_that_no_class_has(tmp_path):
    make(tmp_path, "bert", "TokenizersBackend", TYPES, "[CLS] $A [SEP] $B:1 [SEP]:0")
    with pytest.raises(ValueError, match=r"tokenizer\.json.*\[0, 0, 0, 1, 0\]"):
        tokenizer_files.second_type(tmp_path)
    make(tmp_path, "bert", None, "input_ids", BERT)
    with pytest.raises(ValueError, match="model_input_names"):
        tokenizer_files.second_type(tmp_path)


def second_types(opened):
    row = RowSettings(opened.tokenizer.specials, 16, opened.config.token_types).row([5, 6], [7])
    return row["token_type_ids"].tolist()


@pytest.mark.parametrize(("inputs", "second"), [(NONE, 0), (TYPES, 1)])
def test_the_type_follows_the_weights(inputs, second, text, tmp_path, one_device):
    """From a directory through a run that goes on from it into a trial, and out again."""
    directory = with_tensors("bert_pairs", tmp_path / "hf")
    change(directory, "tokenizer_config.json", model_input_names=inputs)
    imported(directory, tmp_path / "imported")
    # The weights carry the type, although the tokenizer is read without the settings beside it.
    alone = shutil.copy(tmp_path / "imported" / "tokenizer" / "tokenizer.json", tmp_path)
    settings = continuing(tmp_path / "imported", text, **{"data.tokenizer.path": str(alone)})
    workdir = start(settings, tmp_path / "run")
    batch = next(pipeline.validation_batches(corpus.prepare(settings, workdir), settings.data, 4))
    assert batch["token_type_ids"].max() == second

    opened = opening.open_encoder(str(workdir))
    assert second_types(opened) == [0, 0, 0, 0, second, second]
    tune(opened, Head("", "classification", ("no", "yes"), opened.style), tmp_path / "trial")
    exported(tmp_path / "trial", tmp_path / "out")
    again, _ = importing.open_finetuned(str(tmp_path / "out"))
    assert second_types(finetuned.load(tmp_path / "trial")) == second_types(again) == second_types(opened)
    assert json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())["model_input_names"] == inputs
    types = huggingface.Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json")).encode("a", "b").type_ids
    assert (types[0], types[-1]) == (0, second)


def test_a_type_that_the_model_lacks(tmp_path):
    directory = with_tensors("roberta", tmp_path / "hf")
    change(directory, "tokenizer_config.json", tokenizer_class="BertTokenizer")
    opened = opening.open_encoder(str(directory))
    RowSettings(opened.tokenizer.specials, 16, opened.config.token_types).row([5])
    with pytest.raises(ValueError, match=r"type_vocab_size.*model_input_names"):
        second_types(opened)


@pytest.mark.parametrize(("name", "types"), [("RobertaTokenizer", 1), ("BertTokenizer", 2)])
def test_roberta_with_two_types(name, types, tmp_path):
    """As its class makes it without a stated `type_vocab_size`: row 1 stays where a second text has type 1."""
    stored = "roberta.embeddings.token_type_embeddings.weight"

    def doubled(tensors):
        return tensors | {stored: np.concatenate([tensors[stored], tensors[stored] + 1])}

    directory = with_tensors("roberta", tmp_path / "hf", doubled, type_vocab_size=None)
    change(directory, "tokenizer_config.json", tokenizer_class=name)
    opened = opening.open_encoder(str(directory))
    assert second_types(opened)[-1] == types - 1
    ours = opened.params["encoder"]["embeddings"]["segment"]["embedding"]
    assert np.array_equal(ours, load_file(directory / "model.safetensors")[stored][:types].astype(np.float32))
    assert [stored in part for part in opened.imported.left_out] == [True] * (2 - types)
    tune(opened, Head("", "classification", ("no", "yes"), opened.style), tmp_path / "trial")
    _, values, _, tensors = exported(tmp_path / "trial", tmp_path / "out")
    assert (values["model_type"], values["type_vocab_size"], len(tensors[stored])) == ("roberta", types, types)
