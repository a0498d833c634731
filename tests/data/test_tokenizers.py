"""Training and loading of every kind; the ids of published tokenizers."""

import codecs
import json
import pathlib
import re
import shutil
import subprocess
import sys
import unicodedata

import pytest
import sentencepiece
import tokenizers as huggingface

from ag_jax.data import tokenizers
from ag_jax.data.config import TokenizerConfig
from ag_jax.data.tokenizers import SpecialTokens
from ag_jax.interop import tokenizer_files
from ag_jax.interop.catalogue import FAMILIES
from ag_jax.interop.families import ROBERTA
from ag_jax.models.config import EncoderConfig
from tests.data.conftest import sentencepiece_model, text

CORPUS = [text(0, 150), text(150, 300)]
SMALL = TokenizerConfig(kind="wordpiece", vocabulary_size=120)
SIZES = {"byte_bpe": 320, "wordpiece": 120, "sentencepiece_bpe": 90, "sentencepiece_unigram": 90}


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
    assert {file.name for file in (tmp_path / "saved").iterdir()} == {"tokenizer.json", "checksum.json"}
    loaded = tokenizers.load(tmp_path / "saved")
    assert loaded.encode(sample) == ids and loaded.specials == tokenizer.specials
    assert loaded.fingerprint() == tokenizer.fingerprint()
    assert tokenizers.load(tmp_path / "saved/tokenizer.json").fingerprint() == tokenizer.fingerprint()


def test_special_tokens_in_a_text_are_text(trained):
    _, tokenizer = trained
    ids = tokenizer.encode("a </s><mask> [SEP][MASK] b")
    specials = tokenizer.specials
    assert not {specials.begin, specials.end, specials.mask, specials.pad} & set(ids)


def test_special_tokens_in_a_text_are_text_for_a_unigram_tokenizer_that_was_exported(tmp_path):
    """The vocabulary of the exported unigram model has the special tokens as pieces."""
    own = tokenizers.train(TokenizerConfig(kind="sentencepiece_unigram", vocabulary_size=90), CORPUS)
    tokenizer_files.write(own, tmp_path, ROBERTA, EncoderConfig(vocabulary_size=90))
    imported = tokenizers.load(tmp_path)
    texts = ["a </s> b <mask>", "a<pad>", "<s>a <unk>", "The old house sat by the river 7."]
    assert imported.specials == own.specials
    assert imported.locate_batch(texts[:1])[0][0] == imported.encode(texts[0])
    for before, after in zip(own.encode_batch(texts), imported.encode_batch(texts), strict=True):
        assert after == before and not set(after) & {0, 1, 2, 4}
    library = huggingface.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    library.add_special_tokens(["[E1]", "[E2]"])
    library.save(str(tmp_path / "tokenizer.json"))
    assert tokenizers.load(tmp_path).encode("a [E2]")[-1] == 91  # a special token without a role


def test_special_tokens_in_a_text_are_text_for_user_defined_symbols_of_sentencepiece(tmp_path):
    """sentencepiece finds these in a text; those without a role stay tokens."""
    model = sentencepiece_model(CORPUS[0].splitlines(), user_defined_symbols=["<mask>", "<other>"])
    (tmp_path / "a.model").write_bytes(model)
    tokenizer = tokenizers.load(tmp_path)
    mask, other = tokenizer.specials.mask, sentencepiece.SentencePieceProcessor(model_proto=model)["<other>"]
    ids = tokenizer.encode("the <mask> old <other> house")
    assert mask not in ids and other in ids and ids == tokenizer.locate_batch(["the <mask> old <other> house"])[0][0]
    assert tokenizer.decode(ids).startswith("the <mask> old") or tokenizer.specials.unknown in ids
    assert tokenizer.tokens([mask]) == ["<mask>"] and tokenizer.files() == {"spiece.model": model}


# Texts that Unicode can write composed or decomposed, and texts in which NFC changes the order of marks.
COMPOSED = {
    "vietnamese": "Tôi thấy một con mèo trên đường, Ầm ĩ quá",
    "hangul": "마실까해요 오늘 날씨가 좋다",
    "kana": "ガギグゲゴ がぎぐげご",
    "half-width kana": "ｶﾞｷﾞｸﾞ ﾊﾟﾋﾟ",
    "arabic": "مُحَمَّدٌ كَتَبَ",  # shadda after the vowel; NFC moves it
    "hebrew": "בְּרֵאשִׁית בָּרָא",
    "tibetan": "བོད་སྐད ཀཱི",
    "devanagari": "क़लम ज़मीन फ़ौज",
    "compatibility": "½ … ﬁsh ２０ ㍿",
}
FORMS = ["NFC", "NFD", "NFKC", "NFKD", None]


def forms(text: str) -> set[str]:
    return {text if form is None else unicodedata.normalize(form, text) for form in FORMS}


def left_out(text: str, places: list[tuple[int, int]]) -> set[str]:
    """The characters of a text that belong to no token."""
    covered = {place for begin, end in places for place in range(begin, end)}
    assert places == sorted(places)
    return {character for place, character in enumerate(text) if place not in covered}


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_decomposed_text_of_a_sentencepiece_model(kind, tmp_path):
    """Imported into a vocabulary with other tokens, saved, and exported: the ids and places of sentencepiece."""
    texts = [text for composed in COMPOSED.values() for text in sorted(forms(composed))]
    options = {"unk_id": 0, "bos_id": 1, "eos_id": 2, "pad_id": -1, "control_symbols": ["[CLS]", "[SEP]", "[PAD]"]}
    model = sentencepiece_model(texts, model_type=kind, vocab_size=120, hard_vocab_limit=False, **options)
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    size = processor.get_piece_size()
    (tmp_path / "spm.model").write_bytes(model)
    (tmp_path / "added_tokens.json").write_text(json.dumps({"[MASK]": size, "ﬁve": size + 1}))
    imported = tokenizer_files.read(tmp_path, FAMILIES["deberta-v2"])
    imported.save(tmp_path / "saved")
    saved = tokenizers.load(tmp_path / "saved")
    (tmp_path / "exported").mkdir()
    tokenizer_files.write(saved, tmp_path / "exported", FAMILIES["deberta-v2"], EncoderConfig(vocabulary_size=200))
    for tokenizer in (imported, saved, tokenizers.load(tmp_path / "exported")):
        assert tokenizer.encode_batch(texts) == processor.encode(texts)
        for source, (ids, places) in zip(texts, tokenizer.locate_batch(texts), strict=True):
            assert ids == processor.encode(source) and left_out(source, places) <= {" "}
        # A token in a text is found before the text is normalised.
        ids, places = tokenizer.locate_batch(["ca ﬁve ﬁsh"])[0]
        assert ids == [*processor.encode("ca"), size + 1, *processor.encode("ﬁsh")] and (3, 6) in places
    assert tokenizer_files.not_carried(saved) and not tokenizer_files.not_carried(tokenizers.train(SMALL, CORPUS))


@pytest.mark.parametrize("kind", ["sentencepiece_unigram", "sentencepiece_bpe"])
def test_decomposed_text_of_a_tokenizer_that_is_trained_here(kind, tmp_path):
    """All forms of a text have equal ids, which the file gives in another program, too."""
    tokenizer = tokenizers.train(TokenizerConfig(kind=kind, vocabulary_size=108), COMPOSED.values())
    tokenizer.save(tmp_path)
    library = huggingface.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for composed in COMPOSED.values():
        for form in forms(composed):
            ids = tokenizer.encode(form)
            assert ids == library.encode(form, add_special_tokens=False).ids == tokenizer.encode(composed)
            assert tokenizer.specials.unknown not in ids
            assert tokenizer.decode(ids) == unicodedata.normalize("NFKC", form)
    assert tokenizer.encode(" Tôi\t\nthấy\x01 \u200bmột\ufeff") == tokenizer.encode("Tôi thấy một")
    texts = [unicodedata.normalize("NFD", composed) for composed in COMPOSED.values()]
    for source, (_, places) in zip(texts, tokenizer.locate_batch(texts), strict=True):
        assert left_out(source, places) <= {" "}


@pytest.mark.parametrize("trims", [False, True])
def test_an_exported_tokenizer_keeps_its_offsets(trims, tmp_path):
    """RoBERTa's post-processor leaves the space before a word out of the word's offsets."""
    own = tokenizers.train(TokenizerConfig(kind="byte_bpe", vocabulary_size=320), CORPUS)
    library = huggingface.Tokenizer.from_str(own.file()[1].decode())
    library.post_processor = huggingface.processors.RobertaProcessing(("</s>", 2), ("<s>", 0), trim_offsets=trims)
    given = tokenizers.load(directory_of(library, tmp_path / "given"))
    after = given
    for name in ("once", "twice"):
        (tmp_path / name).mkdir()
        tokenizer_files.write(after, tmp_path / name, ROBERTA, EncoderConfig(vocabulary_size=320))
        after = tokenizers.load(tmp_path / name)
        assert after.locate_batch(["the old house"]) == given.locate_batch(["the old house"])
        assert after.specials == given.specials
    assert (given.locate_batch(["a b"])[0][1][-1] == (2, 3)) == trims


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


def test_a_wordpiece_vocabulary_has_all_letters_or_is_an_error():
    config = TokenizerConfig(kind="wordpiece", vocabulary_size=20)
    with pytest.raises(
        ValueError, match=r"a WordPiece vocabulary of at least \d+ pieces, got .*=20; raise it"
    ) as error:
        tokenizers.train(config, CORPUS)
    smallest = int(re.search(r"at least (\d+)", str(error.value))[1])
    for size in (smallest - 1, smallest):
        sized = TokenizerConfig(kind="wordpiece", vocabulary_size=size)
        if size < smallest:
            with pytest.raises(ValueError, match=f"at least {smallest}"):
                tokenizers.train(sized, CORPUS)
        else:
            assert tokenizers.train(sized, CORPUS).vocabulary_size == smallest


def test_bad_tokenizer_paths(tmp_path):
    with pytest.raises(FileNotFoundError, match="no tokenizer at .*nowhere"):
        tokenizers.load(tmp_path / "nowhere")
    (tmp_path / "readme.md").touch()
    with pytest.raises(ValueError, match=r"holds no tokenizer: expected tokenizer.json, .*, got readme\.md"):
        tokenizers.load(tmp_path)
    (tmp_path / "vocab.json").write_text("{}")
    with pytest.raises(FileNotFoundError, match="merges.txt"):
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
    with pytest.raises(FileNotFoundError, match=name):
        tokenizers.load(tmp_path)
    file.write_bytes(content)
    (tmp_path / "checksum.json").write_text('{"file": "tokenizer.json"}')
    with pytest.raises(ValueError, match="checksum.json: expected a JSON object under the key 'files'"):
        tokenizers.load(tmp_path)
    (tmp_path / "checksum.json").unlink()
    assert tokenizers.load(tmp_path).fingerprint() == trained.fingerprint()


def test_the_tokenizer_that_was_saved_last_is_loaded(tmp_path):
    """Also if a file of another kind, which comes before it in other directories, is left from an earlier one."""
    (tmp_path / "source.model").write_bytes(sentencepiece_model(CORPUS[0].splitlines()))
    loaded = tokenizers.load(tmp_path / "source.model")
    (tmp_path / "source.model").unlink()
    made = [tokenizers.train(TokenizerConfig(kind=kind, vocabulary_size=SIZES[kind]), CORPUS) for kind in SIZES]
    for tokenizer in (*made[:2], loaded, *made[2:], loaded):
        tokenizer.save(tmp_path)
        assert tokenizers.load(tmp_path).fingerprint() == tokenizer.fingerprint()
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


@pytest.mark.parametrize("kind", ["byte_bpe", "wordpiece"])
def test_a_byte_order_mark_is_no_part_of_a_vocabulary(kind, tmp_path):
    model = json.loads(tokenizers.train(TokenizerConfig(kind=kind, vocabulary_size=SIZES[kind]), CORPUS).file()[1])[
        "model"
    ]
    for directory, encoding in ((tmp_path / "plain", "utf-8"), (tmp_path / "marked", "utf-8-sig")):
        directory.mkdir()
        words = sorted(model["vocab"], key=model["vocab"].get)
        merges = [" ".join(merge) for merge in model.get("merges", [])]
        files = {"vocab.txt": "\n".join(words)}
        if kind == "byte_bpe":
            files = {"vocab.json": json.dumps(model["vocab"]), "merges.txt": "\n".join(["#version: 0.2", *merges])}
        for name, content in files.items():
            (directory / name).write_text(content + "\n", encoding=encoding)
    plain, marked = tokenizers.load(tmp_path / "plain"), tokenizers.load(tmp_path / "marked")
    assert marked.fingerprint() == plain.fingerprint()
    (tmp_path / "tokenizer.json").write_bytes(codecs.BOM_UTF8 + plain.file()[1])
    assert tokenizers.load(tmp_path / "tokenizer.json").fingerprint() == plain.fingerprint()


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


def directory_of(library: huggingface.Tokenizer, directory: pathlib.Path, **beside) -> pathlib.Path:
    """A directory with a tokenizer.json, and the values of tokenizer_config.json or other files beside it."""
    directory.mkdir(exist_ok=True)
    library.save(str(directory / "tokenizer.json"))
    for name, values in beside.items():
        (directory / f"{name}.json").write_text(json.dumps(values))
    return directory


WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "<s>", "</s>", "<pad>", "<unk>", "<mask>", "[GAP]", "[E1]"]
WORDS += [*"abcdeé1.", "##a", "##b"]


def two_families(begin: str, end: str, between: int = 1) -> huggingface.Tokenizer:
    """A WordPiece tokenizer that has BERT's, RoBERTa's and other special tokens, as BigBird's vocabulary."""
    model = huggingface.models.WordPiece({word: id for id, word in enumerate(WORDS)}, unk_token="[UNK]")
    library = tokenizers.wordpiece(model, lowercase=False)
    library.add_special_tokens(WORDS[:12])
    library.post_processor = huggingface.processors.TemplateProcessing(
        single=f"{begin} $A {end}",
        pair=f"{begin} $A {' '.join([end] * between)} $B {end}",
        special_tokens=[(name, WORDS.index(name)) for name in (begin, end)],
    )
    return library


@pytest.mark.parametrize(("begin", "end", "between"), [("[CLS]", "[SEP]", 1), ("<s>", "</s>", 2), ("<s>", "</s>", 1)])
def test_the_tokens_that_delimit_a_text_are_those_of_the_post_processor(begin, end, between, tmp_path):
    """Of two tokens with usual names, and as many separators as between the texts of its pairs."""
    library = two_families(begin, end, between)
    names = {"mask_token": "[GAP]", "pad_token": {"content": "<pad>", "lstrip": False}}
    directory = directory_of(library, tmp_path / "given", tokenizer_config=names, special_tokens_map=names)
    tokenizer = tokenizers.load(directory)
    pair = library.encode("a", "b").ids
    found = tokenizer.specials
    a, b = tokenizer.encode("a"), tokenizer.encode("b")
    assert [found.begin, *a, *[found.end] * found.pair_separators, *b, found.end] == pair
    assert [WORDS[id] for id in (found.mask, found.pad, found.unknown)] == ["[GAP]", "<pad>", "[UNK]"]

    tokenizer.save(tmp_path / "saved")
    again = tokenizers.load(tmp_path / "saved")
    assert again.specials == found and again.fingerprint() == tokenizer.fingerprint()
    (directory / "tokenizer_config.json").unlink()
    (directory / "special_tokens_map.json").unlink()
    by_usual_names = tokenizers.load(directory)
    assert WORDS[by_usual_names.specials.mask] == "<mask>" and list(by_usual_names.files()) == ["tokenizer.json"]
    assert by_usual_names.fingerprint() != tokenizer.fingerprint()


def test_a_special_token_that_its_file_does_not_call_special_is_text_in_a_text(tmp_path):
    library = two_families("[CLS]", "[SEP]")
    names = {"mask_token": "[MASK]", "pad_token": "[PAD]", "unk_token": "[UNK]"}
    directory = directory_of(library, tmp_path, special_tokens_map=names)
    expected = tokenizers.load(directory).encode("a [MASK] b</s> [E1]")
    values = json.loads((directory / "tokenizer.json").read_text())
    for token in values["added_tokens"]:
        token["special"] = token["special"] and token["content"] != "[MASK]"
    (directory / "tokenizer.json").write_text(json.dumps(values))
    tokenizer = tokenizers.load(directory)
    assert tokenizer.encode("a [MASK] b</s> [E1]") == expected and tokenizer.specials.mask not in expected


def test_special_tokens_without_a_role_are_tokens_in_a_text(tmp_path):
    library = two_families("[CLS]", "[SEP]")
    names = {"mask_token": "[MASK]", "pad_token": "[PAD]", "unk_token": "[UNK]"}
    tokenizer = tokenizers.load(directory_of(library, tmp_path, special_tokens_map=names))
    ids, places = tokenizer.locate_batch(["a [E1] b</s> [MASK]"])[0]
    assert ids == tokenizer.encode("a [E1] b</s> [MASK]")
    whole = [WORDS.index(word) for word in ("a", "[E1]", "b", "</s>")]
    assert ids[:4] == whole and set(ids[4:]) == {WORDS.index("[UNK]")}
    assert places[1] == (2, 6)
    (tmp_path / "tokenizer.json").rename(tmp_path / "other.json")
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    settings = {"do_lower_case": False, "additional_special_tokens": ["[E1]", "</s>"]}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    assert tokenizers.load(tmp_path).encode("a [E1] b</s> [MASK]")[:4] == whole


@pytest.mark.parametrize(
    ("name", "values", "said"),
    [
        (
            "tokenizer_config",
            {"cls_token": "<s>"},
            "cls_token='<s>', but the tokenizer itself has '[CLS]' as its begin",
        ),
        ("tokenizer_config", {"unk_token": "<unk>"}, "unk_token='<unk>', but the tokenizer itself has '[UNK]'"),
        ("tokenizer_config", {"mask_token": "[GONE]"}, "mask_token='[GONE]', which its vocabulary lacks"),
        ("tokenizer_config", {"mask_token": "[SEP]"}, "has '[SEP]' as its end and its mask token"),
        (
            "tokenizer_config",
            {"mask_token": 4},
            "mask_token must name tokens, as a text or an object with content, got 4",
        ),
        (
            "special_tokens_map",
            {"pad_token": "<pad>"},
            "has pad_token='[PAD]', but special_tokens_map.json has '<pad>'",
        ),
        ("tokenizer_config", {"do_lower_case": True}, "has do_lower_case=True, but tokenizer.json beside it False"),
        ("tokenizer_config", {"strip_accents": True}, "has strip_accents=True, but tokenizer.json beside it False"),
        ("tokenizer_config", {"added_tokens_decoder": {"3": {"content": "[CLS]"}}}, "gives it the id 2"),
        ("added_tokens", {"[NEW]": 22}, "gives the token '[NEW]' the id 22, but tokenizer.json beside it lacks it"),
    ],
)
def test_files_that_contradict_each_other(name, values, said, tmp_path):
    beside = {"tokenizer_config": {"pad_token": "[PAD]", "do_lower_case": False, "strip_accents": None}}
    tokenizers.load(directory_of(two_families("[CLS]", "[SEP]"), tmp_path, **beside))
    values = beside.get(name, {}) | values
    with pytest.raises(ValueError, match=re.escape(said)):
        tokenizers.load(directory_of(two_families("[CLS]", "[SEP]"), tmp_path, **(beside | {name: values})))


def test_a_template_that_delimits_pairs_in_another_way(tmp_path):
    library = two_families("[CLS]", "[SEP]")
    library.post_processor = huggingface.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A </s> $B [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3), ("</s>", 6)]
    )
    with pytest.raises(ValueError, match=r"as BEGIN A END B END, .*, got \[CLS\] A </s> B \[SEP\]"):
        tokenizers.load(directory_of(library, tmp_path))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"tokenizer_class": "CamembertTokenizer"}, "CamembertTokenizer is not one of DebertaV2Tokenizer"),
        ({"do_lower_case": True}, "do_lower_case=True is not supported, only False"),
        ({"mask_token": "[MASK]"}, "mask_token='[MASK]', which its vocabulary lacks"),
        (
            {"added_tokens_decoder": {"90": {"content": "[NEW]"}}},
            "adds the token '[NEW]' with the id 90 to spiece.model",
        ),
        ({"additional_special_tokens": ["[NEW]"]}, "adds the token '[NEW]' to spiece.model"),
        ({"additional_special_tokens": "ab"}, "expected a list of tokens as additional_special_tokens, got 'ab'"),
    ],
)
def test_settings_beside_a_sentencepiece_model(values, said, tmp_path):
    (tmp_path / "spiece.model").write_bytes(sentencepiece_model(CORPUS[0].splitlines()))
    tokenizer = tokenizers.load(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"mask_token": "<mask>", "tokenizer_class": "DebertaV2Tokenizer"}')
    assert tokenizers.load(tmp_path).fingerprint() == tokenizer.fingerprint()
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(values))
    for place in (tmp_path, tmp_path / "spiece.model"):
        with pytest.raises(ValueError, match=re.escape(said)):
            tokenizers.load(place)
