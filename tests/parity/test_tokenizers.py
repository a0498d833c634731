"""Tokenizer files in both directions: `AutoTokenizer` and ours give equal ids."""

import io
import json

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the extra: pip install 'ag_jax[parity]'")
transformers = pytest.importorskip("transformers", reason="needs the extra: pip install 'ag_jax[parity]'")

import itertools

import sentencepiece
import tokenizers as huggingface
from etils import epath

from ag_jax.data import tokenizers
from ag_jax.data.config import TokenizerConfig
from ag_jax.interop import catalogue, exporting, importing, tokenizer_files
from ag_jax.models.config import EncoderConfig
from ag_jax.pretraining.open_run import open_run
from tests.interop import modernbert_tokenizers
from tests.parity import examples

TEXTS = [
    "The state of our union is strong. We will rebuild our roads, and we will do it together.",
    "Äpfel und Öl?",
] * 9
PROBES = ["We will rebuild, and the Äpfel are strong.", "our roads", "?", "unions", "x", "Öl und\tÖl", "  two  spaces "]
SIZES = {"byte_bpe": 300, "wordpiece": 90, "sentencepiece_bpe": 70, "sentencepiece_unigram": 36}
FAMILY = {
    "byte_bpe": "roberta",
    "wordpiece": "bert",
    "sentencepiece_bpe": "camembert",
    "sentencepiece_unigram": "roberta",
}


def trained(kind):
    return tokenizers.train(TokenizerConfig(kind=kind, vocabulary_size=SIZES[kind]), TEXTS)


def settle(directory, model_type):
    (directory / "config.json").write_text(json.dumps({"model_type": model_type}))


@pytest.mark.parametrize("kind", SIZES)
def test_ours_opened_by_theirs(kind, tmp_path):
    """Every kind that can be trained here; special tokens where each family has them."""
    tokenizer = trained(kind)
    family = catalogue.named(FAMILY[kind])
    settle(tmp_path, family.model_type)
    tokenizer_files.write(tokenizer, tmp_path, family, EncoderConfig(vocabulary_size=999, max_length=77, token_types=2))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in [*TEXTS[:2], *PROBES]:
        assert theirs(text, add_special_tokens=False)["input_ids"] == tokenizer.encode(text), text
    specials = tokenizer.specials
    row = [
        [specials.begin],
        tokenizer.encode("our"),
        [specials.end] * specials.pair_separators,
        tokenizer.encode("roads"),
    ]
    pair = theirs("our", "roads")
    assert pair["input_ids"] == [*itertools.chain(*row), specials.end]
    assert pair["token_type_ids"] == [0] * (1 + sum(map(len, row[1:3]))) + [1] * (1 + len(row[3]))
    for role, name in {"begin": "cls", "end": "sep", "pad": "pad", "unknown": "unk", "mask": "mask"}.items():
        assert getattr(theirs, f"{name}_token_id") == getattr(specials, role)
    masked = theirs(f"our {theirs.mask_token} roads")["input_ids"]
    assert masked == [
        specials.begin,
        *tokenizer.encode("our"),
        specials.mask,
        *tokenizer.encode(" roads"),
        specials.end,
    ]
    assert theirs.model_max_length == 77


def spm(directory, name, **options):
    """A sentencepiece model, trained as the family's was."""
    model = io.BytesIO()
    options = {"vocab_size": 37, "model_type": "unigram", "minloglevel": 2} | options
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(TEXTS), model_writer=model, **options)
    (directory / name).write_bytes(model.getvalue())


def _roberta(directory):
    content = json.loads(trained("byte_bpe").file()[1])["model"]
    (directory / "vocab.json").write_text(json.dumps(content["vocab"]))
    (directory / "merges.txt").write_text("#version: 0.2\n" + "\n".join(map(" ".join, content["merges"])) + "\n")


def _bert(directory, lowercase=False):
    library = huggingface.Tokenizer.from_str(trained("wordpiece").file()[1].decode())
    words = sorted(library.get_vocab().items(), key=lambda item: item[1])
    (directory / "vocab.txt").write_text("\n".join(word for word, _ in words) + "\n")
    (directory / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": lowercase}))


def _bert_with_accents_and_added_tokens(directory):
    _bert(directory)
    settings = {
        "do_lower_case": True,
        "strip_accents": False,
        "tokenize_chinese_chars": False,
        "tokenizer_class": "BertTokenizer",
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    words = list(
        dict.fromkeys([*(directory / "vocab.txt").read_text().splitlines(), "ä", "##pfel", "国", "##家", "家"])
    )
    (directory / "vocab.txt").write_text("\n".join(words) + "\n")
    (directory / "added_tokens.json").write_text(json.dumps({"unions": len(words)}))


def _roberta_with_a_space_first(directory):
    _roberta(directory)
    (directory / "tokenizer_config.json").write_text(json.dumps({"add_prefix_space": True}))


def _camembert(directory):
    spm(directory, "sentencepiece.bpe.model")


def _deberta_v3(directory):
    pieces = {"pad_id": 0, "bos_id": 1, "eos_id": 2, "unk_id": 3, "pad_piece": "[PAD]", "bos_piece": "[CLS]"}
    spm(directory, "spm.model", **pieces, eos_piece="[SEP]", unk_piece="[UNK]")


@pytest.mark.parametrize(
    ("model_type", "make"),
    [
        ("roberta", _roberta),
        ("roberta", _roberta_with_a_space_first),
        ("bert", _bert),
        ("bert", _bert_with_accents_and_added_tokens),
        ("electra", _bert),
        ("camembert", _camembert),
        ("deberta-v2", _deberta_v3),
    ],
)
def test_theirs_read_as_ours(model_type, make, tmp_path):
    """The files that older models of each family come with; sentencepiece ids as CamemBERT and DeBERTa count them."""
    settle(tmp_path, model_type)
    make(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ours = tokenizer_files.read(tmp_path, catalogue.named(model_type))
    for text in [*TEXTS[:2], *PROBES[:5], "国家"]:
        assert ours.encode(text) == theirs(text, add_special_tokens=False)["input_ids"], text
    roles = {"begin": "cls", "end": "sep", "pad": "pad", "unknown": "unk", "mask": "mask"}
    for role, name in roles.items():
        assert getattr(ours.specials, role) == getattr(theirs, f"{name}_token_id"), role
    assert ours.vocabulary_size == len(theirs)
    assert ours.specials.second_type == theirs("our", "roads").get("token_type_ids", [0])[-1]


ROLES = {
    "modernbert": {"unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "pad": "[PAD]", "mask": "[MASK]"},
    "mmbert": {"unk": "<unk>", "cls": "<bos>", "sep": "<eos>", "pad": "<pad>", "mask": "<mask>"},
}
ROLES["mmbert"] |= {"bos": "<bos>", "eos": "<eos>"}


@pytest.mark.parametrize("name", ROLES)
def test_modernbert_with_its_own_tokenizer_there_and_back(name, tmp_path):
    """Saved by transformers as the published models are, with more rows than tokens: ids and logits."""
    library = modernbert_tokenizers.MAKE[name]()
    roles = {f"{role}_token": token for role, token in ROLES[name].items()}
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_object=library, clean_up_tokenization_spaces=False, **roles)
    model = examples.FAMILIES["modernbert"].make(384, theirs.pad_token_id, 2, hidden_size=30, num_attention_heads=3)
    for part in (theirs, model):
        part.save_pretrained(tmp_path / "theirs")
    found = importing.convert(str(tmp_path / "theirs"), epath.Path(tmp_path / "run"))
    assert (found.family, found.new, found.left_out) == ("modernbert", (), ())
    exporting.convert(epath.Path(tmp_path / "run"), None, str(tmp_path / "ours"))
    exported = transformers.AutoTokenizer.from_pretrained(tmp_path / "ours")
    ours = open_run(tmp_path / "run").tokenizer
    for text in modernbert_tokenizers.PROBES[:-1]:  # the last one has special tokens in its text
        ids = theirs(text)["input_ids"]
        assert exported(text)["input_ids"] == ids == [ours.specials.begin, *ours.encode(text), ours.specials.end], text
        assert exported.decode(ids, skip_special_tokens=True) == ours.decode(ids)
    pair = theirs("our", "roads <b>")["input_ids"]
    assert exported("our", "roads <b>")["input_ids"] == pair
    for role, token in ROLES[name].items():
        assert getattr(exported, f"{role}_token") == token and getattr(exported, f"{role}_token_id") < len(theirs)
    assert "token_type_ids" not in exported("our", "roads")

    text = f"We will {theirs.mask_token} our roads."
    inputs = theirs(text, return_tensors="pt")
    loaded = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "ours", attn_implementation="eager").eval()
    with torch.no_grad():
        wanted, again = (one(input_ids=inputs["input_ids"]).logits.numpy() for one in (model, loaded))
    np.testing.assert_allclose(again, wanted, atol=1e-5 * np.abs(wanted).max())
    opened = open_run(tmp_path / "run")
    tokens = inputs["input_ids"].numpy().astype(np.int32)
    batch = {"tokens": tokens, "segment_ids": np.ones_like(tokens), "token_type_ids": np.zeros_like(tokens)}
    batch["masked_positions"] = np.arange(tokens.shape[1], dtype=np.int32)[None]
    said = opened.model.apply({"params": opened.params}, batch, deterministic=True).words_BMV
    assert said.shape == wanted.shape == (1, tokens.shape[1], 384)
    np.testing.assert_allclose(np.asarray(said), wanted, atol=1e-5 * np.abs(wanted).max())
