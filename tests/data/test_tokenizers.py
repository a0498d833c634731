"""Training and loading of every kind; the ids of published tokenizers; two models that share a vocabulary."""

import codecs
import contextlib
import itertools
import json
import re
import shutil
import subprocess
import sys
import unicodedata

import pytest
import sentencepiece
import tokenizers as huggingface

from ag_jax.data import fast_tokenizer, tokenizers
from ag_jax.data.config import TokenizerConfig
from ag_jax.data.tokenizer_backends import HuggingFace
from ag_jax.data.tokenizers import SpecialTokens
from ag_jax.interop import tokenizer_files
from ag_jax.interop.catalogue import FAMILIES
from ag_jax.models.config import EncoderConfig
from tests import marian_files
from tests.data.conftest import sentencepiece_model, text, write

CORPUS = [text(0, 150), text(150, 300)]
SIZES = {"byte_bpe": 320, "wordpiece": 120, "sentencepiece_bpe": 90, "sentencepiece_unigram": 90}


@pytest.fixture(scope="module")
def made() -> dict[str, tokenizers.Tokenizer]:
    """A trained tokenizer of every kind."""
    return {kind: tokenizers.train(TokenizerConfig(kind=kind, vocabulary_size=SIZES[kind]), CORPUS) for kind in SIZES}


@pytest.mark.parametrize("kind", SIZES)
def test_a_trained_tokenizer(kind, made, tmp_path):
    tokenizer = made[kind]
    assert tokenizer.vocabulary_size <= SIZES[kind]
    specials = (2, 0, 3, 1, 4, 1) if kind == "wordpiece" else (0, 1, 2, 3, 4, 2)
    assert tokenizer.specials == SpecialTokens(*specials)
    assert tokenizer.special_ids == (0, 1, 2, 3, 4)
    assert tokenizer.delimiter_ids == (tokenizer.specials.begin, tokenizer.specials.end)

    sample = "The old house sat by the river 7."
    ids = tokenizer.encode(sample)
    assert all(5 <= id < tokenizer.vocabulary_size for id in ids)
    assert tokenizer.decode([tokenizer.specials.begin, *ids, tokenizer.specials.end]) == sample
    assert tokenizer.encode_batch([sample, "", "a"]) == [ids, [], tokenizer.encode("a")]
    assert tokenizer.encode_targets([sample]) == [ids] and tokenizer.lacks == () and tokenizer.languages == (None, None)
    assert ids[-1] in tokenizer.period_ids
    assert {piece.strip("▁") for piece in tokenizer.tokens(tokenizer.period_ids)} == {"."}
    in_text = tokenizer.encode("a </s><mask> [SEP][MASK] b")
    assert not set(specials[:3] + specials[4:5]) & set(in_text), "special tokens in a text are text"

    tokenizer.save(tmp_path / "saved")
    assert {file.name for file in (tmp_path / "saved").iterdir()} == {"tokenizer.json", "checksum.json"}
    for place in (tmp_path / "saved", tmp_path / "saved/tokenizer.json"):
        loaded = tokenizers.load(place)
        assert loaded.encode(sample) == ids and loaded.specials == tokenizer.specials
        assert loaded.fingerprint() == tokenizer.fingerprint()


# Texts that Unicode can write composed or decomposed, and texts in which NFC changes the order of marks.
COMPOSED = [
    "Tôi thấy một con mèo trên đường, Ầm ĩ quá",
    "마실까해요 오늘 날씨가 좋다",
    "ガギグゲゴ がぎぐげご ｶﾞｷﾞｸﾞ ﾊﾟﾋﾟ",
    "مُحَمَّدٌ كَتَبَ",  # shadda after the vowel; NFC moves it
    "בְּרֵאשִׁית בָּרָא བོད་སྐད ཀཱི क़लम ज़मीन फ़ौज",
    "½ … ﬁsh ２０ ㍿",
]


def forms(text: str) -> set[str]:
    return {text} | {unicodedata.normalize(form, text) for form in ("NFC", "NFD", "NFKC", "NFKD")}


def left_out(text: str, places: list[tuple[int, int]]) -> set[str]:
    """The characters of a text that belong to no token."""
    covered = {place for begin, end in places for place in range(begin, end)}
    assert places == sorted(places)
    return {character for place, character in enumerate(text) if place not in covered}


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_decomposed_text_of_a_sentencepiece_model(kind, tmp_path, made):
    """Imported into a vocabulary with other tokens, saved, and exported: the ids and places of sentencepiece."""
    texts = [text for composed in COMPOSED for text in sorted(forms(composed))]
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
    assert tokenizer_files.not_carried(saved) and not tokenizer_files.not_carried(made["wordpiece"])


ODD = [
    "",
    " ",
    "  two  spaces ",
    "\n\n x\t\r\n",
    "don't I'LL 's",
    "x" * 3000,
    "123456 1,234.5",
    "\x00\x7f\u200b",
    "a</s><mask> b",
]


def test_gigatoken_gives_the_ids_of_tokenizers(made):
    pytest.importorskip("gigatoken", reason="needs the extra: pip install 'ag_jax[fast]'")
    texts = [*CORPUS, *ODD, *itertools.chain.from_iterable(map(forms, COMPOSED))]
    encoders = [json.loads(made[kind].file()[1]) for kind in ("byte_bpe", "wordpiece")]
    fast, unsupported = map(fast_tokenizer.gigatoken_encoder, encoders)
    assert fast(texts) == [ids for ids, _ in made["byte_bpe"].locate_batch(texts)] and unsupported is None


@pytest.mark.parametrize("wrong", [None, 2, 4])
def test_other_ids_of_a_fast_encoder_are_an_error(wrong, made, monkeypatch):
    """The first two calls have the texts that are all compared; of later ones, the first text is."""
    exact, calls = made["byte_bpe"].encode_batch, []

    def fast(texts):
        calls.append(texts)
        return [[7] for _ in texts] if len(calls) == wrong else exact(texts)

    monkeypatch.setattr(fast_tokenizer, "CHECKED_CHARACTERS", 14)
    monkeypatch.setattr(fast_tokenizer, "gigatoken_encoder", lambda values: fast)
    library = huggingface.Tokenizer.from_str(made["byte_bpe"].file()[1].decode())
    tokenizer = tokenizers.Tokenizer(HuggingFace(library), "here")
    assert tokenizer.fingerprint() == made["byte_bpe"].fingerprint()
    for number, texts in enumerate((["the old"], ["a house", "by"], ["the river", "a"], ["a mat"]), 1):
        with pytest.raises(ValueError, match="gigatoken") if number == wrong else contextlib.nullcontext():
            assert tokenizer.encode_batch(texts) == exact(texts)
    assert len(calls) == 4
    library.add_tokens(["<other>"])  # which is a token in a text
    tokenizers.Tokenizer(HuggingFace(library), "here").encode("the <other>")
    assert len(calls) == 4


@pytest.mark.parametrize("kind", ["sentencepiece_unigram", "sentencepiece_bpe"])
def test_decomposed_text_of_a_tokenizer_that_is_trained_here(kind, tmp_path):
    """All forms of a text have equal ids, which the file gives in another program, too."""
    tokenizer = tokenizers.train(TokenizerConfig(kind=kind, vocabulary_size=108), COMPOSED)
    tokenizer.save(tmp_path)
    library = huggingface.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for composed in COMPOSED:
        for form in forms(composed):
            ids = tokenizer.encode(form)
            assert ids == library.encode(form, add_special_tokens=False).ids == tokenizer.encode(composed)
            assert tokenizer.specials.unknown not in ids
            assert tokenizer.decode(ids) == unicodedata.normalize("NFKC", form)
            assert left_out(form, tokenizer.locate_batch([form])[0][1]) <= {" "}
    assert tokenizer.encode(" Tôi\t\nthấy\x01 \u200bmột\ufeff") == tokenizer.encode("Tôi thấy một")


def test_user_defined_symbols_of_a_sentencepiece_model(tmp_path):
    """sentencepiece finds them in a text; one with a role, such as the mask, is text there, and others are tokens."""
    model = sentencepiece_model(CORPUS[0].splitlines(), user_defined_symbols=["<mask>", "<other>"])
    (tmp_path / "a.model").write_bytes(model)
    tokenizer, text = tokenizers.load(tmp_path), "the <mask> old <other> house"
    mask, other = tokenizer.specials.mask, sentencepiece.SentencePieceProcessor(model_proto=model)["<other>"]
    ((ids, places),) = tokenizer.locate_batch([text])
    assert ids == tokenizer.encode(text) and mask not in ids
    assert places[ids.index(other)] == (text.index("<other>"), text.index(" house"))
    assert left_out(text, places) <= {" "} and tokenizer.tokens([mask]) == ["<mask>"]


def test_training_is_the_same_in_another_process(made):
    code = f"""
from ag_jax.data import fast_tokenizer, tokenizers
from ag_jax.data.config import TokenizerConfig
for kind, size in {SIZES}.items():
    print(tokenizers.train(TokenizerConfig(kind=kind, vocabulary_size=size), {CORPUS}).fingerprint())
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == [tokenizer.fingerprint() for tokenizer in made.values()]


def test_pieces_are_readable_and_wordpiece_lowercases_if_asked(tokenizer, made):
    assert "".join(tokenizer.tokens(tokenizer.encode("a house"))) == "a▁house"
    assert tokenizer.tokens([0, 1, 2, 3, 4, 99_999]) == ["<s>", "<pad>", "</s>", "<unk>", "<mask>", "[99999]"]
    assert tokenizer.tokens(tokenizer.encode("\n")) == ["\\n"]
    assert tokenizer.tokens(tokenizer.encode("é")) == ["<0xC3>", "<0xA9>"]  # neither byte is a character
    lower = tokenizers.train(TokenizerConfig(kind="wordpiece", vocabulary_size=120, lowercase=True), iter(CORPUS))
    assert lower.encode("THE OLD house") == lower.encode("the old House")
    assert made["wordpiece"].encode("The") != made["wordpiece"].encode("the")


def test_the_limits_of_a_vocabulary_are_named():
    for kind, size, limit in ("wordpiece", 12, r"least (\d+)"), ("sentencepiece_unigram", 9000, r"<= (\d+)"):
        with pytest.raises(ValueError, match=f"vocabulary_size={size}") as error:
            tokenizers.train(TokenizerConfig(kind=kind, vocabulary_size=size), CORPUS)
        possible = int(re.search(limit, str(error.value))[1])
        tokenizer = tokenizers.train(TokenizerConfig(kind=kind, vocabulary_size=possible), CORPUS)
        assert tokenizer.vocabulary_size == possible


def test_bad_tokenizer_files(made, tmp_path):
    library = huggingface.Tokenizer.from_str(made["wordpiece"].file()[1].decode())
    library.add_tokens(["\0"])  # of which the normaliser leaves nothing: the library panics, with a BaseException
    files = {"readme.md": b"", "a.model": b"", "b.model": b"no", "tokenizer.json": library.to_str(), "vocab.txt": "a"}
    for name in write(tmp_path, files) and files:
        with pytest.raises(ValueError, match=name):
            tokenizers.load(tmp_path / name)
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(ValueError, match=r"vocab\.txt"):  # not the model beside it
        tokenizers.load(tmp_path)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        tokenizers.load(tmp_path / "nowhere")
    names = {"begin": "<s>", "pad": "<pad>", "end": "</s>", "unknown": "<unk>", "mask": "<mask>"}
    for role, missing in names.items():
        ids = {name: id for id, name in enumerate([*names.values(), *"ab."]) if name != missing}
        library = tokenizers.byte_bpe(huggingface.models.BPE(ids, []))
        write(tmp_path / role, {"tokenizer.json": library.to_str()})
        with pytest.raises(ValueError, match=f"{role} token.*{missing}"):
            tokenizers.load(tmp_path / role)


def test_the_tokenizer_that_was_saved_last_is_loaded_whole_or_not(made, tmp_path):
    """Holds although an earlier tokenizer left a file of another kind, which other directories would prefer."""
    (tmp_path / "source.model").write_bytes(sentencepiece_model(CORPUS[0].splitlines()))
    loaded = tokenizers.load(tmp_path / "source.model")
    (tmp_path / "source.model").unlink()
    prints = []
    for tokenizer in (made["byte_bpe"], loaded, made["wordpiece"], loaded, made["wordpiece"]):
        tokenizer.save(tmp_path)
        prints.append(tokenizers.load(tmp_path).fingerprint())
        assert prints[-1] == tokenizer.fingerprint()
    assert len(set(prints)) == 3, "fingerprints tell vocabularies apart"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["checksum.json", "spiece.model", "tokenizer.json"]
    file, checksum = tmp_path / "tokenizer.json", tmp_path / "checksum.json"
    content = file.read_bytes()
    file.write_bytes(content.replace(b"e", b"f", 1))  # still loads
    with pytest.raises(ValueError, match="tokenizer.json"):
        tokenizers.load(tmp_path)
    file.unlink()
    with pytest.raises(FileNotFoundError, match="tokenizer.json"):
        tokenizers.load(tmp_path)
    file.write_bytes(content)
    checksum.unlink()
    assert tokenizers.load(file).fingerprint() == tokenizers.load(tmp_path).fingerprint() == prints[-1]


def test_the_ids_of_published_tokenizers(shared, tmp_path):
    with pytest.raises(ValueError, match=r"vocab\.json"):
        tokenizers.load(shared / "data/tokenizers/roberta-base")
    tokenizer_files.read(shared / "data/tokenizers/roberta-base", FAMILIES["roberta"]).save(tmp_path / "roberta")
    tokenizer = tokenizers.load(tmp_path / "roberta")
    assert tokenizer.vocabulary_size == 50_265 and tokenizer.period_ids == (4, 479)
    assert tokenizer.specials == SpecialTokens(begin=0, pad=1, end=2, unknown=3, mask=50_264, pair_separators=2)
    assert tokenizer.encode("Hello world") == [31414, 232]
    # From the documentation of RobertaTokenizer: a space in front makes another word of it.
    assert tokenizer.encode(" Hello world") == [20920, 232]
    assert tokenizer.tokens([31414, 232]) == ["Hello", "▁world"]
    assert tokenizer.decode(tokenizer.encode("Café, 42 naïve\n")) == "Café, 42 naïve\n"

    source = shared / "data/tokenizers/bert-base-uncased"
    shutil.copy(source / "vocab.txt", tmp_path)
    for place in (source, tmp_path):  # tokenizer.json and vocab.txt
        tokenizer = tokenizer_files.read(place, FAMILIES["bert"]).with_second_type(None)
        assert tokenizer.specials == SpecialTokens(begin=101, pad=0, end=102, unknown=100, mask=103, pair_separators=1)
        assert tokenizer.encode("Hello world.") == [7592, 2088, 1012] and tokenizer.period_ids == (1012,)
        assert tokenizer.encode("Embeddings") == [7861, 8270, 4667, 2015]
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    assert tokenizer_files.read(tmp_path, FAMILIES["bert"]).encode("Hello") != [7592]

    tokenizer = tokenizer_files.read(shared / "data/tokenizers/attention_guidance/roberta_12", FAMILIES["roberta"])
    assert (tokenizer.vocabulary_size, tokenizer.specials.mask, tokenizer.period_ids) == (52_000, 4, (18, 1580))


WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "<s>", "</s>", "<pad>", "<unk>", "<mask>", "[GAP]", "[E1]"]
WORDS += [*"abcdeé1.", "##a", "##b"]
SETTINGS, MAP = "tokenizer_config.json", "special_tokens_map.json"


def two_families(begin: str = "[CLS]", end: str = "[SEP]", between: str = "[SEP]") -> huggingface.Tokenizer:
    """A WordPiece tokenizer that has BERT's, RoBERTa's and other special tokens, as BigBird's vocabulary."""
    model = huggingface.models.WordPiece({word: id for id, word in enumerate(WORDS)}, unk_token="[UNK]")
    library = tokenizers.wordpiece(model, lowercase=False)
    library.add_special_tokens(WORDS[:12])
    library.post_processor = huggingface.processors.TemplateProcessing(
        single=f"{begin} $A {end}",
        pair=f"{begin} $A {between} $B {end}",
        special_tokens=[(name, WORDS.index(name)) for name in {begin, end, *between.split()}],
    )
    return library


@pytest.mark.parametrize("delimiters", ["[CLS] [SEP] [SEP]", "<s> </s> </s> </s>", "<s> </s> </s>"])
def test_the_tokens_that_delimit_a_text_are_those_of_the_post_processor(delimiters, tmp_path):
    """The tokenizer has two tokens with usual names, and as many separators as between the texts of its pairs."""
    library = two_families(*delimiters.split(maxsplit=2))
    names = json.dumps({"mask_token": "[GAP]", "pad_token": {"content": "<pad>", "lstrip": False}})
    tokenizer = tokenizers.load(write(tmp_path, {"tokenizer.json": library.to_str(), SETTINGS: names, MAP: names}))
    found = tokenizer.specials
    a, b = tokenizer.encode("a"), tokenizer.encode("b")
    pair = [found.begin, *a, *[found.end] * found.pair_separators, *b, found.end]
    assert pair == library.encode("a", "b").ids
    assert [WORDS[id] for id in (found.mask, found.pad, found.unknown)] == ["[GAP]", "<pad>", "[UNK]"]
    tokenizer.save(tmp_path / "saved")
    again = tokenizers.load(tmp_path / "saved")
    assert again.specials == found and again.fingerprint() == tokenizer.fingerprint()
    (tmp_path / SETTINGS).unlink()
    (tmp_path / MAP).unlink()
    by_usual_names = tokenizers.load(tmp_path)
    assert WORDS[by_usual_names.specials.mask] == "<mask>" and list(by_usual_names.files()) == ["tokenizer.json"]
    assert by_usual_names.fingerprint() != tokenizer.fingerprint()


def test_special_tokens_without_a_role_are_tokens_in_a_text_and_others_are_not(tmp_path):
    """This holds although the file calls one of the latter not special."""
    names = json.dumps({"mask_token": "[MASK]", "pad_token": "[PAD]", "unk_token": "[UNK]"})
    write(tmp_path, {"tokenizer.json": two_families().to_str(), MAP: names})
    tokenizer, sample = tokenizers.load(tmp_path), "a [E1] b</s> [MASK]"
    ids, places = tokenizer.locate_batch([sample])[0]
    whole = [WORDS.index(word) for word in ("a", "[E1]", "b", "</s>")]
    assert ids == tokenizer.encode(sample) == whole + [WORDS.index("[UNK]")] * (len(ids) - 4) and len(ids) > 4
    assert places[1] == (2, 6)
    values = json.loads(two_families().to_str())
    for token in values["added_tokens"]:
        token["special"] = token["special"] and token["content"] != "[MASK]"
    write(tmp_path, {"tokenizer.json": json.dumps(values)})
    assert tokenizers.load(tmp_path).encode(sample) == ids
    (tmp_path / "tokenizer.json").unlink()
    settings = {"do_lower_case": False, "additional_special_tokens": ["[E1]", "</s>"]}
    write(tmp_path, {"vocab.txt": "\n".join(WORDS) + "\n", SETTINGS: json.dumps(settings)})
    assert tokenizer_files.read(tmp_path, FAMILIES["bert"]).encode(sample)[:4] == whole


@pytest.mark.parametrize(
    ("base", "name", "values", "named"),
    [
        ("tokenizer.json", SETTINGS, {"cls_token": "<s>"}, r"cls_token='<s>'.*\[CLS\]"),
        ("tokenizer.json", SETTINGS, {"unk_token": "<unk>"}, r"unk_token='<unk>'.*\[UNK\]"),
        ("tokenizer.json", SETTINGS, {"mask_token": "[GONE]"}, r"mask_token.*\[GONE\]"),
        ("tokenizer.json", SETTINGS, {"mask_token": "[SEP]"}, r"\[SEP\].*end.*mask"),
        ("tokenizer.json", MAP, {"pad_token": "<pad>"}, f"{MAP} has '<pad>'"),
        ("tokenizer.json", SETTINGS, {"do_lower_case": True}, "do_lower_case"),
        ("tokenizer.json", SETTINGS, {"added_tokens_decoder": {"3": {"content": "[CLS]"}}}, r"\[CLS\].* 2"),
        ("tokenizer.json", "added_tokens.json", {"[NEW]": 22}, r"\[NEW\].*22"),
        ("tokenizer.json", MAP, {"additional_special_tokens": ["[NEW]"]}, r"\[NEW\]"),
        ("tokenizer.json", "tokenizer.json", json.loads(two_families(between="</s>").to_str()), r"A </s> B \[SEP\]"),
        ("spiece.model", SETTINGS, {"tokenizer_class": "CamembertTokenizer"}, "CamembertTokenizer"),
        ("spiece.model", SETTINGS, {"added_tokens_decoder": {"90": {"content": "[NEW]"}}}, r"\[NEW\].*90"),
        ("spiece.model", SETTINGS, {"additional_special_tokens": "ab"}, "additional_special_tokens.*'ab'"),
    ],
)
def test_files_that_contradict_each_other(base, name, values, named, tmp_path):
    if base == "tokenizer.json":
        settings = {"pad_token": "[PAD]", "do_lower_case": False, "strip_accents": None}
        write(tmp_path, {base: two_families().to_str(), SETTINGS: json.dumps(settings)})
    else:
        settings = {"mask_token": "<mask>", "tokenizer_class": "DebertaV2Tokenizer"}
        write(tmp_path, {base: sentencepiece_model(CORPUS[0].splitlines()), SETTINGS: json.dumps(settings)})
    fingerprint = tokenizers.load(tmp_path).fingerprint()
    marked = {path.name: codecs.BOM_UTF8 + path.read_bytes() for path in tmp_path.glob("*.json")}
    assert tokenizers.load(write(tmp_path, marked)).fingerprint() == fingerprint, "a byte order mark is no part of it"
    write(tmp_path, {name: json.dumps((settings if name == SETTINGS else {}) | values)})
    for place in (tmp_path, tmp_path / base):
        with pytest.raises(ValueError, match=named):
            tokenizers.load(place)


TEXTS = [*marian_files.SOURCES, *marian_files.TARGETS, "", "the 漢字 dog!", "  two  spaces ", "ß"]


@pytest.fixture(scope="module")
def of_marian(tmp_path_factory):
    directory = tmp_path_factory.mktemp("marian")
    marian_files.write_tokenizer(directory)
    return directory


@pytest.fixture
def marian(of_marian, tmp_path):
    return shutil.copytree(of_marian, tmp_path, dirs_exist_ok=True)


def changed(directory, name, **values):
    file = directory / name
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def test_each_language_has_its_model(marian):
    """Ids are looked up by the names of pieces; what the vocabulary lacks is unknown; the target's model decodes."""
    tokenizer, vocabulary = tokenizers.load(marian), json.loads((marian / "vocab.json").read_text())
    models = [
        sentencepiece.SentencePieceProcessor(model_file=str(marian / name)) for name in ("source.spm", "target.spm")
    ]
    for sample in TEXTS:
        pieces = [model.encode(sample, out_type=str) for model in models]
        source, target = ([vocabulary.get(piece, vocabulary["<unk>"]) for piece in of] for of in pieces)
        assert tokenizer.encode(sample) == tokenizer.encode_batch([sample])[0] == source
        assert tokenizer.encode_targets([sample]) == [target] == [tokenizer.locate_targets([sample])[0][0]]
        if vocabulary["<unk>"] not in target:
            assert tokenizer.decode([*target, vocabulary["</s>"]]) == models[1].decode(pieces[1])
    assert tokenizer.encode_batch([]) == tokenizer.encode_targets([]) == tokenizer.locate_batch([]) == []
    assert tokenizer.decode([vocabulary["a"], 10**6]) == "a"  # an id of the model that no token has


def test_languages_and_special_tokens(marian):
    tokenizer, vocabulary = tokenizers.load(marian), json.loads((marian / "vocab.json").read_text())
    assert tokenizer.encode(">>deu<<a cat") == [vocabulary[">>deu<<"], *tokenizer.encode("a cat")]
    assert tokenizer.encode(">>xxx<<a cat") == [vocabulary["<unk>"], *tokenizer.encode("a cat")]
    ids, places = tokenizer.locate_batch([">>deu<< a cat"])[0]
    assert ids == tokenizer.encode(">>deu<< a cat")
    assert places[0] == (0, 7) and places[1][0] >= 7 and places[-1][1] == len(">>deu<< a cat")
    assert tokenizer.tokens(ids)[0] == ">>deu<<" and tokenizer.tokens([10**6]) == [f"[{10**6}]"]
    pad, specials = vocabulary["<pad>"], tokenizer.specials
    assert (specials.begin, specials.pad, specials.mask, specials.second_type) == (pad, pad, pad, None)
    assert (specials.end, specials.unknown) == (vocabulary["</s>"], vocabulary["<unk>"])
    assert tokenizer.lacks == ("begin", "mask") and tokenizer.languages == ("eng", "deu")
    assert tokenizer.period_ids == tuple(sorted(id for piece, id in vocabulary.items() if piece in (".", "▁.")))
    changed(marian, "vocab.json", **{"<s>": pad + 1, "<mask>": pad + 2})
    tokenizer = tokenizers.load(marian)
    assert (tokenizer.specials.begin, tokenizer.specials.mask, tokenizer.lacks) == (pad + 1, pad + 2, ())
    assert tokenizer.vocabulary_size == pad + 3


def test_two_models_are_saved_and_loaded(marian, tmp_path_factory):
    """Holds beside a tokenizer.json, as in some models, which knows only one of the languages."""
    tokenizer, saved = tokenizers.load(marian), tmp_path_factory.mktemp("saved")
    tokenizer.save(saved)
    (saved / "tokenizer.json").write_text("{}")
    loaded = tokenizers.load(saved)
    assert loaded.fingerprint() == tokenizer.fingerprint() and loaded.languages == tokenizer.languages
    assert loaded.encode_batch(TEXTS) == tokenizer.encode_batch(TEXTS)
    assert loaded.encode_targets(TEXTS) == tokenizer.encode_targets(TEXTS)
    with pytest.raises(ValueError, match="one file"):
        tokenizer.file()
    changed(saved, "vocab.json", more=99)
    with pytest.raises(ValueError, match=r"vocab\.json"):
        tokenizers.load(saved)
    (marian / "target.spm").write_bytes((marian / "source.spm").read_bytes())
    assert tokenizers.load(marian).fingerprint() != tokenizer.fingerprint()


def added(**tokens):
    return {"added_tokens_decoder": {number: {"content": token} for number, token in enumerate(tokens.values())}}


@pytest.mark.parametrize(
    ("name", "values", "named"),
    [
        ("vocab.json", {"a": -1}, "-1"),
        ("vocab.json", {"a": 1}, "'<unk>' and 'a'"),
        ("vocab.json", None, "<unk>"),
        ("source.spm", None, "source.spm"),
        ("target.spm", None, "target.spm"),
        ("tokenizer_config.json", {"tokenizer_class": "T5Tokenizer"}, "T5Tokenizer"),
        ("tokenizer_config.json", {"source_lang": 3}, "source_lang"),
        ("tokenizer_config.json", {"pad_token": {"content": "[PAD]"}}, r"\[PAD\]"),
        ("tokenizer_config.json", added(end="</s>", new="<new>"), "<new>"),
        ("tokenizer_config.json", added(end="</s>", code=">>deu<<", cut="a"), ": a;"),
    ],
)
def test_files_of_two_models_that_do_not_fit(name, values, named, marian):
    if values:
        changed(marian, name, **values)
    else:
        (marian / name).write_text("{}")
    with pytest.raises(ValueError, match=named) as caught:
        tokenizers.load(marian)
    assert str(marian) in str(caught.value)
    if name in ("vocab.json", "target.spm"):
        (marian / name).unlink()
        with pytest.raises(FileNotFoundError, match=name):
            tokenizers.load(marian)
