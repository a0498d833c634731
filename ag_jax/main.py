"""Entry point of the command `ag-jax VERB [--config=...] [--workdir=...]`: print help, or run a verb.

Help and errors of the command line are printed without the import of JAX, which takes seconds.
"""

import os
import sys
from collections.abc import Sequence

from absl import flags

from ag_jax.command_line import parser
from ag_jax.distributed import interruption
from ag_jax.distributed.terminal import Bar


def main(argv: list[str]) -> int:
    """Parse the command line, run the verb, return the exit status: 0, 1 for a failure, 2 for a wrong command."""
    status = 0
    try:
        status = _run(argv[1:])
        sys.stdout.flush()  # otherwise at exit, where an error is only printed
    except BrokenPipeError:  # the reader has seen enough, as in `ag-jax configs | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what Python writes at its end
    except OSError as error:
        print(f"ag-jax: standard output: {error}", file=sys.stderr)
        return 1
    return status


def _run(arguments: Sequence[str]) -> int:
    try:
        text = _help_text(arguments)
        if text is not None:
            print(text, flush=True)
            return 0 if arguments else 2
        verb = parser.parse(arguments)
    except BrokenPipeError:
        raise
    except (flags.Error, ValueError, OSError) as error:
        print(parser.shortened(f"ag-jax: {error}"), file=sys.stderr)
        return 2
    with Bar(f"ag-jax {verb.name}: starting"):
        from ag_jax.command_line import cli  # with JAX, which takes seconds

    return cli.run_safely(verb)


def _help_text(arguments: Sequence[str]) -> str | None:
    """Return the help, version or list of configs that a command line asks for; None if it asks to run a verb."""
    from ag_jax.command_line import manual

    if not arguments:
        return manual.overview()
    if {"--help", "-h"} & set(arguments):
        return manual.explain([argument for argument in arguments if not argument.startswith("-")][:1])
    if arguments[0] == "help":
        return manual.explain(arguments[1:])
    if "--version" in arguments:
        return manual.version()
    if arguments[0] != "configs":
        return None
    if len(arguments) > 1:
        raise ValueError(
            f"ag-jax configs lists all configs and takes no arguments, got {' '.join(arguments[1:])}: "
            "to read about one config, run ag-jax help CONFIG"
        )
    return manual.configs()


def console() -> None:
    """Entry point of the `ag-jax` command."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed, as by `ag-jax evaluate >&-`: the next open file would take its number
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 - as long as the program
    sys.exit(interruption.guard(lambda: main(sys.argv)))


if __name__ == "__main__":
    console()
