"""The files of published corpora, in tiny files of the same names and contents."""

import itertools
import pathlib
import sys

import pytest

from ag_jax.data.config import DataConfig
from ag_jax.data.parallel import layouts, pairs

IWSLT14 = ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012")


def put(folder, content):
    """Write {name: lines} below a folder."""
    for name, lines in content.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("".join(f"{line}\n" for line in lines))


def segments(*texts):
    return ["<srcset>", "<doc>", *(f'<seg id="{number}"> {text} </seg>' for number, text in enumerate(texts)), "</doc>"]


def both(pattern, lines):
    """Files of both sides; every line ends in its language."""
    return {pattern.format(language=name): [f"{line} {name}" for line in lines] for name in ("en", "de")}


def texts(files, side) -> list[str]:
    return [getattr(pair, side) for pair in files]


def iwslt(folder, year, here, names):
    """Write the training files and the .xml sets of one archive."""
    for side in ("en", "de"):
        sets = {f"{here}/IWSLT{year}.{name}.{here}.{side}.xml": segments(f"{name} {side}") for name in names}
        tagged = ["<url>http</url>", f"<title>{side}</title>", f"one {side}", "<speaker>x</speaker>", f"two {side}"]
        put(folder, sets | {f"{here}/train.tags.{here}.{side}": tagged})


def test_multi30k(tmp_path):
    for name in ("train", "val", "test_2016_flickr", "test_2017_flickr"):
        put(tmp_path, both(f"{name}.{{language}}", [name, "b"]))
    found, back = (layouts.find("multi30k", str(tmp_path), *of) for of in (("en", "de"), ("de", "en")))
    assert list(found.train) == [("train en", "train de"), ("b en", "b de")]
    assert texts(found.validation, "target") == ["val de", "b de"]
    tests = {name: texts(test, "target")[0] for name, test in found.tests.items()}
    assert tests == {name: f"{name} de" for name in ("test_2016_flickr", "test_2017_flickr")}
    assert (back.train.source, back.train.target) == (found.train.target, found.train.source)
    config = DataConfig(format="parallel", source=found.train.source, target=found.train.target)
    assert list(pairs.training(config)) == list(found.train)


def test_iwslt16_has_references_from_the_other_direction(tmp_path):
    dev = ("TED.dev2010", "TED.tst2010", "TED.tst2011", "TED.tst2012", "TED.tst2013", "TED.tst2014")
    names = ("QED.tst2016", "TED.tst2015", "TED.tst2016")
    iwslt(tmp_path, 16, "en-de", dev)
    for name in names:
        put(tmp_path, {f"en-de/IWSLT16.{name}.en-de.en.xml": segments(f"{name} en", "more")})
        put(tmp_path, {f"de-en/IWSLT16.{name}.de-en.de.xml": segments(f"{name} de", "mehr")})
    found = layouts.find("iwslt16", str(tmp_path), "en", "de")
    assert list(found.train) == [("one en", "one de"), ("two en", "two de")]
    assert texts(found.validation, "source") == [f"{name} en" for name in dev]
    assert texts(found.tests["test"], "target") == [text for name in names for text in (f"{name} de", "mehr")]


def test_iwslt14_in_either_direction_from_one_archive(tmp_path):
    iwslt(tmp_path, 14, "de-en", IWSLT14)
    for folder, source, target in ((tmp_path, "de", "en"), (tmp_path / "de-en", "en", "de")):
        found = layouts.find("iwslt14", str(folder), source, target)
        assert found.validation is None
        assert list(found.train) == [(f"one {source}", f"one {target}"), (f"two {source}", f"two {target}")]
        assert texts(found.tests["test"], "target") == [f"{name} {target}" for name in IWSLT14]


def test_wmt14_as_published(tmp_path):
    for name in ("commoncrawl", "training/europarl-v7", "training/news-commentary-v9"):
        put(tmp_path, both(f"{name}.de-en.{{language}}", [pathlib.Path(name).name]))
    for role, side in itertools.product(("src", "ref"), ("en", "de")):
        put(tmp_path, {f"dev/newstest2013-{role}.{side}.sgm": segments(f"2013 {role} {side}")})
        put(tmp_path, {f"test-full/newstest2014-deen-{role}.{side}.sgm": segments(f"2014 {role} {side}")})
    found = layouts.find("wmt14", str(tmp_path), "en", "de")
    assert texts(found.train, "source") == ["commoncrawl en", "europarl-v7 en", "news-commentary-v9 en"]
    assert list(found.validation) == [("2013 src en", "2013 ref de")]
    assert list(found.tests["newstest2014"]) == [("2014 src en", "2014 ref de")]
    put(tmp_path, both("dev/newstest2013.{language}", ["plain"]))
    assert texts(layouts.find("wmt14", str(tmp_path), "en", "de").validation, "source") == ["plain en"]


@pytest.mark.parametrize("ending", ["", ".bpe.32000"])
def test_wmt14_as_plain_lines_and_as_tokens(tmp_path, ending, monkeypatch):
    monkeypatch.setitem(sys.modules, "sacremoses", None)
    for name in (f"train.tok.clean{ending}", f"newstest2013.tok{ending}", f"newstest2014.tok{ending}"):
        put(tmp_path, both(f"{name}.{{language}}", ["Res@@ umption , yes" if ending else "Resumption , yes"]))
    found = layouts.find("wmt14", str(tmp_path), "de", "en")
    for part in (found.train, found.validation, found.tests["newstest2014"]):
        assert list(part) == [("Resumption , yes de", "Resumption , yes en")]
    for name in ("train", "newstest2013", "newstest2014"):
        put(tmp_path, both(f"{name}.{{language}}", [name]))
    assert texts(layouts.find("wmt14", str(tmp_path), "de", "en").train, "source") == ["train de"]


@pytest.mark.parametrize(
    ("name", "folder", "source", "target", "match"),
    [
        ("multi30k", "", "en", "de", "val.de, test_2017_flickr.en, test_2017_flickr.de .*deep/, notes.txt"),
        ("iwslt16", "", "en", "de", "iwslt16.*train.tags.en-de.en"),
        ("multi30k", "", "en", "fr", "train.en with train.fr"),
        ("multi30k", "nowhere", "en", "de", "nowhere"),
        ("wmt15", "", "en", "de", "'wmt15'"),
        ("iwslt14", "a,b", "de", "en", "comma.*test source"),
    ],
)
def test_folders_that_cannot_be_read(tmp_path, name, folder, source, target, match):
    for part in ("train", "test_2016_flickr"):
        put(tmp_path, both(f"{part}.{{language}}", ["a"]))
    put(tmp_path, {"val.en": ["a"], "notes.txt": ["a"], "deep/x": ["a"]})
    iwslt(tmp_path / "a,b", 14, "de-en", IWSLT14)
    with pytest.raises((FileNotFoundError, ValueError), match=match):
        layouts.find(name, str(tmp_path / folder), source, target)
