"""Restore plain text from files published as BPE pieces or Moses tokens, such as Google's files of WMT.

The name of a file says what its lines are: pieces of BPE (`.bpe.`, "Res@@ um@@ ption of the session") or tokens of the
Moses tokenizer (`.tok.`, "the session , I say"). Pieces are joined. Tokens are joined by sacremoses if it is installed;
otherwise they stay apart, so scores are those of tokenised text, which a warning says.
"""

import importlib.metadata
import importlib.util
import pathlib
import re
from collections.abc import Callable, Iterable

from ag_jax.data.records import files

_PIECE_END = re.compile(r"@@(?: |$)")


def restoring(file: pathlib.Path) -> Callable[[str], str] | None:
    """Return a function that turns a line of BPE pieces or Moses tokens into plain text; None for files of plain text.

    The language of the text, by which sacremoses joins tokens, is the ending of the name, as in train.tok.en.
    """
    has_pieces = ".bpe." in file.name
    if not has_pieces and not _has_tokens(file):
        return None
    joined = _detokenizer(file) if _has_tokens(file) else None

    def restore(line: str) -> str:
        tokens = _PIECE_END.sub("", line) if has_pieces else line
        return joined(tokens) if joined else tokens

    return restore


def identity(paths: Iterable[pathlib.Path]) -> list[str]:
    """Return [name, version] of the package that joins the tokens of these files; [] if none is needed or installed.

    It is a part of the cache's keys.
    """
    if not any(map(_has_tokens, paths)) or importlib.util.find_spec("sacremoses") is None:
        return []
    return ["sacremoses", importlib.metadata.version("sacremoses")]


def _has_tokens(file: pathlib.Path) -> bool:
    return ".tok." in file.name


def _detokenizer(file: pathlib.Path) -> Callable[[str], str] | None:
    """Return a function that joins the Moses tokens of a line; None, with a warning, if sacremoses is not installed."""
    try:
        import sacremoses  # imported here, because it is optional
    except ImportError:
        files.warn_once(
            f"{file} holds tokens of the Moses tokenizer, by its name, and stays as it is: scores will be those of "
            "tokenised text. To restore the text: pip install sacremoses"
        )
        return None
    language = files.kind(file.name)[0].removeprefix(".")
    detokenize = sacremoses.MosesDetokenizer(lang=language).detokenize
    return lambda line: detokenize(line.split(" "))
