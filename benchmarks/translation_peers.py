"""Other programs that `translation_throughput.py` compares with: transformers and CTranslate2.

All translate the same texts with the same weights: they get the token ids of our tokenizer, and their outputs are
decoded with it.
"""

import dataclasses
import itertools
import json
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import tokenizers as huggingface

from ag_jax.data.tokenizers import Tokenizer
from ag_jax.interop import exporting, marian
from ag_jax.models.decoding_config import DecodingConfig
from ag_jax.pretraining.translate import Translator

Ids = list[int]


@dataclasses.dataclass(frozen=True)
class ExportedModel:
    """A run's model as a directory that transformers opens, and the numbers that its tokens have there.

    directory: the directory.
    translator: the run's model.
    new_V: id in the export of each id of our tokenizer.
    """

    directory: pathlib.Path
    translator: Translator
    new_V: np.ndarray

    @property
    def forbidden(self) -> list[int]:
        """Ids in the export of tokens that are never generated."""
        specials = self.translator.tokenizer.specials
        return [int(self.new_V[id]) for id in (specials.pad, specials.begin, specials.mask)]


def export(run: str, translator: Translator, directory: pathlib.Path) -> ExportedModel:
    """Export the model of a run to a directory that does not exist yet."""
    exporting.convert(run, None, str(directory))
    model = translator.model
    order_V = marian.vocabulary_order(
        model.config.vocabulary_size, translator.tokenizer.specials.pad, model.decoder_config.start
    )
    return ExportedModel(directory, translator, np.argsort(order_V))


class Peer:
    """A program that translates batches of token ids.

    rows: number of sentences in a batch, set by the caller.
    """

    name: str
    rows: int

    def __init__(self, tokenizer: Tokenizer, decoding: DecodingConfig):
        self.tokenizer, self.decoding = tokenizer, decoding

    def __call__(self, lines: Sequence[str]) -> list[str]:
        """Translate lines in batches of `rows` lines, sorted by their number of tokens."""
        sources = self.tokenizer.encode_batch(list(lines))
        order = sorted(range(len(lines)), key=lambda number: len(sources[number]))
        batches = [order[first : first + self.rows] for first in range(0, len(order), self.rows)]
        # In our program each sentence has its own limit; in these, a batch has that of its longest source.
        longest = [int(self.decoding.length_limits([len(sources[batch[-1]])])[1][0]) for batch in batches]
        found = self.translate([[sources[number] for number in batch] for batch in batches], longest)
        texts = [""] * len(lines)
        for number, ids in zip(itertools.chain.from_iterable(batches), found, strict=True):
            texts[number] = self.tokenizer.decode(ids).strip()
        return texts

    def translate(self, batches: list[list[Ids]], longest: list[int]) -> list[Ids]:
        """Return the best translation of each source; `longest` has the largest number of tokens for each batch."""
        raise NotImplementedError


class Transformers(Peer):
    """`generate` of transformers: MarianMTModel, SDPA, the exported weights, float32."""

    def __init__(self, exported: ExportedModel, decoding: DecodingConfig, threads: int):
        import torch
        import transformers

        super().__init__(exported.translator.tokenizer, decoding)
        self.name = f"transformers-{decoding.stop}"
        self.torch, self.exported = torch, exported
        torch.set_num_threads(threads)
        transformers.utils.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
        self.model = transformers.MarianMTModel.from_pretrained(exported.directory).eval()
        self.model.generation_config.max_length = None  # each batch has its own
        self.settings = {
            "num_beams": decoding.beam_size,
            "length_penalty": decoding.length_penalty,
            "early_stopping": "never" if decoding.stop == "bound" else True,
            "bad_words_ids": [[id] for id in exported.forbidden],
        }

    def padded(self, sources: list[Ids]) -> dict[str, Any]:
        """Return the encoder's input."""
        new, config = self.exported.new_V, self.model.config
        tokens = np.full((len(sources), max(map(len, sources)) + 1), config.pad_token_id)
        for row, source in enumerate(sources):
            tokens[row, : len(source) + 1] = [*new[source], config.eos_token_id]
        ids = self.torch.from_numpy(tokens)
        return {"input_ids": ids, "attention_mask": (ids != config.pad_token_id).long()}

    def translate(self, batches: list[list[Ids]], longest: list[int]) -> list[Ids]:
        """Translate batch after batch."""
        config, old = self.model.config, np.argsort(self.exported.new_V)
        ends, outputs = (config.pad_token_id, config.eos_token_id), []
        with self.torch.inference_mode():
            for batch, most in zip(batches, longest, strict=True):
                found = self.model.generate(**self.padded(batch), max_new_tokens=most, **self.settings)
                outputs += [[int(old[id]) for id in row if id not in ends] for row in found.tolist()]
        return outputs

    def logits(self, source: Ids, target: Ids) -> np.ndarray:
        """Return the logits of a pair, in the order of our ids."""
        inputs = [self.model.config.decoder_start_token_id, *self.exported.new_V[target].tolist()]
        with self.torch.inference_mode():
            found = self.model(**self.padded([source]), decoder_input_ids=self.torch.tensor([inputs]))
        return found.logits[0].numpy()[:, self.exported.new_V]


class CTranslate2(Peer):
    """CTranslate2 with the exported weights, float32, one batch at a time on all threads.

    Its search of a sentence ends when as many hypotheses have ended as there are beams.
    """

    name = "ctranslate2"

    def __init__(self, exported: ExportedModel, decoding: DecodingConfig, threads: int):
        import ctranslate2

        super().__init__(exported.translator.tokenizer, decoding)
        converted = exported.directory.with_name(f"{exported.directory.name}-ctranslate2")
        ctranslate2.converters.TransformersConverter(str(exported.directory)).convert(str(converted), force=True)
        self.translator = ctranslate2.Translator(
            str(converted), device="cpu", compute_type="float32", inter_threads=1, intra_threads=threads
        )
        vocabulary = exported.directory / "vocab.json"
        if vocabulary.exists():
            new_ids = json.loads(vocabulary.read_text())
        else:  # no tokenizer of sentencepiece
            new_ids = huggingface.Tokenizer.from_file(str(exported.directory / "tokenizer.json")).get_vocab()
        of_new = {id: piece for piece, id in new_ids.items()}
        self.pieces = [of_new[int(new)] for new in exported.new_V]
        self.ids = {piece: id for id, piece in enumerate(self.pieces)}
        self.end = self.pieces[self.tokenizer.specials.end]
        self.suppressed = [[of_new[id]] for id in exported.forbidden if id != len(of_new) - 1]

    def translate(self, batches: list[list[Ids]], longest: list[int]) -> list[Ids]:
        """Translate batch after batch."""
        outputs = []
        for batch, most in zip(batches, longest, strict=True):
            found = self.translator.translate_batch(
                [[*(self.pieces[id] for id in source), self.end] for source in batch],
                beam_size=self.decoding.beam_size,
                length_penalty=self.decoding.length_penalty,
                max_decoding_length=most,
                suppress_sequences=self.suppressed,
                max_input_length=0,
            )
            outputs += [[self.ids[piece] for piece in result.hypotheses[0]] for result in found]
        return outputs
