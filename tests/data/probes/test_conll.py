"""Coreference files: hand-written ones, every damage with its place, and LitBank with its published counts."""

import collections
import io
import tarfile

import pytest

from ag_jax.data.probes import conll
from ag_jax.data.probes.mentions import Mention
from tests.data.probes.conftest import QUEEN, conll_text

SPANS = [(0, 5, "1"), (4, 5, "2"), (7, 9, "3"), (10, 11, "1")]
SPANS += [(12, 13, "3"), (14, 15, "1"), (16, 21, "4"), (16, 17, "1"), (17, 18, "2")]


def with_cells(cells: list[str], sentences: tuple[int, ...] = ()) -> str:
    """A document of one-letter words with the given coreference; a sentence ends after each index in `sentences`."""
    rows = [f"{chr(97 + index)} NN * {cell}" + "\n" * (index in sentences) for index, cell in enumerate(cells)]
    return conll_text("\n".join(rows))


def read_one(path):
    (document,) = conll.read(path).documents
    return document


@pytest.mark.parametrize("extra", (0, 3))
def test_a_document_by_hand(write, extra):
    document = read_one(write("paris.v4_gold_conll", conll_text(QUEEN, extra=extra)))
    rows = [row.split() for row in QUEEN.split("\n") if row]
    assert (document.name, document.part, document.starts) == ("nw/paris", 0, (0, 12))
    assert [document.words, document.tags, document.parses] == [tuple(row[at] for row in rows) for at in range(3)]
    assert document.mentions == tuple(Mention(*span) for span in SPANS)


def test_brackets(write):
    # Nested, adjacent, crossing, of one word, and two of one entity that cross: a closing bracket ends the last begun.
    cells = ["(1|(2", "(1", "2)", "1)|(3", "3)|(4", "1)|(5)", "4)"]
    expected = [(0, 6, "1"), (0, 3, "2"), (1, 4, "1"), (3, 5, "3"), (4, 7, "4"), (5, 6, "5")]
    assert read_one(write("one.conll", with_cells(cells))).mentions == tuple(Mention(*span) for span in expected)


def test_variants_of_text_give_the_same(write):
    text = conll_text(QUEEN)
    rows = [[("" if cell in "-*" else cell) for cell in line.split()] if line[:1] != "#" else [line]
            for line in text.split("\n")]  # fmt: skip
    variants = {
        "comments": text.replace("; part 000\n", "; part 000\n# a = b\n").replace("\n\n", f"\n\n# {'word ' * 99}\n"),
        "blank": "\n\n" + text.replace("\n\n", "\n \n\n\n") + "\n\n",
        "no_end": text.rstrip("\n"),
        "empty_cells": "\n".join(map("\t".join, rows)),
    }
    expected = read_one(write("one.conll", text))
    for name, content in variants.items():
        found = read_one(write(name, content))
        assert (found.words, found.starts, found.mentions) == (expected.words, expected.starts, expected.mentions), name
    words = [row.split() for row in QUEEN.strip("\n").split("\n")]
    table = "\n".join(" ".join([row[0], "_", "-", row[3]]) if row else "" for row in words)
    document = read_one(write("two.conll", conll_text(table)))  # columns without content are unknown
    assert document.tags is None and document.parses is None and document.mentions == expected.mentions


def test_mentions_across_sentences_are_dropped_and_counted(write):
    reading = conll.read(write("one.conll", with_cells(["(1", "(2)", "1)", "(3", "3)"], (1,))))
    assert [each.entity for each in reading.documents[0].mentions] == ["2", "3"]
    assert reading.dropped == {conll.ACROSS: 1}


def test_folders_and_archives(write, tmp_path):
    for name in ("b/x.v4_gold_conll", "a/y.v4_gold_conll", "c/z.v4_auto_conll", "SOURCE.txt"):
        write(f"data/{name}", conll_text(QUEEN, name))
    with tarfile.open(tmp_path / "data" / "more.tar.xz", "w:xz") as archive:
        for name in ("d.conll", "notes.txt"):
            content = conll_text(QUEEN, name).encode()
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    found = conll.read(tmp_path / "data").documents
    assert [document.name for document in found] == ["a/y.v4_gold_conll", "b/x.v4_gold_conll", "d.conll"]
    assert found[2].place.startswith("d.conll of ")
    for path in (write("none/SOURCE.txt", "").parent, tmp_path / "absent"):
        with pytest.raises(FileNotFoundError, match=f"_gold_conll or .conll.*{path}"):
            conll.read(path)


TEXT = conll_text(QUEEN)
DAMAGES = {
    "never closed": (with_cells(["-", "(7", "-"]), "line 3.*nw/paris.*entity 7 begins"),
    "never opened": (with_cells(["-", "7)", "-"]), "line 3.*nw/paris.*entity 7 ends"),
    "closed twice": (with_cells(["(7", "7)", "7)"]), "line 4.*nw/paris.*entity 7 ends"),
    "no bracket": (with_cells(["-", "7"]), "line 3.*coreference"),
    "empty in list": (with_cells(["(7)|", "-"]), "line 2.*coreference"),
    "fewer columns": (TEXT.replace("old   JJ   ", "old   "), "line 3.* 12 "),
    "few columns": ("#begin document (a); part 0\na 0 0 word (1)\n", "line 2.*at least 12"),
    "no blank line": (conll_text(QUEEN, extra=2).replace("\n\nnw", "\nnw"), "line 14.* 12 "),
    "no word": ("#begin document (a); part 0\na\t0\t0\t \tNN\t_\t_\t_\t_\t_\t_\t_\t(1)\n", "line 2.*word"),
    "cut off": (TEXT[: TEXT.index("#end")], "nw/paris.*#end document"),
    "no end": (TEXT.replace("#end document", "") + TEXT, "line 27.*#end document.*nw/paris"),
    "no begin": (TEXT.split("\n", 1)[1], "line 1.*#begin document"),
    "end alone": ("#end document\n", "line 1.*#begin document"),
    "no name": (TEXT.replace(" (nw/paris); part 000", ""), "line 1.*NAME"),
    "empty": ("", "#begin document"),
    "twice": (TEXT + TEXT, "nw/paris, part 0, "),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_files(write, damage):
    content, match = DAMAGES[damage]
    with pytest.raises(ValueError, match=f"one.conll.*{match}"):
        conll.read(write("one.conll", content))


def test_litbank(litbank):
    documents = litbank.documents
    entities = [collections.Counter(each.entity for each in document.mentions) for document in documents]
    counts = [count for entity in entities for count in entity.values()]
    assert len(documents) == 100 and sum(len(document.words) for document in documents) == 210_532
    assert (sum(counts), len(counts), counts.count(1)) == (29_103, 7_927, 5_763)
    assert litbank.dropped == {} and documents[0].tags is None and documents[0].parses is None
