"""Colours of shell commands, in which a word such as `--config.training.steps=300` is one token.

The style sheet keeps such a token on one line, because browsers break lines after hyphens.
"""

from typing import ClassVar

from pygments.lexer import inherit
from pygments.lexers.shell import BashLexer
from pygments.token import Name


class CommandLexer(BashLexer):
    """A lexer of Bash in which a word with hyphens is a token of the kind `Name.Other`, whose class is `nx`."""

    tokens: ClassVar = {"basic": [(r"(?<!\S)[^\s#$\"'`\\()<>|;&]*-[^\s#$\"'`\\()<>|;&]*", Name.Other), inherit]}
