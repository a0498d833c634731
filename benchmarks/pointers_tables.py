"""Write the tables of docs/pointers.md, from the records of guidance_losses.py and guidance_pointers.py.

    python benchmarks/pointers_tables.py

All differences are paired by seed, as in guidance_tables.py; p is corrected by Holm's method for all tests of a table.
"""

import collections
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import evidence
import guidance_losses
import guidance_pointers
import guidance_tables
import numpy as np
import pages
from evidence import Line
from guidance_tables import LOSS, RECORDS, SCORE

PAGE = "docs/pointers.md"


def listed_steps(of: Mapping[int, float | None]) -> str:
    """Return the steps at which something happened, one for each seed; `never` for None."""
    return ", ".join("never" if step is None else f"{step:.0f}" for _, step in sorted(of.items()))


def by_setting(lines: Sequence[Line]) -> Iterator[str]:
    """Yield the lines of the tables of the two guidance losses by length, depth and warm-up, as Markdown."""
    yield "Validation loss of the quickstart's guided arm by alpha, with the seed that chooses it:"
    yield ""
    for loss, alphas in guidance_losses.ALPHAS.items():
        tried = [line for line in lines if line["seed"] == guidance_losses.SEED_OF_ALPHAS and line["loss"] == loss]
        by_alpha = {line["alpha"]: f"{line['validation_loss']:.3f}" for line in tried}
        row = [LOSS, *(by_alpha.get(alpha, "–") for alpha in alphas)]
        yield from pages.table((f"{loss}, alpha", *map(str, alphas)), [row])
    of: dict[tuple[Any, ...], dict[int, Line]] = collections.defaultdict(dict)
    for line in lines:
        if line["seed"] in guidance_losses.SEEDS and "failed" not in line:
            of[line["length"], line["layers"], line["warmup_steps"], line["loss"]][line["seed"]] = line
    settings, losses = guidance_losses.SETTINGS, tuple(guidance_losses.ALPHAS)
    numbers = {key: {seed: line["validation_loss"] for seed, line in runs.items()} for key, runs in of.items()}
    yield "With the chosen alpha, at each length, depth and warm-up; steps are one number a seed:"
    yield ""
    rows = [
        [
            *map(str, (*setting, loss)),
            guidance_tables.shown(numbers.get((*setting, loss), {}), 3),
            *(
                listed_steps({seed: line[name] for seed, line in of[*setting, loss].items()})
                for name in ("left_plateau_at_step", "followed_at_step")
            ),
        ]
        for setting in settings
        for loss in losses
    ]
    yield from pages.table(("tokens", "layers", "warm-up", "loss", LOSS, "left at", "mass .9 at"), rows)
    yield f"Validation loss with {losses[1]}, minus that with {losses[0]}:"
    yield ""
    signs: dict[str, dict[guidance_tables.Setting, float]]
    signs = {str(setting): {(*setting, losses[1]): 1.0, (*setting, losses[0]): -1.0} for setting in settings}
    found = guidance_tables.tested(
        {name: guidance_tables.contrast(numbers, of_arms) for name, of_arms in signs.items()}
    )
    rows = [[*map(str, setting), *pages.difference_cells(found[str(setting)], 3)] for setting in settings]
    yield from pages.table(("tokens", "layers", "warm-up", *pages.DIFFERENCE), rows)


def uas(line: Line, group: str) -> float | None:
    """Return the attachment score of the best `guided` or `free` head of a run in percent; None without such heads."""
    heads = line["heads"]
    layer = heads["layers"][group]
    return None if layer is None else 100 * heads["shares"]["without punctuation"][group][layer]


def collapse_ended(line: Line) -> int | None:
    """Return the first evaluation after the collapse's maximum at which half of its fall until the end is done."""
    collapse, steps = line["curves"]["collapse"], line["curves"]["step"]
    top = int(np.argmax(collapse))
    half = (collapse[top] + collapse[-1]) / 2
    return next((step for step, value in zip(steps[top:], collapse[top:], strict=True) if value < half), None)


def mass_risen(line: Line) -> int | None:
    """Return the first logged step at which the mean mass of the guided heads is half of its last value."""
    masses = list(line["curves"]["mass"].values())
    if not masses:
        return None
    mass = np.mean(masses, axis=0)
    return next(step for step, value in zip(line["curves"]["train_step"], mass, strict=True) if value >= mass[-1] / 2)


def by_pointers(lines: Sequence[Line], positions: str) -> Iterator[str]:
    """Yield the lines of the tables of the runs with pointers and kind of positions, as Markdown."""
    of_arms = {
        arm: {
            line["seed"]: line
            for line in lines
            if line["arm"] == arm and line["seed"] != guidance_pointers.SEED_OF_ALPHAS and "failed" not in line
        }
        for arm in guidance_pointers.ARMS[positions]
    }
    measures: dict[str, tuple[Callable[[Line], float | None], int]] = {
        LOSS: (lambda line: line["validation_loss"], 3),
        "loss, far heads": (lambda line: line["far_loss"], 3),
        "UAS, guided": (lambda line: uas(line, "guided"), 1),
        "UAS, best free": (lambda line: uas(line, "free"), 1),
    }
    if any("blimp" in line for line in lines):
        measures |= {SCORE: (lambda line: 100 * line["blimp"]["token"], 1)}

    def numbers(measure: str, arm: str) -> dict[int, float]:
        values = {seed: measures[measure][0](line) for seed, line in of_arms[arm].items()}
        return {seed: value for seed, value in values.items() if value is not None}

    rows = [
        [
            arm,
            ", ".join(sorted({f"{line['alpha']:g}" for line in of.values()})),
            *(guidance_tables.shown(numbers(measure, arm), digits) for measure, (_, digits) in measures.items()),
            *(
                listed_steps({seed: step(line) for seed, line in of.items()})
                for step in (lambda line: line["left_plateau_at_step"], collapse_ended)
            ),
            listed_steps({seed: mass_risen(line) for seed, line in of.items()}) if arm != "none" else "–",
        ]
        for arm, of in of_arms.items()
    ]
    yield from pages.table(("arm", "alpha", *measures, "left at", "collapse ends at", "mass rises at"), rows)

    def differences(pairs: Sequence[tuple[str, str, str]]) -> list[str]:
        contrasts = {}
        for measure, arm, other in pairs:
            first, second = numbers(measure, arm), numbers(measure, other)
            contrasts[str((measure, arm, other))] = {
                seed: first[seed] - second[seed] for seed in sorted(first.keys() & second.keys())
            }
        found = guidance_tables.tested(contrasts)
        cells = [
            [
                measure,
                f"{arm} − {other}",
                *pages.difference_cells(found[str((measure, arm, other))], measures[measure][1]),
            ]
            for measure, arm, other in pairs
        ]
        return pages.table(("measure", "arms", *pages.DIFFERENCE), cells)

    if positions == "learned":
        yield from differences(
            [(LOSS, arm, "none") for arm in of_arms if arm != "none"]
            + [(LOSS, "pointer", control) for control in ("offset_by_word", "other_tree", "previous_same")]
        )
        return
    main = ("neighbours_pointer", "neighbours_offset")
    yield from ("The comparison for which the experiment was made:", "", *differences([(LOSS, *main)]))
    yield from ("Further ones, corrected together:", "")
    others = [(measure, *main) for measure in measures if measure not in (LOSS, "UAS, guided")]
    yield from differences([*others, (LOSS, "neighbours_pointer", "neighbours"), (LOSS, "neighbours", "none")])


def of_pointers(losses: Sequence[Line], learned: Sequence[Line], rotary: Sequence[Line]) -> Iterator[str]:
    """Yield the lines of the tables of pointers and of the losses of guidance, as Markdown.

    losses: of the runs of guidance_losses.py.
    learned, rotary: of the runs of guidance_pointers.py.
    """
    if losses:
        yield from ("**One alpha for lengths and depths**", "", *by_setting(losses))
    for positions, lines in (("learned", learned), ("rotary", rotary)):
        if lines:
            yield from (f"**Heads of parsed novels, {positions} positions**", "", *by_pointers(lines, positions))


def recorded() -> Iterator[str]:
    """Return the tables from the records."""
    names = guidance_losses.NAME, *(f"{guidance_pointers.NAME}_{positions}" for positions in guidance_pointers.ARMS)
    losses, learned, rotary = (evidence.read(RECORDS / name) for name in names)
    return of_pointers(losses, learned, rotary)


if __name__ == "__main__":
    pages.write(PAGE, "pointers_tables.py", recorded())
