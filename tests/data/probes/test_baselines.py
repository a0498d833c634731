"""Anaphors and baselines against a plain formulation, mention by mention; LitBank's numbers; a document by hand."""

import functools
import tarfile

import numpy as np
import pytest

from ag_jax.data.probes import anaphors, baselines, conll, coreference, preco, rules, splits, windows
from ag_jax.data.probes.anaphors import Settings
from ag_jax.data.probes.mentions import Document, Mention, in_reading_order
from ag_jax.data.probes.windows import Stretch
from tests.data.probes.conftest import QUEEN, conll_text

DEFAULTS = Settings()


@functools.cache
def described(words):
    head = rules.head(words)
    return head, (" ".join(words).lower(), words[head].lower(), rules.features(words, head))


def plain(document, stretches, direction):
    """For each query in order: the place of its head, and the scores of nearest, same head and sieves."""
    found = []
    for begin, end in stretches:
        inside = [each for each in document.mentions if begin <= each.begin and each.end <= end]
        found += [row for anaphor in inside if (row := plain_scores(document.words, anaphor, inside, direction))]
    return found


def plain_scores(words, anaphor, inside, direction):
    head, (text, word, features) = described(words[anaphor.begin : anaphor.end])
    at = anaphor.begin + head
    candidates = []
    for each in inside:
        if each.end <= anaphor.begin or (direction == "both" and each.begin >= anaphor.end):
            its_head, its_words = described(words[each.begin : each.end])
            place = each.begin + its_head
            candidates.append((abs(place - at), place > at, each.begin, -each.end, its_words, each.entity))
    candidates = [candidate[-2:] for candidate in sorted(candidates)]
    if not any(entity == anaphor.entity for _, entity in candidates):
        return None
    sieves = {
        "text": lambda its_text, its_word, its_features: its_text == text,
        "head": lambda its_text, its_word, its_features: its_word == word,
        "agree": lambda its_text, its_word, its_features: rules.agree(its_features, features),
        "any": lambda *_: True,
    }

    def chosen(names):
        passing = (entity for name in names.split() for its, entity in candidates if sieves[name](*its))
        return float(next(passing) == anaphor.entity)

    return at, chosen("any"), chosen("head any"), chosen("text head agree any")


def blocks(count, size):
    return [Stretch(begin, min(begin + size, count)) for begin in range(0, count, size)]


def ask(document, stretches, settings=DEFAULTS):
    return anaphors.ask(document, stretches, settings, np.ones(len(document.words), int))


@pytest.mark.parametrize("direction", ("before", "both"))
@pytest.mark.parametrize("seed", range(2))
def test_random_documents_against_the_plain_formulation(seed, direction):
    draws = np.random.default_rng(seed)
    vocabulary = "he She the king queen of France , Mr. and they girls Emma 's his".split()
    words = tuple(draws.choice(vocabulary, 211).tolist())
    begins = draws.integers(0, 205, 90)
    spans = {Mention(int(at), int(at + draws.integers(1, 6)), str(draws.integers(0, 11))) for at in begins}
    document = Document("a", words, tuple(range(0, 211, 13)), in_reading_order(spans))
    stretches = blocks(211, 47)
    asked, expected = ask(document, stretches, Settings(direction=direction)), plain(document, stretches, direction)
    found = [[stretches[query.window].begin + query.at for query in asked.queries]]
    found += [asked.scores[name] for name in baselines.NAMES]
    np.testing.assert_allclose(np.transpose(found), expected, rtol=1e-12)
    assert len(asked.queries) > 20 and asked.dropped[anaphors.CUT] > 0
    for query in asked.queries:
        assert set(query.answers) == {query.candidates[index][0] for index in query.right}
        assert len(set(query.candidates)) == len(query.candidates)
        assert direction == "both" or max(place for (place,) in query.candidates) < query.begin <= query.at


TABLE = {  # queries, chance, nearest, same head, sieves: reference numbers of windows of 128 words
    "all": (16_164, 0.405, 0.479, 0.710, 0.776),
    "nominal": (1_825, 0.275, 0.246, 0.497, 0.541),
    "pronominal": (12_925, 0.434, 0.530, 0.748, 0.826),
    "proper": (1_414, 0.306, 0.314, 0.636, 0.624),
}


def test_litbank(litbank):
    asked = [ask(document, blocks(len(document.words), 128)) for document in litbank.documents]
    kinds = np.array([query.kind for each in asked for query in each.queries])
    # Uniform attention, with ties shared, is right as often as chance: of the distinct places of the candidates.
    chance = np.array([len(query.right) / len(query.candidates) for each in asked for query in each.queries])
    scores = [chance, *(np.concatenate([each.scores[name] for each in asked]) for name in baselines.NAMES)]
    for kind, (count, *expected) in TABLE.items():
        chosen = kinds == kind if kind != "all" else np.ones(len(kinds), bool)
        assert chosen.sum() == count
        np.testing.assert_allclose([of_name[chosen].mean() for of_name in scores], expected, rtol=0, atol=0.00051)


@pytest.fixture
def document(write):
    return conll.read(write("one.conll", conll_text(QUEEN))).documents[0]


def as_tuples(asked):
    return [
        (query.at, query.begin, [place for (place,) in query.candidates], query.right, query.answers, query.kind)
        for query in asked.queries
    ]


def test_a_document_by_hand(document):
    whole = [Stretch(0, len(document.words))]
    expected = [
        (10, 10, [2, 4, 8], (0,), (2,), "pronominal"),
        (12, 12, [2, 4, 8, 10], (2,), (8,), "pronominal"),
        (14, 14, [2, 4, 8, 10, 12], (0, 3), (2, 10), "pronominal"),
        (16, 16, [2, 4, 8, 10, 12, 14], (0, 3, 5), (2, 10, 14), "pronominal"),
        (17, 17, [2, 4, 8, 10, 12, 14, 16], (1,), (4,), "nominal"),
    ]
    asked = ask(document, whole)
    assert as_tuples(asked) == expected and set(asked.dropped.values()) == {0}
    # "herself" agrees with France, not with Mr. Green; "she" with "herself", not with "He"; "their" with none.
    np.testing.assert_array_equal(asked.scores["sieves"], [0, 1, 1, 1, 0])
    both = ask(document, whole, Settings(direction="both"))
    assert as_tuples(both)[0] == (2, 0, [8, 10, 12, 14, 16, 17, 18], (1, 3, 4), (10, 14, 16), "nominal")
    assert len(both.queries) == 8


def test_windows_and_what_is_dropped(document):
    # The first window ends inside of "Mr. Green", the second begins with his second word.
    asked = ask(document, [Stretch(0, 8), Stretch(8, 22)])
    assert asked.dropped == {anaphors.CUT: 1, anaphors.ALONE: 3, anaphors.NO_TOKENS: 0}
    assert as_tuples(asked) == [
        (6, 6, [2, 4], (0,), (2,), "pronominal"),
        (8, 8, [2, 4, 6], (0, 2), (2, 6), "pronominal"),
    ]
    assert {query.window for query in asked.queries} == {1}
    tokens = np.array([int(word != "she") for word in document.words])
    silent = anaphors.ask(document, [Stretch(0, 22)], Settings(), tokens)
    assert len(silent.queries) == 4 == len(silent.scores["nearest"]) and silent.dropped[anaphors.NO_TOKENS] == 1


def test_the_probe_of_a_folder(write):
    for number in range(5):
        write(f"data/{number}.conll", conll_text(QUEEN, f"nw/{number}"))
    folder = write("data/notes.txt", "").parent
    probe = coreference.coreference(folder)
    assert (probe.name, len(probe.windows), len(probe.queries)) == ("coreference", 5, 25)
    assert probe.development.sum() == 5 and all(scores.shape == (25,) for scores in probe.baselines.values())
    found = [
        (window.document, window.words[at]) for window, at in ((probe.windows[q.window], q.at) for q in probe.queries)
    ]
    words = ("herself", "He", "she", "their", "French")
    assert found == [(f"nw/{number}", word) for number in range(5) for word in words]
    by_sentence = coreference.coreference(folder, window=12, lengths=lambda words: [1] * len(words))
    assert {len(window.words) for window in by_sentence.windows} == {12, 10}
    assert by_sentence.dropped == {anaphors.ALONE: 5 * 3}
    halves = coreference.coreference(folder, window=7, head_word="parse", direction="both")
    assert halves.dropped[windows.SPLIT] == 10 and halves.dropped[anaphors.CUT] == 5 * 1
    assert not coreference.coreference(folder, window=1).queries
    write("data/test/a.conll", conll_text(QUEEN, "a"))
    write("data/train/b.conll", conll_text(QUEEN, "b"))
    for number in range(5):
        (folder / f"{number}.conll").unlink()
    write("data/development/c.conll", conll_text(QUEEN, "c"))
    official = coreference.coreference(folder)
    assert official.dropped == {splits.TRAIN: 1} and official.development.tolist() == [True] * 5 + [False] * 5


PRECO = (
    '{"id": "d1", "sentences": [["Emma", "saw", "her", "dog", "."], [], ["She", "called", "it"]], '
    '"mention_clusters": [[[0, 0, 1], [0, 2, 3], [2, 0, 1]], [[0, 2, 4], [2, 2, 3]]]}'
)


def test_preco(write):
    lines = f"\ufeff{PRECO}\r\n\r\n" + PRECO.replace("d1", "d2") + '\n{"sentences": [], "mention_clusters": []}'
    path = write("train.jsonl", lines)
    reading = preco.read(path)
    assert reading.dropped == {preco.BLANK: 1} and [each.name for each in reading.documents] == ["d1", "d2"]
    first = reading.documents[0]
    assert first.words == tuple("Emma saw her dog . She called it".split()) and first.starts == (0, 5)
    mentions = [(0, 1, "0"), (2, 4, "1"), (2, 3, "0"), (5, 6, "0"), (7, 8, "1")]
    assert first.mentions == tuple(Mention(*mention) for mention in mentions)
    probe = coreference.coreference(path.parent)
    assert [(query.at, query.answers) for query in probe.queries[:3]] == [(2, (0,)), (5, (0, 2)), (7, (3,))]


def test_preco_without_ids_in_files_and_archives(write, tmp_path):
    """Documents are named by file and line, wherever the files are; the parts are recognised in archives, too."""
    text = PRECO.replace('"id": "d1", ', "")
    write("data/train.jsonl", text)
    folder = write("data/dev.jsonl", f"{text}\n{text}").parent
    names = ["dev.jsonl, line 1", "dev.jsonl, line 2", "train.jsonl, line 1"]
    assert [each.name for each in preco.read(folder).documents] == names
    (tmp_path / "packed").mkdir()
    packed = tmp_path / "packed" / "preco.tar.gz"
    with tarfile.open(packed, "w:gz") as archive:
        for source, name in (("train", "train"), ("dev", "dev"), ("dev", "test")):
            archive.add(folder / f"{source}.jsonl", f"PreCo/{name}.jsonl")
    names = {f"preco.tar.gz/PreCo/{part}.jsonl, line {line}" for part in ("dev", "test") for line in (1, 2)}
    for path in (packed.parent, packed):
        probe = coreference.coreference(path)
        assert {window.document for window in probe.windows} == names
        assert probe.dropped[splits.TRAIN] == 1 and probe.development.sum() == len(probe.queries) / 2
    # A file that is given may have any name.
    for content in (text, f"\ufeff\n {text}"):
        assert coreference.read(write("preco.txt", content)).documents[0].name.startswith("preco.txt, line ")
    write("packed/broken.tar", b"no archive")
    with pytest.raises(ValueError, match="broken.tar is damaged"):
        coreference.read(packed.parent)


@pytest.mark.parametrize(
    "old, new, match",
    [
        ("]]}", "]", "JSON"),
        ("", "", "d1 .*line 1"),
        ("sentences", "words", "sentences"),
        ('["Emma", "saw", "her", "dog", "."]', '"Emma"', "`sentences`"),
        ("mention_clusters", "clusters", "mention_clusters"),
        ("[2, 0, 1]", "[3, 0, 1]", "cluster 0"),
        ("[2, 0, 1]", "[2, 1, 1]", "cluster 0"),
        ("[2, 0, 1]", "[-1, 0, 1]", "cluster 0"),
        ("[2, 2, 3]", "[2, 2, 4]", "cluster 1"),
        ("[2, 2, 3]", "[2, -1, 3]", "cluster 1"),
        ("[2, 2, 3]", "[2, 2]", "cluster 1"),
    ],
)
def test_damaged_preco(write, old, new, match):
    with pytest.raises(ValueError, match=f"line 2.*{match}"):
        preco.read(write("one.jsonl", f"{PRECO}\n{PRECO.replace(old, new) if old else PRECO}\n"))
