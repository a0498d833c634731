"""Files in the layout of the BabyLM challenge, ten lines each: which are read, in which order, and up to which word."""

import dataclasses

import pytest

from ag_jax.data.text import babylm, mixture, pipeline, single_source, sources
from tests.data.conftest import small
from tests.data.conftest import write as write_files

LINES = {
    "bnc_spoken": "Er, I think it was about number {0}, was it not?",
    "childes": "*CHI:\tmore juice number {0} .",
    "gutenberg": "The carriage of {0} horses rolled on, and nobody spoke a word of it.",
    "open_subtitles": "- You have {0} minutes.",
    "simple_wiki": "The town of Number {0} is a town in the north. It has a church.",
    "switchboard": "A:\tYeah, I guess {0} of them, uh-huh.",
}


def write(folder, ending=".train", lines=10, **changed):
    texts = {name: "".join(line.format(number) + "\n" for number in range(lines)) for name, line in LINES.items()}
    return write_files(folder, {f"{name}{ending}": text for name, text in (texts | changed).items()})


def config(folder, tmp_path, **settings):
    return small(f"babylm:{folder}", tmp_path / "cache", **settings)


def test_the_same_files_without_babylm_are_another_text(tmp_path):
    """The files are the same, but not their documents: neither rows nor tokenizer may be taken from the cache."""
    folder = write(tmp_path / "text", ".train.txt", gutenberg="= = = A = = =\nOne.\n= = = B = = =\nTwo.\n" * 20)
    with_babylm = config(folder, tmp_path, validation_fraction=0.2)
    plain = dataclasses.replace(with_babylm, source=str(folder))
    assert sources.identity(with_babylm.source) == sources.identity(plain.source)
    alone = dataclasses.replace(plain, cache_dir=str(tmp_path / "alone"))
    pipeline.prepare(with_babylm)
    found, expected = pipeline.prepare(plain).facts(), pipeline.prepare(alone).facts()
    assert found == expected != pipeline.prepare(with_babylm).facts()


@pytest.mark.parametrize("ending", [".train", ".train.txt"])
def test_the_six_files_are_read_in_order_and_headings_and_many_lines_begin_documents(tmp_path, ending, monkeypatch):
    articles = "= = = One = = =\nA town.\n\n", " = = = Two = = = \nIt = = = is.\n"
    many = "".join(f"line {number}\n" for number in range(2001))
    folder = write(tmp_path / "text", ending, simple_wiki="".join(articles), gutenberg=many)
    found = list(sources.documents(f"babylm:{folder}"))
    plain = ["".join(line.format(number) + "\n" for number in range(10)) for line in LINES.values()]
    cut = ["".join(f"line {n}\n" for n in part) for part in (range(1000), range(1000, 2000), [2000])]
    assert found == [*plain[:2], *cut, plain[3], *articles, plain[5]]
    assert [name for name, _ in sources.files(f"babylm:{folder}:train")] == [f"{name}{ending}" for name in LINES]
    monkeypatch.chdir(tmp_path)
    assert list(sources.documents("babylm:text")) == found
    assert sources.identity("babylm:text") == sources.identity(f"babylm:{folder}:train")
    assert single_source._place("babylm:text:dev") == f"babylm:{folder}:dev"
    assert babylm.has_split("text", "train") and not babylm.has_split("text", "dev")


@pytest.mark.parametrize(
    ("changes", "split", "error", "named"),
    [
        (
            {"childes.train": None, "switchboard.train": None},
            "",
            FileNotFoundError,
            r"childes, switchboard .*childes\.t",
        ),
        ({}, ":dev", FileNotFoundError, r"bnc_spoken\.dev\.txt .*bnc_spoken\.tr"),
        ({"childes.train.txt": b"Twice.\n"}, "", ValueError, r"childes\.train\.txt and childes\.train"),
        ({"gutenberg.train": b""}, "", ValueError, r"gutenberg\.train is empty"),
    ],
)
def test_what_is_missing_or_wrong_is_named(tmp_path, caplog, changes, split, error, named):
    folder = write(tmp_path / "text")
    write_files(folder, {"qed.train": b"Of another year.\n"})
    assert len(list(sources.documents(f"babylm:{folder}"))) == 6 and "qed.train" in caplog.text
    for name, content in changes.items():
        (folder / name).unlink() if content is None else (folder / name).write_bytes(content)
    with pytest.raises(error, match=named):
        list(sources.documents(f"babylm:{folder}{split}"))


def test_the_text_ends_after_so_many_words(tmp_path):
    folder = write(tmp_path / "text")
    every = " ".join(sources.documents(f"babylm:{folder}")).split()
    for most in (1, 99, 100, 101, 157, len(every) - 1, len(every), len(every) + 1):
        found = list(sources.documents(f"babylm:{folder}", max_words=most))
        assert " ".join(found).split() == every[:most]
        assert len(found) == len([text for text in found if text.strip()])
    chosen = dataclasses.replace(config(folder, tmp_path, max_words=10), source=f"babylm:{folder}:1,sotu:2")
    with pytest.raises(ValueError, match=r"data\.max_words"):
        mixture.components(chosen)


def test_words_of_what_is_prepared(tmp_path, capsys):
    """The words of both splits are those of the text, and another limit is another entry of the cache."""
    folder = write(tmp_path / "text", lines=40)
    total = len(" ".join(sources.documents(f"babylm:{folder}")).split())
    whole = pipeline.prepare(config(folder, tmp_path))
    assert sum(whole.words.values()) == total and min(whole.words.values()) > 0
    for most in (500, 10**6):
        capsys.readouterr()
        cut = pipeline.prepare(config(folder, tmp_path, max_words=most))
        assert sum(cut.words.values()) == min(most, total)
        assert f"{min(most, total):,} words of the {most:,} " in capsys.readouterr().err
    assert cut.facts() == whole.facts()
    # Held-out text of its own does not count, nor is it cut by the limits of the text and of what is held out.
    write(folder, ".dev.txt", lines=30)
    held_out = len(" ".join(sources.documents(f"babylm:{folder}:dev")).split())
    chosen = config(folder, tmp_path, max_words=500, validation_source=f"babylm:{folder}:dev", validation_tokens=9)
    assert pipeline.prepare(chosen).words == {"train": 500, "validation": held_out}
    assert "500 words of the 500 " in capsys.readouterr().err
    # With a hundred documents or more, every tenth of those up to the limit is held out, beginning with the second.
    articles = "".join(f"= = = Town {number} = = =\nIt is a town. It has a church.\n" for number in range(150))
    write(folder, simple_wiki=articles)
    others = [len(text.split()) for text in list(sources.documents(f"babylm:{folder}"))[:4]]
    words = sum(others) + 110 * 16  # of an article
    cut = pipeline.prepare(config(folder, tmp_path, max_words=words, validation_fraction=0.1))
    assert cut.documents == {"train": 102, "validation": 12} and sum(cut.words.values()) == words
    assert cut.words["validation"] == others[1] + 11 * 16
