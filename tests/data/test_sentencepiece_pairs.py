"""Tokenizers with a sentencepiece model for each of two languages, and a vocabulary that both share."""

import json

import pytest
import sentencepiece

from ag_jax.data import tokenizers
from ag_jax.data.config import TokenizerConfig
from tests import marian_files

TEXTS = [*marian_files.SOURCES, *marian_files.TARGETS, "", "the 漢字 dog!", "  two  spaces ", "ß"]


@pytest.fixture
def directory(tmp_path):
    marian_files.write_tokenizer(tmp_path)
    return tmp_path


def changed(directory, name, **values):
    file = directory / name
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def test_each_language_has_its_model(directory):
    """Ids are looked up by the names of pieces; what the vocabulary lacks is unknown; the target's model decodes."""
    tokenizer, vocabulary = tokenizers.load(directory), json.loads((directory / "vocab.json").read_text())
    models = [
        sentencepiece.SentencePieceProcessor(model_file=str(directory / name)) for name in ("source.spm", "target.spm")
    ]
    for text in TEXTS:
        source, target = (
            [vocabulary.get(piece, vocabulary["<unk>"]) for piece in model.encode(text, out_type=str)]
            for model in models
        )
        assert tokenizer.encode(text) == tokenizer.encode_batch([text])[0] == source
        assert tokenizer.encode_targets([text]) == [target]
        if vocabulary["<unk>"] not in target:
            assert tokenizer.decode([*target, vocabulary["</s>"]]) == models[1].decode(
                models[1].encode(text, out_type=str)
            )
    assert tokenizer.encode(TEXTS[0]) != tokenizer.encode_targets(TEXTS[:1])[0]
    assert tokenizer.encode_batch([]) == tokenizer.encode_targets([]) == []
    assert tokenizer.decode([vocabulary["a"], 10**6]) == "a"  # an id of the model that no token has


def test_languages_and_special_tokens(directory):
    tokenizer, vocabulary = tokenizers.load(directory), json.loads((directory / "vocab.json").read_text())
    assert tokenizer.encode(">>deu<<a cat") == [vocabulary[">>deu<<"], *tokenizer.encode("a cat")]
    assert tokenizer.encode(">>xxx<<a cat") == [vocabulary["<unk>"], *tokenizer.encode("a cat")]
    ids, places = tokenizer.locate_batch([">>deu<< a cat"])[0]
    assert ids == tokenizer.encode(">>deu<< a cat")
    assert places[0] == (0, 7) and places[1][0] >= 7 and places[-1][1] == len(">>deu<< a cat")
    assert tokenizer.tokens(ids)[0] == ">>deu<<" and tokenizer.tokens([10**6]) == [f"[{10**6}]"]
    pad = vocabulary["<pad>"]
    assert vars(tokenizer.specials) | {"pair_separators": 0} == {
        "begin": pad,
        "pad": pad,
        "end": vocabulary["</s>"],
        "unknown": vocabulary["<unk>"],
        "mask": pad,
        "pair_separators": 0,
        "second_type": None,
    }
    assert tokenizer.lacks == ("begin", "mask") and tokenizer.languages == ("eng", "deu")
    assert tokenizer.period_ids == tuple(sorted(id for piece, id in vocabulary.items() if piece in (".", "▁.")))
    changed(directory, "vocab.json", **{"<s>": pad + 1, "<mask>": pad + 2})
    tokenizer = tokenizers.load(directory)
    assert (tokenizer.specials.begin, tokenizer.specials.mask, tokenizer.lacks) == (pad + 1, pad + 2, ())


def test_saved_and_loaded_with_checksums(directory, tmp_path_factory):
    """Also where a tokenizer.json lies beside it, as in some models: that knows only one of the languages."""
    tokenizer, saved = tokenizers.load(directory), tmp_path_factory.mktemp("saved")
    tokenizer.save(saved)
    names = ["source.spm", "target.spm", "tokenizer_config.json", "vocab.json"]
    assert (
        sorted(path.name for path in saved.iterdir()) == ["checksum.json", *names]
        and sorted(tokenizer.files()) == names
    )
    (saved / "tokenizer.json").write_text("{}")
    loaded = tokenizers.load(saved)
    assert loaded.fingerprint() == tokenizer.fingerprint() and loaded.languages == tokenizer.languages
    for text in TEXTS:
        assert loaded.encode(text) == tokenizer.encode(text)
        assert loaded.encode_targets([text]) == tokenizer.encode_targets([text])
    with pytest.raises(ValueError, match="expected a tokenizer that is one file, got one of source.spm, target.spm"):
        tokenizer.file()
    for name in names:
        content = (saved / name).read_bytes()
        (saved / name).write_bytes(content + b" ")
        with pytest.raises(ValueError, match=f"{name} is not the tokenizer that was saved, its checksum differs"):
            tokenizers.load(saved)
        (saved / name).unlink()
        with pytest.raises(FileNotFoundError, match=name):
            tokenizers.load(saved)
        (saved / name).write_bytes(content)


def test_the_fingerprint_depends_on_every_file(directory):
    before = tokenizers.load(directory).fingerprint()
    vocabulary = json.loads((directory / "vocab.json").read_text())
    a, b = list(vocabulary)[4:6]
    changed(directory, "vocab.json", **{a: vocabulary[b], b: vocabulary[a]})
    swapped = tokenizers.load(directory).fingerprint()
    (directory / "target.spm").write_bytes((directory / "source.spm").read_bytes())
    assert len({before, swapped, tokenizers.load(directory).fingerprint()}) == 3


@pytest.mark.parametrize(
    ("name", "values", "said"),
    [
        ("vocab.json", {"a": "one"}, "expected an id of at least 0 for each token, got 'one' for 'a'"),
        ("vocab.json", {"a": -1}, "expected an id of at least 0 for each token, got -1 for 'a'"),
        ("vocab.json", {"a": 1}, "expected a different id for each token, got 1 for both '<unk>' and 'a'"),
        ("tokenizer_config.json", {"tokenizer_class": "T5Tokenizer"}, "T5Tokenizer is not one of MarianTokenizer"),
        ("tokenizer_config.json", {"separate_vocabs": True}, "Take a model whose languages share a vocabulary"),
        ("tokenizer_config.json", {"sp_model_kwargs": {"alpha": 0.1}}, "sp_model_kwargs="),
        ("tokenizer_config.json", {"source_lang": 3}, "source_lang must be of type str, got 3"),
        (
            "tokenizer_config.json",
            {"pad_token": {"content": "[PAD]"}},
            "pad_token='[PAD]' is not supported",
        ),
        (
            "tokenizer_config.json",
            {"added_tokens_decoder": {"0": {"content": "</s>"}, "99": {"content": "<new>"}}},
            "adds tokens that vocab.json lacks, which is not supported: <new>",
        ),
        (
            "tokenizer_config.json",
            {"added_tokens_decoder": {"0": {"content": "</s>"}, "1": {"content": ">>deu<<"}, "2": {"content": "a"}}},
            "adds tokens that are neither special nor the code of a language, which is not supported: a;",
        ),
    ],
)
def test_files_that_do_not_fit(name, values, said, directory):
    changed(directory, name, **values)
    with pytest.raises(ValueError) as caught:
        tokenizers.load(directory)
    assert said in str(caught.value) and str(directory) in str(caught.value)


def test_files_that_are_missing_or_damaged(directory):
    (directory / "vocab.json").write_text('{"<pad>": 0, "</s>": 1}')
    with pytest.raises(ValueError, match=r"vocab.json could not be read as a tokenizer .expected the key '<unk>'"):
        tokenizers.load(directory)
    marian_files.write_tokenizer(directory)
    for name in ("source.spm", "target.spm"):
        content = (directory / name).read_bytes()
        (directory / name).write_bytes(b"no model")
        with pytest.raises(
            ValueError, match=f"{name} could not be read as a tokenizer .expected a sentencepiece model"
        ):
            tokenizers.load(directory)
        (directory / name).write_bytes(content)
    for name in ("vocab.json", "target.spm"):
        (directory / name).rename(directory / "away")
        with pytest.raises(FileNotFoundError, match=name):
            tokenizers.load(directory)
        (directory / "away").rename(directory / name)
    tokenizers.load(directory)


def test_tokenizers_for_one_language_encode_both_sides_alike():
    config = TokenizerConfig(kind="sentencepiece_unigram", vocabulary_size=60)
    tokenizer = tokenizers.train(config, [*marian_files.SOURCES, *marian_files.TARGETS] * 5)
    assert tokenizer.encode_targets(TEXTS) == tokenizer.encode_batch(TEXTS)
    assert tokenizer.lacks == () and tokenizer.languages == (None, None)
