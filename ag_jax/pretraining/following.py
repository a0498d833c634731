"""The report's section on heads and pointers: how often a head looks most at the word that an annotated text names.

For the column `head` this share is the unlabelled attachment score (UAS) of a head's attention. It is measured once,
with the model at the last milestone, on held-out sentences without masked tokens, as probes measure it
(`ag_jax.analysis.heads`).

Shape letters: N layers, H heads, Q queries.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from etils import epath

from ag_jax.analysis.heads import choosing, measuring
from ag_jax.analysis.heads.encoding import encode
from ag_jax.analysis.heads.measuring import HeadsModel, Measured
from ag_jax.analysis.report import DASH, Block, Section
from ag_jax.analysis.tables import Table
from ag_jax.attention.assignment import Assignment
from ag_jax.attention.visibility import band_of
from ag_jax.data import pipeline
from ag_jax.data.probes import pointers
from ag_jax.data.probes.pointers import TREE, UNDIRECTED, PointerProbe
from ag_jax.data.records.annotated import PUNCTUATION
from ag_jax.data.text.pointers import OFFSET_BY_WORD
from ag_jax.evaluation.significance import spread
from ag_jax.models.masked_lm import PretrainingModel
from ag_jax.pretraining import corpus as pretraining_corpus
from ag_jax.pretraining import run_directory
from ag_jax.pretraining.config import ExperimentConfig
from ag_jax.pretraining.open_run import OpenRun, open_run

TITLE = "Do heads follow?"
SENTENCES = 500  # held-out ones, of all sources together
WORDS = ("without punctuation", "all")  # which words are asked


def measure(
    configs: Mapping[tuple[str, int], ExperimentConfig], directories: Mapping[tuple[str, int], epath.Path]
) -> dict[str, Any]:
    """Return {arm: {column: [numbers of each seed]}} of the arms with `data.pointers`; see `of_column`.

    Columns of which the held-out text has too few words are left out, and `offset_by_word`, which points from tokens.

    configs, directories: the config and the directory of the run of each (arm, seed).
    """
    result: dict[str, Any] = {}
    made: dict[Any, list[PointerProbe]] = {}  # runs with the same text and tokenizer are asked the same
    for (arm, seed), config in configs.items():
        columns = [name for name in config.data.pointers if name != OFFSET_BY_WORD]
        if not columns:
            continue
        opened = open_run(directories[arm, seed], run_directory.milestone_step(config, directories[arm, seed]))
        key = config.data, opened.tokenizer.fingerprint(), opened.length
        if key not in made:
            made[key] = _probes(config, directories[arm, seed], columns, opened)
        found, of_arm = of_run(opened, made[key]), result.setdefault(arm, {})
        for column in filter(found.__contains__, columns):
            of_arm.setdefault(column, []).append(found[column])
    return result


def _probes(
    config: ExperimentConfig, directory: epath.Path, columns: Sequence[str], opened: OpenRun
) -> list[PointerProbe]:
    """Return the probes of a run's columns of pointers on its held-out text."""
    corpus = pipeline.prepare(pretraining_corpus.with_own_tokenizer(config.data, directory), quiet=True)
    sources = pipeline.held_out_texts(config.data, corpus, [*columns, PUNCTUATION])
    # From each source the first texts, taken in turns.
    texts = (text for turn in itertools.zip_longest(*sources) for text in turn if text is not None)
    return pointers.pointers(texts, columns, opened.tokenizer, opened.length, SENTENCES)


def of_run(opened: OpenRun, probes: Sequence[PointerProbe]) -> dict[str, Any]:
    """Return {column: its numbers} of a run on the probes of its columns of pointers; see `of_column`."""
    config = opened.model.config
    params = {"encoder": opened.params["encoder"]}
    model = HeadsModel(str(opened.workdir), PretrainingModel(config), params, opened.tokenizer, opened.length)
    result = {}
    for asked in probes:
        measured = measuring.measure(model, asked.probe, ["words"])["words"]
        unseen = _unseen(model, asked) if any(config.windows) else {}
        for column in dict.fromkeys(query.kind for query in asked.probe.queries):
            numbers = of_column(asked, measured, column, opened.assignment) if column != UNDIRECTED else None
            if numbers:
                result[column] = numbers | ({"unseen": unseen[column]} if unseen else {})
    return result


def of_column(asked: PointerProbe, measured: Measured, column: str, assignment: Assignment) -> dict[str, Any] | None:
    """Return how often the heads of a model look most at the word to which a column of pointers points.

    None if either half of the text has no word with such a pointer that is no punctuation mark.

    asked: the probe of the column.
    measured: the scores of all heads on it.
    assignment: the heads that guidance pulled to columns and patterns.

    The result has these numbers. Heads and the offset are chosen on one half of the text, by words that are no
    punctuation, and scored on the other half.

        words            {which words (`WORDS`): their number}
        sentences        the number of sentences
        is_alone         whether the model read each sentence alone
        free_heads       the free head of each layer that is chosen; None without free heads
        layers           {`guided`, `free`: the chosen layer}; None without such heads
        offset           the chosen fixed offset, such as `offset -1`
        shares           {which words: {`guided`, `free`: share by layer; `offset`: share}}; guided is the mean over the
                         heads that guidance pulled to the column
        undirected       like `shares`, for heads in either direction; only of the column `TREE`
    """
    kind_Q = np.array([query.kind for query in asked.probe.queries])[measured.queries_Q]
    development_Q, mark_Q = (of_Q[measured.queries_Q] for of_Q in (asked.probe.development, asked.punctuation_Q))
    offsets = {name: scores_Q[measured.queries_Q] for name, scores_Q in asked.probe.baselines.items()}
    is_chosen_Q = (kind_Q == column) & ~mark_Q
    best = choosing.best_offset(offsets, is_chosen_Q, development_Q)
    if best is None:
        return None
    shape = measured.scores_QNH.shape[1:]
    groups = {"guided": assignment.patterns(*shape) == column, "free": ~assignment.is_guided(*shape)}
    chosen_NH = measured.scores_QNH[is_chosen_Q & development_Q].mean(0, dtype=np.float64)
    head_N = np.where(groups["free"], chosen_NH, -1.0).argmax(1)
    # The mean over the heads that are guided to the column, and the best of those that are free.
    weights = {"guided": groups["guided"], "free": groups["free"] & (np.arange(chosen_NH.shape[1]) == head_N[:, None])}

    def shares(is_asked_Q: np.ndarray) -> dict[str, Any]:
        test_Q = is_asked_Q & ~development_Q
        scores_NH = measured.scores_QNH[test_Q].mean(0, dtype=np.float64)
        return {
            **{name: _by_layer(scores_NH, weights_NH) for name, weights_NH in weights.items()},
            "offset": float(offsets[best[0]][test_Q].mean()),
        }

    def both(kind: str) -> dict[str, Any]:
        of_kind_Q = kind_Q == kind
        return dict(zip(WORDS, (shares(of_kind_Q & ~mark_Q), shares(of_kind_Q)), strict=True))

    of_test_Q = (kind_Q == column) & ~development_Q
    of_layers = {name: _by_layer(chosen_NH, weights_NH) for name, weights_NH in weights.items()}
    return {
        "words": dict(zip(WORDS, (int((of_test_Q & ~mark_Q).sum()), int(of_test_Q.sum())), strict=True)),
        "sentences": asked.sentences,
        "is_alone": asked.is_alone,
        "free_heads": [
            int(head) if is_free_H.any() else None for head, is_free_H in zip(head_N, groups["free"], strict=True)
        ],
        "layers": {name: _best_layer(of_layer) for name, of_layer in of_layers.items()},
        "offset": best[0],
        "shares": both(column),
        **({"undirected": both(UNDIRECTED)} if column == TREE else {}),
    }


def _by_layer(scores_NH: np.ndarray, chosen_NH: np.ndarray) -> list[float | None]:
    """Return the mean score of the chosen heads of each layer; None for a layer without any."""
    return [
        float(scores_H[chosen_H].mean()) if chosen_H.any() else None
        for scores_H, chosen_H in zip(scores_NH, chosen_NH, strict=True)
    ]


def _best_layer(of_layers: Sequence[float | None]) -> int | None:
    scores = {layer: score for layer, score in enumerate(of_layers) if score is not None}
    return max(scores, key=scores.__getitem__, default=None)


def _unseen(model: HeadsModel, asked: PointerProbe) -> dict[str, list[float]]:
    """Return {column: for each layer the share of pointers of which no token sees any token of the word pointed at}."""
    windows = encode(asked.probe.windows, model.tokenizer, model.longest).windows
    distances: dict[str, list[int]] = {}
    for query in asked.probe.queries:
        if (window := windows[query.window]) is not None:
            first, second = sorted((query.at, query.answers[0]))
            nearest = int(window.starts[second] - window.starts[first + 1]) + 1
            distances.setdefault(query.kind, []).append(nearest if second == query.answers[0] else -nearest)
    bands = [band_of(False, window) for window in model.model.config.windows]
    return {
        kind: [float(np.mean(~np.broadcast_to(band.contains(0, np.array(of_kind)), len(of_kind)))) for band in bands]
        for kind, of_kind in distances.items()
    }


def section(arms: Mapping[str, Any]) -> Section:
    """Return the report's section on how often heads look at the words to which pointers point, from `measure`."""
    columns = list(dict.fromkeys(column for of_arm in arms.values() for column in of_arm))
    if not columns:
        nothing = "The held-out text has too few words with a pointer: hold out more annotated text."
        return Section(TITLE, [nothing])
    sentences = next(of_arm[columns[0]] for of_arm in arms.values() if columns[0] in of_arm)[0]["sentences"]
    explained = (
        "How often a head looks most at the word that the text names: the share of the words with a pointer, from 0 to "
        f"1, on {sentences:,} held-out sentences without masked tokens. Attention from a word is the mean over its "
        "tokens, and attention to a word the sum. *Guided*: the mean over the heads that guidance pulled to the "
        "column. The best layer, the best free head and the best fixed offset are chosen on one half of the sentences; "
        "all numbers are of the other half."
    )
    if TREE in columns:
        explained += (
            " For `head` it is the unlabelled attachment score (UAS). UUAS, the score of undirected edges, also counts "
            "words that look most at a word whose head they are."
        )
    blocks: list[Block] = [explained]
    for column in columns:
        blocks += _of_column(column, {arm: of_arm[column] for arm, of_arm in arms.items() if column in of_arm})
    return Section(TITLE, blocks)


def _of_column(column: str, arms: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[Block]:
    """Return the paragraph and the tables about a column of pointers."""
    first = next(iter(arms.values()))[0]
    measures = {"shares": "UAS" if column == TREE else "Share", **({"undirected": "UUAS"} if column == TREE else {})}
    cells = [(name, words) for name in measures if name in first for words in WORDS]
    heads = [
        (f"{arm}, {label}", group, seeds)
        for arm, seeds in arms.items()
        for group, label in (("guided", "guided"), ("free", "best free head"))
        if all(of_seed["layers"][group] is not None for of_seed in seeds)
    ]
    rows = []
    for label, group, seeds in heads:
        layers = [of_seed["layers"][group] for of_seed in seeds]
        values = [
            spread([of_seed[name][words][group][layer] for of_seed, layer in zip(seeds, layers, strict=True)])
            for name, words in cells
        ]
        rows.append([label, ", ".join(map(str, layers)), *map(str, values)])
    # Arms with other texts have other offsets.
    of_offsets: dict[tuple[str, ...], list[str]] = {}
    for arm, seeds in arms.items():
        shares = [f"{seeds[0][name][words]['offset']:.3f}" for name, words in cells]
        of_offsets.setdefault((seeds[0]["offset"].removeprefix("offset "), *shares), []).append(arm)
    for (offset, *shares), names in of_offsets.items():
        of_arms = "" if len(of_offsets) == 1 else f" ({', '.join(names)})"
        rows.append([f"best fixed offset{of_arms}: {offset}", DASH, *shares])
    numbers = f"{first['words']['all']:,} words in the other half, {first['words'][WORDS[0]]:,} {WORDS[0]}"
    read = "each sentence alone" if first["is_alone"] else "as many sentences together as it was trained on"
    return [
        f"**{column}**: {numbers}. The model read {read}.",
        Table(["Heads", "Layer", *(f"{measures[name]}, {words}" for name, words in cells)], rows),
        f"By layer, {WORDS[0]}:",
        _by_layers(arms, heads),
    ]


def _by_layers(
    arms: Mapping[str, Sequence[Mapping[str, Any]]], heads: Sequence[tuple[str, str, Sequence[Mapping[str, Any]]]]
) -> Table:
    """Return the table of shares by layer.

    heads: (label, `guided` or `free`, numbers of each seed) of each row.
    """
    rows = []
    for label, group, seeds in heads:
        of_layers = zip(*(of_seed["shares"][WORDS[0]][group] for of_seed in seeds), strict=True)
        values = ([value for value in of_layer if value is not None] for of_layer in of_layers)
        rows.append([label, *(str(spread(of_layer)) if of_layer else DASH for of_layer in values)])
    unseen: dict[tuple[str, ...], list[str]] = {}
    for arm, seeds in arms.items():
        if "unseen" in seeds[0]:
            unseen.setdefault(tuple(f"{share:.3f}" for share in seeds[0]["unseen"]), []).append(arm)
    for shares, names in unseen.items():
        of_arms = "" if len(names) == len(arms) else f" ({', '.join(names)})"
        rows.append([f"pointers that the layer does not see{of_arms}", *shares])
    width = max(map(len, rows), default=1)  # arms may have other numbers of layers
    return Table(["Layer", *map(str, range(width - 1))], [[*row, *[DASH] * (width - len(row))] for row in rows])
