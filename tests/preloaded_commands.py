"""The module that the server of `tests.commands` preloads, which imports the program."""

from tests import commands

commands.preload()
