"""Training and loading of every kind; the ids of published tokenizers."""

import json
import pathlib
import shutil
import subprocess
import sys

import pytest
import tokenizers as huggingface

from ag_jax.data import tokenizers
from ag_jax.data.config import TokenizerConfig
from ag_jax.data.tokenizers import SpecialTokens
from tests.data.conftest import text

CORPUS = [text(0, 150), text(150, 300)]
SIZES = {"byte_bpe": 320, "wordpiece": 120, "sentencepiece_bpe": 90, "sentencepiece_unigram": 90}
FILES = {"byte_bpe": "tokenizer.json", "wordpiece": "tokenizer.json"}


@pytest.fixture(scope="module", params=SIZES)
def trained(request) -> tuple[str, tokenizers.Tokenizer]:
    kind = request.param
    return kind, tokenizers.train(TokenizerConfig(kind=kind, vocabulary_size=SIZES[kind]), CORPUS)


def test_a_trained_tokenizer(trained, tmp_path):
    kind, tokenizer = trained
    assert tokenizer.vocabulary_size <= SIZES[kind]
    expected = (2, 0, 3, 1, 4, 1) if kind == "wordpiece" else (0, 1, 2, 3, 4, 2)
    assert tokenizer.specials == SpecialTokens(*expected)
    assert tokenizer.special_ids == (0, 1, 2, 3, 4)
    assert tokenizer.delimiter_ids == (tokenizer.specials.begin, tokenizer.specials.end)

    sample = "The old house sat by the river 7."
    ids = tokenizer.encode(sample)
    assert all(5 <= id < tokenizer.vocabulary_size for id in ids)
    assert tokenizer.decode([tokenizer.specials.begin, *ids, tokenizer.specials.end]) == sample
    assert tokenizer.encode_batch([sample, "", "a"]) == [ids, [], tokenizer.encode("a")]
    assert ids[-1] in tokenizer.period_ids
    assert {piece.strip("▁") for piece in tokenizer.tokens(tokenizer.period_ids)} == {"."}

    tokenizer.save(tmp_path / "saved")
    saved = FILES.get(kind, "spiece.model")
    assert {file.name for file in (tmp_path / "saved").iterdir()} == {saved, "checksum.json"}
    loaded = tokenizers.load(tmp_path / "saved")
    assert loaded.encode(sample) == ids and loaded.specials == tokenizer.specials
    assert loaded.fingerprint() == tokenizer.fingerprint()
    assert tokenizers.load(tmp_path / "saved" / saved).fingerprint() == tokenizer.fingerprint()


def test_special_tokens_in_a_text_are_text(trained):
    _, tokenizer = trained
    ids = tokenizer.encode("a </s><mask> [SEP][MASK] b")
    specials = tokenizer.specials
    assert not {specials.begin, specials.end, specials.mask, specials.pad} & set(ids)


TRAIN = """
import sys
from ag_jax.data import tokenizers
from ag_jax.data.config import TokenizerConfig
from tests.data.test_tokenizers import CORPUS, SIZES
for kind, size in SIZES.items():
    print(tokenizers.train(TokenizerConfig(kind=kind, vocabulary_size=size), CORPUS).fingerprint())
"""


def test_training_is_the_same_in_another_process():
    repository = pathlib.Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", TRAIN], cwd=repository, check=True, capture_output=True, text=True)
    here = [
        tokenizers.train(TokenizerConfig(kind=kind, vocabulary_size=size), CORPUS).fingerprint()
        for kind, size in SIZES.items()
    ]
    assert done.stdout.split() == here


def test_fingerprints_tell_vocabularies_apart():
    prints = {tokenizers.train(TokenizerConfig(vocabulary_size=size), CORPUS).fingerprint() for size in (300, 310, 310)}
    assert len(prints) == 2


def test_wordpiece_lowercases_if_asked():
    config = TokenizerConfig(kind="wordpiece", vocabulary_size=120, lowercase=True)
    tokenizer = tokenizers.train(config, CORPUS)
    assert tokenizer.encode("THE OLD house") == tokenizer.encode("the old House")


def test_pieces_are_readable(tokenizer):
    assert "".join(tokenizer.tokens(tokenizer.encode("a house"))) == "a▁house"
    assert tokenizer.tokens([0, 1, 2, 3, 4]) == ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    assert tokenizer.tokens(tokenizer.encode("\n")) == ["\\n"]
    assert len(tokenizer.tokens(tokenizer.encode("é"))) == 2  # two bytes, neither of them a character


@pytest.mark.parametrize("kind", ["sentencepiece_bpe", "sentencepiece_unigram"])
@pytest.mark.parametrize(("size", "message"), [(9000, r"at most \d+ pieces, got .*=9000; lower"), (12, "at least")])
def test_a_sentencepiece_vocabulary_that_the_text_cannot_fill(kind, size, message):
    with pytest.raises(ValueError, match=message):
        tokenizers.train(TokenizerConfig(kind=kind, vocabulary_size=size), CORPUS)


def test_bad_tokenizer_paths(tmp_path):
    with pytest.raises(FileNotFoundError, match="no tokenizer at .*nowhere; give a directory or file that exists"):
        tokenizers.load(tmp_path / "nowhere")
    (tmp_path / "readme.md").touch()
    with pytest.raises(ValueError, match=r"holds no tokenizer: expected tokenizer.json, .*, got readme\.md"):
        tokenizers.load(tmp_path)
    (tmp_path / "vocab.json").write_text("{}")
    with pytest.raises(FileNotFoundError, match="merges.txt is missing"):
        tokenizers.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{not json")
    with pytest.raises(ValueError, match="tokenizer.json could not be read as a tokenizer"):
        tokenizers.load(tmp_path)
    (tmp_path / "a.model").write_bytes(b"not a model")
    with pytest.raises(ValueError, match="a.model could not be read as a tokenizer .expected a sentencepiece model"):
        tokenizers.load(tmp_path / "a.model")
    (tmp_path / "a.model").write_bytes(b"")
    with pytest.raises(ValueError, match="a.model could not be read as a tokenizer .*got an empty model"):
        tokenizers.load(tmp_path / "a.model")


def test_a_saved_tokenizer_that_was_changed_is_an_error(trained, tmp_path):
    """Changed in a way that still loads; without its checksum it is taken as it is."""
    trained = trained[1]
    trained.save(tmp_path)
    name, content = trained.file()
    assert tokenizers.load(tmp_path).fingerprint() == trained.fingerprint()
    file = tmp_path / name
    file.write_bytes(content.replace(b"e", b"f", 1) if name.endswith(".json") else content[:-1] + b"x")
    with pytest.raises(ValueError, match=f"{name} is not the tokenizer that was saved"):
        tokenizers.load(tmp_path)
    trained.save(tmp_path)
    assert tokenizers.load(tmp_path).fingerprint() == trained.fingerprint(), "saving again makes it whole"
    file.unlink()
    with pytest.raises(ValueError, match=f"{name} is missing"):
        tokenizers.load(tmp_path)
    file.write_bytes(content)
    (tmp_path / "checksum.json").write_text('{"file": "", "sha256": ""}')  # a name that is the directory itself
    with pytest.raises(ValueError, match="not a file, but .*checksum.json names"):
        tokenizers.load(tmp_path)
    (tmp_path / "checksum.json").unlink()
    assert tokenizers.load(tmp_path).fingerprint() == trained.fingerprint()


def test_the_tokenizer_that_was_saved_last_is_loaded(tmp_path):
    """Also if a file of another kind, which comes before it in other directories, is left from an earlier one."""
    made = {kind: tokenizers.train(TokenizerConfig(kind=kind, vocabulary_size=SIZES[kind]), CORPUS) for kind in SIZES}
    for kind in ("wordpiece", "sentencepiece_bpe", "byte_bpe", "sentencepiece_unigram"):
        made[kind].save(tmp_path)
        assert tokenizers.load(tmp_path).fingerprint() == made[kind].fingerprint()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["checksum.json", "spiece.model", "tokenizer.json"]


def test_a_panic_of_the_library_is_an_error_that_names_the_file(tmp_path):
    """A panic is a BaseException but no Exception; this one is real."""
    tokenizer = tokenizers.train(TokenizerConfig(kind="wordpiece", vocabulary_size=SIZES["wordpiece"]), CORPUS)
    library = huggingface.Tokenizer.from_str(tokenizer.file()[1].decode())
    library.add_tokens(["\0"])  # of which the normaliser leaves nothing
    (tmp_path / "tokenizer.json").write_text(library.to_str())
    with pytest.raises(ValueError, match="tokenizer.json could not be read as a tokenizer .AddedVocabulary bad split"):
        tokenizers.load(tmp_path)


@pytest.mark.parametrize("role", ["begin", "pad", "end", "unknown", "mask"])
def test_a_missing_special_token_is_named(tmp_path, role):
    names = {"begin": "<s>", "pad": "<pad>", "end": "</s>", "unknown": "<unk>", "mask": "<mask>"}
    vocabulary = [name for name in names.values() if name != names[role]] + ["a", "b", "."]
    (tmp_path / "vocab.json").write_text(json.dumps({name: id for id, name in enumerate(vocabulary)}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    with pytest.raises(
        ValueError, match=f"lacks the {role} token: expected (<.os> or )?{names[role]} or .*; add it to the voc"
    ):
        tokenizers.load(tmp_path)


def test_robertas_own_ids(shared):
    tokenizer = tokenizers.load(shared / "data/tokenizers/roberta-base")
    assert tokenizer.vocabulary_size == 50_265
    assert tokenizer.specials == SpecialTokens(begin=0, pad=1, end=2, unknown=3, mask=50_264, pair_separators=2)
    assert tokenizer.period_ids == (4, 479)
    assert tokenizer.encode("Hello world") == [31414, 232]
    # From the documentation of RobertaTokenizer: a space in front makes another word of it.
    assert tokenizer.encode(" Hello world") == [20920, 232]
    assert tokenizer.tokens([31414, 232]) == ["Hello", "▁world"]
    assert tokenizer.decode(tokenizer.encode("Café, 42 naïve\n")) == "Café, 42 naïve\n"


def test_berts_own_ids(shared, tmp_path):
    source = shared / "data/tokenizers/bert-base-uncased"
    shutil.copy(source / "vocab.txt", tmp_path)
    for place in (source, tmp_path):  # tokenizer.json and vocab.txt
        tokenizer = tokenizers.load(place)
        assert tokenizer.specials == SpecialTokens(begin=101, pad=0, end=102, unknown=100, mask=103, pair_separators=1)
        assert tokenizer.encode("Hello world.") == [7592, 2088, 1012]
        assert tokenizer.encode("Embeddings") == [7861, 8270, 4667, 2015]
        assert tokenizer.period_ids == (1012,)
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    assert tokenizers.load(tmp_path).encode("Hello") != [7592]


def test_the_vocabulary_of_attention_guidance(shared):
    tokenizer = tokenizers.load(shared / "data/tokenizers/attention_guidance/roberta_12")
    assert tokenizer.vocabulary_size == 52_000 and tokenizer.specials.mask == 4
    assert tokenizer.period_ids == (18, 1580)
