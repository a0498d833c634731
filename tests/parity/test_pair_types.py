"""RoBERTa with two token types against `transformers`: single texts and pairs, with and without the head of a task."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the extra: pip install 'ag_jax[parity]'")
transformers = pytest.importorskip("transformers", reason="needs the extra: pip install 'ag_jax[parity]'")

from etils import epath

from ag_jax.data import tokenizers
from ag_jax.data.config import TokenizerConfig
from ag_jax.data.tasks.rows import RowSettings
from ag_jax.interop import exporting, finetuned, importing, opening, tokenizer_files
from ag_jax.interop.families import ROBERTA
from ag_jax.models.config import EncoderConfig
from tests.parity import examples

TEXTS = ["The state of our union is strong. We will rebuild our roads, and we will do it together."] * 6
EXAMPLES = [("We will rebuild our roads.", None), ("our roads", "The state of our union is strong.")]


def theirs_say(directory, auto):
    """(ids, logits) of the examples from the model and the tokenizer of a directory, in stock `transformers`."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    model = auto.from_pretrained(directory, attn_implementation="eager").eval()
    inputs = [tokenizer(*filter(None, texts), return_tensors="pt") for texts in EXAMPLES]
    with torch.no_grad():
        return [(one["input_ids"][0].numpy(), model(**one).logits[0].numpy()) for one in inputs]


def ours_say(directory, kind):
    """The same from a run, or from a fine-tuned model."""
    opened = finetuned.load(epath.Path(directory)) if kind else opening.open_masked_lm(str(directory))
    settings = RowSettings(opened.tokenizer.specials, 32, opened.model.config.token_types)
    said = []
    for texts in EXAMPLES:
        row = settings.row(*(opened.tokenizer.encode(text) for text in texts if text))
        batch = {name: np.asarray(field, np.int32)[None] for name, field in row.items()}
        batch["masked_positions"] = np.arange(len(row["tokens"]), dtype=np.int32)[None]
        out = opened.model.apply({"params": opened.params}, batch, deterministic=True)
        said.append((row["tokens"], np.asarray(out if kind else out.words_BMV)[0]))
    return said


@pytest.mark.parametrize("second", [0, 1])
@pytest.mark.parametrize("kind", [None, "classification"])
def test_the_rows_that_the_tokenizer_selects_stay(kind, second, tmp_path):
    model = transformers.RobertaForSequenceClassification if kind else transformers.RobertaForMaskedLM
    auto = transformers.AutoModelForSequenceClassification if kind else transformers.AutoModelForMaskedLM
    tokenizer = tokenizers.train(TokenizerConfig(kind="byte_bpe", vocabulary_size=300), TEXTS)
    example = examples.Example(transformers.RobertaConfig, model, lambda _: {})
    theirs = example.make(300, tokenizer.specials.pad, 1)
    assert theirs.config.type_vocab_size == 2  # the default
    theirs.save_pretrained(tmp_path / "theirs")
    config = EncoderConfig(vocabulary_size=300, max_length=30, token_types=2)
    tokenizer_files.write(tokenizer.with_second_type(second), tmp_path / "theirs", ROBERTA, config)

    found = importing.convert(str(tmp_path / "theirs"), epath.Path(tmp_path / "ours"))
    name = "roberta.embeddings.token_type_embeddings.weight"
    assert [name in part for part in found.left_out] == [True] * (1 - second)
    exporting.convert(epath.Path(tmp_path / "ours"), None, str(tmp_path / "out"))
    assert transformers.AutoConfig.from_pretrained(tmp_path / "out").type_vocab_size == 1 + second
    wanted = theirs_say(tmp_path / "theirs", auto)
    for said in (ours_say(tmp_path / "ours", kind), theirs_say(tmp_path / "out", auto)):
        for (ids, logits), (their_ids, their_logits) in zip(said, wanted, strict=True):
            np.testing.assert_array_equal(ids, their_ids)
            np.testing.assert_allclose(logits, their_logits, atol=1e-4 * np.abs(their_logits).max())
