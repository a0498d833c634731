"""The lines of one side: what ends a line, what is text, and what is wrong with a file."""

import gzip
import importlib
import sys

import pytest

from ag_jax.data.parallel import sides, tokenised
from ag_jax.data.records import files


def read(path) -> list[str | None]:
    return list(sides.lines(path))


def test_a_carriage_return_inside_a_line_becomes_a_space(tmp_path):
    """Scores reject lines with one, and other programs would end the line there."""
    for name, content, expected in (
        ("a.de", b"Ein\rHund \r\r und\r\neine Katze\n", ["Ein Hund und", "eine Katze"]),
        ("a.br", b"\nIur\xc2\xa0", ["", "Iur"]),  # Breton, not Brotli
        ("a.de", b"", []),
    ):
        (tmp_path / name).write_bytes(content)
        assert read(tmp_path / name) == expected


def test_tags_are_no_text_in_the_files_that_have_them(tmp_path):
    content = "<url>http://a</url>\n <title>A</title>\n1 < 2\n<3 you\nText.\n"
    for name, expected in (
        ("train.tags.en-de.en", [None, None, "1 < 2", "<3 you", "Text."]),
        ("train.en", ["<url>http://a</url>", "<title>A</title>", "1 < 2", "<3 you", "Text."]),
    ):
        (tmp_path / name).write_text(content)
        assert read(tmp_path / name) == expected


SEGMENTS = """<?xml version="1.0" encoding="UTF-8"?>
<mteval><srcset setid="a" srclang=any trglang="de">
<doc docid="1"><url>http://a.b/?c=1&d=2</url><title>No text</title>
<seg id="1"> Tom & Jerry &amp; co. &lt;3 &quot;x&quot; &#8364;5 AT&T; </seg>
<p><SEG id=2>in
two   lines </seg><seg id="3"></seg></p><seg>last</seg >
</doc></srcset></mteval>
"""


def test_segments_are_lines(tmp_path):
    for name in ("a.en.xml", "a-src.en.sgm", "a.SGML", "a.xml.gz"):
        (tmp_path / name).write_bytes((gzip.compress if name.endswith("gz") else bytes)(SEGMENTS.encode()))
        assert read(tmp_path / name) == ['Tom & Jerry & co. <3 "x" €5 AT&T;', "in two   lines", "", "last"]


@pytest.mark.parametrize(
    ("name", "content", "match"),
    [
        ("a.xml", b"<seg>\ngut</seg>\n\n<seg>\xff</seg>", "a.xml, line 4.*UTF-8"),
        ("a.xml", b"<doc>gut</doc>\n", "a.xml.*<seg>"),
        ("a.xml", b"<seg>a</seg>\n<seg>b\n<seg>c</seg>", "a.xml, line 3.*got '<seg>'"),
        ("a.xml", b"<seg>a</seg>\n<seg>b\n", "a.xml, line 2.*got '<seg>'"),
        ("a.xml", b"<seg>a</seg>\nb</seg>\n", "a.xml, line 2.*got '</seg>'"),
        ("a.de.gz", gzip.compress(b"gut\n" * 99, mtime=0)[:-9], "a.de.gz is damaged"),
        *((f"a.{ending}", b'{"source": "a"}', f"a.{ending}.*{ending.removesuffix('.gz')}")
          for ending in ("jsonl", "tsv", "docx", "tar.gz")),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(tmp_path, name, content, match):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=match):
        read(tmp_path / name)


def test_pieces_are_joined_and_tokens_stay_without_the_package(tmp_path, monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "sacremoses", None)  # not to be imported
    files.warn_once.cache_clear()
    (tmp_path / "a.tok.bpe.32000.en").write_text("Res@@ um@@ ption of the ses@@ sion , \nends with@@\n@@ alone\n")
    (tmp_path / "a.en").write_text("Res@@ um@@ ption\n")
    assert read(tmp_path / "a.tok.bpe.32000.en") == ["Resumption of the session ,", "ends with", "alone"]
    assert "a.tok.bpe.32000.en" in caplog.text
    assert read(tmp_path / "a.en") == ["Res@@ um@@ ption"]


def test_tokens_are_joined_by_the_package_of_their_language(tmp_path, monkeypatch):
    """A package of the same interface stands for sacremoses, which is optional."""
    (tmp_path / "packages" / "sacremoses-9.8.7.dist-info").mkdir(parents=True)
    (tmp_path / "packages" / "sacremoses-9.8.7.dist-info" / "METADATA").write_text("Name: sacremoses\nVersion: 9.8.7\n")
    (tmp_path / "packages" / "sacremoses.py").write_text(
        "class MosesDetokenizer:\n"
        "    def __init__(self, lang):\n"
        "        self.lang = lang\n"
        "    def detokenize(self, tokens):\n"
        "        return self.lang + ':' + ' '.join(tokens).replace(' ,', ',')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path / "packages"))
    monkeypatch.delitem(sys.modules, "sacremoses", raising=False)
    importlib.invalidate_caches()
    plain, tokens = tmp_path / "a.de", tmp_path / "a.tok.clean.bpe.32000.de.gz"
    plain.write_text("Hund@@ e , ja\n")
    tokens.write_bytes(gzip.compress(b"Hund@@ e , ja\n\n"))
    assert read(plain) == ["Hund@@ e , ja"] and read(tokens) == ["de:Hunde, ja", ""]
    assert tokenised.identity([plain]) == [] and tokenised.identity([plain, tokens]) == ["sacremoses", "9.8.7"]
    monkeypatch.delitem(sys.modules, "sacremoses")
