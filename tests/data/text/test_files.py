"""Every format with every compression, and every way in which a file can be wrong."""

import bz2
import errno
import gzip
import io
import json
import lzma
import sys
import tarfile

import pytest

from ag_jax.data.text import fields, files

COMPRESSORS = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress, ".bz2": bz2.compress, ".zst": None}
TEXTS = ['Grüße, "zwei"\nZeilen.', "ไทย\u2028ไทย"]  # U+2028 ends a line, but no row
ENTRIES = [{"id": number, "text": text} for number, text in enumerate(TEXTS)]
LINES = "\n\n".join(map(json.dumps, ENTRIES)).encode()
CONTENTS = {
    ".txt": TEXTS[0].encode(),
    ".jsonl": LINES,
    ".ndjson": LINES,
    ".json": json.dumps({"version": [1], "data": ENTRIES}, indent=1).encode(),
    ".csv": '\ufeffid,text\r\n0,"Grüße, ""zwei""\nZeilen."\r\n\r\n1,ไทย\u2028ไทย\r\n'.encode(),
    ".tsv": 'id\ttext\n0\t"Grüße, ""zwei""\nZeilen."\n1\tไทย\u2028ไทย'.encode(),
    ".parquet": None,
    ".tar": None,
}


def pyarrow():
    pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'ag_jax[parquet]'")
    import pyarrow.parquet

    return pyarrow


def compressed(content: bytes, ending: str) -> bytes:
    return pyarrow().compress(content, codec="zstd", asbytes=True) if ending == ".zst" else COMPRESSORS[ending](content)


def parquet(**columns) -> bytes:
    file = io.BytesIO()
    pyarrow().parquet.write_table(pyarrow().table(columns), file)
    return file.getvalue()


def archive(**members: bytes) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as written:
        for name, content in members.items():
            member = tarfile.TarInfo(f"folder/{name}")
            member.size = len(content)
            written.addfile(member, io.BytesIO(content))
    return file.getvalue()


def content_of(ending: str) -> bytes:
    if ending == ".parquet":
        return parquet(id=[0, 1], text=TEXTS)
    if ending == ".tar":
        names = [("1" + ending, content) for ending, content in CONTENTS.items() if content]
        return archive(**dict(names), **{"2.jsonl.gz": gzip.compress(LINES), ".3.txt": b"\0", "4.md": b"no"})
    return CONTENTS[ending]


def read(file, text_field="text"):
    return list(files.documents(file, text_field))


@pytest.mark.parametrize("compression", COMPRESSORS)
@pytest.mark.parametrize("ending", CONTENTS)
def test_every_format_with_every_compression(tmp_path, ending, compression):
    expected = {".txt": TEXTS[:1], ".tar": TEXTS[:1] + 6 * TEXTS}.get(ending, TEXTS)
    for name in (f"a{ending}{compression}", f"a.b{ending}{compression}".upper()):
        (tmp_path / name).write_bytes(compressed(content_of(ending), compression))
        assert files.is_known(name) and read(tmp_path / name) == expected


@pytest.mark.parametrize("ending", [".gz", ".xz", ".bz2", ".zst"])
@pytest.mark.parametrize("kept", [0.5, 0.999])
def test_a_compressed_file_that_was_cut_off_is_named(tmp_path, ending, kept):
    lines = "".join(f'{{"text": "{number**9}"}}\n' for number in range(5000)).encode()
    for name, content in (("a.jsonl", lines), ("a.tar", archive(**{"a.jsonl": lines}))):
        whole = compressed(content, ending)
        (tmp_path / (name + ending)).write_bytes(whole[: int(len(whole) * kept)])
        with pytest.raises(ValueError, match=f"{name}{ending} is damaged or not what its name says .*copy it anew"):
            read(tmp_path / (name + ending))


def test_an_archive_that_was_cut_off_is_named(tmp_path):
    whole = archive(**{"a.txt": b"one", "b.txt": b"two"})
    for size in (500, 512, 700, 1024, 1100, 2048):
        (tmp_path / "a.tar").write_bytes(whole[:size])
        with pytest.raises(ValueError, match="a.tar is damaged or not what its name says"):
            read(tmp_path / "a.tar")


def test_parquet_and_archives_inside_a_compressed_file_are_whole(tmp_path):
    for name, content in (("a.parquet.gz", content_of(".parquet")), ("a.tgz", archive(**{"a.txt": b"text"}))):
        damaged = bytearray(gzip.compress(content))
        damaged[-6] ^= 1  # the checksum at the very end
        (tmp_path / name).write_bytes(damaged)
        with pytest.raises(ValueError, match=f"{name} is damaged"):
            read(tmp_path / name)


def test_the_field_is_a_setting(tmp_path):
    contents = {
        "a.jsonl": b'{"text": 3, "body": "one"}',
        "a.json": b'[{"body": "one"}]',
        "b.json": b'{"body": "one"}',
        "c.json": b'{"body": "one"}\n{"body": "two"}',  # JSON lines under another name
        "a.csv": b"text,body\n,one",
        "a.parquet": parquet(text=[1], body=["one"]),
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
        assert read(tmp_path / name, "body") == (["one", "two"] if name == "c.json" else ["one"])


def test_a_long_field_of_a_table(tmp_path):
    (tmp_path / "a.csv").write_text("text\n" + "x" * 200_000)  # the csv module's own limit is 131,072
    assert read(tmp_path / "a.csv") == ["x" * 200_000]


DEEP = b'{"text": ' + b"[" * 100_000


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", b"id,text\n0,a\n\n1,b,c\n", "a.csv, line 4: expected 2 columns, as in the header, got 3"),
        ("a.csv", b'id,text\n0,"a\nb"\n1\n', "a.csv, line 4: expected 2 columns, as in the header, got 1"),
        ("a.csv", b'text\na\n"b\nc\n', "a.csv, line 3: expected fields that are quoted as .* unexpected end of data"),
        ("a.tsv", b'text\tid\n"He" said\t1\n', "a.tsv, line 2: expected fields that are quoted"),
        ("a.csv", b"id;text\n0;a\n", 'a.csv, line 1, the header: expected the field "text", got only "id;text"'),
        ("a.csv", b"text,text\na,b\n", 'a.csv, line 1: expected one column "text", got 2'),
        ("a.csv", b"text\ncaf\xe9\n", "a.csv, line 2: expected text in UTF-8"),
        ("a.json", b'{"a": 1, "b": [2]}', 'a.json: expected a list of objects.* got an object with the keys "a", "b"'),
        ("a.json", b'{"a": [{}], "b": [{}]}', "a.json: expected a list of objects"),
        ("a.json", b'"text"', "a.json: expected a list of objects.* got str"),
        ("a.json", b'[{"text": "a"},\n{"txt": "b"}]', 'a.json, entry 2: expected the field "text", got only "txt"'),
        ("a.json", b'[{"text": "a"}', "a.json: expected JSON"),
        ("a.json", DEEP, "a.json: expected JSON"),
        ("a.jsonl", DEEP, "a.jsonl, line 1: expected JSON"),
        ("a.jsonl", b'{"text": ' + b"1" * 5000 + b"}", "a.jsonl, line 1: expected JSON"),
        ("a.jsonl", b'{"text": "\\ud800"}', r"a.jsonl, line 1: .*\\ud800"),
        ("a.json", b'[{"text": "\\ud83d\\ude00"},\n{"text": "\\ud83d"}]', r"a.json: .*\\ud83d in line 2"),
        ("a.txt", b"a \n" * 99 + b"x" * (files.LARGEST_WORD + 1), "a.txt: expected words of at most"),
        ("a.jsonl", b'{"text": "' + b"=" * (files.LARGEST_WORD + 1) + b'"}', "a.jsonl: expected words of at most"),
        ("a.parquet", b"PAR1 and nothing else", "a.parquet is damaged"),
        ("a.PDF", b"%PDF-1.4", r"a.PDF is not read: expected .txt, .jsonl.* got .pdf; convert it"),
        ("a.html.gz", b"", "a.html.gz is not read"),
        ("a.zip", b"PK", "a.zip is not read"),
        ("a.jsonl.lz4", b"", "a.jsonl.lz4 is not read"),
    ],
)
def test_bad_files_are_named_with_the_remedy(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read(tmp_path / name)


def test_compressed_members_of_an_archive(tmp_path):
    members = {f"{number}.jsonl{ending}": compressed(LINES, ending) for number, ending in enumerate(COMPRESSORS)}
    members |= {"a.parquet": content_of(".parquet"), "a.parquet.xz": lzma.compress(content_of(".parquet"))}
    (tmp_path / "a.tar").write_bytes(archive(**members))
    assert read(tmp_path / "a.tar") == TEXTS * 7


def test_a_bad_member_of_an_archive_is_named(tmp_path):
    (tmp_path / "a.tar").write_bytes(archive(**{"a.txt": b"text", "b.csv": b"txt\na"}))
    with pytest.raises(ValueError, match=r'folder/b.csv of .*a.tar, line 1, the header: expected the field "text"'):
        read(tmp_path / "a.tar")


def test_bad_columns_of_a_parquet_file_are_named(tmp_path):
    file = tmp_path / "a.parquet"
    file.write_bytes(parquet(text=["one", None]))
    with pytest.raises(ValueError, match='a.parquet, row 2: the field "text" must be a string, got NoneType'):
        read(file)
    with pytest.raises(ValueError, match='a.parquet: expected the field "body", got only "text"; set data.text_field'):
        read(file, "body")
    file.write_bytes(parquet(text=TEXTS * 500)[:-2000])
    with pytest.raises(ValueError, match="a.parquet is damaged"):
        read(file)


def test_what_does_not_fit_into_memory_is_rejected(tmp_path, monkeypatch):
    monkeypatch.setattr(fields, "LARGEST_PARSED", 100)
    (tmp_path / "a.json").write_text(json.dumps([{"text": "a"}] * 20, indent=1))
    with pytest.raises(ValueError, match=r"a.json: expected at most 100 characters.* with: jq -c '.\[\]' FILE.json > "):
        read(tmp_path / "a.json")
    (tmp_path / "b.json").write_text('{"text": "a"}\n' * 20)  # JSON lines need not fit into memory
    assert read(tmp_path / "b.json") == ["a"] * 20
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "a" * 100}))
    with pytest.raises(ValueError, match="a.jsonl, line 1: expected at most 100 bytes"):
        read(tmp_path / "a.jsonl")


@pytest.mark.parametrize("content", ['\n{"text": "a"}\n{"text": "b"}', '[\n {"text": "a"}]', "<!DOCTYPE html><p>a</p>"])
@pytest.mark.parametrize("name", ["a.txt", "a.tokens.gz"])
def test_json_and_markup_under_a_name_for_text_are_warned_of(tmp_path, caplog, name, content):
    data = content.encode()
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    for _ in range(2):
        assert read(tmp_path / name) == [content]
    assert caplog.text.count(f"{name} begins like JSON or markup") == 1
    (tmp_path / "b.txt").write_text('{as} they [say], "yes" <b>')
    read(tmp_path / "b.txt")
    assert "b.txt" not in caplog.text


@pytest.mark.parametrize("name", ["a.parquet", "a.txt.zst"])
def test_without_pyarrow_the_extra_is_named(tmp_path, monkeypatch, name):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(ValueError, match=r"needs pyarrow, which is not installed: pip install 'ag_jax\[parquet\]'"):
        read(tmp_path / name)


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
