"""Reflexives: the grammar against the file, both places of the distractor, candidate groups, damages."""

import collections
import itertools

import numpy as np
import pytest

from ag_jax.data.probes import reflexive

LINES = "our prince will love himself\t4\t0 1\t\nher girl who can cry could hurt herself\t7\t0 1\t\n"
NOUNS = "my queen who can kick her girl would love your man by herself\t12\t0 1\t5 6 9 10 \n"


def is_of_the_grammar(words) -> bool:
    """The grammar, written a second time."""
    gender = {"himself": "masculine", "herself": "feminine"}[words[-1]]
    places = [reflexive.DETERMINERS, reflexive.NOUNS[gender]]
    places += [("who", "that"), reflexive.MODALS, reflexive.CLAUSE_VERBS] if len(words) > 5 else []
    places += [reflexive.MODALS, reflexive.VERBS, words[-1:]]
    return all(word in choices for word, choices in zip(words, places, strict=True))


@pytest.mark.parametrize("distractor", ("before", "after", "none"))
def test_places_with_all_distractors(write, distractor):
    path = write("reflexive.txt", ("\ufeff" + LINES * 8).replace("\n", "\r\n"))
    probe = reflexive.reflexive(path.parent, distractor=distractor)
    assert len(probe.queries) == 16
    for number, query in enumerate(probe.queries):
        words = probe.windows[query.window].words
        beside = () if distractor == "none" else reflexive.DISTRACTORS[number % 8]
        sentence = LINES.split("\n")[number % 2].split("\t")[0].split()
        expected = [*sentence, *beside] if distractor == "after" else [*beside, *sentence]
        assert list(words) == expected and probe.windows[query.window].document == " ".join(sentence)
        assert words[query.at] == sentence[-1] and query.kind == ("masculine", "feminine")[number % 2]
        assert [words[place] for place in query.answers] == sentence[:2]
        assert query.candidates == query.right == ()
    # The last noun of NOUNS before the reflexive, and the word at each distance.
    everyone = frozenset(itertools.chain(*reflexive.NOUNS.values()))
    asked = [(query, probe.windows[query.window].words) for query in probe.queries]
    nouns = [max(place for place in range(query.at) if words[place] in everyone) for query, words in asked]
    expected = {"nearest noun": [place in query.answers for place, (query, _) in zip(nouns, asked, strict=True)]}
    for offset in (-7, -6, -4, -3):
        expected[f"offset {offset}"] = [query.at + offset in query.answers for query, _ in asked]
    assert all(expected["nearest noun"]) and probe.baselines.keys() == expected.keys()
    for name, right in expected.items():
        np.testing.assert_array_equal(probe.baselines[name], right)
    assert len({query.window for query in np.array(probe.queries, object)[probe.development]}) == 8


def test_other_nouns_are_candidates(write):
    for content, right in (
        (NOUNS, (0,)),
        (NOUNS.replace("0 1\t5 6", "5 6\t0 1"), (1,)),
        (NOUNS.replace("0 1\t5 6 9 10", "9 10\t0 1 5 6"), (2,)),
    ):
        probe = reflexive.reflexive(write("refl.5", content), distractor="before")
        query, words = probe.queries[0], probe.windows[0].words
        groups = [" ".join(words[place] for place in group) for group in query.candidates]
        assert groups == ["my queen", "her girl", "your man"] and query.right == right
        assert probe.baselines["nearest noun"].tolist() == [right == (2,)]


def test_sentences_with_words_of_several_tokens_are_left_out(write):
    path = write("reflexive.txt", LINES * 3)
    calls = []

    def lengths(words):
        calls.append(words)
        return [1 + (word in ("prince", "believed")) for word in words]

    probe = reflexive.reflexive(path, lengths=lengths)
    assert probe.dropped == {reflexive.SEVERAL_TOKENS: 3} and len(probe.queries) == 3 and len(calls) == 1
    assert probe.windows[0].words[:5] == reflexive.DISTRACTORS[1]
    several = ("prince", "himself", "herself")
    kept = reflexive.reflexive(path, lengths=lambda words: [1 + (word in several) for word in words])
    assert kept.dropped == {reflexive.KEPT: 6} and len(kept.queries) == 6
    empty = reflexive.reflexive(path, lengths=lambda words: [2 * (word != "prince") for word in words])
    assert empty.dropped == {reflexive.KEPT: 3, reflexive.SEVERAL_TOKENS: 3} and len(empty.queries) == 3
    for others, dropped in ((99, reflexive.SEVERAL_TOKENS), (100, reflexive.KEPT)):  # one in a hundred is enough
        few = write("few.txt", LINES.split("\n")[0] + "\n" + (LINES.split("\n")[1] + "\n") * others)
        found = reflexive.reflexive(few, lengths=lambda words: [1 + (word == "girl") for word in words])
        assert found.dropped == {dropped: others}
    assert reflexive.reflexive(path, window=9).dropped == {reflexive.TOO_LONG: 5}
    assert not reflexive.reflexive(path, window=4).queries


def test_generated_sentences():
    sentences = list(reflexive.generate(1000, seed=5))
    assert len({sentence.words for sentence in sentences}) == 1000
    assert all(is_of_the_grammar(sentence.words) and sentence.antecedent == (0, 1) for sentence in sentences)
    assert sentences[:7] == list(reflexive.generate(7, seed=5)) != list(reflexive.generate(7, seed=6))
    assert set(collections.Counter(len(each.words) for each in sentences)) == {5, 8}
    probe = reflexive.reflexive(count=50)
    assert len(probe.queries) == 50 and probe.development.sum() == 10
    for count in (0, 204_985):
        with pytest.raises(ValueError, match="1 to 204,984"):
            next(reflexive.generate(count))


def test_damaged_files_and_folders_without_the_file(write, tmp_path):
    for fields in ("", "\t4\tx\t", "\t4\t0 1\t3", "\t3\t0 1\t", "\t4\t0 5\t", "\t4\t0 1\t5 6"):
        with pytest.raises(ValueError, match="one.txt, line 2"):
            reflexive.reflexive(write("one.txt", f"\nour prince will love himself{fields}\n"))
    with pytest.raises(FileNotFoundError, match="reflexive.txt, refl.0, refl.0.gz"):
        reflexive.reflexive(tmp_path)


def test_the_real_files(shared):
    sentences = list(reflexive.read(shared / "data" / "ag_reflexive"))
    assert collections.Counter(len(each.words) for each in sentences) == {5: 5_570, 8: 4_430}
    assert all(is_of_the_grammar(each.words) for each in sentences)
    # Every word of the grammar occurs in every place, so that file and generator have the same language.
    made = list(reflexive.generate(4_000))
    for length in (5, 8):
        ours, theirs = ([each.words for each in some if len(each.words) == length] for some in (made, sentences))
        assert [set(words) for words in zip(*ours, strict=True)] == [set(words) for words in zip(*theirs, strict=True)]
    folder = shared / "data" / "opensesame" / "refl"
    assert list(reflexive.read(folder)) == sentences
    everyone = frozenset(itertools.chain(*reflexive.NOUNS.values()))
    for number, nouns in zip(range(1, 9), (2, 2, 2, 2, 3, 3, 3, 3), strict=True):
        found = list(itertools.islice(reflexive.read(folder / f"refl.{number}.gz"), 200))
        assert {1 + len(each.others) for each in found} == {nouns}
        assert all(each.words[group[1]] in everyone for each in found for group in [each.antecedent, *each.others])
