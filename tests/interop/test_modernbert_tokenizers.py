"""Tokenizers of the shape of ModernBERT's, Ettin's and mmBERT's: read, used and exported."""

import dataclasses
import unicodedata

import numpy as np
import pytest
import tokenizers as huggingface

from ag_jax.data import tokenizers
from ag_jax.data.config import MaskingConfig
from ag_jax.data.text import corruption
from ag_jax.interop import tokenizer_files
from ag_jax.interop.modernbert import MODERNBERT
from ag_jax.pretraining import workloads
from ag_jax.pretraining.config import ExperimentConfig
from tests import tiny
from tests.interop import modernbert_tokenizers
from tests.interop.modernbert_tokenizers import PROBES

NAMES = {
    "modernbert": {"begin": "[CLS]", "end": "[SEP]", "pad": "[PAD]", "unknown": "[UNK]", "mask": "[MASK]"},
    "mmbert": {"begin": "<bos>", "end": "<eos>", "pad": "<pad>", "unknown": "<unk>", "mask": "<mask>"},
}


@pytest.fixture(params=NAMES)
def name(request):
    return request.param


@pytest.fixture
def made(name, tmp_path):
    """The library's tokenizer, and ours from its file."""
    library = modernbert_tokenizers.MAKE[name]()
    library.save(str(tmp_path / "tokenizer.json"))
    return library, tokenizer_files.read(tmp_path, MODERNBERT)


def test_ids_offsets_and_texts(name, made):
    library, ours = made
    literal = huggingface.Tokenizer.from_str(library.to_str())
    literal.encode_special_tokens = True  # as here, where a special token in a text is only its letters
    for text, (ids, places) in zip(PROBES, ours.locate_batch(PROBES), strict=True):
        wanted = literal.encode(text, add_special_tokens=False)
        assert ids == wanted.ids == ours.encode(text)
        # The library leaves marks out that it composes with the letter before them.
        marks = {end for place, (_, end) in zip(wanted.offsets, places, strict=True) if end > place[1]}
        assert all(unicodedata.combining(text[end - 1]) for end in marks)
        assert all(got == place for got, place in zip(places, wanted.offsets, strict=True) if got[1] not in marks)
        assert not set(ids) & set(ours.special_ids)
        assert ours.decode(ids) == (unicodedata.normalize("NFC", text) if name == "modernbert" else text)
        assert ours.decode([ours.specials.begin, *ids, ours.specials.end]) == ours.decode(ids)
    (_, places), text = ours.locate_batch(["an Öl 😀."])[0], "an Öl 😀."
    assert {"Ö", "😀", "."} <= {text[start:end].strip() for start, end in places}


def test_special_and_readable_tokens(name, made):
    library, ours = made
    assert {role: library.id_to_token(getattr(ours.specials, role)) for role in NAMES[name]} == NAMES[name]
    assert ours.specials.pair_separators == 1 and not ours.lacks
    assert ours.vocabulary_size == library.get_vocab_size()
    assert library.token_to_id("<s>") is None or library.token_to_id("<s>") not in ours.special_ids
    shown = "".join(ours.tokens(ours.encode("We will  do\n")))
    assert shown.startswith("We▁will▁▁do") and "\n" not in shown


def test_saved_and_exported_tokenizers_are_the_same(made, tmp_path):
    library, ours = made
    ours.save(tmp_path / "saved")
    (tmp_path / "exported").mkdir()
    config = tiny.config(**tiny.MODERNBERT, vocabulary_size=ours.vocabulary_size)
    tokenizer_files.write(ours, tmp_path / "exported", MODERNBERT, config)
    saved = tokenizers.load(tmp_path / "saved").with_second_type(0)
    for again in (saved, tokenizer_files.read(tmp_path / "exported", MODERNBERT)):
        assert again.specials == ours.specials and again.vocabulary_size == ours.vocabulary_size
        assert again.locate_batch(PROBES) == ours.locate_batch(PROBES)
    exported = huggingface.Tokenizer.from_file(str(tmp_path / "exported" / "tokenizer.json"))
    pairs = [("our", "roads"), ("We will", "rebuild <b>")]
    for text in (*PROBES[:6], *pairs):
        assert exported.encode(*(text if isinstance(text, tuple) else (text,))).ids == (
            library.encode(*(text if isinstance(text, tuple) else (text,))).ids
        )
    mask = exported.id_to_token(ours.specials.mask)
    ids = exported.encode(f"our {mask} roads", add_special_tokens=False).ids
    assert ids == [*ours.encode("our"), ours.specials.mask, *ours.encode(" roads")]


def test_rows_of_a_padded_vocabulary_are_never_drawn(made):
    """The model has more rows than the tokenizer tokens, as ModernBERT's vocabulary is padded."""
    _, ours = made
    model = dataclasses.replace(ExperimentConfig().model, vocabulary_size=ours.vocabulary_size + 51)
    config = dataclasses.replace(ExperimentConfig(), model=model)
    assert workloads.model_config(config, ours).vocabulary_size == ours.vocabulary_size + 51
    tokens_BL = np.full((400, 64), ours.encode("e")[0], np.int32)
    tokens_BL[:, 0], tokens_BL[:, 63] = ours.specials.begin, ours.specials.end
    masking = MaskingConfig(rate=0.5, mask_fraction=0.0, random_fraction=1.0)
    found = corruption.mask(masking, tokens_BL, np.full(400, 64), np.arange(400), np.zeros(400, int), 3, ours)
    drawn = set(np.take_along_axis(found.tokens_BL, found.positions_BM, axis=1)[found.weights_BM > 0].tolist())
    assert drawn == set(range(ours.vocabulary_size)) - set(ours.special_ids)


@pytest.mark.parametrize("lost", ["<bos>", "<eos>"])
def test_a_missing_special_token_is_named(lost, tmp_path):
    """HTML's <s> is not taken in the place of <bos>, by a tokenizer without a template that says what is."""
    library = modernbert_tokenizers.mmbert()
    library.post_processor = huggingface.processors.ByteLevel()
    text = library.to_str().replace(lost, "<other>")
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(ValueError, match=lost):
        tokenizer_files.read(tmp_path, MODERNBERT)
