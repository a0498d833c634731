"""Ways to make a command endless at a certain place, for `test_interruption.py`: called in the process of the command."""

import gc
import hashlib
import itertools
import os
import signal
import sys
import time

from ag_jax import cli
from ag_jax.data import tokenizers
from ag_jax.data.text import formats, pipeline, sources

SENTENCES = [f"The {word} sat on the mat of house {number}." for number in range(50) for word in ("cat", "dog", "bird")]


def text() -> None:
    """Documents without end, so that a tokenizer is trained, or text tokenised, for ever."""
    sources._part_documents = lambda *_: itertools.repeat(" ".join(SENTENCES))


def rows() -> None:
    """Rows without end."""
    make = formats.make_rows
    formats.make_rows = lambda *arguments: itertools.cycle(list(make(*arguments)))


def call() -> None:
    """A call into a library that does not come back."""
    tokenizers.train = lambda *_: time.sleep(3600)


def document() -> None:
    """A call from the main thread, during which Python runs no handlers of signals."""
    pipeline.split_sentences = lambda _: hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)


def after_a_lost_exception() -> None:
    """A signal that comes outside of any loop that looks for it, while a callback of the garbage collection runs."""

    def callback(*_):
        gc.callbacks.remove(callback)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.1)

    def command(*_):
        gc.callbacks.append(callback)
        gc.collect()
        print("the exception is lost", file=sys.stderr)
        time.sleep(3600)

    cli.run_verb = command
