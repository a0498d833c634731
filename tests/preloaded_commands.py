"""Imported by the server of `tests.commands`, which thereby imports the program."""

from tests import commands

commands.preload()
