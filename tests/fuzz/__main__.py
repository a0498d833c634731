"""The command: build the material, run the cases, print the table of findings."""

import argparse
import collections
import contextlib
import io
import os
import pathlib
import shutil
import sys
import tempfile
import time

from tests.commands import in_a_child
from tests.fuzz import cases, commands, files, material


def main() -> int:
    """Return 0 if there is no finding, else 1."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=sys.modules["tests.fuzz"].__doc__)
    parser.add_argument("--commands", type=int, default=300, help="number of command lines")
    parser.add_argument("--files", type=int, default=20_000, help="number of damaged files")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--loader", default="", help="only damaged files of loaders whose names contain this")
    parser.add_argument("--only", help="one case, such as F12 or C3, with its message")
    chosen = parser.parse_args()
    numbers = {"F": range(chosen.files), "C": range(chosen.commands)}
    if chosen.only:
        kind, number = chosen.only[0], int(chosen.only[1:])
        numbers = {"F": range(0), "C": range(0), kind: range(number, number + 1)}
    began, tried, findings = time.time(), 0, []
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        here, kept = pathlib.Path(folder).resolve() / "here", pathlib.Path(folder).resolve() / "kept"
        here.mkdir()
        os.chdir(here)
        os.environ |= {"AG_JAX_CACHE": f"{here}/cache", "JAX_COMPILATION_CACHE_DIR": f"{folder}/compiled"}
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
        _build(here)
        shutil.copytree(here, kept)
        for kind, run in (
            ("F", files.Files(here, kept, chosen.seed, chosen.loader).run),
            ("C", commands.Commands(here, kept, chosen.seed).run),
        ):
            for done, found in enumerate(run(numbers[kind]), 1):
                tried += 1
                if found:
                    findings.append(found)
                    _tell(f"{found.case} | {found.subject} | {found.change} | {found.happened}")
                if done % 500 == 0 or (kind == "C" and done % 20 == 0):
                    _tell(f"{kind}: {done} of {len(numbers[kind])}, {len(findings)} findings")
        os.chdir("/")
    kinds: dict[tuple[str, str], list[cases.Finding]] = collections.defaultdict(list)
    for found in findings:
        kinds[found.subject, found.happened].append(found)
    for (subject, happened), alike in sorted(kinds.items()):
        changes = ", ".join(sorted({found.change for found in alike}))
        print(f"{len(alike):4} | {alike[0].case} | {subject} | {changes} | {happened}")
    if chosen.only:
        print(*(found.detail for found in findings), sep="\n")
    seconds = time.time() - began
    print(f"{len(findings)} findings of {len(kinds)} kinds in {tried} cases, {seconds:.0f} s")
    return int(bool(findings))


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _build(here: pathlib.Path) -> None:
    """The material, made in a process of its own, as this one must not start JAX."""

    def quietly() -> None:
        with contextlib.redirect_stderr(io.StringIO()):
            material.build(here)

    in_a_child(quietly)


if __name__ == "__main__":
    sys.exit(main())
