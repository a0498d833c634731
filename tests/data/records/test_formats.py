"""Every format with every compression, and every way in which a file can be wrong."""

import bz2
import errno
import gzip
import io
import itertools
import json
import lzma

import pytest

from ag_jax.data.records import formats, sources, stored
from tests.data.conftest import json_lines, tar, write

pyarrow = pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'ag_jax[parquet]'")
COMPRESSORS = {
    "": bytes,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".bz2": bz2.compress,
    ".zst": lambda content: pyarrow.compress(content, codec="zstd", asbytes=True),
}
TEXTS = ['Grüße, "zwei"\nZeilen.', "ไทย\u2028ไทย"]  # U+2028 ends a line, but no row
ENTRIES = [{"id": number, "text": text} for number, text in enumerate(TEXTS)]
LINES = "\n\n".join(map(json.dumps, ENTRIES)).encode()


def parquet(**columns) -> bytes:
    import pyarrow.parquet

    file = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(columns), file)
    return file.getvalue()


CONTENTS = {
    ".txt": ("\ufeff" + TEXTS[0]).encode(),
    ".jsonl": LINES,
    ".ndjson": LINES,
    ".json": json.dumps({"version": [1], "data": ENTRIES}, indent=1).encode(),
    ".csv": '\ufeffid,text\r\n0,"Grüße, ""zwei""\nZeilen."\r\n\r\n1,ไทย\u2028ไทย\r\n'.encode(),
    ".tsv": 'id\ttext\n0\t"Grüße, ""zwei""\nZeilen."\n1\tไทย\u2028ไทย'.encode(),
    ".parquet": parquet(id=[0, 1], text=TEXTS),
}
CONTENTS[".tar"] = tar(
    {f"folder/1{ending}": content for ending, content in CONTENTS.items()}
    | {f"2.jsonl{ending}": compress(LINES) for ending, compress in COMPRESSORS.items()}
    | {
        "3.parquet.xz": lzma.compress(CONTENTS[".parquet"]),
        ".4.txt": b"hidden",
        "5.md": b"no",
        "6.tar": tar({}),
        "empty.txt": b"",
    }
)


def read(file, text_field="text"):
    return list(sources.documents(str(file), text_field))


@pytest.mark.parametrize("compression", COMPRESSORS)
def test_every_format_with_every_compression(tmp_path, compression, caplog):
    for ending, content in CONTENTS.items():
        expected = {".txt": TEXTS[:1], ".tar": TEXTS[:1] + 12 * TEXTS}.get(ending, TEXTS)
        for name in (f"a{ending}{compression}", f"a.b{ending}{compression}".upper()):
            write(tmp_path, {name: COMPRESSORS[compression](content)})
            assert formats.is_known(name) and read(tmp_path / name) == expected, name
    assert "left out 3 members" in caplog.text
    short = {".gz": "tgz", ".xz": "txz", ".bz2": "tbz2", ".zst": "tzst"}.get(compression, "tar")
    write(tmp_path, {f"a.{short}": COMPRESSORS[compression](CONTENTS[".tar"]), "a.odd": TEXTS[0]})
    assert read(tmp_path / f"a.{short}") == TEXTS[:1] + 12 * TEXTS
    assert read(tmp_path / "a.odd") == TEXTS[:1] and not formats.is_known("a.odd")


def test_files_that_were_cut_off_are_named(tmp_path):
    """Compressed ones at any place; archives, also compressed ones like Parquet files, to the checksum at their end."""
    lines = json_lines(str(number**9) for number in range(2000)).encode()
    whole = tar({"a.txt": b"one", "b.txt": b"two"})
    damaged = {f"{size}.tar": whole[:size] for size in (500, 512, 700, 1024, 1100, 2048)}
    for ending in (".gz", ".xz", ".bz2", ".zst"):
        for name, content in ((f"jsonl{ending}", lines), (f"tar{ending}", tar({"a.jsonl": lines}))):
            content = COMPRESSORS[ending](content)
            damaged |= {f"{kept}.{name}": content[: int(len(content) * kept)] for kept in (0.5, 0.999)}
    for name, content in (("a.parquet.gz", CONTENTS[".parquet"]), ("a.tgz", whole)):
        content = gzip.compress(content)
        damaged[name] = content[:-6] + bytes([content[-6] ^ 1]) + content[-5:]
    for name in write(tmp_path, damaged) and damaged:
        with pytest.raises(ValueError, match=f"{name} is damaged"):
            read(tmp_path / name)


ROWS = [  # the content, how it is read, and the records by the lines at which they begin; None for a malformed one
    (b'{"a": 1}\n\n{"a"\n[1]\n{"a": "\\ud800"}\n{"a": 2}', formats.json_lines, {},
        {"1": {"a": 1}, "3": None, "4": None, "5": None, "6": {"a": 2}}),
    (b'\xef\xbb\xbf\na\r1\r\n"3\n3","4"\n\n2', formats.table, {"delimiter": ","},
        {"3": {"a": "1"}, "4 to 5": None, "7": {"a": "2"}}),
    (b'a\n1\n"3;3"\n\n2', formats.table, {"delimiter": ";", "quoted": False},
        {"2": {"a": "1"}, "3": None, "5": {"a": "2"}}),
    (b'"1;2\n3', formats.table, {"delimiter": ";", "quoted": False, "header": False},
        {"1": {"0": '"1', "1": "2"}, "2": None}),
]  # fmt: skip


@pytest.mark.parametrize(("content", "reader", "variant", "expected"), ROWS)
def test_a_record_that_cannot_be_read_does_not_hide_those_behind_it(content, reader, variant, expected):
    rows = list(reader(io.BytesIO(content), "x", **variant))
    found = {place.split(maxsplit=2)[2]: None if isinstance(row, ValueError) else row for place, row in rows}
    assert found == expected and len(rows) == len(expected)


def test_only_line_feeds_end_lines():
    texts = ["Ein Hund.", "", "Zwei\u2028Hunde\u0085und\x0beine\x1eKatze.", "\u00a0drei\rvier"]
    for end, last, mark in itertools.product(("\n", "\r\n"), (False, True), ("", "\ufeff")):
        content = (mark + end.join(texts) + end * last).encode()
        lines = [line for _, line in formats.lines(io.BytesIO(content), "a")]
        assert [line.removesuffix("\n").removesuffix("\r") for line in lines] == texts
        assert "".join(lines) == formats.whole(io.BytesIO(content), "a") == content.decode().removeprefix(mark)


def test_the_field_is_a_setting(tmp_path):
    contents = {
        "a.jsonl": b'{"text": 3, "body": "one"}',
        "a.json": b'[{"body": "one"}]',
        "b.json": b'{"body": "one"}',
        "c.json": b'{"body": "one"}\n{"body": "two"}',  # JSON lines under another name
        "a.csv": b"text,,,body\n,1,2,one",  # columns without a name may be several
        "a.parquet": parquet(text=[1], body=["one"]),
        "long.csv": b"body\n" + b"x " * 100_000,  # the csv module's own limit is 131,072
    }
    for name in write(tmp_path, contents) and contents:
        expected = {"c.json": ["one", "two"], "long.csv": ["x " * 100_000]}.get(name, ["one"])
        assert read(tmp_path / name, "body") == expected


DEEP = b'{"text": ' + b"[" * 100_000


@pytest.mark.parametrize(
    ("name", "content", "named"),
    [
        ("a.txt", b"", "a.txt is empty"),
        ("a.txt.gz", gzip.compress(b"", mtime=0), "a.txt.gz is empty"),
        ("a.txt.gz", b"", "a.txt.gz is damaged"),
        ("a.txt", b" \n\n", "a.txt"),
        ("a.txt", b"text\0text", "a.txt"),
        ("a.txt", b"caf\xe9 au lait", "a.txt.*UTF-8"),
        ("a.txt", b"caf\xc3", "a.txt.*UTF-8"),
        ("a.txt", b"a \n" * 99 + b"x" * (stored.LARGEST_WORD + 1), "a.txt.*words"),
        ("a.csv", b"id,text\n0,a\n\n1,b,c\n", "a.csv, line 4.*2 columns.*3"),
        ("a.csv", b'id,text\n0,"a\nb"\n1\n', "a.csv, line 4.*2 columns.*1"),
        ("a.csv", b'text\na\n"b\nc\n', "a.csv, line 3"),
        ("a.tsv", b'text\tid\n"He" said\t1\n', "a.tsv, line 2"),
        ("a.csv", b"id;text\n0;a\n", "a.csv, line 2.*id;text"),
        ("a.csv", b"text,text\na,b\n", "a.csv, line 1.*text.*once"),
        ("a.json", b'{"a": 1, "b": [2]}', 'a.json.*"a", "b"'),
        ("a.json", b'{"a": [{}], "b": [{}]}', "a.json.*list"),
        ("a.json", b'[{"text": "a"},\n{"txt": "b"}]', 'a.json, entry 2.*"txt"'),
        ("a.jsonl", b'{"text": "a"}\n{"txt": "b"}', 'a.jsonl, line 2.*"txt"'),
        ("a.jsonl", b'["a"]\n', "a.jsonl, line 1.*object"),
        ("a.jsonl", b'{"text": "a"}\n"\xff"\n', "a.jsonl, line 2.*UTF-8"),
        ("a.txt", b"\xef\xbb\xbfa\n\n\xff", "a.txt, line 3.*UTF-8"),
        ("a.jsonl", b'{"text": 3}\n', "a.jsonl, line 1.*int"),
        ("a.jsonl", DEEP, "a.jsonl, line 1.*JSON"),
        ("a.jsonl", b'{"text": "\\ud800"}', "a.jsonl, line 1.*ud800"),
        ("a.json", b'[{"text": "\\ud83d\\ude00"},\n{"text": "\\ud83d"}]', "a.json.*ud83d in line 2"),
        ("a.parquet", b"PAR1 and nothing else", "a.parquet is damaged"),
        ("a.parquet", parquet(text=TEXTS * 500)[:-2000], "a.parquet is damaged"),
        ("a.parquet", parquet(text=["one", None]), "a.parquet, row 2.*null"),
        ("a.parquet", parquet(body=["one"]), 'a.parquet.*"text".*"body"'),
        ("a.tar", b"not tar" * 100, "a.tar is damaged"),
        ("a.tar", tar({"a.txt": b"text", "f/b.csv": b"txt\na"}), "f/b.csv of .*a.tar, line 2"),
        ("a.PDF", b"%PDF-1.4", "a.PDF is not read"),
    ],
)
def test_bad_files_are_named(tmp_path, name, content, named):
    write(tmp_path, {name: content})
    with pytest.raises(ValueError, match=f"(?s){named}"):
        read(tmp_path / name)


def test_what_does_not_fit_into_memory_is_rejected(tmp_path, monkeypatch):
    monkeypatch.setattr(formats, "LARGEST_PARSED", 100)
    write(tmp_path, {"a.json": json.dumps([{"text": "a"}] * 20, indent=1), "a.jsonl": json_lines(["a" * 100])})
    with pytest.raises(ValueError, match=r"a\.json: .*100"):
        read(tmp_path / "a.json")
    with pytest.raises(ValueError, match=r"a\.jsonl, line 1: .*100"):
        read(tmp_path / "a.jsonl")
    fitting = {"b.json": '{"text": "a"}\n' * 20, "b.jsonl": json_lines(["a" * 86]), "c.json": json_lines(["a" * 86])}
    write(tmp_path, fitting)  # JSON lines need not fit into memory together
    assert read(tmp_path / "b.json") == ["a"] * 20
    assert read(tmp_path / "b.jsonl") == read(tmp_path / "c.json") == ["a" * 86]
    assert formats.whole(io.BytesIO(b"a" * 100), "a") == "a" * 100
    with pytest.raises(ValueError, match="100"):
        formats.whole(io.BytesIO(b"a" * 101), "a")


def test_a_long_file_comes_in_parts_of_whole_lines(tmp_path, monkeypatch):
    monkeypatch.setattr(formats, "LARGEST_TEXT", 100)
    text = "".join(f"line {number} äöü\n" for number in range(60))
    line = "xä" * 300 + "."  # longer than any document, and cut inside a character
    write(tmp_path, {"a.txt": text, "b.txt": line})
    parts = read(tmp_path / "a.txt")
    assert "".join(parts) == text and len(parts) > 5
    assert all(part.endswith("\n") and len(part.encode()) <= 120 for part in parts)
    write(tmp_path, {"c.txt": text.encode() + b"\xff"})
    with pytest.raises(ValueError, match=r"c\.txt, line 61.*UTF-8"):
        read(tmp_path / "c.txt")
    assert "".join(read(tmp_path / "b.txt")) == line and len(read(tmp_path / "b.txt")) == 5


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl.gz", "a.tar.xz", "a.parquet"])
def test_a_disk_that_fails_is_not_taken_for_a_damaged_file(tmp_path, monkeypatch, name):
    class Failing(io.RawIOBase):
        def readable(self):
            return True

        def readinto(self, buffer):
            raise OSError(errno.EIO, "Input/output error")

    (tmp_path / name).touch()
    monkeypatch.setattr("pathlib.Path.open", lambda *_: io.BufferedReader(Failing()))
    with pytest.raises(OSError, match=f"Input/output error.*{name}"):
        read(tmp_path / name)
