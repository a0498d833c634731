"""Make `goldens/` anew: a tiny directory of `transformers` for every family, and what it computes.

    python -m tests.interop.make_goldens      # needs the extra `parity`

Weights are float16, which halves the files; what they compute is float32.
"""

import json
import pathlib
import shutil

import numpy as np
import tokenizers as huggingface
import torch
from safetensors.numpy import save_file

from ag_jax.data.tokenizer_backends import BERT_SPECIALS, ROBERTA_SPECIALS, wordpiece
from ag_jax.interop import catalogue
from tests.parity import examples

GOLDENS = pathlib.Path(__file__).parent / "goldens"
SIZES = {"num_hidden_layers": 2, "num_attention_heads": 3, "hidden_size": 6, "intermediate_size": 11}
LENGTHS = (11, 7, 1)
TEXT = "The state of our union is strong. We will rebuild our roads, and we will do it together."


def settle(directory: pathlib.Path, model_type: str) -> tuple[int, int]:
    """A tokenizer of a few dozen pieces; its size and the id of padding."""
    letters = sorted(set(TEXT.lower()) - {" "})
    pieces = [*letters, *(f"##{letter}" for letter in letters if letter.isalpha())]
    if catalogue.named(model_type).root != "roberta":
        (directory / "vocab.txt").write_text("\n".join([*BERT_SPECIALS, *pieces]) + "\n")
        return len(BERT_SPECIALS) + len(pieces), 0
    vocabulary = {piece: id for id, piece in enumerate([*ROBERTA_SPECIALS, *pieces])}
    library = wordpiece(huggingface.models.WordPiece(vocabulary, unk_token="<unk>"), lowercase=True)
    library.save(str(directory / "tokenizer.json"))
    return len(vocabulary), vocabulary["<pad>"]


def make(name: str) -> None:
    """The directory of one example."""
    directory = GOLDENS / name
    example = examples.FAMILIES[name]
    directory.mkdir(parents=True)
    size, pad = settle(directory, example.config.model_type)
    theirs = example.make(size, pad, seed=3, max_position_embeddings=20, **SIZES).half().float()
    rng = np.random.default_rng(0)
    segment_ids = (np.arange(max(LENGTHS))[None, :] < np.array(LENGTHS)[:, None]).astype(np.int32)
    tokens = np.where(segment_ids > 0, rng.integers(5, size, segment_ids.shape), pad).astype(np.int32)
    types = max(getattr(theirs.config, "type_vocab_size", 1), 1)
    token_type_ids = rng.integers(0, types, segment_ids.shape) * segment_ids
    inputs = {"input_ids": tokens, "attention_mask": segment_ids}
    if token_type_ids.any():
        inputs["token_type_ids"] = token_type_ids
    inputs = {key: torch.tensor(value, dtype=torch.long) for key, value in inputs.items()}
    with torch.no_grad():
        out = theirs(**inputs, output_attentions=True, output_hidden_states=True)
    logits = out.prediction_logits if "prediction_logits" in out else out.logits
    expected = {
        "tokens": tokens,
        "segment_ids": segment_ids,
        "token_type_ids": token_type_ids.astype(np.int32),
        "hidden": out.hidden_states[-1].numpy(),
        "logits": logits.numpy(),
        "attention": np.stack([layer.numpy() for layer in out.attentions]),
    }
    theirs.half().save_pretrained(directory)
    save_file(expected, directory / "expected.safetensors")
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config, indent=1) + "\n")


if __name__ == "__main__":
    shutil.rmtree(GOLDENS, ignore_errors=True)
    for each in examples.FAMILIES:
        make(each)
