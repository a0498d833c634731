"""A prepared corpus: the tokenizer of a run, and the rows of token ids into which it encoded the text."""

import dataclasses
from typing import Any

from ag_jax.data.layout import SPLITS
from ag_jax.data.tokenizers import Tokenizer


@dataclasses.dataclass(frozen=True)
class Corpus:
    """A tokenizer, and the rows of token ids into which it encoded the training and the validation text.

    tokenizer: the tokenizer of the rows.
    train: rows for training: `store.Rows`, `MixedRows` of several sources, or `PairRows` of translations.
    validation: rows for validation.
    documents: number of documents of each split; of pairs, the number of pairs that rows hold.
    checksums: hash of the rows of each split.
    left_out: numbers of what was left out of the text, with their names, such as `train pairs too long`.
    sources: of text, for each of the sources that are mixed, or for the only one, its name, its share in the rows that
        training draws, and the numbers of documents, of tokens (without special ones) and of rows of each split.
    held_out: of text, for each of `sources`, the `validation_fraction` that was held out, which is less than the
        setting if that has more than `validation_tokens`, and the share of whole documents that were kept of it for
        validation (`holdout.held_out`).
    """

    tokenizer: Tokenizer
    train: Any
    validation: Any
    documents: dict[str, int]
    checksums: dict[str, str]
    left_out: dict[str, int] = dataclasses.field(default_factory=dict)
    sources: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    held_out: list[tuple[float, float]] = dataclasses.field(default_factory=list)

    @property
    def train_tokens(self) -> int:
        """The number of tokens of the training text of all `sources`, without special tokens."""
        return sum(source["train"]["tokens"] for source in self.sources)

    @property
    def words(self) -> dict[str, int]:
        """{split: number of words separated by white space}; {} for translation pairs and for mixtures of sources."""
        only = self.sources if len(self.sources) == 1 else []
        return {split: source[split]["words"] for source in only for split in SPLITS}

    def facts(self) -> dict[str, int | str]:
        """Return a summary of the corpus by which two corpora can be compared: equal for the same text and settings."""
        facts: dict[str, int | str] = {"tokenizer": self.tokenizer.fingerprint()}
        for split, rows in (("train", self.train), ("validation", self.validation)):
            facts |= {f"{split} documents": self.documents[split], f"{split} rows": len(rows)}
            facts |= {f"{split} tokens": len(rows.tokens), f"{split} checksum": self.checksums[split]}
            if hasattr(rows, "source"):
                facts[f"{split} source tokens"] = len(rows.source.tokens)
        return facts | self.left_out
