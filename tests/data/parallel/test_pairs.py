"""Pairs of every kind of file, and files that are not translations of one another."""

import gzip
import json

import pytest

from ag_jax.data.parallel import pairs
from ag_jax.data.parallel.pairs import Pair, PairFiles

NAMED = {"source_field": "en", "target_field": "de"}
TRANSLATION = '{{"id": 1, "translation": {{"de": {1}, "en": {0}}}}}\n'
EXPECTED = [Pair("a dog", "ein Hund"), Pair("", "leer"), Pair("two cats", "zwei Katzen")]


def read(*arguments, **named) -> list[Pair]:
    return list(PairFiles(*map(str, arguments), **named))


def write(path, content):
    content = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def side(number) -> str:
    return "".join(f"{pair[number]}\n" for pair in EXPECTED)


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_aligned_lines(tmp_path, ending):
    source, target = (write(tmp_path / f"a.{name}{ending}", side(at)) for at, name in enumerate(("en", "de")))
    assert read(source, target) == EXPECTED
    assert read(target, source) == [Pair(*pair[::-1]) for pair in EXPECTED]


def test_lines_are_counted_as_they_are_read(tmp_path):
    for content, count in (("", 0), ("a", 1), ("a\n", 1), ("a\n\nb", 3), ("a\nb\n\n", 3)):
        one, other = (write(tmp_path / name, content) for name in ("a.en", "b.en.gz"))
        assert PairFiles(str(one)).line_count() == count == len(read(one, write(tmp_path / "a.de", content)))
        assert PairFiles(f"{one},{other}").line_count() == 2 * count


def test_several_files_go_together_in_order(tmp_path):
    for number, pair in enumerate(EXPECTED):
        for name, text in zip(("en", "de"), pair, strict=True):
            write(tmp_path / f"{number}.{name}", text + "\n")
    assert read(tmp_path / "*.en", tmp_path / "?.de") == EXPECTED
    listed = [",".join(str(tmp_path / f"{number}.{name}") for number in (2, 0)) for name in ("en", "de")]
    assert read(*listed) == [EXPECTED[2], EXPECTED[0]]


def globs(folder, files, source, target):
    """Write files of one line each; the globs of both sides."""
    for name in files.split():
        (folder / name).parent.mkdir(exist_ok=True)
        write(folder / name, "a line\n")
    return (",".join(f"{folder}/{part}" for part in side.split(",")) for side in (source, target))


@pytest.mark.parametrize(
    ("files", "source", "target"),
    [
        ("1.en 2.en 3.en 1.de 2.de 4.de", "*.en", "*.de"),  # a file is missing on each side
        ("en/1 en/2 de/1 de/3", "en/*", "de/*"),
        ("news.en news.dev.en news.de news.dev.de", "news*.en", "news*.de"),  # sorted: news.de comes before news.dev.de
        ("news.en news.dev.en news.de news.dev.de", "*.en", "*.d[e]"),
        ("a/1.en b/1.en a/1.de c/1.de", "**/*.en", "**/*.de"),
        ("0.x 0.y 1.en 2.en 1.de 3.de", "0.x,?.en", "0.y,?.de"),
    ],
)
def test_globs_whose_files_do_not_go_together(tmp_path, files, source, target):
    with pytest.raises(ValueError, match="data.source and data.target.*names"):
        read(*globs(tmp_path, files, source, target))


@pytest.mark.parametrize(
    ("files", "source", "target"),
    [
        ("1.en 2.en 1.de 2.de", "*.en", "*.de"),
        ("en/1.en en/2.en de/1.de de/2.de", "en/*", "de/*"),  # the languages are in what the wildcard stands for
        ("t1.en-de.en t2.en-de.en t1.en-de.de t2.en-de.de", "t*.en", "t*.de"),
        ("1.en 2.en.gz 1.de 2.de.gz", "*.en*", "*.de*"),
        ("a.en b.en x.de y.de", "*.en", "x.de,y.de"),  # named one by one, so meant to go together
        ("a.en x.de", "*.en", "*.de"),
        ("1.en 2.en 1.english 2.english 1.de 2.de 1.german 2.german", "*.en,*.en?*", "*.de,*.g*"),
    ],
)
def test_globs_whose_files_go_together(tmp_path, files, source, target):
    assert len(read(*globs(tmp_path, files, source, target))) == len(files.split()) / 2


def test_tags_on_both_sides_are_left_out(tmp_path):
    source = write(tmp_path / "train.tags.en-de.en", "<url>a</url>\n<title>b</title>\na dog\n<url>c</url>\ntwo cats\n")
    target = write(tmp_path / "train.tags.en-de.de", "<url>a</url>\n<title>d</title>\nein Hund\n<url>e</url>\nKatzen\n")
    assert read(source, target) == [Pair("a dog", "ein Hund"), Pair("two cats", "Katzen")]
    write(target, "<url>a</url>\n<title>d</title>\nein Hund\nzwei\nKatzen\n")
    for files in ((source, target), (target, source)):
        with pytest.raises(ValueError, match=r"line 4 of .*de\.en is a tag, line 4 of .*de\.de is text"):
            read(*files)


@pytest.mark.parametrize(
    ("name", "content", "fields"),
    [
        ("a.tsv", "a dog\tein Hund\n\tleer\ntwo cats\tzwei Katzen\n", {}),
        ("a.tsv", "a\rdog\tein \r Hund\n\tleer\ntwo cats\tzwei Katzen\n", {}),
        ("a.tsv", "a dog\tein Hund\r\n\r\n \t leer\r\ntwo cats\tzwei Katzen", {}),
        ("a.tsv", "target\tid\tsource\nein Hund\t1\ta dog\nleer\t2\t\nzwei Katzen\t3\ttwo cats\n", {}),
        ("a.tsv.gz", "de\ten\nein Hund\ta dog\nleer\t\nzwei Katzen\ttwo cats\n", NAMED),
        ("a.jsonl", "".join(json.dumps(pair._asdict()) + "\n" for pair in EXPECTED), {}),
        ("a.ndjson.gz", "\n\n".join(json.dumps({"en": one, "de": other}) for one, other in EXPECTED), NAMED),
        ("a.jsonl", "".join(json.dumps(pair._asdict()) + "\n" for pair in EXPECTED).replace("s c", "s \\r\\n c"), {}),
        ("a.jsonl.gz", "".join(TRANSLATION.format(*map(json.dumps, pair)) for pair in EXPECTED), NAMED),
    ],
)
def test_records_of_both_sides(tmp_path, name, content, fields):
    assert read(write(tmp_path / name, content), **fields) == EXPECTED
    path = write(tmp_path / "b.tsv", '"Hello," he said.\t"Hallo", sagte er.\n"\t\'\n')
    assert read(path) == [Pair('"Hello," he said.', '"Hallo", sagte er.'), Pair('"', "'")], "quotes mean nothing"


@pytest.mark.parametrize(
    ("name", "content", "fields", "match"),
    [
        ("a.tsv", "a\tb\nc\n", (), "a.tsv, line 2.* 2 .* 1"),
        ("a.tsv", "a\tb\tc\n", (), 'line 1.*"source".*"a", "b", "c".*data.source_field'),
        ("a.tsv", "source\tb\n", (), 'line 1.*"target".*data.target_field'),
        ("a.tsv", "a\tb\n", ("en", "de"), '"en".*data.source_field'),
        ("a.tsv", "source\ttarget\tsource\n", (), 'a.tsv, line 1.*"source".* 2'),
        ("a.jsonl", '{"source": "a"}\n', (), 'a.jsonl, line 1.*"target".*data.target_field'),
        ("a.jsonl", '{"source": "a", "target": 3}\n', (), 'line 1.*"target".*int'),
        ("a.jsonl", TRANSLATION.format('"a"', '"b"'), (), 'line 1, "translation".*"source".*"de", "en".*source_field'),
        ("a.jsonl", TRANSLATION.format('"a"', "null"), ("en", "de"), 'line 1.*"de".*null.*data.skip_null'),
        ("a.jsonl", '{"source": "a", "target": "b"}\n["c"]\n', (), "a.jsonl, line 2"),
        ("a.en", "a\n", (), "a.en.*data.target"),
    ],
)
def test_bad_records_are_named(tmp_path, name, content, fields, match):
    path = write(tmp_path / name, content)
    with pytest.raises(ValueError, match=match):
        read(path, **dict(zip(("source_field", "target_field"), fields, strict=False)))


@pytest.mark.parametrize(
    ("source", "target", "match"),
    [
        ("a\nb\nc\n", "a\nb\n", "a.de has 2 .*a.en has 3"),
        ("a\n", "a\nb\nc\nd", "a.en has 1 .*a.de has 4"),
        ("", "a\n", "a.en has 0 .*a.de has 1"),
    ],
)
def test_unequal_numbers_of_lines(tmp_path, source, target, match):
    files = write(tmp_path / "a.en", source), write(tmp_path / "a.de", target)
    with pytest.raises(ValueError, match=match):
        read(*files)


def test_files_that_do_not_go_together(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "deep").mkdir()
    for name in ("a.en", "b.en", "a.de"):
        write(tmp_path / name, "a\n")
    for files, match in (
        (("*.en", "a.de"), "data.source has 2 .*a.en, .*b.en.*data.target has 1 .*a.de"),
        (("a.en", "deep/../a.en"), "a.en is a file of both data.source and data.target"),
        (("a.en", "a.fr"), "data.target='a.fr'"),
        ((tmp_path, "a.de"), "data.source=.* directory .*holds a.de, a.en"),
        (("a.en:2", "a.de"), "data.source='a.en:2'"),
    ):
        with pytest.raises((ValueError, FileNotFoundError), match=match):
            read(*files)


def test_a_test_set_keeps_all_of_its_lines(tmp_path):
    source, target = write(tmp_path / "a.en", "a\n\nc  \n\n"), write(tmp_path / "a.de", "A\nB\n\n\n")
    found = pairs.read_test_set(PairFiles(str(source), str(target)))
    assert found == (["a", "", "c", ""], ["A", "B", "", ""])
    assert found.sources is found[0] and found.references is found[1]
    write(target, "A\nB\n\n")
    with pytest.raises(ValueError, match="has 3 .* has 4"):
        pairs.read_test_set(PairFiles(str(source), str(target)))
    write(source, ""), write(target, "")
    with pytest.raises(ValueError, match="of the test='.*a.en'"):
        pairs.read_test_set(PairFiles(str(source), str(target), setting="of the test"))


def test_identity_follows_files_fields_and_names_of_links(tmp_path):
    """The name says that lines are pieces, which are joined; a link with the name of its file is that file."""
    source, target = write(tmp_path / "a.en", "Res@@ um\n"), write(tmp_path / "a.de", "b\n")
    both = PairFiles(str(source), str(target))
    before = both.identity()
    assert json.loads(json.dumps(before)) == before == both.identity()
    assert both.files() == {"source": [("a.en", source)], "target": [("a.de", target)]}
    (tmp_path / "below").mkdir()
    for name in ("a.bpe.en", "below/a.en"):
        (tmp_path / name).symlink_to(source)
    renamed, same = (PairFiles(str(tmp_path / name), str(target)) for name in ("a.bpe.en", "below/a.en"))
    assert next(iter(renamed)) != next(iter(both)) == next(iter(same))
    assert renamed.identity() != before == same.identity()
    write(target, "longer\n")
    assert both.identity() != before
    table = str(write(tmp_path / "a.tsv", "a\tb"))
    assert PairFiles(table).identity() != PairFiles(table, source_field="en").identity()
