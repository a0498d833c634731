"""Write the table of the papers' experiments into README.md: the command of each, and what has been run.

    python benchmarks/reproductions.py

A row is a config in the folder of a paper, or one of `OUTSIDE`. The first line of its docstring says what it does, and
in parentheses which tables and figures it makes, such as "(table 3, figure 5)"; `MORE` lists further ones of some
configs. A record in benchmarks/results/ belongs to the config that its `command` names: to the small size if the
command has scale=small or the config is in `SMALL`, and otherwise to the full size. A record of a config in `SMALL`
that has a list `repeats` belongs to the configs in this list alone. `LINES` has the configs of records that are JSON
lines; these are small. If such a record lacks some of the arms that `ARMS` lists for the experiment, its link names
those that it has.
"""

import ast
import json
import pathlib
import re
import shlex
from collections.abc import Iterator, Sequence

import cells
import pages

from ag_jax.analysis import markdown

ROOT = pathlib.Path(__file__).parent.parent
RESULTS = "benchmarks/results"
HEADER = ("in the paper", "experiment", "command", "run small", "run at full size")
PAPERS = {
    "ag": "Attention Guidance (Deshpande & Narasimhan 2020)",
    "roberta": "RoBERTa (Liu et al. 2019)",
    "deberta": "DeBERTa (He et al. 2021)",
    "asa": "Adversarial Self-Attention (Wu et al. 2022)",
}
KINDS = ("table", "figure", "section")
# Tables of sizes and settings, and figures and numbers in a report, beside what a docstring names.
MORE = {
    "ag/table3_language_modeling": ("table 2", "table 10", "figure 1", "figure 2", "figure 4", "section A.3"),
    "roberta/table5_glue": ("table 10",),
    "finetune/superglue": ("table 5",),
    "asa/table1_generalization": ("table 5", "figure 1", "figure 6"),
    "asa/table4_adversarial_training": ("section 5.2",),
}
# Configs in no paper's folder with an experiment of a paper.
OUTSIDE = {"finetune/superglue": "deberta"}
# Small configs outside the papers, and the configs whose experiments each repeats: their records count as run small.
SMALL = {
    "quickstart": ("ag/table3_language_modeling",),
    "probe": ("ag/table8_probes",),
    "asa/real_weights": (
        "asa/table1_generalization",
        "asa/table3_naive_masking",
        "asa/table4_adversarial_training",
        "asa/figure4_temperature",
        "asa/figure5_masking",
    ),
}
_ON_REAL_WEIGHTS = tuple(config for config in SMALL["asa/real_weights"] if config != "asa/figure4_temperature")
LINES = {
    "asa_real_weights_cola": _ON_REAL_WEIGHTS,
    "asa_real_weights_sst2": SMALL["asa/real_weights"],
    "asa_real_weights_wnut17": _ON_REAL_WEIGHTS,
    "guidance_depth": ("ag/table3_language_modeling",),
}
# Arms of an experiment that a record on real weights may lack.
ARMS = {
    "asa/table3_naive_masking": ("bernoulli", "scheduled", "magnitude"),
    "asa/table4_adversarial_training": ("freelb", "smart"),
}
_IN_PARENTHESES = re.compile(rf" \(((?:{'|'.join(KINDS)}) [^()]*)\)")


def rows() -> dict[str, list[str]]:
    """Return the tables, figures and sections that each config makes, in the order of the papers."""
    found = {}
    for paper in PAPERS:
        configs = [f"{paper}/{path.stem}" for path in (ROOT / "configs" / paper).glob("*.py")]
        configs += [config for config in OUTSIDE if paper_of(config) == paper]
        names = {config: sorted({*_named(docstring(config)), *MORE.get(config, ())}, key=_order) for config in configs}
        found |= dict(sorted(((config, of) for config, of in names.items() if of), key=lambda pair: _order(pair[1][0])))
    return found


def paper_of(config: str) -> str:
    """Return the paper of a config, by the name of its folder."""
    return OUTSIDE.get(config, config.partition("/")[0])


def docstring(config: str) -> str:
    """Return the docstring of a config."""
    return ast.get_docstring(ast.parse((ROOT / "configs" / f"{config}.py").read_text())) or ""


def _named(text: str) -> list[str]:
    return [name for part in _IN_PARENTHESES.findall(text.split("\n", 1)[0]) for name in part.split(", ")]


def _order(name: str) -> tuple[int, bool, float, str]:
    kind, number = name.split()
    is_of_appendix = number.startswith("A.")
    return KINDS.index(kind), is_of_appendix, float(number.removeprefix("A.").rstrip("ab")), number


def command(config: str) -> str:
    """Return the first command with a config in its docstring, without the folder for the output."""
    lines = docstring(config).replace("\\\n", "").splitlines()
    first = next(line for line in lines if line.startswith("    ") and f"--config={config}" in line)
    return " ".join(word for word in first.split() if not word.startswith("--workdir"))


def records() -> Iterator[tuple[str, bool, str]]:
    """Yield (config, whether the size is small, link to the file) for each record of a command with a config."""
    for config, small, path, content in recorded():
        yield (
            config,
            small,
            f"[{path.stem}]({RESULTS}/{path.name})"
            + (" (stopped early)" if "stopped" in content else "")
            + _incomplete(config, path),
        )


def arms_of(path: pathlib.Path) -> set[str]:
    """Return the arms that a record of JSON lines has."""
    return {line["arm"] for line in cells.read(path)}


def _incomplete(config: str, path: pathlib.Path) -> str:
    """Return the arms of an experiment that a record of JSON lines has, in brackets; empty if these are all."""
    if path.suffix != ".jsonl" or config not in ARMS:
        return ""
    found = [arm for arm in ARMS[config] if arm in arms_of(path)]
    return "" if len(found) == len(ARMS[config]) else f" ({', '.join(found)})"


def recorded() -> Iterator[tuple[str, bool, pathlib.Path, dict]]:
    """Yield (config, whether the size is small, file, its content) for each record of a command with a config.

    Of records that are JSON lines, the content is that of the first line; those without an arm of the experiment
    (`ARMS`) are left out.
    """
    for path in sorted((ROOT / RESULTS).glob("*.json")):
        content = json.loads(path.read_text())
        words = shlex.split(content.get("command") or "")
        for word in words:
            if word.startswith("--config=") and "plan" not in words:  # `ag-jax plan` compiles and trains nothing
                config, _, argument = word.removeprefix("--config=").partition(":")
                config = config.removeprefix("configs/").removesuffix(".py")
                small = config in SMALL or "scale=small" in argument.split(",")
                repeated = content.get("repeats", SMALL.get(config, (config,)))
                yield from ((of, small, path, content) for of in repeated)
    for name, configs in LINES.items():
        path = ROOT / RESULTS / f"{name}.jsonl"
        if path.exists():
            first = cells.read(path)[0]
            yield from (
                (config, True, path, first)
                for config in configs
                if config not in ARMS or arms_of(path) & set(ARMS[config])
            )


def table() -> str:
    """Return the table of each paper, as Markdown."""
    links: dict[tuple[str, bool], list[str]] = {}
    for config, small, link in records():
        links.setdefault((config, small), []).append(link)
    lines = []
    for paper, title in PAPERS.items():
        of_paper = []
        for config, names in rows().items():
            if paper_of(config) == paper:
                what = _IN_PARENTHESES.sub("", docstring(config).split("\n", 1)[0]).rstrip(".")
                runs = [", ".join(links.get((config, small), ["no"])) for small in (True, False)]
                of_paper.append([shown(names), what, f"`{command(config)}`", *runs])
        lines += [f"**{title}**", "", *markdown.table(HEADER, of_paper)]
    return "\n".join(lines)


def shown(names: Sequence[str]) -> str:
    """Return names such as `tables 2, 3; figure 5`."""
    numbers = {kind: [name.split()[1] for name in names if name.startswith(kind)] for kind in KINDS}
    return "; ".join(f"{kind}{'s' * (len(of) > 1)} {', '.join(of)}" for kind, of in numbers.items() if of)


if __name__ == "__main__":
    pages.write("README.md", "reproductions.py", [table()])
