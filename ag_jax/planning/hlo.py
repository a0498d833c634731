"""Parse the text of a compiled program (optimized HLO) into computations of instructions.

The text lists the instructions of every computation with the shapes of their results, and on TPUs with tiles and memory
spaces.
"""

import dataclasses
import functools
import itertools
import math
import re

_ELEMENT_BITS = {"pred": 8, "s4": 4, "u4": 4, "s8": 8, "u8": 8, "bf16": 16, "f16": 16, "s16": 16, "u16": 16, "token": 0}
_ELEMENT_BITS |= {"s32": 32, "u32": 32, "f32": 32, "s64": 64, "u64": 64, "f64": 64, "c64": 64, "c128": 128}
_ARRAY = re.compile(r"([a-z]+[0-9]*(?:e[0-9]m[0-9][a-z0-9]*)?)\[([0-9,]*)\](?:\{([^}]*)\})?")
_HEADER = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
_START = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = ")
_NAME = re.compile(r"%([\w.\-]+)")


@dataclasses.dataclass(frozen=True)
class HloArray:
    """Type, shape and layout of an array.

    layout: the text in braces after the shape: order of the axes, tiles and memory space, such as `1,0:T(8,128)S(1)`.
    """

    dtype: str
    shape: tuple[int, ...]
    layout: str

    @functools.cached_property
    def in_hbm(self) -> bool:
        """True for arrays in the main memory of the device, False for those in a memory on the chip."""
        return "S(" not in self.layout

    @functools.cached_property
    def bytes(self) -> float:
        """Bytes of the elements, without padding."""
        return math.prod(self.shape) * _ELEMENT_BITS.get(self.dtype, 8) / 8

    @functools.cached_property
    def physical_bytes(self) -> float:
        """Bytes with the fastest axes padded to multiples of the TPU's tile, such as T(8,128)."""
        order, _, tiles = self.layout.partition(":")
        tile = re.match(r"T\(([0-9,]+)\)", tiles)
        if not tile or not order:
            return self.bytes
        sizes = [self.shape[int(axis)] for axis in order.split(",")]  # the fastest axis first
        for place, size in enumerate(reversed([int(size) for size in tile[1].split(",")])):
            if place < len(sizes):
                sizes[place] = -(-sizes[place] // size) * size
        return math.prod(sizes) * _ELEMENT_BITS.get(self.dtype, 8) / 8


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One line of a computation: `name = result opcode(operands), attributes`.

    arrays: the arrays of the result.
    operands: names of the instructions whose results it takes.
    literal: the text between the parentheses: the value of a constant, the index of a parameter.
    is_root: whether its result is that of the computation.
    """

    name: str
    opcode: str
    arrays: tuple[HloArray, ...]
    operands: tuple[str, ...]
    literal: str
    attributes: str
    is_root: bool

    def attribute(self, pattern: str) -> str | None:
        """Return what the first group of a regular expression matches in the attributes; None without a match."""
        match = re.search(pattern, self.attributes)
        return match[1] if match else None


class Computation:
    """One function of an HLO module: a named list of instructions.

    of: instructions by name.
    root: the instruction whose result is that of the computation.
    parameters: instructions by the index of the parameter.
    users: instructions that have an operand, by the operand's name.
    """

    def __init__(self, name: str, instructions: list[Instruction]):
        self.name, self.instructions = name, instructions
        self.of = {instruction.name: instruction for instruction in instructions}
        self.root = next((line for line in instructions if line.is_root), instructions[-1])
        self.parameters = {int(line.literal): line for line in instructions if line.opcode == "parameter"}
        self.users: dict[str, list[Instruction]] = {}
        for line in instructions:
            for operand in dict.fromkeys(line.operands):
                self.users.setdefault(operand, []).append(line)

    def origin(self, name: str) -> Instruction:
        """Return the instruction that computes the result of instruction `name`: itself, or what it is a copy of."""
        instruction = self.of[name]
        while instruction.opcode in ("copy", "bitcast") and instruction.operands[0] in self.of:
            instruction = self.of[instruction.operands[0]]
        return instruction

    def carried(self, instruction: Instruction) -> int | None:
        """Return the index of the parameter tuple's element that an instruction reads; None if it reads none."""
        if instruction.opcode != "get-tuple-element" or self.origin(instruction.operands[0]).opcode != "parameter":
            return None
        index = instruction.attribute(r"index=(\d+)")
        return None if index is None else int(index)

    def arrays(self, name: str) -> tuple[HloArray, ...]:
        """Return the arrays of the result of the instruction `name`; () if it is not in this computation."""
        return self.of[name].arrays if name in self.of else ()


class HloModule:
    """All computations of a compiled HLO module, parsed from its text.

    computations: by name.
    entry: name of the computation that a run starts with.
    """

    def __init__(self, text: str):
        self.computations: dict[str, Computation] = {}
        self.entry = ""
        name, lines = "", list[Instruction]()
        for line in text.splitlines():
            header = _HEADER.match(line)
            if header:
                name, lines = header[2], []
                self.entry = name if header[1] else self.entry
            elif line.startswith("}") and name:
                self.computations[name] = Computation(name, lines)
                name = ""
            elif name and _START.match(line):
                lines.append(parse_instruction(line))

    def called(self, instruction: Instruction) -> Computation | None:
        """Return the computation that a fusion, call or asynchronous start runs; None if it names none."""
        name = instruction.attribute(r"\b(?:calls|to_apply)=%?([\w.\-]+)")
        return self.computations.get(name) if name else None

    def repeats(self, loop: Instruction, around: Computation) -> int | None:
        """Return the number of iterations of a `while`; None if it is unknown.

        It is the compiler's own figure, or else the constant that the loop's condition compares its counter with, minus
        the value from which the counter starts. The counter is taken to go in steps of 1, as in the loops of
        `jax.lax.scan`. It does not always start from 0: the compiler may move the first iteration out of a loop, as it
        does in programs for several TPU slices. The number is unknown if the constant or the start is not found.

        around: the computation that the loop is an instruction of.
        """
        trip_count = loop.attribute(r'"known_trip_count":\{"n":"(\d+)"\}')
        if trip_count:
            return int(trip_count)
        condition = self.computations[loop.attribute(r"condition=%?([\w.\-]+)")]
        if condition.root.opcode not in ("compare", "fusion"):
            return None
        operands = [condition.origin(name) for name in condition.root.operands if name in condition.of]
        constants = [operand.literal for operand in operands if operand.opcode == "constant"]
        limits = [int(literal) for literal in constants if literal.isdigit()]
        counters = [operand for operand in operands if operand.opcode != "constant"]
        if len(limits) != 1 or len(counters) != 1:
            return None
        if counters[0].opcode == "parameter":  # the loop carries its counter alone
            start = self._constant(loop.operands[0], around)
        else:
            index = condition.carried(counters[0])
            start = None if index is None else self._start(loop, around, index)
        return None if start is None else max(0, limits[0] - start)

    def _start(self, loop: Instruction, around: Computation, index: int) -> int | None:
        """Return the constant start of element `index` of the tuple that a loop carries; None if there is none."""
        first = around.origin(loop.operands[0])
        return self._constant(first.operands[index], around) if first.opcode == "tuple" else None

    def _constant(self, name: str, around: Computation) -> int | None:
        """Return the value of an instruction that is an integer constant; None for any other instruction.

        It may come from outside of a loop whose body `around` is, if the loop hands it on unchanged.
        """
        value = around.origin(name)
        if value.opcode == "constant":
            return int(value.literal) if value.literal.isdigit() else None
        index, outer = around.carried(value), self._loop_of_body.get(around.name)
        if index is None or outer is None or around.root.opcode != "tuple":
            return None
        handed_on = around.origin(around.root.operands[index])
        return self._start(*outer, index) if around.carried(handed_on) == index else None

    @functools.cached_property
    def _loop_of_body(self) -> dict[str, tuple[Instruction, Computation]]:
        """{name of the body: (`while` instruction, computation that contains it)} of all loops of the module."""
        return {
            body: (instruction, computation)
            for computation in self.computations.values()
            for instruction in computation.instructions
            if instruction.opcode == "while" and (body := instruction.attribute(r"body=%?([\w.\-]+)"))
        }


def parse_instruction(line: str) -> Instruction:
    """Parse an indented line `name = result opcode(operands), attributes`."""
    start = _START.match(line)
    rest = line[start.end() :]
    # A tuple of arrays is in parentheses; layouts have parentheses of their own, so they are matched by depth.
    split = _closing(rest, 0) + 1 if rest.startswith("(") else _end_of_array(rest)
    result, rest = rest[:split], rest[split:].lstrip()
    open_at = rest.index("(")
    close_at = _closing(rest, open_at)
    inside = rest[open_at + 1 : close_at]
    arrays = tuple(
        HloArray(dtype, tuple(map(int, filter(None, shape.split(",")))), layout or "")
        for dtype, shape, layout in _ARRAY.findall(result)
    )
    opcode = rest[:open_at]
    names = () if opcode in ("parameter", "constant") else tuple(_NAME.findall(inside))
    return Instruction(start[2], opcode, arrays, names, inside, rest[close_at + 1 :], bool(start[1]))


def _end_of_array(text: str) -> int:
    """Return the index just after the array type with which `text` begins."""
    match = _ARRAY.match(text)
    return match.end() if match else text.index(" ")


def _closing(text: str, open_at: int) -> int:
    """Return the index of the parenthesis that closes the parenthesis at `open_at`."""
    # Lazily, because an instruction may go on with the megabytes of a kernel's program.
    depths = itertools.accumulate({"(": 1, ")": -1}.get(text[index], 0) for index in range(open_at, len(text)))
    return next(index for index, depth in enumerate(depths, open_at) if not depth)
