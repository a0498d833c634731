"""The pages of the reproduced papers: for each config its command, what its docstring expects, and recorded results."""

import importlib
import math
import pathlib
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ag_jax.analysis.report import Section
from ag_jax.analysis.tables import Table
from ag_jax.pretraining.search import report as search_report
from site_builder import pages
from site_builder.docstrings import plain
from site_builder.links import Site

ROOT = pathlib.Path(__file__).resolve().parents[2]


def _script() -> Any:
    """Return the module benchmarks/reproductions.py, which knows the papers' experiments and their records."""
    sys.path.insert(0, str(ROOT / "benchmarks"))  # where it finds its neighbours
    try:
        return importlib.import_module("reproductions")
    finally:
        sys.path.remove(str(ROOT / "benchmarks"))


reproductions = _script()


def titles() -> dict[str, str]:
    """Return the title of each paper by the name of its folder in configs/."""
    return dict(reproductions.PAPERS)


def page(paper: str, site: Site, folder: pathlib.Path) -> str:
    """Return the page of a paper: an experiment for each of its tables and figures that has a config.

    folder: folder of the page.
    """
    rows = {config: names for config, names in reproductions.rows().items() if config.startswith(f"{paper}/")}
    more = [name for name in pages.config_files.packaged() if name.startswith(f"{paper}/") and name not in rows]
    parts = [
        f"# {plain(titles()[paper])}",
        "For each experiment: its commands, the numbers of the paper and how the experiment differs from the paper, "
        "all from its config file, and the results that have been recorded. "
        "[Reproduction of the papers](../reproduction.md) says which claims hold.",
    ]
    for config, names in rows.items():
        title = reproductions.shown(names)
        parts += [f"## {title[0].upper()}{title[1:]}", *pages.of_config(config), *results(config, site, folder)]
    for config in more:
        parts += [f"## {config}", *pages.of_config(config), *results(config, site, folder)]
    return pages.joined(parts)


def results(config: str, site: Site, folder: pathlib.Path) -> Iterator[str]:
    """Yield the blocks about the recorded results of a config."""
    for record in reproductions.records():
        if record.config == config:
            path, content = record.path, record.content
            link = site.of_file(path.relative_to(ROOT).as_posix(), folder)
            size = "a small size, or other data" if record.small else "the size of the paper"
            yield f"**Recorded: [{path.stem}]({link})**, {size}"
            if "command" in content:
                yield pages.fence("bash", content["command"])
            if path.suffix == ".jsonl":
                yield "Each line is a run or a trial. [Reproduction of the papers](../reproduction.md) has the tables."
                continue
            for key in ("stopped", "conditions", "note"):
                if key in content:
                    yield pages.sentence(plain(f"{key}: {content[key]}"))
            yield from tables(content)


def tables(record: Mapping[str, Any]) -> Iterator[str]:
    """Yield the tables of a record, and sentences about them.

    Those of a search are the best point of each arm, and robustness. Those of other records have scores as mean ±
    standard deviation over seeds with p against the baseline, differences from the baseline, and scores of
    translations, each if the record holds them.
    """
    if "paired" in record:  # of a search
        rows = [[arm, f"`{found['best']}`", str(len(found["points"]))] for arm, found in record["arms"].items()]
        yield Table(("arm", "best point", "points"), rows).markdown()
        yield Section("", search_report.robustness(record)).markdown()
        return
    seeds = len(record.get("seeds", ()))
    over = f"Means ± standard deviations over {seeds} seeds." if seeds > 1 else "One seed." if seeds else ""
    if "tasks" in record:
        arms = tuple(record["arms"])
        rows = [row for task, found in record["tasks"].items() for row in _task_rows(task, found, arms)]
        yield Table(("task", "score", *arms), rows).markdown()
        yield f"Scores on development data; p of a paired t-test over seeds against the first arm. {over}"
    elif "arms" in record and all(isinstance(arm, dict) for arm in record["arms"].values()):
        tested = bool(record.get("differences"))  # the table of differences has p-values
        numbers = {name: dict(_numbers(arm, with_p=not tested)) for name, arm in record["arms"].items()}
        columns = list(dict.fromkeys(key for of_arm in numbers.values() for key in of_arm))
        rows = [[name, *(of_arm.get(key, "–") for key in columns)] for name, of_arm in numbers.items()]
        yield Table(("arm", *(key.replace("_", " ") for key in columns)), rows).markdown()
        yield over
    if record.get("differences"):
        rows = [
            [arm, key.replace("_", " "), _shown(found["mean"]), " to ".join(map(_shown, found["interval"])), _p(found)]
            for arm, of_arm in record["differences"].items()
            for key, found in of_arm.items()
            if found  # none where a seed has no value
        ]
        yield Table(("arm", "score", "difference from the baseline", "95 % interval", "p"), rows).markdown()
    if "translations" in record:
        rows = [row for test, found in record["translations"].items() for row in _translation_rows(test, found)]
        if rows:
            yield Table(("test", "arm", "BLEU", "chrF", "TER"), rows).markdown()
    if "probes" in record:
        yield "[Probes of attention heads](../probes.md) explains the numbers of this record."


def _numbers(arm: Mapping[str, Any], with_p: bool) -> Iterator[tuple[str, str]]:
    """Yield (score, mean ± deviation, and with `with_p` also p) of an arm in a record of pre-training."""
    values = arm.get("values", {key: of for key, of in arm.items() if not key.endswith("_by_layer")})
    for key, of_seeds in values.items():
        p_value = (arm.get("p_value") or {}).get(key) if with_p and "values" in arm else None
        yield key, _spread(of_seeds if isinstance(of_seeds, list) else [of_seeds]) + _with_p(p_value)
    if "left_plateau_at_step" in arm:
        steps = arm["left_plateau_at_step"]
        yield "left plateau at step", ", ".join("never" if step is None else f"{step:,}" for step in steps)


def _task_rows(task: str, found: Mapping[str, Any], arms: Sequence[str]) -> Iterator[list[str]]:
    for metric in next(iter(found["arms"].values()))["splits"]["validation"]:
        cells = []
        for arm in arms:
            of_arm = found["arms"].get(arm)
            if not of_arm or metric not in of_arm["splits"]["validation"]:
                cells.append("–")
                continue
            p_value = (of_arm.get("p_value") or {}).get("seeds") if metric == found["metric"] else None
            cells.append(_spread(of_arm["splits"]["validation"][metric]["values"]) + _with_p(p_value))
        yield [task, metric.replace("_", " "), *cells]


def _translation_rows(test: str, found: Mapping[str, Any]) -> Iterator[list[str]]:
    for arm, scores in found.get("values", {}).items():
        yield [test, arm, *(_spread(scores[metric]) for metric in ("bleu", "chrf", "ter"))]


def _spread(values: Sequence[float]) -> str:
    """Return the mean of values and, of several, ± their standard deviation, with as many digits after the point."""
    mean = _shown(statistics.fmean(values))
    if len(values) < 2:
        return mean
    mantissa, exponent, _ = mean.partition("e")
    digits = len(mantissa.partition(".")[2])
    return f"{mean} ± {statistics.stdev(values):.{digits}{exponent or 'f'}}"


def _shown(value: float) -> str:
    """Return a number with three digits after the point, two if it is large, or two digits in all if it is small."""
    if abs(value) >= 10:
        return f"{value:.2f}"
    return f"{value:.3f}" if abs(value) >= 0.01 or value == 0 else f"{value:.2g}"


def _with_p(p_value: float | None) -> str:
    return "" if p_value is None or math.isnan(p_value) else f" (p {_shown_p(p_value)})"


def _shown_p(p_value: float) -> str:
    return "< .001" if p_value < 0.001 else f"= {p_value:.3f}".replace("0.", ".", 1)


def _p(found: Mapping[str, Any]) -> str:
    if "p_corrected" in found:
        return f"{_shown_p(found['p_corrected'])} (Holm)".removeprefix("= ")
    return _shown_p(found["p_value"]).removeprefix("= ")
