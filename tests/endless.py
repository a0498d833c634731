"""Patches that make a command endless at a certain point, for `test_interruption.py`.

Each function is called in the process of the command before the command begins.
"""

import hashlib
import itertools
import time

from ag_jax.data import tokenizers
from ag_jax.data.records import stored
from ag_jax.data.text import documents, holdout, sequences

SENTENCES = [f"The {word} sat on the mat of house {number}." for number in range(50) for word in ("cat", "dog", "bird")]


def text() -> None:
    """Make documents endless, so that a tokenizer is trained, or text tokenised, for ever."""
    stored.Files.documents = stored.Sotu.documents = lambda *_: itertools.repeat(" ".join(SENTENCES))


def rows() -> None:
    """Make rows endless."""
    make = sequences.make
    sequences.make = lambda *arguments: itertools.cycle(list(make(*arguments)))


def call() -> None:
    """Make the training of a tokenizer a library call that does not return."""
    tokenizers.train = lambda *_: time.sleep(3600)


def document() -> None:
    """Make the main thread call a C function that does not return, during which Python runs no signal handlers."""
    documents.split_sentences = holdout.split_sentences = lambda _: hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)
