"""Files in the layout of the BabyLM challenge, ten lines each: which are read, in which order, and up to which word."""

import dataclasses
import json
import logging
import os

import pytest

from ag_jax.data.config import DataConfig, MaskingConfig, TokenizerConfig
from ag_jax.data.text import babylm, mixture, pipeline, single_source, sources
from ag_jax.data.text import files as text_files

LINES = {
    "bnc_spoken": "Er, I think it was about number {0}, was it not?",
    "childes": "*CHI:\tmore juice number {0} .",
    "gutenberg": "The carriage of {0} horses rolled on, and nobody spoke a word of it.",
    "open_subtitles": "- You have {0} minutes.",
    "simple_wiki": "The town of Number {0} is a town in the north. It has a church.",
    "switchboard": "A:\tYeah, I guess {0} of them, uh-huh.",
}


def write(folder, ending=".train", lines=10, **changed):
    folder.mkdir(exist_ok=True)
    for name, line in LINES.items():
        text = changed.get(name, "".join(line.format(number) + "\n" for number in range(lines)))
        (folder / f"{name}{ending}").write_text(text)
    return folder


def config(folder, tmp_path, **settings):
    return DataConfig(
        source=f"babylm:{folder}",
        cache_dir=str(tmp_path / "cache"),
        sequence_length=16,
        tokenizer=TokenizerConfig(vocabulary_size=300),
        masking=MaskingConfig(),
        **settings,
    )


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
def test_the_six_files_are_read_in_order(tmp_path, ending):
    folder = write(tmp_path / "text", ending)
    found = list(sources.documents(f"babylm:{folder}"))
    assert found == ["".join(line.format(number) + "\n" for number in range(10)) for line in LINES.values()]
    assert [name for name, _ in sources.files(f"babylm:{folder}")] == [f"{name}{ending}" for name in LINES]
    (folder / f"childes{ending}").write_text("Other words.\n")
    assert list(sources.documents(f"babylm:{folder}:train"))[1] == "Other words.\n"


def test_headings_and_many_lines_begin_documents(tmp_path):
    articles = "= = = One = = =\nA town.\n\n = = = Two = = = \nIt = = = is.\n"
    many = "".join(f"line {number}\n" for number in range(2 * babylm.LONGEST + 1))
    found = list(sources.documents(f"babylm:{write(tmp_path / 'text', simple_wiki=articles, gutenberg=many)}"))
    assert found[-3:-1] == ["= = = One = = =\nA town.\n\n", " = = = Two = = = \nIt = = = is.\n"]
    assert [text.count("\n") for text in found[2:5]] == [1000, 1000, 1] and "".join(found[2:5]) == many


def test_what_is_missing_is_named(tmp_path, caplog):
    folder = write(tmp_path / "text")
    (folder / "childes.train").unlink()
    (folder / "switchboard.train").unlink()
    with pytest.raises(
        FileNotFoundError, match=r"lacks childes, switchboard of the six .*expected childes.train.txt or"
    ):
        list(sources.documents(f"babylm:{folder}"))
    with pytest.raises(
        FileNotFoundError, match=r"lacks bnc_spoken, .*expected bnc_spoken.dev.txt .*found bnc_spoken.tr"
    ):
        list(sources.documents(f"babylm:{folder}:dev"))
    with pytest.raises(FileNotFoundError, match="nowhere"):
        sources.identity(f"babylm:{tmp_path / 'nowhere'}")
    with pytest.raises(ValueError, match="expected babylm:FOLDER or babylm:FOLDER:dev"):
        sources.identity("babylm::dev")
    write(folder)
    (folder / "childes.train.txt").write_text("Twice.\n")
    with pytest.raises(ValueError, match=r"has childes.train.txt and childes.train: keep the one"):
        list(sources.documents(f"babylm:{folder}"))
    (folder / "childes.train.txt").unlink()
    (folder / "qed.train").write_text("Of another year.\n")
    text_files.warn_once.cache_clear()
    with caplog.at_level(logging.WARNING):
        assert len(list(sources.documents(f"babylm:{folder}"))) == 6
    assert "left out qed.train, which is none of bnc_spoken" in caplog.text
    (folder / "gutenberg.train").write_text("")
    with pytest.raises(ValueError, match=r"gutenberg.train is empty: expected text"):
        list(sources.documents(f"babylm:{folder}"))
    (folder / "gutenberg.train").write_bytes(b"words\0words\n")
    with pytest.raises(ValueError, match=r"gutenberg.train is a binary file"):
        list(sources.documents(f"babylm:{folder}"))


def test_the_text_ends_after_so_many_words(tmp_path):
    folder = write(tmp_path / "text")
    every = " ".join(sources.documents(f"babylm:{folder}")).split()
    for most in (1, 99, 100, 101, 157, len(every) - 1, len(every), len(every) + 1):
        found = list(sources.documents(f"babylm:{folder}", max_words=most))
        assert " ".join(found).split() == every[:most]
        assert len(found) == len([text for text in found if text.strip()])


def test_words_of_what_is_prepared(tmp_path, capsys):
    """The words of both splits are those of the text, and another limit is another entry of the cache."""
    folder = write(tmp_path / "text", lines=40)
    total = len(" ".join(sources.documents(f"babylm:{folder}")).split())
    whole = pipeline.prepare(config(folder, tmp_path))
    assert sum(whole.words.values()) == total and min(whole.words.values()) > 0
    capsys.readouterr()
    for most, said in (
        (500, "500 words of the 500 of data.max_words\n"),
        (10**6, "has no more, so all of it is read\n"),
    ):
        cut = pipeline.prepare(config(folder, tmp_path, max_words=most))
        assert sum(cut.words.values()) == min(most, total) and said in capsys.readouterr().err
    assert cut.facts() == whole.facts()
    # Held-out text of its own does not count, nor is it cut by the limits of the text and of what is held out.
    write(folder, ".dev.txt", lines=30)
    held_out = len(" ".join(sources.documents(f"babylm:{folder}:dev")).split())
    chosen = config(folder, tmp_path, max_words=500, validation_source=f"babylm:{folder}:dev", validation_tokens=9)
    assert pipeline.prepare(chosen).words == {"train": 500, "validation": held_out}
    assert "500 words of the 500" in capsys.readouterr().err


def test_whole_documents_are_held_out_below_the_limit(tmp_path):
    """With a hundred documents or more: of the documents up to the limit, those that it would be without the rest."""
    articles = "".join(f"= = = Town {number} = = =\nIt is a town. It has a church.\n" for number in range(150))
    folder = write(tmp_path / "text", simple_wiki=articles)
    others = [len(text.split()) for text in list(sources.documents(f"babylm:{folder}"))[:4]]
    words = sum(others) + 110 * 16  # of an article
    cut = pipeline.prepare(config(folder, tmp_path, max_words=words, validation_fraction=0.1))
    # Every tenth beginning with the second, which is of the second file.
    assert cut.documents == {"train": 102, "validation": 12} and sum(cut.words.values()) == words
    assert cut.words["validation"] == others[1] + 11 * 16


def test_limits_that_do_not_go_together(tmp_path):
    folder = write(tmp_path / "text")
    chosen = dataclasses.replace(config(folder, tmp_path, max_words=10), source=f"babylm:{folder}:1,sotu:2")
    with pytest.raises(ValueError, match="data.max_words=10 ends a text that is read in order, but .* has weights"):
        mixture.components(chosen)
    with pytest.raises(ValueError, match="data.max_words has no effect with format='parallel'"):
        DataConfig(source="a", target="b", format="parallel", max_words=10)
    with pytest.raises(ValueError, match="needs texts with their translations, got data.source='babylm:x'"):
        DataConfig(source="babylm:x", target="b", format="parallel")


def test_a_relative_folder(tmp_path, monkeypatch):
    write(tmp_path / "text")
    monkeypatch.chdir(tmp_path)
    assert list(sources.documents("babylm:text")) == list(sources.documents(f"babylm:{tmp_path}/text"))
    assert sources.identity("babylm:text") == sources.identity(f"babylm:{tmp_path}/text")
    assert single_source._place("babylm:text:dev") == f"babylm:{tmp_path}/text:dev"
    assert babylm.has_split("text", "train") and not babylm.has_split("text", "dev")
    assert json.dumps(sources.identity("babylm:text")).count(os.sep + "text" + os.sep) == 6
