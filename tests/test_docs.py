"""The pages of the documentation: all are reachable from the README, no link is broken, their Python code runs, and
their commands, and those in the docstrings of config files, are those of the program.
"""

import ast
import dataclasses
import json
import pathlib
import re
import shlex
import shutil
from collections.abc import Iterable

import jax
import jax.numpy as jnp
import pytest
from absl import flags

from ag_jax import main
from ag_jax.command_line import cli, parser
from ag_jax.data import pipeline
from ag_jax.data.config import DataConfig, TokenizerConfig
from ag_jax.finetuning.config import FinetuningConfig, Recipe
from ag_jax.finetuning.task_training import make_head
from ag_jax.interop import finetuned
from ag_jax.interop.finetuned import FineTuned
from ag_jax.models.config import DecoderConfig
from ag_jax.models.decoding_config import DecodingConfig
from ag_jax.pretraining import initial_weights, run_directory, workloads
from ag_jax.pretraining.config import ExperimentConfig
from ag_jax.settings import schema
from tests import results as stored
from tests import test_configs, tiny
from tests.cases import some
from tests.finetuning import tasks
from tests.probing import trained_models

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")])
EXAMPLE = ROOT / "examples" / "quickstart" / "README.md"
ONLY_ON_THE_SITE = {"index.md"}  # lists the pages of the site
FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")  # without those to other places, which have a colon


def targets(page):
    return [(page.parent / link).resolve() for link in LINK.findall(page.read_text())]


def test_every_page_is_linked_from_the_readme():
    pages = {page for page in PAGES if page.parent.name == "docs" and page.name not in ONLY_ON_THE_SITE}
    assert pages <= set(targets(ROOT / "README.md"))


def test_the_settings_with_which_a_run_may_be_resumed_are_all_listed():
    """A name without a section is of the section of the name before it."""
    _, after = (ROOT / "docs" / "runs.md").read_text().split("## Settings that may change")
    listed, section = set(), ""
    for row in re.findall(r"^\| (`.*?) \|", after.split("\n## ")[0], re.MULTILINE):
        for name in re.findall("`(.*?)`", row):
            if "." in name:
                section = name.split(".")[0]
            listed.add(name.removesuffix("*") if "." in name or name == "title" else f"{section}.{name}")
    known = schema.flat(schema.to_dict(ExperimentConfig()))
    may_differ = {key for key in known if schema.is_among(key, run_directory.MAY_DIFFER)}
    expected = may_differ | {"data.validation_rows"}  # under a condition, which is in the table, too
    assert {key for key in known if schema.is_among(key, listed)} == expected


def test_links_lead_somewhere():
    pages = [*PAGES, EXAMPLE]
    assert [(page.name, target) for page in pages for target in targets(page) if not target.exists()] == []


def test_links_to_folders_end_in_a_slash():
    """The site tells folders, which it cannot copy, from files by it."""
    links = [(page, link) for page in PAGES for link in LINK.findall(page.read_text())]
    assert [link for page, link in links if (page.parent / link).is_dir() and not link.endswith("/")] == []


def anchors(page):
    """The anchors of the headings of a page, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", FENCED.sub("", page.read_text()), re.MULTILINE)
    names = [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]
    counts = [names[:place].count(name) for place, name in enumerate(names)]
    return [f"{name}-{count}" if count else name for name, count in zip(names, counts, strict=True)]


def test_anchors_of_links_are_headings():
    """Also those in notebooks and on the generated pages of the site."""
    others = [*(ROOT / "notebooks").glob("*.ipynb"), ROOT / "docs" / "site_builder" / "api.py"]
    links = [
        (page.name, (page.parent / path).resolve() if path else page, anchor)
        for page in [*PAGES, *others]
        for path, anchor in re.findall(r"\]\(([^)#:\s]*)#([^)\s]+)\)", page.read_text())
    ]
    assert len(links) > 50
    assert [(name, path.name, anchor) for name, path, anchor in links if anchor not in anchors(path)] == []


def test_the_attack_of_ones_own_masks_what_its_page_says():
    """The custom attack masks n of the n * n units of a text of n tokens."""
    page = (ROOT / "docs" / "custom_attacks.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names = {"__name__": "page"}
    exec(code, names)
    model, batch = tiny.task_model("classification"), tiny.task_batch("classification")
    objective = names["attacked"](tiny.supervised(model), model.config.layers)

    @jax.jit
    def evaluate(params, batch, step):
        outcome = tiny.evaluate(objective, params, batch, {"dropout": jax.random.key(0)}, step)
        return outcome.totals, outcome.metrics

    totals, metrics = evaluate(tiny.params(model, batch), batch, jnp.int32(3))
    lengths = (batch["segment_ids"] > 0).sum(-1)
    total_N, weight_N = metrics["masked/layers"]
    assert total_N.tolist() == [lengths.sum()] * 2 and weight_N.tolist() == [(lengths**2).sum()] * 2
    assert totals["not_itself"] > 0


@pytest.fixture(scope="module")
def readers_place(tmp_path_factory):
    """Make the folder in which a reader runs the examples: the run of the quickstart, a run that translates, a suite
    with a trial of each task with saved weights, and a file of texts.
    """
    place, tokenizer = tmp_path_factory.mktemp("reader"), tasks.TOKENIZER
    (place / "mine.txt").write_text("\n".join([" ".join(tasks.WORDS)] * 5))
    encoder = dataclasses.replace(tasks.pretrained().config, max_length=64)
    tokenizer.save(place / "tokenizer")
    data = DataConfig(sequence_length=64, tokenizer=TokenizerConfig(path=str(place / "tokenizer")))
    config = ExperimentConfig(data=data, model=encoder)
    translating = dataclasses.replace(
        config,
        data=dataclasses.replace(data, source="train.en", target="train.de", format="parallel"),
        model=dataclasses.replace(encoder, positions="sinusoidal", position_offset=0, token_types=0),
        decoder=DecoderConfig(layers=1),
        decoding=DecodingConfig(max_length="1.0x+2"),
    )
    for name, one in (("quickstart/ag-seed0", config), ("mine", translating)):
        params = tiny.params(workloads.reference_model(one, tokenizer), pipeline.empty_batch(one.data, rows=1))
        initial_weights.write(one, place / "runs" / name, tokenizer, params)
    head = make_head(tasks.task("classification"), "roberta", 64)
    params = tiny.params(head.model(encoder), tiny.task_batch("classification"))
    suite = FinetuningConfig(checkpoint="runs/mine", tasks={"sst2": Recipe(), "mnli": Recipe()})
    for task in suite.tasks:
        trial = place / "runs" / "glue" / task / "lr2e-05-bs32-seed0"
        finetuned.save(FineTuned(head, encoder, tokenizer, params), trial / "weights")
        result = trained_models.SUITE_OF | {"task": task, "examples": {"train": 24, "validation": 9}}
        stored.write(trial, {"metrics": {}} | result)
    (place / "runs" / "glue" / "config.json").write_text(json.dumps(schema.to_dict(suite)))
    return place


PYTHON = re.compile(r"```python\n(.*?)```", re.DOTALL)
ELSEWHERE = ("custom_attacks.md", "python.md", "README.md", "robustness.md")  # above, test_api.py, test_pipelines.py
EXAMPLES = [
    (page.name, number)
    for page in PAGES
    for number, _ in enumerate(PYTHON.findall(page.read_text()))
    if page.name not in ELSEWHERE
]
OF_PIPELINES = (
    "predictions.md",
    "translation.md",
    "translation_compare.md",
    "custom_tasks.md",
    "finetuning.md",
)  # compile most, and their parts have tests


@pytest.mark.parametrize(
    ("page", "number"), some(EXAMPLES, *(example for example in EXAMPLES if example[0] not in OF_PIPELINES))
)
def test_examples_run_where_a_reader_runs_them(page, number, readers_place, monkeypatch):
    monkeypatch.chdir(readers_place)
    (path,) = [path for path in PAGES if path.name == page]
    code = PYTHON.findall(path.read_text())[number]
    names = {"__name__": "page"}
    if "model.apply" in code:
        model, batch = tiny.model(), tiny.batch()
        names |= {"model": model, "batch": batch, "params": tiny.params(model, batch)}
    exec(compile(code, f"{page}, example {number}", "exec"), names)
    if "get_config" in names:
        config = names["get_config"]()
        kind = schema.kind_of(config)
        parsed = schema.parse(kind, config)
        assert page != "search.md" or parsed.search.grids
        assert kind is ExperimentConfig or parsed.ordered_tasks
    if "open_run" in code:
        assert names["attention"].weights_NHQK.shape[:2] == (2, 2)


# --- Commands ----------------------------------------------------------------------------------------

BASH = re.compile(r"```bash\n(.*?)```", re.DOTALL)
SENTENCE = re.compile(r"`(ag-jax [^`]*--config=[^`]*)`")
# What precedes the verb: the program, the scripts of one host and of SLURM, the image of a container, -- of tpu.sh.
BEFORE = re.compile(r"(?:ag-jax|launch/(?:local|slurm)\.sh|ag_jax:\S+|launch/tpu\.sh run .*?--) (.*)")
# In place of what a reader fills in.
FILLED_IN = {"--config=...": "--config=quickstart", "--config=CONFIG": "--config=quickstart_search"}


def commands(lines: Iterable[str]) -> list[list[str]]:
    """The words after `ag-jax` of each command in some lines, without redirections and what follows them."""
    found = []
    for line in lines:
        if elsewhere := re.search(r'--command[= ]"([^"]*)"', line):
            line = elsewhere[1]
        elif elsewhere := re.search(r'--env COMMAND="([^"]*)"', line):  # of launch/sky.yaml
            line = f"ag-jax {elsewhere[1]}"
        if (match := BEFORE.search(line)) and not line.lstrip().startswith("#"):
            words = shlex.split(
                re.split(" [<>|&]", match[1])[0].translate({ord("["): None, ord("]"): None}), comments=True
            )
            found.append([FILLED_IN.get(word, word.replace("--step=N", "--step=1")) for word in words])
    return [words for words in found if words]


def in_blocks(text: str) -> list[list[str]]:
    return commands(line for block in BASH.findall(text) for line in block.replace("\\\n", "").splitlines())


def in_sentences(text: str) -> list[list[str]]:
    return commands(SENTENCE.findall(" ".join(text.split())))


def of_config(name: str) -> list[list[str]]:
    docstring = ast.get_docstring(ast.parse((test_configs.CONFIGS / name).read_text())) or ""
    return commands(line for line in docstring.splitlines() if line.startswith("    ")) + in_sentences(docstring)


OF_PAGES = {page.name: in_blocks(page.read_text()) for page in PAGES}
OF_PAGES["examples"] = in_blocks(EXAMPLE.read_text())
# In sentences of other pages, commands lack arguments that their configs need.
OF_CONFIGS = {name: of_config(name) for name in test_configs.ALL}
OF_CONFIGS["records"] = in_sentences("\n".join(page.read_text() for page in PAGES if "reproduction" in page.name))
LAST = {
    name.rpartition("/")[0]: name for name in test_configs.ALL
}.values()  # tests/test_configs.py parses every config


def test_commands_are_found():
    assert sum(map(len, OF_PAGES.values())) > 100 and {words[0] for words in OF_CONFIGS["records"]} == {
        "compare",
        "search",
    }
    for name in test_configs.ALL:
        own = f"--config={name.removesuffix('.py')}"
        assert any(word.partition(":")[0] == own for words in OF_CONFIGS[name] for word in words), name


@pytest.fixture(scope="module")
def place_of_commands(readers_place):
    """Add what commands read while they are parsed: texts, runs, a comparison, a search and a pattern."""
    for name in ("train", "dev", "test", "news"):
        for side in ("en", "de"):
            (readers_place / f"{name}.{side}").write_text("one two\n" * 20)
    test_configs.write_corpora(readers_place / "FOLDER")
    runs = readers_place / "runs"
    for name in ("bert", "roberta-base", "imported"):
        shutil.copytree(runs / "quickstart" / "ag-seed0", runs / name)
        stored = json.loads((runs / name / "config.json").read_text())
        stored["model"]["heads"] = 4  # enough heads for guidance
        (runs / name / "config.json").write_text(json.dumps(stored))
    points = {arm: {"settings": {"optimizer.learning_rate": 1e-4}, "validation_loss": 2.0} for arm in ("plain", "ag")}
    (runs / "oromo").mkdir()
    best = {"arguments": {}, "metric": "validation_loss", "arms": points}
    (runs / "oromo" / "best.json").write_text(json.dumps(best))
    for folder in (readers_place / "RUNS", runs / "table3"):
        folder.mkdir()
        (folder / "report.json").write_text(json.dumps({"arms": {"one": {}, "other": {}}, "seeds": [0]}))
    for name, other in (("runs/opus", "mine"), ("SEARCH", "oromo"), ("RUNS/1024", "roberta-base")):
        (readers_place / name).symlink_to(runs / other)
    code = "from ag_jax.attention.patterns import PATTERNS\n\nsecond = PATTERNS['first']\n"
    (readers_place / "my_patterns.py").write_text(code)
    return readers_place


@pytest.mark.parametrize("page", [page for page, found in OF_PAGES.items() if found])
def test_commands_have_verbs_flags_configs_and_settings_that_exist(page, place_of_commands, monkeypatch, capsys):
    monkeypatch.chdir(place_of_commands)
    monkeypatch.syspath_prepend(str(place_of_commands))
    for words in OF_PAGES[page]:
        if words[0] in ("help", "configs"):
            assert main.main(["ag-jax", *words]) == 0, words
            continue
        config = getattr(parser.parse(words), "config", None)
        config = config and config.settings
        if isinstance(config, FinetuningConfig) and config.checkpoint.startswith(("runs/quickstart", "runs/asa")):
            assert {recipe.max_length for recipe in config.tasks.values()} == {64}  # the quickstart's positions


def check_command(words: list[str]) -> None:
    """Parse a command and its config, with all arms, points and tasks, as `--print_config` does before it prints."""
    has_config = any(word.startswith("--config=") for word in words)
    verb = parser.parse(
        [*words, *(["--print_config"] if has_config else [])]
    )  # the commands of records have no --workdir
    if has_config:
        cli.run_verb(verb)


@pytest.mark.parametrize("name", some(OF_CONFIGS, *LAST))
def test_commands_in_docstrings_and_of_records_exist(name, place_of_commands, monkeypatch):
    monkeypatch.chdir(place_of_commands)
    for words in OF_CONFIGS[name]:
        check_command(words)


@pytest.mark.parametrize(
    ("command", "named"),
    [
        ("compare --config=quickstart --workdri=DIR", "workdri"),
        ("compare --config=roberta/table1_masking:scael=small --workdir=DIR", "scael"),
        ("compare --config=ag/table6_electra --config.data.sorce=BOOKS --workdir=DIR", "sorce"),
        ("compare --config=modern/guidance --config.comparison.arms=none,al --workdir=DIR", "al"),
        ("train --config=finetune/glue:checkpoint=CHECKPOINT --workdir=DIR", "fine-tuning"),
        ("train --config=quickstart:arm=ag --topology=v5e:2x4 --workdir=DIR", "--topology"),
    ],
)
def test_slips_in_commands_are_found(command, named, place_of_commands, monkeypatch):
    monkeypatch.chdir(place_of_commands)
    with pytest.raises((ValueError, OSError, flags.Error), match=named):
        check_command(command.split())
