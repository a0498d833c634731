"""What a compiled program does in a run: matrix products, HBM traffic and messages between devices.

`Compiled.cost_analysis()` counts the body of a loop once, however often it runs (a scanned stack of 12 layers is one layer
to it), and memories on the chip like HBM. So this reads the program's own text, and multiplies by the trips of the loops.
"""

import dataclasses
import json
import math
import re
from collections.abc import Callable

from ag_jax.planning.hlo import Array, Computation, Instruction, Program

COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "ragged-all-to-all", "collective-permute")
# Instructions that move nothing: names for what is there already, or work that another instruction accounts for.
_FREE = {
    "parameter",
    "constant",
    "tuple",
    "get-tuple-element",
    "bitcast",
    "after-all",
    "partition-id",
    "replica-id",
    "iota",
}
_FREE |= {"add-dependency", "optimization-barrier"}
_FREE_CUSTOM = (
    "ConcatBitcast",
    "AssumeGatherIndicesInBound",
    "GatherScatterIndicesBitpacked",
    "AllocateBuffer",
    "Sharding",
)
_SLICES = ("dynamic-slice", "slice", "gather")


@dataclasses.dataclass(frozen=True)
class Collective:
    """One kind of message. count: a run; bytes: of its operands; sent: leaving each device, in the best algorithm (rings)."""

    kind: str
    devices: int
    count: float
    bytes: float
    sent: float


@dataclasses.dataclass(frozen=True)
class Costs:
    """Of one run on one device. once_flops counts loops once, as the compiler's own analysis does.

    hbm_bytes: read from and written to main memory; bytes: the same with memories on the chip, as that analysis counts.

    unknown_loops: loops whose number of trips could not be found; their bodies are counted once.
    """

    flops: float
    once_flops: float
    hbm_bytes: float
    bytes: float
    collectives: tuple[Collective, ...]
    unknown_loops: tuple[str, ...]

    @property
    def sent(self) -> float:
        """Bytes that leave a device."""
        return sum(collective.sent for collective in self.collectives)


def costs(program: Program, devices: int) -> Costs:
    """The costs of a program that runs on `devices` devices."""
    counter = _Counter(program, devices)
    counter.walk(program.computations[program.entry], 1)
    return Costs(
        counter.flops,
        counter.once_flops,
        counter.hbm_bytes,
        counter.bytes,
        tuple(
            Collective(kind, group, *counter.collectives[kind, group]) for kind, group in sorted(counter.collectives)
        ),
        tuple(counter.unknown_loops),
    )


class _Counter:
    def __init__(self, program: Program, devices: int):
        self.program, self.devices = program, devices
        self.flops = self.once_flops = self.hbm_bytes = self.bytes = 0.0
        self.collectives: dict[tuple[str, int], list[float]] = {}
        self.unknown_loops: list[str] = []

    def walk(self, computation: Computation, times: int) -> None:
        for one in computation.instructions:
            called = self.program.called(one) if one.opcode in ("fusion", "call", "async-start") else None
            if one.opcode == "while":
                repeats = self.program.repeats(one)
                if repeats is None:
                    self.unknown_loops.append(one.name)
                body = self.program.computations[one.attribute(r"body=%?([\w.\-]+)")]
                self.walk(body, times * (1 if repeats is None else repeats))
            elif one.opcode == "conditional":
                branches = one.attribute(r"branch_computations=\{([^}]*)\}") or one.attributes
                for name in re.findall(r"%([\w.\-]+)", branches):
                    if name in self.program.computations:
                        self.walk(self.program.computations[name], times)
            elif called and one.opcode != "fusion":
                self.walk(called, times)
            else:
                self.hbm_bytes += times * moved_bytes(one, computation, self.program, lambda array: array.in_hbm)
                self.bytes += times * moved_bytes(one, computation, self.program, lambda array: True)
                self.arithmetic(one, computation, times)

    def arithmetic(self, one: Instruction, computation: Computation, times: int) -> None:
        """Products and messages, also those inside fusions."""
        kind = one.opcode.removesuffix("-start")
        if one.opcode == "fusion":
            called = self.program.called(one)
            for inner in called.instructions:
                self.arithmetic(inner, called, times)
        elif kind in COLLECTIVES:
            self.message(kind, one, computation, times)
        flops = product_flops(one, computation)
        self.flops += times * flops
        self.once_flops += flops

    def message(self, kind: str, one: Instruction, computation: Computation, times: int) -> None:
        group = _group_size(one, self.devices)
        size = sum(array.bytes for name in one.operands for array in computation.arrays(name))
        others = (group - 1) / group
        shares = {"all-reduce": 2 * others, "all-gather": group - 1, "collective-permute": 1.0}
        row = self.collectives.setdefault((kind, group), [0.0, 0.0, 0.0])
        for place, value in enumerate((1, size, size * shares.get(kind, others))):
            row[place] += times * value


def _group_size(one: Instruction, devices: int) -> int:
    """How many devices take part in each group of a collective; all, if it does not say."""
    iota = one.attribute(r"replica_groups=\[(\d+,\d+)\]")
    listed = one.attribute(r"replica_groups=\{\{([0-9,]+)\}")
    named = re.search(r"replica_groups=mesh\[([^\]]*)\] \{([^}]*)\}", one.attributes)
    if iota:
        return int(iota.split(",")[1])
    if listed:
        return listed.count(",") + 1
    if named:
        sizes = dict(re.findall(r"'(\w+)'=(\d+)", named[1]))
        return math.prod(int(sizes[axis]) for axis in re.findall(r"'(\w+)'", named[2]))
    return devices


def moved_bytes(one: Instruction, inside: Computation, program: Program, counts: Callable[[Array], bool]) -> float:
    """Bytes that an instruction reads and writes of arrays that `counts`.

    Slices read what they take, and updates in place write what they change.
    """
    opcode = one.opcode
    if opcode in _FREE or opcode.endswith("-done") or any(name in one.attributes for name in _FREE_CUSTOM):
        return 0.0
    if opcode in ("copy-start", "slice-start"):  # the arrays of the result are source and destination
        source, destination = one.arrays[:2]
        return min(source.physical_bytes, destination.physical_bytes) * (counts(source) + counts(destination))
    if opcode == "fusion":
        called = program.called(one)
        roots = [called.of[name] for name in called.root.operands] if called.root.opcode == "tuple" else [called.root]
        written = sum(
            _written(root, called, program, array)
            for root, array in zip(roots, one.arrays, strict=False)
            if counts(array)
        )
        read = sum(
            _touched(called.parameters[place].name, called, program, array)
            for place, name in enumerate(one.operands)
            for array in inside.arrays(name)
            if counts(array)
        )
        return read + written
    if opcode in _SLICES:
        sources = inside.arrays(one.operands[0])
        return sum(array.physical_bytes * (counts(array) + all(map(counts, sources))) for array in one.arrays)
    if opcode == "dynamic-update-slice":
        update = inside.arrays(one.operands[1])[0]
        return update.physical_bytes * (counts(one.arrays[0]) + counts(update))
    operands = [array for name in one.operands for array in inside.arrays(name)]
    results = one.arrays[: len(one.arrays) // 2] if opcode.endswith("-start") else one.arrays
    return sum(array.physical_bytes for array in (*operands, *results) if counts(array))


def _written(root: Instruction, inside: Computation, program: Program, whole: Array) -> float:
    """Bytes of a fusion's result that it writes: all, or the changed part of an array that it updates in place."""
    if root.opcode == "bitcast" and root.operands[0] in inside.of:
        return _written(inside.of[root.operands[0]], inside, program, whole)
    if root.opcode == "fusion":
        called = program.called(root)
        return _written(called.root, called, program, whole)
    if root.opcode == "dynamic-update-slice":
        return inside.arrays(root.operands[1])[0].physical_bytes
    return whole.physical_bytes


def _touched(name: str, inside: Computation, program: Program, whole: Array) -> float:
    """Bytes of a fusion's operand that it reads: all, or no more than the slices it takes."""
    if inside.of[name].is_root:
        return whole.physical_bytes  # handed on to whatever called this
    total = 0.0
    for user in inside.users.get(name, []):
        if user.opcode in _SLICES and user.operands[0] == name:
            total += dataclasses.replace(user.arrays[0], dtype=whole.dtype).physical_bytes  # it may convert as it reads
        elif user.opcode == "bitcast":
            total += _touched(user.name, inside, program, whole)
        elif user.opcode == "fusion":
            called = program.called(user)
            places = [place for place, operand in enumerate(user.operands) if operand == name]
            total += sum(_touched(called.parameters[place].name, called, program, whole) for place in places)
        elif not (user.opcode == "dynamic-update-slice" and user.operands[0] == name):
            return whole.physical_bytes
    return min(total, whole.physical_bytes)


def product_flops(instruction: Instruction, inside: Computation) -> float:
    """FLOPs of a matrix product, convolution or kernel with a declared cost (2 a multiply-add); 0 for all else."""
    if instruction.opcode == "custom-call":
        declared = instruction.attribute(r'"cost_estimate":(\{[^{}]*\})')
        return float(json.loads(declared).get("flops", 0)) if declared else 0.0
    if instruction.opcode == "dot":
        left = inside.arrays(instruction.operands[0])[0].shape
        contracted = instruction.attribute(r"lhs_contracting_dims=\{([0-9,]*)\}") or ""
        return (
            2.0
            * math.prod(instruction.arrays[0].shape)
            * math.prod(left[int(d)] for d in filter(None, contracted.split(",")))
        )
    return _convolution_flops(instruction, inside) if instruction.opcode == "convolution" else 0.0


def _convolution_flops(instruction: Instruction, inside: Computation) -> float:
    """TPUs compute every product as a convolution; a batch dimension is a window that meets the input at one place."""
    left, right = (inside.arrays(name)[0].shape for name in instruction.operands[:2])
    result = instruction.arrays[0].shape
    labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", instruction.attributes)
    window = instruction.attribute(r"window=\{([^}]*)\}") or ""
    fields = dict(field.split("=") for field in window.split())
    spatial = sum(label.isdigit() for label in labels[1])
    places = 1
    for axis in range(spatial):
        size, dilated = (int(fields[name].split("x")[axis]) if name in fields else 1 for name in ("size", "lhs_dilate"))
        stride, spread = (
            int(fields[name].split("x")[axis]) if name in fields else 1 for name in ("stride", "rhs_dilate")
        )
        low = int(fields["pad"].split("x")[axis].split("_")[0]) if "pad" in fields else 0
        width, steps = left[labels[1].index(str(axis))], result[labels[3].index(str(axis))]
        reached = (at * stride + of * spread - low for at in range(steps) for of in range(size))
        places *= sum(0 <= place <= (width - 1) * dilated and place % dilated == 0 for place in reached)
    rows, features = result[labels[3].index("b")], result[labels[3].index("f")]
    return 2.0 * places * rows * features * right[labels[2].index("i")]
