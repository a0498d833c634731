"""Write the tables of guidance into two pages of docs/, from the lines of guidance_evidence.py and from a search.

    python benchmarks/guidance_tables.py

A *block* is a combination of positions, norm and optimizer. All differences are paired by seed: the effect of a factor
is the mean difference over all combinations of the others, taken for each seed. A seed is compared only if all runs
that a row needs are recorded and none failed. p is corrected by Holm's method for all tests of a table. The
table of robustness is that of the search's own report.
"""

import collections
import itertools
import json
import pathlib
import statistics
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import evidence
import numpy as np
import pages
from evidence import Line
from guidance_evidence import (
    ARMS,
    DEPTH_ARMS,
    DEPTH_NAME,
    LAYERS,
    MUON_NAME,
    NAME,
    NORMS,
    OPTIMIZERS,
    PATTERNS,
    POSITIONS,
    SCALES,
    SEED_OF_SCALES,
    WARMUPS,
)

from ag_jax.evaluation import significance
from ag_jax.evaluation.significance import PairedDifference
from ag_jax.pretraining.search.report import robustness

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODERN = "docs/reproduction_guidance_modern.md"
SETTINGS = "docs/reproduction_guidance_settings.md"
RECORDS = ROOT / "benchmarks" / "results"
SEARCH = "section4_5_search_small"
BASE = ("post", "adamw")  # norm and optimizer of the runs with one pattern alone
LOSS, SCORE = "validation loss", "BLiMP"

# positions, norm, optimizer, arm; or layers, warm-up steps, arm
Setting = tuple[str | int, ...]
# The number that each run has, by setting and seed.
Numbers = Mapping[Setting, Mapping[int, float]]


def of_runs(lines: Sequence[Line], number: Callable[[Line], float]) -> Numbers:
    """Return the number of each run that did not fail, with the learning rate of most runs of its norm and optimizer.

    The other learning rates are those of the selection.
    """
    rates: dict[tuple[str, str], list[float]] = collections.defaultdict(list)
    for line in lines:
        rates[line["norm"], line["optimizer"]].append(line["learning_rate"])
    chosen = {key: statistics.mode(of) for key, of in rates.items()}
    found: dict[Setting, dict[int, float]] = collections.defaultdict(dict)
    for line in lines:
        if "failed" not in line and line["learning_rate"] == chosen[line["norm"], line["optimizer"]]:
            setting = (line["positions"], line["norm"], line["optimizer"], line["arm"])
            found[setting][line["seed"]] = number(line)
    return dict(found)


def contrast(numbers: Numbers, signs: Mapping[Setting, float]) -> dict[int, float]:
    """Return the weighted sum of the runs' numbers for each seed that has all of them.

    signs: weight of each setting.
    """
    if not signs.keys() <= numbers.keys():
        return {}
    seeds = set.intersection(*(set(numbers[setting]) for setting in signs))
    return {seed: sum(weight * numbers[setting][seed] for setting, weight in signs.items()) for seed in sorted(seeds)}


def tested(contrasts: Mapping[str, Mapping[int, float]]) -> dict[str, PairedDifference | None]:
    """Return the mean over seeds of each contrast, with its interval and test; None with fewer than two seeds."""
    values = {name: list(of.values()) for name, of in contrasts.items() if len(of) > 1}
    if not values:
        return dict.fromkeys(contrasts)
    found = significance.over_seeds(
        {"zero": {name: [0.0] * len(of) for name, of in values.items()}, "contrast": values}
    )
    return {name: found["contrast"].get(name) for name in contrasts}


def blocks() -> list[tuple[str, str, str]]:
    """Return all combinations of positions, norm and optimizer."""
    return list(itertools.product(POSITIONS, NORMS, OPTIMIZERS))


def guided_minus_plain(of: Sequence[tuple[str, str, str]]) -> dict[Setting, float]:
    """Return the signs of the mean effect of guidance over some blocks."""
    return {(*block, arm): sign / len(of) for block in of for arm, sign in (("all", 1.0), ("none", -1.0))}


def effects() -> dict[str, dict[Setting, float]]:
    """Return the signs of the effects of the four factors, and of how guidance depends on the three others."""
    of: dict[str, dict[Setting, float]] = {"guidance": guided_minus_plain(blocks())}
    names = {"rotary positions": 0, "pre-norm": 1, "Muon": 2}
    last = (POSITIONS[1], NORMS[1], OPTIMIZERS[1])
    for name, place in names.items():
        of[name] = {
            (*block, arm): (1.0 if block[place] == last[place] else -1.0) / len(blocks())
            for block in blocks()
            for arm in ("all", "none")
        }
    for name, place in names.items():
        of[f"guidance with {name}, minus guidance without"] = {
            setting: 2 * sign * (1.0 if setting[place] == last[place] else -1.0)
            for setting, sign in guided_minus_plain(blocks()).items()
        }
    return of


def shown(of: Mapping[int, float], digits: int) -> str:
    """Return mean ± standard deviation over seeds."""
    if not of:
        return "–"
    spread = significance.spread(list(of.values()))
    return f"{spread.mean:.{digits}f}" + ("" if spread.deviation is None else f" ± {spread.deviation:.{digits}f}")


def by_block(numbers: Numbers, digits: int) -> list[str]:
    """Return the lines of a table with the mean without and with guidance in each block."""
    found = tested({str(block): contrast(numbers, guided_minus_plain([block])) for block in blocks()})
    rows = [
        [
            *block,
            *(shown(numbers.get((*block, arm), {}), digits) for arm in ("none", "all")),
            *pages.difference_cells(found[str(block)], digits),
        ]
        for block in blocks()
    ]
    return pages.table(("positions", "norm", "optimizer", "none", "all", *pages.DIFFERENCE), rows)


def of_effects(numbers: Numbers, digits: int) -> list[str]:
    """Return the lines of a table with the effect of each factor."""
    found = tested({name: contrast(numbers, signs) for name, signs in effects().items()})
    rows = [[name, *pages.difference_cells(of, digits)] for name, of in found.items()]
    return pages.table(("effect", *pages.DIFFERENCE), rows)


def alone(losses: Numbers) -> list[str]:
    """Return the lines of a table with the runs of one pattern alone, beside those of none and of all."""
    rows = []
    settings = [((positions, *BASE), arm) for positions in POSITIONS for arm in (*PATTERNS, "all")]
    found = tested(
        {str((block, arm)): contrast(losses, {(*block, arm): 1.0, (*block, "none"): -1.0}) for block, arm in settings}
    )
    for positions in POSITIONS:
        block = (positions, *BASE)
        rows.append([positions, "none", shown(losses.get((*block, "none"), {}), 3), "–", "–", "–"])
        for arm in (*PATTERNS, "all"):
            cells_of = pages.difference_cells(found[str((block, arm))], 3)
            rows.append([positions, arm, shown(losses.get((*block, arm), {}), 3), *cells_of])
    return pages.table(("positions", "guided by", LOSS, *pages.DIFFERENCE), rows)


def plateau(lines: Sequence[Line]) -> list[str]:
    """Return the lines of a table with the steps at which runs left the plateau, and attention on the targets."""
    steps = of_runs(lines, lambda line: line["left_plateau_at_step"] or np.inf)
    masses = {name: of_runs(lines, lambda line, name=name: float(np.mean(line["mass"][name]))) for name in PATTERNS}

    def listed(setting: Setting) -> str:
        of = steps.get(setting, {})
        return ", ".join("never" if np.isinf(of[seed]) else f"{of[seed]:.0f}" for seed in sorted(of)) or "–"

    def mass(setting: Setting) -> str:
        of = [masses[name].get(setting, {}) for name in PATTERNS]
        return " / ".join(f"{100 * np.mean(list(one.values())):.0f}" if one else "–" for one in of)

    rows = [
        [*block, *(listed((*block, arm)) for arm in ("none", "all")), *(mass((*block, arm)) for arm in ("none", "all"))]
        for block in blocks()
    ]
    header = (
        "positions",
        "norm",
        "optimizer",
        "left at, none",
        "left at, all",
        "% on targets, none",
        "% on targets, all",
    )
    return pages.table(header, rows)


def by_rate(lines: Sequence[Line]) -> list[str]:
    """Return the lines of a table with the loss at each learning rate, and attention to the next token in brackets."""

    def shown_run(line: Line) -> str:
        if "failed" in line:
            return "diverged"
        return f"{line['validation_loss']:.3f} ({100 * np.mean(line['mass']['next']):.0f})"

    text = []
    for optimizer in OPTIMIZERS:  # a table each, because their learning rates differ
        of = {
            (line["positions"], line["arm"], line["learning_rate"]): line
            for line in lines
            if line["optimizer"] == optimizer
        }
        if not of:
            continue
        rates = sorted({rate for _, _, rate in of})
        rows = [
            [positions, arm, *(shown_run(of[key]) if (key := (positions, arm, rate)) in of else "–" for rate in rates)]
            for positions in POSITIONS
            for arm in ARMS
        ]
        text += [f"{optimizer}:", "", *pages.table(("positions", "guided by", *map(str, rates)), rows)]
    return text


def by_depth(lines: Sequence[Line]) -> list[str]:
    """Return the lines of a table with the loss, and the step at which the plateau is left, by depth and warm-up, and
    of a table with the effect of the warm-up.
    """
    losses: dict[Setting, dict[int, float]] = collections.defaultdict(dict)
    left: dict[Setting, dict[int, str]] = collections.defaultdict(dict)
    for line in lines:
        setting, failed = (line["layers"], line["warmup_steps"], line["arm"]), "failed" in line
        if not failed:
            losses[setting][line["seed"]] = line["validation_loss"]
        step = "diverged" if failed else line["left_plateau_at_step"] or "never"
        left[setting][line["seed"]] = str(step)
    plain, ag = DEPTH_ARMS
    of = list(itertools.product(LAYERS, WARMUPS))
    found = tested({str(each): contrast(losses, {(*each, ag): 1.0, (*each, plain): -1.0}) for each in of})
    rows = [
        [
            *map(str, each),
            *(shown(losses.get((*each, arm), {}), 3) for arm in DEPTH_ARMS),
            *pages.difference_cells(found[str(each)], 3),
            *(", ".join(step for _, step in sorted(left.get((*each, arm), {}).items())) or "–" for arm in DEPTH_ARMS),
        ]
        for each in of
    ]
    header = ("layers", "warm-up", *DEPTH_ARMS, *pages.DIFFERENCE, *(f"left at, {arm}" for arm in DEPTH_ARMS))
    title = f"The effect of {WARMUPS[1]} steps of warm-up on the validation loss of these runs:"
    return [*pages.table(header, rows), title, "", *of_warmup(losses)]


def by_muon_scale(lines: Sequence[Line]) -> list[str]:
    """Return the lines of a table of the runs with Muon and a factor of its updates of queries and keys.

    It has the runs with the factor that a further seed chose, and in brackets the loss of that seed at each factor.
    """
    losses: dict[Setting, dict[int, float]] = collections.defaultdict(dict)
    tried: dict[Setting, dict[float, float]] = collections.defaultdict(dict)
    left: dict[Setting, dict[int, str]] = collections.defaultdict(dict)
    for line in lines:
        setting = (line["positions"], line["arm"])
        if line["seed"] == SEED_OF_SCALES:
            tried[setting][line["scale"]] = line["validation_loss"]
        else:
            losses[setting][line["seed"]] = line["validation_loss"]
            left[setting][line["seed"]] = str(line["left_plateau_at_step"] or "never")
    found = tested({each: contrast(losses, {(each, "all"): 1.0, (each, "none"): -1.0}) for each in POSITIONS})
    rows = [
        [
            each,
            *(shown(losses[each, arm], 3) for arm in ARMS),
            *pages.difference_cells(found[each], 3),
            *(", ".join(step for _, step in sorted(left[each, arm].items())) for arm in ARMS),
            *(" / ".join(f"{loss:.3f}" for _, loss in sorted(tried[each, arm].items())) for arm in ARMS),
        ]
        for each in POSITIONS
    ]
    scales = " / ".join(f"{scale:g}" for scale in SCALES)
    header = ("positions", *ARMS, *pages.DIFFERENCE, *(f"left at, {arm}" for arm in ARMS))
    return pages.table((*header, *(f"factor {scales}, {arm}" for arm in ARMS)), rows)


def of_warmup(losses: Numbers) -> list[str]:
    """Return the lines of a table with the loss with warm-up, minus that without, of each depth and arm."""
    without, with_warmup = WARMUPS
    of = list(itertools.product(LAYERS, DEPTH_ARMS))
    found = tested(
        {
            str((layers, arm)): contrast(losses, {(layers, with_warmup, arm): 1.0, (layers, without, arm): -1.0})
            for layers, arm in of
        }
    )
    rows = [[str(layers), arm, *pages.difference_cells(found[str((layers, arm))], 3)] for layers, arm in of]
    return pages.table(("layers", "arm", *pages.DIFFERENCE), rows)


def of_encoders(
    lines: Sequence[Line], scored: Sequence[Line], rates: Sequence[Line], scales: Sequence[Line]
) -> Iterator[str]:
    """Yield the lines of the tables of positions, norms, optimizers, patterns and learning rates, as Markdown.

    lines: of the runs.
    scored: of the minimal pairs.
    rates: of the runs at more learning rates.
    scales: of the runs with factors of Muon's updates of queries and keys.
    """
    losses = of_runs(lines, lambda line: line["validation_loss"])
    yield from ("**Validation loss** after 1,100 steps:", "", *by_block(losses, 3))
    yield "Effects on the validation loss, as means over all combinations of the other factors; the effect in a"
    yield from ("single combination may differ:", "")
    yield from of_effects(losses, 3)
    yield from ("**Each pattern alone** (post-norm, AdamW):", "", *alone(losses))
    yield "**Steps to leave the plateau**, one number a seed, and **attention on the targets** of Next / Prev / First:"
    yield from ("that of the best head of each layer, in percent, as means over layers and seeds:", "")
    yield from plateau(lines)
    for score in ("token", "word_l2r") if scored else ():
        accuracies = of_runs(scored, lambda line, score=score: 100 * line[score]["all"]["all"][0])
        yield from (f"**BLiMP**, percent right by the score `{score}`, {scored[0]['pairs']:,} pairs:", "")
        yield from by_block(accuracies, 1)
        yield from ("Effects:", "", *of_effects(accuracies, 1))
    if rates:
        yield "**Validation loss by learning rate** (post-norm, seed 0), and in brackets the attention to the next"
        yield from ("token, in percent: of the best head of each layer, as a mean over layers.", "", *by_rate(rates))
    if scales:
        yield "**Muon with a factor of its updates of queries and keys** (post-norm), which a further seed chose by the"
        yield from ("validation losses in the last two columns.", "", *by_muon_scale(scales))


def of_settings(depths: Sequence[Line], search: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of the tables of depth, warm-up and robustness, as Markdown.

    depths: of the runs with more layers, with and without warm-up.
    search: content of the search's search.json.
    """
    yield "**Depth and warm-up** of the quickstart (learned positions, post-norm, AdamW at 2e-3): validation loss,"
    yield from ("and the steps at which runs left the plateau, one number a seed.", "", *by_depth(depths))
    yield "**Robustness to hyperparameters** of the quickstart's model (`ag/section4_5_search:scale=small`)."
    for block in robustness(search):
        yield textwrap.fill(block, 118) if isinstance(block, str) else block.markdown()
        yield ""


def recorded() -> dict[str, Iterator[str]]:
    """Return the tables of each page from the records."""
    runs, scored, rates, depths, scales = (
        evidence.read(RECORDS / name) for name in (NAME, f"{NAME}_blimp", f"{NAME}_rates", DEPTH_NAME, MUON_NAME)
    )
    search = json.loads((RECORDS / f"{SEARCH}.json").read_text())
    return {MODERN: of_encoders(runs, scored, rates, scales), SETTINGS: of_settings(depths, search)}


if __name__ == "__main__":
    for page, lines in recorded().items():
        pages.write(page, "guidance_tables.py", lines)
