"""RoBERTas of fairseq: the same weights and ids as from the files of transformers."""

import io
import json

import numpy as np
import pytest
import sentencepiece
from safetensors.numpy import load_file, save_file

from ag_jax.data import tokenizers
from ag_jax.interop import catalogue, fairseq, importing, opening, tokenizer_files
from ag_jax.interop import source as sources
from tests.interop.copies import refused, with_tensors

ARGS = {"encoder_layers": 2, "encoder_attention_heads": 3, "encoder_embed_dim": 6, "encoder_ffn_embed_dim": 11}
ARGS |= {"arch": "roberta_base", "activation_fn": "gelu", "dropout": 0.2, "attention_dropout": 0.3, "pooler_dropout": 0}
NEW = {"encoder_normalize_before": False, "layernorm_embedding": True, "no_scale_embedding": True}
WORDS = [f"word{number}" for number in range(34)]  # with 5 special tokens, as many as the golden has rows
TYPES = "roberta.embeddings.token_type_embeddings.weight"


def fairseq_tensors(stored, early):
    """The tensors of a RoBERTa of transformers as fairseq names and joins them, today or in `early` versions."""
    root = "decoder" if early else "encoder"
    encoder = f"{root}.sentence_encoder"
    replaced = {
        "roberta.embeddings.word_embeddings": f"{encoder}.embed_tokens",
        "roberta.embeddings.position_embeddings": f"{encoder}.embed_positions",
        "roberta.embeddings.LayerNorm": f"{encoder}.{'emb_layer_norm' if early else 'layernorm_embedding'}",
        "roberta.encoder.layer": f"{encoder}.layers",
        "attention.output.dense": "self_attn.out_proj",
        "attention.output.LayerNorm": "self_attn_layer_norm",
        "intermediate.dense": "fc1",
        "output.dense": "fc2",
        "output.LayerNorm": "final_layer_norm",
        "lm_head.": f"{root}.lm_head.",
    }
    tensors = {}
    for name, value in stored.items():
        for theirs, ours in replaced.items():
            name = name.replace(theirs, ours)
        tensors[name] = value
    del tensors[TYPES]
    tensors[f"{root}.lm_head.weight"] = tensors[f"{encoder}.embed_tokens.weight"].copy()
    for layer in range(2):
        place = f"{encoder}.layers.{layer}."
        for part in ("weight", "bias"):
            kinds = [tensors.pop(f"{place}attention.self.{kind}.{part}") for kind in ("query", "key", "value")]
            whole = {f"{place}self_attn.in_proj_{part}": np.concatenate(kinds)}
            alone = {f"{place}self_attn.{kind}_proj.{part}": kind_ for kind, kind_ in zip("qkv", kinds, strict=True)}
            tensors |= whole if early else alone
    if not early:
        tensors[f"{encoder}.version"] = np.full(1, 3, np.float32)
        tensors["classification_heads.mnli.dense.weight"] = np.ones((6, 6), np.float32)
    return tensors


def make(directory, stored, early=False, words=WORDS, **args):
    """A directory of fairseq with the tensors `stored` of transformers."""
    directory.mkdir()
    settings = ARGS | ({} if early else NEW) | args
    save_file(fairseq_tensors(stored, early), directory / "model.safetensors", {"fairseq": json.dumps(settings)})
    (directory / "dict.txt").write_text("".join(f"{word} 1\n" for word in words), encoding="utf-8")
    return directory


@pytest.fixture
def stored(tmp_path):
    """The tensors of a RoBERTa of transformers, without token types."""

    def without_types(tensors):
        return tensors | {TYPES: np.zeros_like(tensors[TYPES])}

    rates = {"hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.3, "layer_norm_eps": 1e-5}
    return load_file(with_tensors("roberta", tmp_path / "hf", without_types, **rates) / "model.safetensors")


@pytest.mark.parametrize("early", [False, True])
def test_the_same_weights_as_from_transformers(early, stored, tmp_path):
    theirs, ours = sources.read(tmp_path / "hf"), sources.read(make(tmp_path / "fairseq", stored, early))
    assert (ours.config, ours.heads) == (theirs.config, theirs.heads)
    shapes = sources.untied_shapes(ours)
    heads = {} if early else {"classification_heads.mnli.dense.weight": (6, 6)}
    assert shapes == sources.untied_shapes(theirs) | heads
    for name in shapes.keys() - heads.keys():
        np.testing.assert_array_equal(ours.tensors.read(name), theirs.tensors.read(name), name)


def test_heads_are_left_out(stored, tmp_path):
    directory = make(tmp_path / "fairseq", stored)
    assert opening.is_huggingface(directory)
    assert importing.open_model(str(directory)).left_out == ("classification_heads.mnli.dense.weight",)


def test_projections_that_are_there_twice(stored, tmp_path):
    directory = make(tmp_path / "fairseq", stored)
    joined = {"encoder.sentence_encoder.layers.0.self_attn.in_proj_weight": np.ones((18, 6), np.float32)}
    tensors = load_file(directory / "model.safetensors") | joined
    save_file(tensors, directory / "model.safetensors", {"fairseq": json.dumps(ARGS)})
    refused(directory, tmp_path, "q_proj.weight", "in_proj_weight")


@pytest.mark.parametrize(
    ("args", "words", "parts"),
    [
        ({"encoder_normalize_before": True}, WORDS, ["encoder_normalize_before", "roberta_base"]),
        ({"activation_fn": "relu"}, WORDS, ["activation_fn='relu'"]),
        ({"no_scale_embedding": False}, WORDS, ["no_scale_embedding"]),
        ({"encoder_attention_heads": None}, WORDS, ["encoder_attention_heads"]),
        ({"encoder_layers": 3}, WORDS, ["num_hidden_layers=3"]),
        ({}, WORDS[1:], ["dict.txt", "38", "39"]),
        ({}, [*WORDS[1:], "word1"], ["dict.txt", "'word1' twice"]),
        ({}, [*WORDS[1:], "50256"], ["encoder.json"]),
        ({}, [*WORDS[1:], "▁our"], ["sentencepiece"]),
        ({}, [*WORDS[1:], "un@@"], ["subword-nmt"]),
    ],
)
def test_what_is_not_supported_is_named(args, words, parts, stored, tmp_path):
    refused(make(tmp_path / "fairseq", stored, words=words, **args), tmp_path, *parts)


def test_checkpoints_that_are_not_converted(stored, tmp_path):
    """The command is for the checkpoint with a usual name; none is chosen of others."""
    directory = make(tmp_path / "fairseq", stored)
    tensors = load_file(directory / "model.safetensors")
    save_file(tensors, directory / "model.safetensors")
    refused(directory, tmp_path, "the key 'fairseq'")
    save_file({"encoder.embed_tokens.weight": np.ones((3, 2))}, directory / "model.safetensors", {"fairseq": "{}"})
    refused(directory, tmp_path, "no RoBERTa")
    (directory / "model.safetensors").unlink()
    refused(directory, tmp_path, "model.pt", error=FileNotFoundError)
    for name in ("vh.pt", "vl.pt"):
        (directory / name).touch()
    refused(directory, tmp_path, "vh.pt, vl.pt")
    (directory / "checkpoint_best.pt").touch()
    command = fairseq.CONVERSION.format(file=directory / "checkpoint_best.pt", directory=directory)
    refused(directory, tmp_path, "is a pickle", command)


# Tokenizers.


def read(directory, lines, **files):
    """The tokenizer of a directory with a dict.txt of `lines` and further files."""
    (directory / "dict.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    for name, content in files.items():
        (directory / name.replace("_", ".")).write_bytes(content)
    return tokenizer_files.read(directory, catalogue.named("roberta"))


def test_words(tmp_path):
    tokenizer = read(tmp_path, ["our 9", "roads 5", "madeupword0000 0"])
    assert tokenizer.encode("roads  our\troad") == [5, 4, 3]
    # What a special token looks like in a text is text.
    assert tokenizer.encode("our </s> <mask> roads") == [4, 3, 3, 5]
    specials = tokenizer.specials
    assert (specials.begin, specials.pad, specials.end, specials.unknown, specials.mask) == (0, 1, 2, 3, 7)
    assert (specials.pair_separators, specials.second_type, tokenizer.vocabulary_size) == (2, 0, 8)
    assert tokenizer.decode([0, 5, 4, 2]) == "roads our"
    tokenizer.save(tmp_path / "saved")
    again = tokenizers.load(tmp_path / "saved")
    assert again.encode("roads our </s>") == [5, 4, 3] and again.specials.mask == 7


def test_the_ids_of_gpt2(tmp_path):
    tokens = ["a", "b", "Ġ", "ab", "Ġab"]
    files = {
        "encoder_json": json.dumps({token: id for id, token in enumerate(tokens)}).encode(),
        "vocab_bpe": "#version: 0.2\na b\nĠ ab\n".encode(),
    }
    symbols = ["3", "0", "4", "1", "2"]
    tokenizer = read(tmp_path, [f"{symbol} 1" for symbol in [*symbols, "madeupword0000"]], **files)
    ids = [4 + symbols.index(str(tokens.index(token))) for token in ("ab", "Ġab", "b", "Ġ", "a")]
    assert tokenizer.encode("ab abb a") == ids and tokenizer.decode(ids) == "ab abb a"
    assert tokenizer.specials.mask == 10
    with pytest.raises(ValueError, match=r"dict\.txt lacks 1 .*such as 4"):
        read(tmp_path, [f"{symbol} 1" for symbol in symbols if symbol != "4"])


def test_the_pieces_of_sentencepiece(tmp_path):
    """Of XLM-R, which sorts them anew, and of CamemBERT, whose dict.txt overwrites three special tokens."""
    model, options = io.BytesIO(), {"vocab_size": 20, "model_type": "unigram", "minloglevel": 2}
    texts = ["the roads of our union", "our union is strong", "the state of the roads"] * 9
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(texts), model_writer=model, **options)
    content, text = model.getvalue(), "the roads is ours, union"
    theirs = sentencepiece.SentencePieceProcessor(model_proto=content)
    pieces = [theirs.id_to_piece(id) for id in range(20)]
    symbols = sorted(pieces[3:])
    tokenizer = read(tmp_path, [f"{symbol} 1" for symbol in symbols], spm_model=content)
    assert tokenizer.encode(text) == [
        4 + symbols.index(piece) if piece in symbols else 3 for piece in map(theirs.id_to_piece, theirs.encode(text))
    ]
    specials = tokenizer.specials
    assert (specials.begin, specials.end, specials.unknown, specials.mask) == (0, 2, 3, 21)
    with pytest.raises(ValueError, match=r"spm\.model.* none for 1"):
        read(tmp_path, [f"{symbol} 1" for symbol in symbols[1:]])
    overwritten = [f"{piece} 1 #fairseq:overwrite" for piece in pieces[:3]]
    tokenizer = read(tmp_path, [*overwritten, *(f"{piece} 1" for piece in pieces[3:])])
    (tmp_path / "config.json").write_text('{"model_type": "camembert"}')
    of_transformers = tokenizer_files.read(tmp_path, catalogue.named("camembert"))
    assert tokenizer.encode(text) == of_transformers.encode(text)
    assert tokenizer.specials == of_transformers.specials and tokenizer.specials.begin == 5
