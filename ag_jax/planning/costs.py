"""Costs of a compiled program: FLOPs of matrix products, HBM traffic, and collective communication between devices.

`Compiled.cost_analysis()` counts the body of a loop once, however often it runs (a scanned stack of 12 layers counts as
one layer), and counts memories on the chip like HBM. So this module reads the program's own text, and multiplies by the
iterations of the loops.
"""

import dataclasses
import json
import math
import re
from collections.abc import Callable, Sequence

from ag_jax.planning.hlo import Computation, HloArray, HloModule, Instruction

BETWEEN_SLICES = " between slices"  # ends the kind of a collective whose group has a device of each slice
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
_KERNEL = 'custom_call_target="tpu_custom_call"'
_SLICES = ("dynamic-slice", "slice", "gather")


@dataclasses.dataclass(frozen=True)
class Collective:
    """Number of a program's collective operations of one kind and one group size, and their bytes on one device.

    kind: one of `COLLECTIVES`, with `BETWEEN_SLICES` after it if the data goes over the network between TPU slices.
    devices: number of devices in a group; between slices, the number of slices.
    count: number of operations in one execution of the program.
    bytes: size of the operands of all these operations.
    sent: bytes that leave each device in the best algorithm (rings).
    """

    kind: str
    devices: int
    count: float
    bytes: float
    sent: float


@dataclasses.dataclass(frozen=True)
class Costs:
    """FLOPs, memory traffic and collective communication of one execution of a program, on one device.

    flops: of matrix products, with the iterations of loops counted.
    once_flops: of matrix products, with each loop counted once, as in the compiler's own analysis.
    hbm_bytes: read from and written to main memory.
    bytes: read and written in all memories, those on the chip included, as the compiler's own analysis counts them.
    collectives: collective operations, which send data between devices.
    unknown_loops: loops whose number of iterations could not be found; their bodies are counted once.
    estimated_cycles: the compiler's estimate for all operations but kernels and collectives, with the iterations of
        loops counted; None if the program's text has no estimates, as that of some versions of the compiler.
    """

    flops: float
    once_flops: float
    hbm_bytes: float
    bytes: float
    collectives: tuple[Collective, ...]
    unknown_loops: tuple[str, ...]
    estimated_cycles: float | None = None

    @property
    def sent(self) -> float:
        """Bytes that each device sends to others of its slice in all collectives."""
        return sum(one.sent for one in self.collectives if not one.kind.endswith(BETWEEN_SLICES))

    @property
    def sent_between_slices(self) -> float:
        """Bytes that each device sends to other slices."""
        return sum(one.sent for one in self.collectives if one.kind.endswith(BETWEEN_SLICES))


def costs(program: HloModule, devices: int) -> Costs:
    """Return the costs, on each device, of one execution of a program that runs on `devices` devices.

    Of a conditional, the branch with the most FLOPs counts. FLOPs and bytes of kernels are those that they declare.

    Raises ValueError if a message between slices has an unknown format.
    """
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
        counter.cycles,
    )


def kernels(program: HloModule) -> list[tuple[Instruction, int, float]]:
    """Return (kernel, calls in one execution of the program, FLOPs of a call) of all kernels (Pallas).

    The FLOPs are those of matrix products that the kernel declares, 0 if it declares none.
    """
    counter = _Counter(program, 1)
    counter.walk(program.computations[program.entry], 1)
    return [(kernel, times, product_flops(kernel, inside)) for kernel, inside, times in counter.kernels]


class _Counter:
    """Counter that sums the costs of a program's instructions, in attributes named like the fields of `Costs`."""

    def __init__(self, program: HloModule, devices: int):
        self.program, self.devices = program, devices
        self.flops = self.once_flops = self.hbm_bytes = self.bytes = 0.0
        self.collectives: dict[tuple[str, int], list[float]] = {}
        self.unknown_loops: list[str] = []
        self.cycles: float | None = None
        self.kernels: list[tuple[Instruction, Computation, int]] = []

    def walk(self, computation: Computation, times: int) -> None:
        """Add to the sums the costs of a computation that runs `times` times, and of the computations that it calls."""
        for instruction in computation.instructions:
            opcode = instruction.opcode
            called = self.program.called(instruction) if opcode in ("fusion", "call", "async-start") else None
            if opcode == "while":
                repeats = self.program.repeats(instruction, computation)
                if repeats is None:
                    self.unknown_loops.append(instruction.name)
                body = self.program.computations[instruction.attribute(r"body=%?([\w.\-]+)")]
                self.walk(body, times * (1 if repeats is None else repeats))
            elif opcode == "conditional":
                self.conditional(instruction, times)
            elif called and opcode != "fusion":
                self.walk(called, times)
            else:
                # A fusion moves only its operands and results, but the products inside it count.
                self.hbm_bytes += times * moved_bytes(
                    instruction, computation, self.program, lambda array: array.in_hbm
                )
                self.bytes += times * moved_bytes(instruction, computation, self.program, lambda array: True)
                self.products_and_collectives(instruction, computation, times)
                estimate = instruction.attribute(r'"estimated_cycles":"(\d+)"')
                if estimate:
                    self.cycles = (self.cycles or 0.0) + times * int(estimate)
                if instruction.opcode == "custom-call" and _KERNEL in instruction.attributes:
                    self.kernels.append((instruction, computation, times))

    def conditional(self, instruction: Instruction, times: int) -> None:
        """Add the costs of a conditional's branch with the most FLOPs, because which branch will run is unknown.

        In a training step that is the branch with an attack, which runs in all steps once the attack has begun.
        """
        names = re.findall(
            r"%([\w.\-]+)", instruction.attribute(r"branch_computations=\{([^}]*)\}") or instruction.attributes
        )
        branches = []
        for name in names:
            if name in self.program.computations:
                branch = _Counter(self.program, self.devices)
                branch.walk(self.program.computations[name], times)
                branches.append(branch)
        self.add(max(branches, key=lambda branch: (branch.flops, branch.bytes)))

    def add(self, other: "_Counter") -> None:
        """Add the sums of another counter."""
        self.flops += other.flops
        self.once_flops += other.once_flops
        self.hbm_bytes += other.hbm_bytes
        self.bytes += other.bytes
        for key, row in other.collectives.items():
            sums = self.collectives.setdefault(key, [0.0, 0.0, 0.0])
            self.collectives[key] = [one + more for one, more in zip(sums, row, strict=True)]
        self.unknown_loops += other.unknown_loops
        if other.cycles is not None:
            self.cycles = (self.cycles or 0.0) + other.cycles
        self.kernels += other.kernels

    def products_and_collectives(self, instruction: Instruction, computation: Computation, times: int) -> None:
        """Add the FLOPs and the collective communication of an instruction to the sums.

        For a fusion, these are those of all instructions inside.
        """
        kind = instruction.opcode.removesuffix("-start")
        if instruction.opcode == "fusion":
            called = self.program.called(instruction)
            for inner in called.instructions:
                self.products_and_collectives(inner, called, times)
        elif kind in COLLECTIVES:
            self.collective(kind, _group_size(instruction, self.devices), instruction, computation, times)
        elif kind == "send" and (transfer := instruction.attribute(r'_xla_megascale_transfer_type="(\w+)"')):
            # The devices of a slice have done their part by an ordinary collective before.
            kind = transfer.lower().replace("_", "-") + BETWEEN_SLICES
            self.collective(
                kind, _slices(instruction), instruction, computation, times, operands=instruction.operands[:1]
            )
        flops = product_flops(instruction, computation)
        self.flops += times * flops
        self.once_flops += flops

    def collective(
        self,
        kind: str,
        group: int,
        instruction: Instruction,
        computation: Computation,
        times: int,
        operands: Sequence[str] | None = None,
    ) -> None:
        """Add the number and the bytes of a collective instruction that runs `times` times to the sums.

        group: number of devices, or of slices, that take part.
        operands: names of the operands that are sent; None for all.
        """
        sent = instruction.operands if operands is None else operands
        size = sum(array.bytes for name in sent for array in computation.arrays(name))
        others = (group - 1) / group
        # Bytes that a device sends, as a share of its operand, which for an all-gather is only the device's own part.
        shares = {"all-reduce": 2 * others, "all-gather": group - 1, "collective-permute": 1.0, "one-to-one": 1.0}
        row = self.collectives.setdefault((kind, group), [0.0, 0.0, 0.0])
        for index, value in enumerate((1, size, size * shares.get(kind.removesuffix(BETWEEN_SLICES), others))):
            row[index] += times * value


def _slices(instruction: Instruction) -> int:
    """Return the number of TPU slices, the sender's own included, that a message between slices goes to.

    Its target is written as `{SLICES}x{DEVICES}`, each with numbers and ranges, such as {1,2}x{0:3}.
    """
    target = instruction.attribute(r'_xla_megascale_target="\{([0-9,:]+)\}x')
    if target is None:
        raise ValueError(
            f"the message {instruction.name} names no slices: this version of libtpu writes another format"
        )
    ends = [[int(number) for number in part.split(":")] for part in target.split(",")]
    return sum(end[-1] - end[0] + 1 for end in ends)


def _group_size(instruction: Instruction, devices: int) -> int:
    """Return the number of devices in each group of a collective; all devices if its attributes name no groups."""
    iota = instruction.attribute(r"replica_groups=\[(\d+,\d+)\]")
    first_group = instruction.attribute(r"replica_groups=\{\{([0-9,]+)\}")
    mesh_axes = re.search(r"replica_groups=mesh\[([^\]]*)\] \{([^}]*)\}", instruction.attributes)
    if iota:
        return int(iota.split(",")[1])
    if first_group:
        return first_group.count(",") + 1
    if mesh_axes:
        sizes = dict(re.findall(r"'(\w+)'=(\d+)", mesh_axes[1]))
        return math.prod(int(sizes[axis]) for axis in re.findall(r"'(\w+)'", mesh_axes[2]))
    return devices


def moved_bytes(
    instruction: Instruction, inside: Computation, program: HloModule, is_counted: Callable[[HloArray], bool]
) -> float:
    """Return how many bytes an instruction reads and writes, counting only arrays for which `is_counted` is true.

    A slice reads only the part that is taken, and an update in place writes only the part that changes.

    inside: the computation that the instruction belongs to.
    """
    opcode = instruction.opcode
    if opcode in _FREE or opcode.endswith("-done") or any(name in instruction.attributes for name in _FREE_CUSTOM):
        return 0.0
    if opcode in ("copy-start", "slice-start"):  # the arrays of the result are source and destination
        source, destination = instruction.arrays[:2]
        return min(source.physical_bytes, destination.physical_bytes) * (is_counted(source) + is_counted(destination))
    if opcode == "fusion":
        called = program.called(instruction)
        roots = [called.of[name] for name in called.root.operands] if called.root.opcode == "tuple" else [called.root]
        written = sum(
            _written(root, called, program, array)
            for root, array in zip(roots, instruction.arrays, strict=False)
            if is_counted(array)
        )
        read = sum(
            _touched(called.parameters[place].name, called, program, array)
            for place, name in enumerate(instruction.operands)
            for array in inside.arrays(name)
            if is_counted(array)
        )
        return read + written
    if opcode in _SLICES:
        sources = inside.arrays(instruction.operands[0])
        return sum(
            array.physical_bytes * (is_counted(array) + all(map(is_counted, sources))) for array in instruction.arrays
        )
    if opcode == "dynamic-update-slice":  # reads the update and writes it in place
        update = inside.arrays(instruction.operands[1])[0]
        return update.physical_bytes * (is_counted(instruction.arrays[0]) + is_counted(update))
    operands = [array for name in instruction.operands for array in inside.arrays(name)]
    results = instruction.arrays[: len(instruction.arrays) // 2] if opcode.endswith("-start") else instruction.arrays
    counted_bytes = sum(array.physical_bytes for array in (*operands, *results) if is_counted(array))
    declared_bytes = float(instruction.attribute(r'"bytes_accessed":"?(\d+)') or 0) if opcode == "custom-call" else 0.0
    if not declared_bytes:
        return counted_bytes
    # A kernel says how many bytes it moves: it may read arrays several times, or only a part of them.
    once = sum(array.bytes for array in (*operands, *results))
    return counted_bytes + declared_bytes - once if declared_bytes > once else counted_bytes * declared_bytes / once


def _written(root: Instruction, inside: Computation, program: HloModule, whole: HloArray) -> float:
    """Return how many bytes a fusion writes for one of its results: all, or only the part that is updated in place."""
    if root.opcode == "bitcast" and root.operands[0] in inside.of:
        return _written(inside.of[root.operands[0]], inside, program, whole)
    if root.opcode == "fusion":
        called = program.called(root)
        return _written(called.root, called, program, whole)
    if root.opcode == "dynamic-update-slice":
        return inside.arrays(root.operands[1])[0].physical_bytes
    return whole.physical_bytes


def _touched(name: str, inside: Computation, program: HloModule, whole: HloArray) -> float:
    """Return how many bytes of an operand a fusion reads: all, or only the slices that the fusion takes."""
    if inside.of[name].is_root:
        return whole.physical_bytes  # the caller gets all of it
    total = 0.0
    for user in inside.users.get(name, []):
        if user.opcode in _SLICES and user.operands[0] == name:
            # The fusion may convert elements as it reads them, so their size is that of the operand.
            total += dataclasses.replace(user.arrays[0], dtype=whole.dtype).physical_bytes
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
    """Return the FLOPs, two per multiply-add, of a product, convolution or kernel with a declared cost; otherwise 0."""
    if instruction.opcode == "custom-call":
        estimate = instruction.attribute(r'"cost_estimate":(\{[^{}]*\})')
        return float(json.loads(estimate).get("flops", 0)) if estimate else 0.0
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
    """Return the FLOPs of a convolution, which is how TPUs compute every matrix product.

    A batch dimension of a product is a window that overlaps the input at one place only, so the window positions that
    fall on padding or between dilated elements are not counted.
    """
    left, right = (inside.arrays(name)[0].shape for name in instruction.operands[:2])
    result = instruction.arrays[0].shape
    # Roles of the axes, such as bf01_io01->bf01: b rows, f and i features, digits the axes along which a window moves.
    labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", instruction.attributes)
    window = instruction.attribute(r"window=\{([^}]*)\}") or ""
    # Such as size=3x5 pad=1_1x0_0: a number for each axis, and of padding one for each end.
    fields = {name: values.split("x") for name, values in (field.split("=") for field in window.split())}

    def number(name: str, axis: int, default: int) -> int:
        return int(fields[name][axis].split("_")[0]) if name in fields else default

    taps_on_input = 1  # pairs (position of the window, element of the window) that fall on an element of the input
    for axis in range(sum(label.isdigit() for label in labels[1])):
        size, stride, spread = (number(name, axis, 1) for name in ("size", "stride", "rhs_dilate"))
        dilation, padding = number("lhs_dilate", axis, 1), number("pad", axis, 0)
        width, positions = left[labels[1].index(str(axis))], result[labels[3].index(str(axis))]
        # A dilated input has zeros between its elements, which are at the multiples of the dilation.
        places = (step * stride + tap * spread - padding for step in range(positions) for tap in range(size))
        taps_on_input *= sum(0 <= place <= (width - 1) * dilation and place % dilation == 0 for place in places)
    rows, features = result[labels[3].index("b")], result[labels[3].index("f")]
    return 2.0 * taps_on_input * rows * features * right[labels[2].index("i")]
