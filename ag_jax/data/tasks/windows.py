"""Convert questions to rows of token ids: long contexts in overlapping windows, answers as token positions.

    <s> question </s></s> window of the context </s>

A window begins `stride` tokens after the window before it (Devlin et al. 2019, run_squad.py), but at most half a window
after it, because windows without overlap would lose the answers that cross their border. The characters of each token
are recorded, so that any predicted span is an exact substring of the context.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from ag_jax.data.tasks.rows import FeatureRow, Features, RowSettings, ids_of
from ag_jax.data.tasks.task import Question, Task
from ag_jax.data.tokenizers import Tokenizer

QUESTION = 64  # the most tokens of a question, which is also truncated to half of a row


@dataclasses.dataclass(frozen=True)
class TokenizedContext:
    """The tokens of a question's context, with the characters that each token covers.

    ids: token ids.
    places: int32 [N, 2], first and last + 1 character of each token, without surrounding white space.
    """

    ids: list[int]
    places: np.ndarray

    @classmethod
    def of(cls, text: str, ids: list[int], places: list[tuple[int, int]]) -> "TokenizedContext":
        """Return the tokenized context of a text, given the token `ids` and each token's start and end character.

        ids, places: as `Tokenizer.locate_batch` returns them for the text; surrounding white space is then removed from
            each token's place.
        """
        return cls(ids, np.asarray([_bare(text, *place) for place in places], np.int32).reshape(-1, 2))

    def tokens_of(self, begin: int, end: int) -> tuple[int, int] | None:
        """Return (first, last) index of the tokens that overlap characters `begin` to `end` - 1; None if none does."""
        touching = np.flatnonzero((self.places[:, 1] > begin) & (self.places[:, 0] < end))
        return (int(touching[0]), int(touching[-1])) if len(touching) else None


def encode_questions(task: Task, examples: Sequence[Question], tokenizer: Tokenizer, settings: RowSettings) -> Features:
    """Tokenise questions about a context; a context too long for a row is split into windows, one row each."""
    questions = ids_of(tokenizer, [example.question for example in examples])
    # Many questions share a context, which is tokenised only once.
    texts = list(dict.fromkeys(example.context for example in examples))
    located = tokenizer.locate_batch(texts)
    contexts = {text: TokenizedContext.of(text, *tokens) for text, tokens in zip(texts, located, strict=True)}
    rows: list[FeatureRow] = []
    owner, characters = [], []
    truncated = lost = 0
    for number, example in enumerate(examples):
        question = questions[example.question]
        kept_question = question[: min(QUESTION, settings.max_length // 2)]
        context = contexts[example.context]
        windows = _windows(task, example, context, kept_question, settings)
        # Only questions are truncated: a long context gives more windows instead.
        truncated += len(kept_question) < len(question)
        answered = [row for row, _ in windows if row["starts"]]
        is_lost = bool(example.answers) and not answered
        lost += is_lost
        for row, places in windows:
            if is_lost:  # that the question has no answer would be wrong
                row["weights"] = np.float32(0)
            # A window without a target teaches nothing in training; evaluations search all windows.
            if settings.training and not row["weights"]:
                continue
            rows.append(row)
            characters.append(places)
            owner.append(number)
    return Features(
        rows, np.asarray(owner, np.int32), truncated, settings.specials.pad, lost=lost, characters=tuple(characters)
    )


def _windows(
    task: Task, example: Question, context: TokenizedContext, question: list[int], settings: RowSettings
) -> list[tuple[FeatureRow, np.ndarray]]:
    room = settings.room(pair=True) - len(question)
    begins = _begins(len(context.ids), room, min(settings.stride, max(room // 2, 1)))
    widest = _widest(len(context.ids), begins, room)
    answer = None
    if example.answers:
        text, start = example.answers[0]
        answer = context.tokens_of(start, start + len(text))
    offset = 1 + len(question) + settings.specials.pair_separators
    windows = []
    for window, begin in enumerate(begins):
        ids = context.ids[begin : begin + room]
        row = settings.row(question, ids)
        inside = slice(offset, offset + len(ids))
        weights = np.zeros(len(row["tokens"]), np.float32)
        weights[inside] = 1
        weights[0] = not task.answerable  # <s> stands for "no answer"
        places = np.full((len(weights), 3), (-1, -1, 0), np.int32)
        places[inside, :2] = context.places[begin : begin + len(ids)]
        places[inside, 2] = widest[begin : begin + len(ids)] == window
        starts = ends = 0
        if answer and begin <= answer[0] and answer[1] < begin + len(ids):
            starts, ends = (offset + token - begin for token in answer)
        # If every question has an answer, a window without it has no target.
        has_target = example.answers is not None and (starts > 0 or not task.answerable)
        row |= {
            "starts": np.int32(starts),
            "ends": np.int32(ends),
            "span_weights": weights,
            "weights": np.float32(has_target),
        }
        windows.append((row, places))
    return windows


def _begins(length: int, room: int, stride: int) -> list[int]:
    """Return the index of the first token of each window of a context.

    length: number of tokens of the context.
    room: number of tokens of a window; the last one reaches the end of the context.
    stride: tokens from one window to the next.
    """
    begins = [0]
    while begins[-1] + room < length:
        begins.append(begins[-1] + stride)
    return begins


def _widest(length: int, begins: list[int], room: int) -> np.ndarray:
    """Return for each token of a context the index of the window in which the token has the most context.

    As in run_squad.py (`max_context`), the score of a window is the smaller of the numbers of its tokens to the left
    and to the right of the token, plus 0.01 of the window's length; of windows with equal scores the first is taken.
    """
    best, windows = np.full(length, -1.0), np.zeros(length, np.int64)
    for window, begin in enumerate(begins):
        end = min(begin + room, length)
        tokens = np.arange(begin, end)
        score = np.minimum(tokens - begin, end - 1 - tokens) + 0.01 * (end - begin)
        better = score > best[begin:end]
        best[begin:end][better] = score[better]
        windows[begin:end][better] = window
    return windows


def _bare(text: str, begin: int, end: int) -> tuple[int, int]:
    while begin < end and text[begin].isspace():
        begin += 1
    while end > begin and text[end - 1].isspace():
        end -= 1
    return begin, end
