"""Write the table of the papers' experiments into docs/papers.md: the command of each, and what has been run.

    python benchmarks/reproductions.py

A row is a config in the folder of a paper, or one of `OUTSIDE`. The first line of its docstring says what it does, and
in parentheses which tables and figures it makes, such as "(table 3, figure 5)"; `MORE` lists further ones of some
configs. Records in benchmarks/results/ that a script made belong to the configs that `SCRIPTS` lists, and are small.
Another record belongs to the config that its `command` names, and is small if the command has scale=small, if the
config is in `SMALL`, or if its data set is one that no paper uses (`OTHER_DATA`). A record of a config in `SMALL` that
has a list `repeats` belongs to the configs in this list alone. Arms of the experiment that a record lacks are named
after its link.
"""

import ast
import dataclasses
import functools
import json
import pathlib
import re
import shlex
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import evidence
import pages

from ag_jax.settings import config_files

ROOT = pathlib.Path(__file__).parent.parent
RESULTS, PAGE = "benchmarks/results", "docs/papers.md"
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
OTHER_DATA = ("dataset=multi30k",)  # arguments that choose data sets of no paper, at any size of the model
_ON_REAL_WEIGHTS = tuple(config for config in SMALL["asa/real_weights"] if config != "asa/figure4_temperature")
# Records that scripts made, and the configs whose experiments they repeat.
SCRIPTS = {
    "adversarial_step-cpu.json": ("asa/figure4_speed",),
    "asa_real_weights_cola": _ON_REAL_WEIGHTS,
    "asa_real_weights_sst2": SMALL["asa/real_weights"],
    "asa_real_weights_wnut17": _ON_REAL_WEIGHTS,
    "guidance_depth": ("ag/table3_language_modeling",),
    "guidance_modern": ("ag/table3_language_modeling", "ag/table5_pattern_ablation"),
    "guidance_novels.json": ("ag/table3_language_modeling",),
    "roberta_batches": ("roberta/table3_batch_size",),
    "roberta_formats": ("roberta/table2_input_formats",),
    "roberta_masking": ("roberta/table1_masking",),
    "roberta_text": ("roberta/table4_data_and_steps",),
    "robustness_sst2": ("asa/table2_robustness",),
}
# The arms of experiments whose configs cannot be loaded without files, and of those that fine-tuning on real weights
# repeats, by their names in its records.
ARMS = {
    "ag/table7_translation": ("base", "hard_coded", "ag"),
    "asa/table2_robustness": ("plain", "asa"),
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


@dataclasses.dataclass(frozen=True)
class Record:
    """A file of results as a record of one config.

    config: the config whose experiment it repeats.
    small: whether its model is smaller than the paper's, or its data set none of the papers'.
    path: the file.
    content: its content; of JSON lines, that of the first line.
    arms: the arms that it has, None if it says nothing of arms.
    planned: the arms that the experiment has, None if they are not known.
    """

    config: str
    small: bool
    path: pathlib.Path
    content: dict[str, Any]
    arms: Collection[str] | None = None
    planned: Sequence[str] | None = None

    @property
    def link(self) -> str:
        """A link to the file, with what the record lacks in brackets."""
        lacking = [arm for arm in self.planned or () if self.arms is not None and arm not in self.arms]
        notes = ["stopped early"] * ("stopped" in self.content) + [f"without {', '.join(lacking)}"] * bool(lacking)
        return f"[{self.path.stem}](../{RESULTS}/{self.path.name})" + (f" ({'; '.join(notes)})" if notes else "")


def records() -> Iterator[Record]:
    """Yield the records of all files, those of scripts last.

    A file is no record of an experiment of which it has no arm (`ARMS`).
    """
    for path in sorted((ROOT / RESULTS).glob("*.json")):
        content = json.loads(path.read_text())
        words = shlex.split((content.get("command") or "").split(";", 1)[0])  # the first command makes the model
        for word in words:
            if word.startswith("--config=") and "plan" not in words:  # `ag-jax plan` compiles and trains nothing
                yield from _of_command(word.removeprefix("--config="), path, content)
    for name, configs in SCRIPTS.items():
        path = ROOT / RESULTS / name if name.endswith(".json") else evidence.place(ROOT / RESULTS / name)
        if path.exists():
            lines = [json.loads(path.read_text())] if path.suffix == ".json" else evidence.read(path)
            arms = {line["arm"] for line in lines if "arm" in line}
            for config in configs:
                planned = ARMS.get(config)
                if planned is None or arms & set(planned):
                    yield Record(config, True, path, lines[0], arms or None, planned)


def _of_command(source: str, path: pathlib.Path, content: dict[str, Any]) -> Iterator[Record]:
    """Yield the records of a file whose command has a config, `source`."""
    name, _, argument = source.partition(":")
    config = name.removeprefix("configs/").removesuffix(".py")
    words = argument.split(",")
    small = config in SMALL or "scale=small" in words or any(word in OTHER_DATA for word in words)
    arms = content.get("arms", [word.removeprefix("arm=") for word in words if word.startswith("arm=")] or None)
    for repeated in content.get("repeats", SMALL.get(config, (config,))):
        yield Record(repeated, small, path, content, arms, _planned(repeated) if arms else None)


@functools.cache
def _planned(config: str) -> Sequence[str] | None:
    """Return the arms that the command of a row compares; None without arms, and for configs that are in no row."""
    if config in ARMS or paper_of(config) not in PAPERS:
        return ARMS.get(config)
    source = next(word for word in command(config).split() if word.startswith("--config="))
    loaded = config_files.read(source.removeprefix("--config="))
    arms = loaded.comparison.arms if "comparison" in loaded else loaded.get("arms")
    return arms.split(",") if arms else None


def table() -> str:
    """Return the table of each paper, as Markdown."""
    links: dict[tuple[str, bool], list[str]] = {}
    for record in records():
        links.setdefault((record.config, record.small), []).append(record.link)
    lines = []
    for paper, title in PAPERS.items():
        of_paper = []
        for config, names in rows().items():
            if paper_of(config) == paper:
                what = _IN_PARENTHESES.sub("", docstring(config).split("\n", 1)[0]).rstrip(".")
                runs = [", ".join(links.get((config, small), ["no"])) for small in (True, False)]
                of_paper.append([shown(names), what, f"`{command(config)}`", *runs])
        lines += [f"**{title}**", "", *pages.table(HEADER, of_paper)]
    return "\n".join(lines)


def shown(names: Sequence[str]) -> str:
    """Return names such as `tables 2, 3; figure 5`."""
    numbers = {kind: [name.split()[1] for name in names if name.startswith(kind)] for kind in KINDS}
    return "; ".join(f"{kind}{'s' * (len(of) > 1)} {', '.join(of)}" for kind, of in numbers.items() if of)


if __name__ == "__main__":
    pages.write(PAGE, "reproductions.py", [table()])
