"""Convert a task's examples to rows of token ids with labels; for questions about a context see `windows`.

A row that is too long is truncated as its task specifies (`Task.pair_limit`), and truncated examples are counted.
Examples whose label is not known have weight 0, and zeros as labels.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ag_jax.data.tasks.rows import FeatureRow, Features, RowSettings, first_gives_way, ids_of, longest_first
from ag_jax.data.tasks.task import Choices, Referent, TaggedSentence, Task, Texts
from ag_jax.data.tokenizers import Tokenizer


def encode_classes(task: Task, examples: Sequence[Texts], tokenizer: Tokenizer, settings: RowSettings) -> Features:
    """Tokenise texts or pairs of texts for classification, each labelled with the index of its class."""
    return _texts(task, examples, tokenizer, settings, lambda label: np.int32(0 if label is None else label))


def encode_label_sets(task: Task, examples: Sequence[Texts], tokenizer: Tokenizer, settings: RowSettings) -> Features:
    """Tokenise texts or pairs of texts for multi-label classification.

    The field `label_set`, float32 [labels of the task], is 1 for the labels of the example.
    """

    def flags(label: tuple[int, ...] | None) -> np.ndarray:
        flags_C = np.zeros(len(task.labels), np.float32)
        flags_C[list(label or ())] = 1
        return flags_C

    return _texts(task, examples, tokenizer, settings, flags, "label_set")


def encode_numbers(task: Task, examples: Sequence[Texts], tokenizer: Tokenizer, settings: RowSettings) -> Features:
    """Tokenise texts or pairs of texts for regression, with labels scaled from the range `task.span` to [0, 1]."""
    low, high = task.span

    def scaled(label: float | None) -> np.float32:
        return np.float32(0 if label is None else (label - low) / (high - low))

    return _texts(task, examples, tokenizer, settings, scaled)


def _texts(
    task: Task,
    examples: Sequence[Texts],
    tokenizer: Tokenizer,
    settings: RowSettings,
    to_label: Callable[[Any], Any],
    field: str = "labels",
) -> Features:
    ids = ids_of(
        tokenizer, [text for example in examples for text in (example.first, example.second) if text is not None]
    )
    rows, truncated = [], 0
    for example in examples:
        if example.second is None:
            tokens = ids[example.first]
            first = tokens[: settings.room(pair=False)]
            row, is_cut = settings.row(first), len(first) < len(tokens)
        else:
            row, is_cut = _pair(task, ids[example.first], ids[example.second], settings)
        row[field] = to_label(example.label)
        row["weights"] = np.float32(example.label is not None)
        truncated += is_cut
        rows.append(row)
    return _features(rows, truncated, settings)


def encode_choices(task: Task, examples: Sequence[Choices], tokenizer: Tokenizer, settings: RowSettings) -> Features:
    """Tokenise multiple-choice examples, each as a stack of token sequences, one for each candidate.

    A candidate is a pair of texts. For an example with C candidates, of which the longest has L tokens, `tokens`,
    `segment_ids` and `token_type_ids` have the shape [C, L], and `labels` and `choice_weights` the shape [C].
    """
    ids = ids_of(tokenizer, [text for example in examples for pair in example.pairs for text in pair])
    rows, truncated = [], 0
    for example in examples:
        candidates, are_cut = zip(
            *(_pair(task, ids[first], ids[second], settings) for first, second in example.pairs), strict=True
        )
        row = _stacked(candidates, settings)
        labels = np.zeros(len(candidates), np.float32)
        # Several candidates may be right (ReCoRD): they share the probability equally.
        labels[list(example.right or ())] = 1 / len(example.right or (0,))
        row |= {
            "choice_weights": np.ones(len(candidates), np.float32),
            "labels": labels,
            "weights": np.float32(example.right is not None),
        }
        truncated += any(are_cut)
        rows.append(row)
    return _features(rows, truncated, settings)


def encode_words(
    task: Task, examples: Sequence[TaggedSentence], tokenizer: Tokenizer, settings: RowSettings
) -> Features:
    """Tokenise tagged sentences; the tag of a word is the label of its first token."""
    located = tokenizer.locate_batch([" ".join(example.words) for example in examples])
    rows, truncated, cut_words = [], 0, 0
    room = settings.room(pair=False)
    for example, (ids, places) in zip(examples, located, strict=True):
        pieces = pieces_of_words(example.words, ids, places, tokenizer.specials.unknown)
        first_pieces = np.cumsum([0, *map(len, pieces)])[:-1]
        fitting = first_pieces[first_pieces < room]
        row = settings.row([id for piece in pieces for id in piece][:room])
        labels, weights = np.zeros(len(row["tokens"]), np.int32), np.zeros(len(row["tokens"]), np.float32)
        weights[1 + fitting] = 1  # + 1 because <s> comes first
        if example.tags is not None:
            labels[1 + fitting] = [task.labels.index(tag) for tag in example.tags[: len(fitting)]]
        row |= {"labels": labels, "label_weights": weights, "weights": np.float32(example.tags is not None)}
        cut_words += len(pieces) - len(fitting)
        truncated += sum(map(len, pieces)) > room
        rows.append(row)
    return _features(rows, truncated, settings, cut_words=cut_words)


def encode_referents(task: Task, examples: Sequence[Referent], tokenizer: Tokenizer, settings: RowSettings) -> Features:
    """Tokenise each text once per candidate phrase, with as many masks for its pronoun as the phrase has tokens.

    The candidates are the phrases to which the pronoun may refer. Besides the fields of `encode_choices`, where the
    first candidate is labelled, `word_ids` has the tokens of the phrase in the places of the masks, and `word_weights`
    is 1 there, both `[C, L]`. Examples in which the pronoun does not refer to the first phrase have weight 0.
    """
    del task
    texts = [f"{example.before}{phrase}{example.after}" for example in examples for phrase in example.phrases]
    located = iter(tokenizer.locate_batch(texts))
    rows, truncated, room = [], 0, settings.room(pair=False)
    for example in examples:
        candidates = []
        for phrase, (ids, places) in zip(example.phrases, located, strict=False):
            begin, end = len(example.before), len(example.before) + len(phrase)
            phrase_tokens = [index for index, place in enumerate(places) if place[1] > begin and place[0] < end]
            # A text that is too long keeps the phrase, and the words before it.
            first = max(0, (phrase_tokens or [0])[-1] + 1 - room)
            window = range(first, min(first + room, len(ids)))
            truncated += len(window) < len(ids) and phrase == example.phrases[0]
            masked = np.zeros(len(window) + 2, bool)
            masked[[1 + index - first for index in phrase_tokens if index >= first]] = True
            row = settings.row([ids[index] for index in window])
            row["word_ids"], row["word_weights"] = np.where(masked, row["tokens"], 0), masked.astype(np.float32)
            row["tokens"] = np.where(masked, settings.specials.mask, row["tokens"])
            candidates.append(row)
        stacked = _stacked(candidates, settings)
        labels = np.zeros(len(candidates), np.float32)
        labels[0] = 1
        stacked |= {
            "choice_weights": np.ones(len(candidates), np.float32),
            "labels": labels,
            "weights": np.float32(example.label == 1),
        }
        rows.append(stacked)
    return _features(rows, truncated, settings)


def _stacked(candidates: Sequence[FeatureRow], settings: RowSettings) -> FeatureRow:
    """Return the rows of several candidates stacked as {field: array `[candidates, length]`}, padded to the longest."""
    longest = max(len(candidate["tokens"]) for candidate in candidates)
    stacked: FeatureRow = {}
    for name, example in candidates[0].items():
        fill = settings.specials.pad if name == "tokens" else 0
        stacked[name] = np.full((len(candidates), longest), fill, example.dtype)
        for number, candidate in enumerate(candidates):
            stacked[name][number, : len(candidate[name])] = candidate[name]
    return stacked


def pieces_of_words(
    words: tuple[str, ...], ids: list[int], places: list[tuple[int, int]], unknown: int
) -> list[list[int]]:
    """Return the token ids of each word of a sentence; for a word without a token they are `[unknown]`.

    A token belongs to a word as `words_of_tokens` says. A word is without a token if the tokenizer drops its
    characters, or if a token that begins in the word before covers it, too.

    words: the words of the sentence.
    ids: token ids of the words joined by single spaces, so that the row is tokenised as in pre-training.
    places: start and end (exclusive) of each token in the joined text, in characters.
    unknown: the token id of a word without a token.
    """
    pieces: list[list[int]] = [[] for _ in words]
    for id, word in zip(ids, words_of_tokens(words, places), strict=True):
        pieces[word].append(id)
    return [word or [unknown] for word in pieces]


def words_of_tokens(
    words: Sequence[str], places: Sequence[tuple[int, int]], spaces: Sequence[bool] | None = None
) -> list[int]:
    """Return the index of the word to which each token belongs.

    It is the word of the first character that is not white space. A token of white space alone belongs to the word
    after it.

    For `words` and `places` see `pieces_of_words`.

    spaces: whether a space follows each word; None stands for a space after every word.
    """
    text = text_of_words(words, spaces)
    # The word of each character, where the space after a word belongs to that word.
    lengths = np.fromiter(map(len, words), np.int64) + (1 if spaces is None else np.asarray(spaces, np.int64))
    word_of_character = np.repeat(np.arange(len(words)), lengths).tolist()
    word_indices = []
    for begin, end in places:
        while begin < end and text[begin].isspace():
            begin += 1
        if begin == end:  # only a space, which belongs to the word after it
            begin = min(begin, len(text) - 1)
        word_indices.append(word_of_character[begin])
    return word_indices


def text_of_words(words: Sequence[str], spaces: Sequence[bool] | None = None) -> str:
    """Return the text of some words, as `words_of_tokens` reads it: without a space after the last word."""
    if spaces is None:
        return " ".join(words)
    return "".join(word + " " * space for word, space in zip(words, (*spaces[:-1], False), strict=True))


def _pair(task: Task, first: list[int], second: list[int], settings: RowSettings) -> tuple[FeatureRow, bool]:
    """Return the row of a pair of tokenised texts, truncated as the task specifies, and whether it was truncated."""
    room = settings.room(pair=True)
    if task.pair_limit:
        parts = first_gives_way(first, second, room, task.pair_limit)
    else:
        parts = longest_first(first, second, room)
    return settings.row(*parts), len(parts[0]) + len(parts[1]) < len(first) + len(second)


def _features(rows: list[FeatureRow], truncated: int, settings: RowSettings, **counts: Any) -> Features:
    return Features(rows, np.arange(len(rows), dtype=np.int32), truncated, settings.specials.pad, **counts)
