"""Ways to damage a file, each a function of a random generator and the file's bytes."""

import bz2
import functools
import gzip
import json
import lzma
import random
import string
import struct
import unicodedata
from collections.abc import Callable
from typing import Any

Content = bytes | None  # None: the file is missing

BOMB = 2**29  # bytes of one letter
NUMBERS = (-1, 0, 1, 2, 0.5, 2**30, 10**9, 1e-30, 1e30, -1e308, 10**6, 10**12, 10**30, float("nan"), float("inf"))
DEPTH = 3000


def _flip(rng: random.Random, data: bytes, count: int) -> bytes:
    changed = bytearray(data)
    for _ in range(count):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _span(rng: random.Random, data: bytes) -> tuple[int, int]:
    start = rng.randrange(len(data))
    return start, min(len(data), start + rng.choice((1, 4, 64, 4096)))


def _zeros(rng: random.Random, data: bytes) -> bytes:
    start, stop = _span(rng, data)
    return data[:start] + bytes(stop - start) + data[stop:]


def _ones(rng: random.Random, data: bytes) -> bytes:
    start = rng.randrange(len(data))
    return data[:start] + b"\xff" * min(8, len(data) - start) + data[start + 8 :]


def _moved(rng: random.Random, data: bytes) -> bytes:
    start, stop = _span(rng, data)
    rest = data[:start] + data[stop:]
    at = rng.randint(0, len(rest))
    return rest[:at] + data[start:stop] + rest[at:]


def _cut_out(rng: random.Random, data: bytes) -> bytes:
    start, stop = _span(rng, data)
    return data[:start] + data[stop:]


def _inserted(rng: random.Random, data: bytes) -> bytes:
    at = rng.randint(0, len(data))
    more = (b"\0", b"\r\n", b"\n\n", b"\xff\xfe", b"\xe2\x80\xa8", b"\t", b"{", b'"', rng.randbytes(9))
    return data[:at] + rng.choice(more) + data[at:]


BYTES: dict[str, Callable[[random.Random, bytes], Content]] = {
    "one bit": lambda rng, data: _flip(rng, data, 1),
    "eight bits": lambda rng, data: _flip(rng, data, 8),
    "truncated": lambda rng, data: data[: rng.randrange(len(data))],
    "zeros": _zeros,
    "eight bytes of ones": _ones,
    "moved": _moved,
    "cut out": _cut_out,
    "inserted": _inserted,
    "more at the end": lambda rng, data: data + rng.choice((bytes(8), rng.randbytes(16))),
    "empty": lambda rng, data: b"",
    "missing": lambda rng, data: None,
    "random": lambda rng, data: rng.randbytes(len(data)),
    "all zeros": lambda rng, data: bytes(len(data)),
}


def _recoded(rng: random.Random, data: bytes) -> bytes:
    text = data.decode(errors="replace")
    latin = (text + "é").encode("latin-1", errors="replace")
    return rng.choice((text.encode("utf-16"), b"\xef\xbb\xbf" + data, latin, data.replace(b"\n", b"\r")))


def _lines(rng: random.Random, data: bytes) -> bytes:
    lines = data.split(b"\n")
    number = rng.randrange(len(lines))
    one = lines[number]
    options = [[], [one] * 2, [b""], [one[: len(one) // 2]], [one.replace(b"\t", b" ", 1)], [one + b"\tmore"]]
    options += [[one.replace(b'"', b"", 1)], [rng.choice(lines), one], [b"x" * 10**6]]
    changed = rng.choice(options)
    return b"\n".join([*lines[:number], *changed, *lines[number + 1 :]])


def _normalized(rng: random.Random, data: bytes) -> bytes:
    """The text in another normalisation form of Unicode."""
    return unicodedata.normalize(rng.choice(("NFC", "NFD", "NFKC", "NFKD")), data.decode()).encode()


def _comment(rng: random.Random, data: bytes) -> bytes:
    """A line of a comment, as files of CoNLL have them."""
    lines = data.split(b"\n")
    lines.insert(rng.randint(0, len(lines)), rng.choice((b"# sent_id = 3", b"# a\tb", b"#", b"# newdoc", b"#\tO")))
    return b"\n".join(lines)


def _surrogate(rng: random.Random, data: bytes) -> bytes:
    """Half of a surrogate pair in a string of JSON."""
    quotes = [place for place, letter in enumerate(data) if letter == ord('"')]
    at = rng.choice(quotes) + 1
    return data[:at] + rng.choice((b"\\ud800", b"\\uDFFF", b"\\ud83d\\ud83d")) + data[at:]


@functools.cache
def _bomb(packed: str) -> bytes:
    pack = {".gz": gzip.compress, ".xz": lzma.compress, ".bz2": bz2.compress}[packed]
    return pack(b"a" * BOMB)


PACKED = BYTES | {"a bomb": lambda rng, data: b""}  # `mutate` knows which compression the name says

TEXT = BYTES | {
    "another encoding": _recoded,
    "another form of Unicode": _normalized,
    "a comment": _comment,
    "half of a surrogate pair": _surrogate,
    "a line": _lines,
    "lines": lambda rng, data: _lines(rng, _lines(rng, data)),
}


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Each (container, key) of a JSON value."""
    found, waiting = [], [value]
    while waiting:
        node = waiting.pop()
        is_list = isinstance(node, list)
        items = list(node.items()) if isinstance(node, dict) else list(enumerate(node)) if is_list else []
        for key, item in items:
            found.append((node, key))
            waiting.append(item)
    return found


def _nested(rng: random.Random) -> str:
    return rng.choice(("[" * DEPTH + "]" * DEPTH, '{"a":' * DEPTH + "1" + "}" * DEPTH))


def _value(rng: random.Random, old: Any) -> Any:
    """Another value in the place of `old`, often of another type."""
    if isinstance(old, (int, float)) and rng.random() < 0.5:
        return rng.choice((*NUMBERS, old * 1000, -old, old + 1, str(old), [old]))
    options = (None, [], {}, "", "x", True, "\ud800", "../../x", "/etc/passwd", [None], {"": 0}, "NESTED", "y" * 10**5)
    return rng.choice((*options, *NUMBERS, [old], {"a": old}))


def _json_value(rng: random.Random, data: bytes) -> bytes:
    value = json.loads(data)
    places = _places(value)
    if not places:
        return _dumped(rng, _value(rng, value))
    container, key = rng.choice(places)
    container[key] = _value(rng, container[key])
    return _dumped(rng, value)


def _json_key(rng: random.Random, data: bytes) -> bytes:
    value = json.loads(data)
    places = _places(value)
    if not places:
        return b"{}"
    container, key = rng.choice(places)
    action = rng.choice(("delete", "rename", "add", "swap"))
    if action == "delete":
        del container[key]
    elif isinstance(container, list):
        container.insert(key, container[key])
    elif action == "rename":
        container[f"{key}_"] = container.pop(key)
    elif action == "add":
        container["".join(rng.choices(string.ascii_lowercase, k=5))] = _value(rng, 1)
    else:
        other = rng.choice(list(container))
        container[key], container[other] = container[other], container[key]
    return _dumped(rng, value)


def _dumped(rng: random.Random, value: Any) -> bytes:
    text = json.dumps(value, indent=rng.choice((None, 2)))
    return text.replace('"NESTED"', _nested(rng)).encode(errors="surrogatepass")


def _json_twice(rng: random.Random, data: bytes) -> bytes:
    """The object with one of its keys a second time, with another value."""
    value = json.loads(data)
    if not isinstance(value, dict) or not value:
        return data + data
    key = rng.choice(list(value))
    again = f", {json.dumps(key)}: {json.dumps(_value(rng, value[key]))}}}"
    return data.rstrip()[:-1] + again.encode(errors="surrogatepass")


def _json_whole(rng: random.Random, data: bytes) -> bytes:
    simple = (b"[]", b"{}", b"null", b"3", b'"x"', b"NaN")
    return rng.choice((*simple, b"[" + data + b"]", _nested(rng).encode(), b"1" * 5000))


JSON = TEXT | {
    "a value": _json_value,
    "another value": _json_value,
    "two values": lambda rng, data: _json_value(rng, _json_value(rng, data)),
    "a key": _json_key,
    "another key": _json_key,
    "a key twice": _json_twice,
    "the whole value": _json_whole,
}


def _json_of_a_line(rng: random.Random, data: bytes) -> bytes:
    lines = data.rstrip(b"\n").split(b"\n")
    number = rng.randrange(len(lines))
    lines[number] = JSON[rng.choice(("a value", "a key", "a key twice", "the whole value"))](rng, lines[number])
    return b"\n".join(lines) + b"\n"


JSON_LINES = TEXT | {"JSON of a line": _json_of_a_line, "JSON of another line": _json_of_a_line}


def _header(rng: random.Random, data: bytes) -> bytes:
    """A safetensors file with another header: eight bytes of length, JSON, tensors."""
    (length,) = struct.unpack("<Q", data[:8])
    header, tensors = data[8 : 8 + length], data[8 + length :]
    if rng.random() < 0.3:
        return struct.pack("<Q", rng.choice((0, 1, length - 1, length + 1, 2**30, 2**63, 2**64 - 1))) + header + tensors
    changed = rng.choice((_json_value, _json_key, _json_twice, _json_whole))(rng, header)
    return struct.pack("<Q", len(changed)) + changed + tensors


def _not_a_number(rng: random.Random, data: bytes) -> bytes:
    """A safetensors file of which a tensor, or all, holds NaN or infinity."""
    (length,) = struct.unpack("<Q", data[:8])
    header = {name: entry for name, entry in json.loads(data[8 : 8 + length]).items() if name != "__metadata__"}
    chosen = list(header) if rng.random() < 0.3 else [rng.choice(list(header))]
    changed = bytearray(data)
    for entry in (header[name] for name in chosen):
        start, stop = (8 + length + offset for offset in entry["data_offsets"])
        # All bits set is NaN in every float format; 0x7f800000 is infinity in float32, and not finite in the others.
        pattern = rng.choice((b"\xff\xff\xff\xff", b"\x00\x00\x80\x7f"))
        changed[start:stop] = (pattern * (stop - start))[: stop - start]
    return bytes(changed)


def _prefix(rng: random.Random, data: bytes) -> bytes:
    """A safetensors file whose tensors share a prefix, or all but one do."""
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    prefix = rng.choice(("module.", "_orig_mod.", "base_model.model.", "model.module.", "x."))
    without = rng.choice((*header, None, None))
    names = {name: name if name in ("__metadata__", without) else prefix + name for name in header}
    changed = json.dumps({names[name]: entry for name, entry in header.items()}).encode()
    return struct.pack("<Q", len(changed)) + changed + data[8 + length :]


SAFETENSORS = BYTES | {"a prefix": _prefix, "header": _header, "another header": _header, "not a number": _not_a_number}


STATEMENTS = (
    "raise KeyError('x')",
    "raise NotImplementedError",
    "import sys; sys.exit(0)",
    "import sys; sys.exit('stop')",
)
STATEMENTS += ("raise SystemExit", "import not_there", "from ag_jax import not_there", "1 / 0", "assert False")
STATEMENTS += ("undefined", "[][1]", "def", "open('/nowhere')", "(lambda f: f(f))(lambda f: f(f))")
FUNCTIONS = tuple(f"def get_config(argument=''): return {what}" for what in ("None", "3", "{'model': 1}"))
FUNCTIONS += ("def get_config(): return 1", "def get_config(a, b): return 1", "get_config = 3", "del get_config")


def _statement(rng: random.Random, data: bytes) -> bytes:
    """Python with a statement that fails, in the module or in a function."""
    lines = data.decode().split("\n")
    places = [place for place in range(1, len(lines)) if lines[place - 1][-1:] not in ("(", ",")]
    number = rng.choice(places)
    indent = lines[number][: len(lines[number]) - len(lines[number].lstrip())]
    lines.insert(number, indent + rng.choice(STATEMENTS))
    return "\n".join(lines).encode()


PYTHON = TEXT | {
    "a statement": _statement,
    "another statement": _statement,
    "get_config": lambda rng, data: data + f"\n{rng.choice(FUNCTIONS)}\n".encode(),
    "a letter": lambda rng, data: _statement(rng, _cut_out(rng, data)),
}


def of(name: str) -> dict[str, Callable[[random.Random, bytes], Content]]:
    """The mutations for a file of this name."""
    if name.endswith((".json", "_METADATA", "_sharding", "process_0", "metadata")):
        return JSON
    if name.endswith(".jsonl"):
        return JSON_LINES
    if name.endswith(".safetensors"):
        return SAFETENSORS
    if name.endswith(".py"):
        return PYTHON
    if name.endswith((".txt", ".tsv", ".csv", ".conll")):
        return TEXT
    return PACKED if name.endswith((".gz", ".xz", ".bz2")) else BYTES


def mutate(rng: random.Random, name: str, data: bytes, others: list[bytes]) -> tuple[str, Content]:
    """A damaged `data` with what was done to it; `others`: contents of other files that may take its place."""
    options = of(name)
    for _ in range(5):
        what = rng.choice((*options, "another file"))
        if what == "another file":
            return what, rng.choice(others)
        if not data and what not in ("missing", "random", "inserted", "more at the end"):
            continue
        if what == "a bomb":
            return what, _bomb(name[name.rindex(".") :])
        try:
            changed = options[what](rng, data)
        except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError):
            continue  # an earlier mutation, or the file itself, is not of that form
        if changed != data:
            return what, changed
    return "empty", b""
