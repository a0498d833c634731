"""The text of a compiled program (optimized HLO) as computations of instructions.

It lists the instructions of every computation with the shapes of their results, and on TPUs with tiles and memory spaces.
"""

import dataclasses
import functools
import math
import re

_ELEMENT_BITS = {"pred": 8, "s4": 4, "u4": 4, "s8": 8, "u8": 8, "bf16": 16, "f16": 16, "s16": 16, "u16": 16, "token": 0}
_ELEMENT_BITS |= {"s32": 32, "u32": 32, "f32": 32, "s64": 64, "u64": 64, "f64": 64, "c64": 64, "c128": 128}
_ARRAY = re.compile(r"([a-z]+[0-9]*(?:e[0-9]m[0-9][a-z0-9]*)?)\[([0-9,]*)\](?:\{([^}]*)\})?")
_HEADER = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
_START = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = ")
_NAME = re.compile(r"%([\w.\-]+)")


@dataclasses.dataclass(frozen=True)
class Array:
    """Shape and place of one array. `physical_bytes` counts the padding of TPU tiles."""

    dtype: str
    shape: tuple[int, ...]
    layout: str

    @functools.cached_property
    def in_hbm(self) -> bool:
        """Whether it lies in the device's main memory, and not in a memory on the chip."""
        return "S(" not in self.layout

    @functools.cached_property
    def bytes(self) -> float:
        """Bytes of the elements."""
        return math.prod(self.shape) * _ELEMENT_BITS.get(self.dtype, 8) / 8

    @functools.cached_property
    def physical_bytes(self) -> float:
        """Bytes with the last dimensions filled up to the tile, such as T(8,128)."""
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
    """One line of a computation: `name = result opcode(operands), attributes`."""

    name: str
    opcode: str
    arrays: tuple[Array, ...]
    operands: tuple[str, ...]
    literal: str
    attributes: str
    is_root: bool

    def attribute(self, pattern: str) -> str | None:
        """The first group of a regular expression in the attributes."""
        found = re.search(pattern, self.attributes)
        return found[1] if found else None


class Computation:
    """A named list of instructions."""

    def __init__(self, name: str, instructions: list[Instruction]):
        self.name, self.instructions = name, instructions
        self.of = {instruction.name: instruction for instruction in instructions}
        self.root = next((one for one in instructions if one.is_root), instructions[-1])
        self.parameters = {int(one.literal): one for one in instructions if one.opcode == "parameter"}
        self.users: dict[str, list[Instruction]] = {}
        for one in instructions:
            for operand in dict.fromkeys(one.operands):
                self.users.setdefault(operand, []).append(one)

    def arrays(self, name: str) -> tuple[Array, ...]:
        """The arrays of an instruction's result."""
        return self.of[name].arrays if name in self.of else ()


class Program:
    """All computations of a compiled module. Raises ValueError for a text that is no HLO module."""

    def __init__(self, text: str):
        self.computations: dict[str, Computation] = {}
        self.entry = ""
        name, lines = "", []
        for line in text.splitlines():
            header = _HEADER.match(line)
            if header:
                name, lines = header[2], []
                self.entry = name if header[1] else self.entry
            elif line.startswith("}") and name:
                self.computations[name] = Computation(name, lines)
                name = ""
            elif name and _START.match(line):
                lines.append(_instruction(line))
        if self.entry not in self.computations:
            raise ValueError("this is no text of a compiled module: it has no ENTRY computation")

    def called(self, instruction: Instruction) -> Computation | None:
        """The computation that a fusion, call or asynchronous start runs."""
        name = instruction.attribute(r"\b(?:calls|to_apply)=%?([\w.\-]+)")
        return self.computations.get(name) if name else None

    def repeats(self, loop: Instruction) -> int | None:
        """How often a `while` runs: as the compiler noted, or the constant that its counter, from 0 by 1, is compared with.

        `jax.lax.scan` makes such loops. None for any other.
        """
        noted = loop.attribute(r'"known_trip_count":\{"n":"(\d+)"\}')
        if noted:
            return int(noted)
        condition = self.computations[loop.attribute(r"condition=%?([\w.\-]+)")]
        if condition.root.opcode not in ("compare", "fusion"):
            return None
        operands = [condition.of[name] for name in condition.root.operands if name in condition.of]
        limits = [int(one.literal) for one in operands if one.opcode == "constant" and one.literal.isdigit()]
        return limits[0] if len(limits) == 1 else None


def _instruction(line: str) -> Instruction:
    start = _START.match(line)
    rest = line[start.end() :]
    split = _closing(rest, 0) + 1 if rest.startswith("(") else _end_of_array(rest)
    result, rest = rest[:split], rest[split:].lstrip()
    open_at = rest.index("(")
    close_at = _closing(rest, open_at)
    inside = rest[open_at + 1 : close_at]
    arrays = tuple(
        Array(dtype, tuple(map(int, filter(None, shape.split(",")))), layout or "")
        for dtype, shape, layout in _ARRAY.findall(result)
    )
    opcode = rest[:open_at]
    names = () if opcode in ("parameter", "constant") else tuple(_NAME.findall(inside))
    return Instruction(start[2], opcode, arrays, names, inside, rest[close_at + 1 :], bool(start[1]))


def _end_of_array(text: str) -> int:
    found = _ARRAY.match(text)
    return found.end() if found else text.index(" ")


def _closing(text: str, open_at: int) -> int:
    depth = 0
    for at in range(open_at, len(text)):
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        if not depth:
            return at
    raise ValueError(f"unbalanced parentheses in the HLO text: {text[:80]}")
