"""How many cycles a call of a TPU kernel takes, from the instruction schedule that the compiler writes for it.

libtpu estimates the cycles of its own operations in the text of a compiled program, but not those of kernels (Pallas).
It writes the schedule of each kernel to a folder if flags ask for it: a list of bundles, each of which takes a cycle,
with the loops around them. The cycles of a kernel are the bundles, times the iterations of their loops. Not counted:
waiting for memory or for the matrix units. Counted, although they may be left out: bundles that run only if a condition
is true.

A loop is taken to count from 0 in steps of 1 to the constant in its exit test. The flags are read when libtpu is
loaded, so `request` has to be called before.
"""

import atexit
import dataclasses
import functools
import os
import pathlib
import re
import shutil
import tempfile

from ag_jax.planning import hlo
from ag_jax.planning.hlo import Instruction

_ENVIRONMENT = "LIBTPU_INIT_ARGS"
_FLAGS = "--xla_jf_dump_to={} --xla_jf_dump_llo_text=true --xla_jf_dump_llo_pass_label_regex=final_bundles"
_KERNEL = re.compile(r"scheduled bundles \(100\.00%\): (%.*)")
# "0x1b25  LB: > { ... }": address, start of a loop or region, as many > as there are loops around the bundle. Bundles
# that do nothing, "{}", have no >.
_BUNDLE = re.compile(r"^\s*(?:0x[0-9a-f]+|\d+)\s+([A-Z]{2})?\s*: ([> ]*)(\{\})?")
_EXIT = re.compile(r"scmp\.ge\.s32\.totalorder \S+, (\d+) /\* loop exit test \*/")
_LOOP_STARTS = ("LH", "LB")


@dataclasses.dataclass(frozen=True)
class Schedule:
    """Cycles of one call of a TPU kernel, by the instruction schedule that the compiler wrote for it.

    cycles: bundles, times the iterations of their loops.
    unknown_loops: number of loops whose iterations are not in the schedule; their bundles are counted once.
    """

    cycles: float
    unknown_loops: int


@functools.cache
def request() -> pathlib.Path:
    """Make libtpu write the schedules of the kernels that this process compiles to a folder, and return the folder.

    Flags for this are added to LIBTPU_INIT_ARGS. The folder stays empty if libtpu is loaded already, or if the variable
    has flags for dumps (`xla_jf_dump...`), which are not changed. It is removed at the end of the process.
    """
    folder = pathlib.Path(tempfile.mkdtemp(prefix="ag_jax_schedules_"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    flags = os.environ.get(_ENVIRONMENT, "")
    if "xla_jf_dump" not in flags:
        os.environ[_ENVIRONMENT] = f"{flags} {_FLAGS.format(folder)}".strip()
    return folder


def find(kernel: Instruction, folder: pathlib.Path) -> Schedule | None:
    """Return the schedule of a kernel from the files that libtpu wrote to `folder`; None if there is none.

    If several programs have such a kernel, it is the newest one. Of equal kernels in a program, libtpu compiles one, so
    that the schedule may have another kernel's number.
    """
    analyses = []
    for analysis in folder.glob(f"*-{_without_number(kernel.name)}*-schedule-analysis_final_bundles.txt"):
        written = _KERNEL.search(analysis.read_text())
        if written is not None and _are_equal(kernel, hlo.parse_instruction(f"  {written[1]}")):
            analyses.append(analysis)
    if not analyses:
        return None
    newest = max(analyses, key=lambda path: path.stat().st_mtime_ns)
    prefix, _, number = newest.name.removesuffix("-schedule-analysis_final_bundles.txt").rpartition("-")
    bundles = folder / f"{prefix}-{int(number) + 1:02}-final_bundles.txt"
    return read(bundles.read_text()) if bundles.exists() else None


def _without_number(name: str) -> str:
    """Return the name of a kernel without the number that tells it from others of the same name, as in attention.2."""
    return re.sub(r"\.\d+$", "", name)


def _are_equal(one: Instruction, other: Instruction) -> bool:
    """Whether two kernels have the same program, and results of the same shapes and layouts."""
    programs = [kernel.attribute(r'"body":"([^"]*)"') for kernel in (one, other)]
    names = [_without_number(kernel.name) for kernel in (one, other)]
    return (names[0], programs[0], one.arrays) == (names[1], programs[1], other.arrays)


def read(text: str) -> Schedule | None:
    """Return the schedule in the text of a libtpu file of instruction bundles; None if it has no known format.

    None if no bundle is recognised, as when another version of libtpu writes another format.
    """
    loops = [_Loop(iterations=1)]  # around the current line, the outermost first; the first one is no loop
    unknown = 0

    def close() -> None:
        nonlocal unknown
        inner = loops.pop()
        unknown += inner.iterations is None
        loops[-1].bundles += inner.bundles * (inner.iterations or 1)

    for line in text.splitlines():
        bundle = _BUNDLE.match(line)
        if bundle is None:
            continue
        mark, depth = bundle[1], len(loops) - 1 if bundle[3] else bundle[2].count(">")
        while len(loops) - 1 > depth:
            close()
        if len(loops) - 1 == depth > 0 and mark in loops[-1].marks:  # another loop right after one at the same depth
            close()
        # The last bundles of a loop may stand behind its branch, which has no >: only a mark begins another loop.
        while len(loops) - 1 < depth and mark in _LOOP_STARTS:
            loops.append(_Loop())
        loop = loops[-1]
        loop.bundles += 1
        if mark in _LOOP_STARTS:
            loop.marks = (*loop.marks, mark)
        if leaves := _EXIT.search(line):
            unknown += len(loops) == 1  # of a loop whose beginning was not found
            loop.iterations = int(leaves[1]) if len(loops) > 1 else 1
    while len(loops) > 1:
        close()
    return Schedule(loops[0].bundles, unknown) if loops[0].bundles else None


@dataclasses.dataclass
class _Loop:
    """A loop of a schedule whose lines are being read, with its bundles so far.

    bundles: bundles of its body so far, those of inner loops with their iterations.
    iterations: how often the body runs; None until the line that says so.
    marks: marks of its start that were read.
    """

    bundles: float = 0.0
    iterations: int | None = None
    marks: tuple[str, ...] = ()
