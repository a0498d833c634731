"""Damaged files: each is given to its loader within the error handling of the command."""

import dataclasses
import functools
import os
import pathlib
import random
import re
import shutil
import sys
from collections.abc import Iterator, Sequence

from ag_jax.command_line import cli
from ag_jax.command_line.verbs import Import
from tests.fuzz import cases, loaders, mutations
from tests.fuzz.cases import Finding
from tests.fuzz.loaders import Target

HASH = re.compile("[0-9a-f]{16,}")


@dataclasses.dataclass
class Files:
    """The cases of damaged files in the working directory `here`, of which `kept` is an undamaged copy."""

    here: pathlib.Path
    kept: pathlib.Path
    seed: int
    loader: str = ""  # in the names of the targets that are run

    @functools.cached_property
    def targets(self) -> Sequence[Target]:
        return loaders.targets()

    @functools.cached_property
    def contents(self) -> list[pathlib.Path]:
        """Files that may take the place of another one."""
        found = {path for target in self.targets for path in target.paths(self.kept)}
        return [path for path in sorted(found) if path.stat().st_size < 10**5]

    def target_of(self, number: int) -> Target:
        """The target of a case."""
        shares = [target.share for target in self.targets]
        return random.Random(f"{self.seed}/target/{number}").choices(self.targets, shares)[0]

    def run(self, numbers: Sequence[int]) -> Iterator[Finding | None]:
        """All cases, target by target, each in processes of its own."""
        for target in self.targets:
            chosen = [number for number in numbers if self.target_of(number) is target]
            if not chosen or self.loader not in target.name:
                continue
            one = _Cases(self, target)
            found = cases.watched([-1, *chosen], one.run, one.lost)
            undamaged = next(found)
            if undamaged is None:
                yield from found
                continue
            found.close()
            if undamaged.happened == "rejected":  # the program does not read such files, and says so
                print(f"{target.name}: not read, {undamaged.detail.strip()}", file=sys.stderr)
            else:
                yield undamaged


class _Cases:
    """The cases of one target."""

    def __init__(self, of: Files, target: Target):
        self.of, self.target = of, target
        self.undamaged: dict[str, str] | None = None

    def damage(self, number: int) -> tuple[pathlib.Path, str, mutations.Content]:
        """The file of a case, below `here`, with what is done to it and its content then."""
        rng = random.Random(f"{self.of.seed}/file/{number}")
        path = rng.choice(self.target.paths(self.of.kept))
        same_ending = [other for other in self.target.paths(self.of.kept) if other != path]
        others = [other.read_bytes() for other in (rng.choice(same_ending or [path]), rng.choice(self.of.contents))]
        what, content = mutations.mutate(rng, path.name, path.read_bytes(), others)
        return self.of.here / path.relative_to(self.of.kept), what, content

    def lost(self, number: int, how: str) -> Finding:
        """The finding of a case that ended its process."""
        self._mend()
        path, what, _ = self.damage(number)
        return Finding(f"F{number}", f"{self.target.name}: {self._name(path)}", what, how)

    def run(self, number: int) -> Finding | None:
        """One case; number -1 is the undamaged target."""
        os.chdir(self.of.here)
        if self.undamaged is None:
            status, text, result = self._load()
            if status != "returned":
                rejected = status == "rejected"
                return Finding("undamaged", self.target.name, "nothing", "rejected" if rejected else status, text)
            self.undamaged = result
            self._load()  # once more, with everything imported and cached
            self._mend()
        if number < 0:
            return None
        path, what, content = self.damage(number)
        path.unlink()
        if content is not None:
            path.write_bytes(content)
        before = cases.memory("VmRSS")
        with cases.limited():
            status, text, result = self._load()
        grown = cases.memory("VmHWM") - before
        self._mend(path)
        happened = self._judge(path, what, status, text, result, grown)
        return (
            Finding(f"F{number}", f"{self.target.name}: {self._name(path)}", what, happened, text) if happened else None
        )

    def _load(self) -> tuple[str, str, dict[str, str]]:
        """How the loader ended: a word, what it printed, and the digest of what it returned."""
        result: dict[str, str] = {}
        verb = Import(source="", workdir="")  # any verb that runs on one machine
        cli.RUN_BY["import"] = lambda _: result.update(loaders.signature(self.target.load()))
        with cases.captured() as (_, err):
            try:
                status = "rejected" if cli.run_safely(verb) else "returned"
            except loaders.Accepted as accepted:
                return f"accepted {accepted}", err.getvalue(), {}
            except cases.TooLong:
                return f"took more than {cases.CPU_SECONDS} seconds", err.getvalue(), {}
            except BaseException as error:  # whatever escapes the command's own handling is a finding
                message = f"{type(error).__name__}: {error} at {cases.last_frame(error)}"
                return f"{type(error).__name__} at {cases.last_frame(error)}", message[:1000], {}
        return status, err.getvalue(), result

    def _judge(self, path: pathlib.Path, what: str, status: str, text: str, result: dict, grown: int) -> str:
        """What is wrong; nothing if all is in order."""
        if grown > cases.GROWTH:
            return f"took {grown >> 20} MiB"
        if cases.TRACE in text:
            return "printed a traceback"
        if status == "returned":
            exact = self.target.exact and not (self.target.swaps and what == "another file")
            changed = [part for part, digest in self.undamaged.items() if result.get(part) != digest]
            return f"accepted other {', '.join(changed)}" if changed and exact else ""
        if status != "rejected":
            return status
        if len(text) > cases.LONGEST:
            return f"an error of {len(text):,} characters"
        names = (path.name, *self.target.named, *([path.parent.name] if what == "missing" else []))
        return "" if any(name in text for name in names) else "an error that does not name the file"

    def _mend(self, path: pathlib.Path | None = None) -> None:
        """Bring the undamaged files back: one, or all of a target that writes."""
        if path is not None and not self.target.writes:
            shutil.copy2(self.of.kept / path.relative_to(self.of.here), path)
            return
        folder = self.of.here / self.target.folder
        shutil.rmtree(folder)
        shutil.copytree(self.of.kept / self.target.folder, folder)

    def _name(self, path: pathlib.Path) -> str:
        return HASH.sub("HASH", str(path.relative_to(self.of.here / self.target.folder)))
