"""The pages of the documentation: all are reachable from the README, no link is broken, their Python code runs, and
their commands are those of the program. So are the commands of records, and those in the docstrings of config files.
"""

import ast
import dataclasses
import itertools
import json
import pathlib
import re
import shlex
import shutil
from collections.abc import Iterable, Iterator

import jax
import jax.numpy as jnp
import pytest
from absl import flags

from ag_jax import cli, config_reader, main
from ag_jax.command_line import verbs
from ag_jax.data import pipeline
from ag_jax.data.config import DataConfig, TokenizerConfig
from ag_jax.finetuning.config import FinetuningConfig, Recipe
from ag_jax.finetuning.job import make_head
from ag_jax.interop import finetuned
from ag_jax.interop.finetuned import FineTuned
from ag_jax.models.config import DecoderConfig
from ag_jax.models.decoding_config import DecodingConfig
from ag_jax.pretraining import run, workloads
from ag_jax.pretraining.config import ExperimentConfig
from tests import test_configs, tiny
from tests.finetuning import tasks
from tests.probing import trained_models

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")])
ONLY_ON_THE_SITE = {"index.md"}  # lists the pages of the site
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")  # without those to other places, which have a colon


def targets(page):
    return [(page.parent / link).resolve() for link in LINK.findall(page.read_text())]


def test_every_page_is_linked_from_the_readme():
    pages = {page for page in PAGES if page.parent.name == "docs" and page.name not in ONLY_ON_THE_SITE}
    assert pages <= set(targets(ROOT / "README.md"))


def test_the_settings_with_which_a_run_may_be_resumed_are_all_listed():
    """A name without a section is of the section of the name before it."""
    _, after = (ROOT / "docs" / "guide.md").read_text().split("Only the following settings may differ")
    listed, section = set(), ""
    for row in re.findall(r"^\| (`.*?) \|", after.split("All other settings")[0], re.MULTILINE):
        for name in re.findall("`(.*?)`", row):
            if "." in name:
                section = name.split(".")[0]
            listed.add(name.removesuffix("*") if "." in name or name == "title" else f"{section}.{name}")
    known = config_reader.flat(config_reader.to_dict(ExperimentConfig()))
    may_differ = {key for key in known if config_reader.is_among(key, run.MAY_DIFFER)}
    expected = may_differ | {"data.validation_rows"}  # under a condition, which is in the table, too
    assert {key for key in known if config_reader.is_among(key, listed)} == expected


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    assert [target for target in targets(page) if not target.exists()] == []


def test_the_attack_of_ones_own_masks_what_its_page_says():
    """The custom attack masks n of the n * n units of a text of n tokens."""
    page = (ROOT / "docs" / "adversarial.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names = {"__name__": "page"}
    exec(code, names)
    model, batch = tiny.task_model("classification"), tiny.task_batch("classification")
    objective = names["attacked"](tiny.supervised(model), model.config.layers)
    rngs = {"dropout": jax.random.key(0)}
    outcome = tiny.evaluate(objective, tiny.params(model, batch), batch, rngs, jnp.int32(3))
    lengths = (batch["segment_ids"] > 0).sum(-1)
    total_N, weight_N = outcome.metrics["masked/layers"]
    assert total_N.tolist() == [lengths.sum()] * 2 and weight_N.tolist() == [(lengths**2).sum()] * 2
    assert outcome.totals["not_itself"] > 0


@pytest.fixture(scope="module")
def readers_place(tmp_path_factory):
    """Make the folder in which a reader runs the examples: the run of the quickstart, a run that translates, a suite
    with a trial of each task with saved weights, and a file of texts.
    """
    place = tmp_path_factory.mktemp("reader")
    encoder = dataclasses.replace(tasks.pretrained().config, max_length=64)
    tasks.TOKENIZER.save(place / "tokenizer")
    data = DataConfig(sequence_length=64, tokenizer=TokenizerConfig(path=str(place / "tokenizer")))
    config = ExperimentConfig(data=data, model=encoder)
    params = tiny.params(workloads.reference_model(config, tasks.TOKENIZER), tiny.batch())
    run.write(config, place / "runs" / "quickstart" / "ag-seed0", tasks.TOKENIZER, params)
    translating = dataclasses.replace(
        config,
        data=dataclasses.replace(data, source="train.en", target="train.de", format="parallel"),
        model=dataclasses.replace(encoder, positions="sinusoidal", position_offset=0, token_types=0),
        decoder=DecoderConfig(layers=1),
        decoding=DecodingConfig(max_length="1.0x+2"),
    )
    params = tiny.params(
        workloads.reference_model(translating, tasks.TOKENIZER), pipeline.empty_batch(translating.data, rows=1)
    )
    run.write(translating, place / "runs" / "mine", tasks.TOKENIZER, params)
    head = make_head(tasks.task("classification"), "roberta", 64)
    tuned = FineTuned(
        head, encoder, tasks.TOKENIZER, tiny.params(head.model(encoder), tiny.task_batch("classification"))
    )
    (place / "mine.txt").write_text("\n".join([" ".join(tasks.WORDS)] * 5))
    suite = FinetuningConfig(checkpoint="runs/mine", tasks={"sst2": Recipe(), "mnli": Recipe()})
    for task in suite.tasks:
        trial = place / "runs" / "glue" / task / "lr2e-05-bs32-seed0"
        finetuned.save(tuned, trial / "weights")
        result = trained_models.SUITE_OF | {"task": task, "examples": {"train": 24, "validation": 9}}
        (trial / "result.json").write_text(json.dumps(result))
    (place / "runs" / "glue" / "config.json").write_text(json.dumps(config_reader.to_dict(suite)))
    return place


PYTHON = re.compile(r"```python\n(.*?)```", re.DOTALL)
EXAMPLES = [
    pytest.param(page.name, number, id=f"{page.name}-{number}")
    for page in PAGES
    for number, _ in enumerate(PYTHON.findall(page.read_text()))
    if page.name != "adversarial.md"  # above
]


@pytest.mark.parametrize(("page", "number"), EXAMPLES)
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
        kind = config_reader.kind_of(config, (FinetuningConfig, ExperimentConfig))
        parsed = config_reader.parse(kind, config)
        assert page != "search.md" or parsed.search.grids
        assert kind is ExperimentConfig or parsed.ordered_tasks
    if "open_run" in code:
        assert names["attention"].weights_NHQK.shape[:2] == (2, 2)


def test_the_examples_are_found():
    assert {page.split("-")[0] for page in (param.id for param in EXAMPLES)} >= {
        "guide.md",
        "pipelines.md",
        "search.md",
        "translation.md",
    }


# --- Commands ----------------------------------------------------------------------------------------

BASH = re.compile(r"```bash\n(.*?)```", re.DOTALL)
# In place of what a reader fills in.
FILLED_IN = {
    "--config=...": "--config=quickstart",
    "--config=CONFIG": "--config=quickstart_search",
    "--step=N": "--step=1",
}
SCRIPTS = {"launch/local.sh"}  # the verb follows
AFTER_DASHES = {"launch/tpu_run.sh", "launch/slurm.sh"}  # the verb follows --


def commands(text: str) -> Iterator[list[str]]:
    """Yield the words after `ag-jax` of each command in the fenced bash blocks of a page."""
    for block in BASH.findall(text):
        yield from commands_of_lines(block.replace("\\\n", "").splitlines())


def commands_of_lines(lines: Iterable[str]) -> Iterator[list[str]]:
    """Yield the words after `ag-jax` of each command in some lines."""
    for line in lines:
        in_container = line.startswith("docker run ")
        if not (in_container or "ag-jax" in line or "launch/" in line) or line.lstrip().startswith("#"):
            continue
        if elsewhere := re.search(r'--command[= ]"([^"]*)"', line):
            line = elsewhere[1]
        words = shlex.split(line.replace("[", "").replace("]", ""), comments=True)
        script = next((word for word in words if word in SCRIPTS), None)
        if AFTER_DASHES & set(words):
            found = words[words.index("--") + 1 :] if "--" in words else []
        elif in_container:
            image = next(at for at, word in enumerate(words) if word.startswith("ag_jax:"))
            found = words[image + 1 :]
        elif script:
            found = words[words.index(script) + 1 :]
        elif "ag-jax" in words:
            found = words[words.index("ag-jax") + 1 :]
        else:
            continue
        # Without redirections and what follows them.
        end = next((at for at, word in enumerate(found) if word[0] in "<>|&"), len(found))
        if found[:end]:
            yield [FILLED_IN.get(word, word) for word in found[:end]]


COMMANDS = [
    pytest.param(words, id=f"{page.name}-{number}")
    for page in PAGES
    for number, words in enumerate(commands(page.read_text()))
]


@pytest.fixture(scope="module")
def place_of_commands(readers_place):
    """Add what commands of the pages read while they are parsed: texts, runs, a comparison, a search and a pattern."""
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
    (runs / "opus").symlink_to(runs / "mine")
    points = {arm: {"settings": {"optimizer.learning_rate": 1e-4}, "validation_loss": 2.0} for arm in ("mlm", "ag")}
    (runs / "oromo").mkdir()
    best = {"arguments": {}, "metric": "validation_loss", "arms": points}
    (runs / "oromo" / "best.json").write_text(json.dumps(best))
    for folder in (readers_place / "RUNS", runs / "table3"):
        folder.mkdir()
        (folder / "report.json").write_text(json.dumps({"arms": {"one": {}, "other": {}}, "seeds": [0]}))
    (readers_place / "my_patterns.py").write_text(
        "from ag_jax.attention.patterns import PATTERNS\n\nsecond = PATTERNS['first']\n"
    )
    return readers_place


@pytest.mark.parametrize("words", COMMANDS)
def test_commands_have_verbs_flags_configs_and_settings_that_exist(words, place_of_commands, monkeypatch, capsys):
    monkeypatch.chdir(place_of_commands)
    monkeypatch.syspath_prepend(str(place_of_commands))
    if words[0] in ("help", "configs"):
        assert main.main(["ag-jax", *words]) == 0
        return
    request = cli.Request(**verbs.parse(words)[1])
    if request.config:
        config = request.checked()
        if isinstance(config, FinetuningConfig) and config.checkpoint.startswith(("runs/quickstart", "runs/asa")):
            assert {recipe.max_length for recipe in config.tasks.values()} == {64}  # the quickstart's positions


def test_commands_are_found():
    assert {param.id.partition("-")[0] for param in COMMANDS} >= {
        page.name for page in PAGES if "ag-jax " in " ".join(BASH.findall(page.read_text()))
    }
    found = list(commands("```bash\nPYTHONPATH=. ag-jax train --a \\\n  --b > c  # d\nls\n```"))
    assert found == [["train", "--a", "--b"]]


# --- Commands in the docstrings of config files ------------------------------------------------------


def commands_of_config(name: str) -> Iterator[list[str]]:
    """Yield the words after `ag-jax` of each command in the docstring of a config, in a line or in a sentence."""
    docstring = ast.get_docstring(ast.parse((test_configs.CONFIGS / name).read_text())) or ""
    yield from commands_of_lines(line for line in docstring.splitlines() if line.startswith("    "))
    yield from commands_in_sentences(docstring)


def commands_in_sentences(text: str) -> Iterator[list[str]]:
    """Yield the words after `ag-jax` of each command with a config that a sentence or a table has between backticks."""
    yield from commands_of_lines(re.findall(r"`(ag-jax [^`]*--config=[^`]*)`", " ".join(text.split())))


# Of this page only: in sentences of other pages, commands lack arguments that their configs need.
ON_REPRODUCTION = list(commands_in_sentences((ROOT / "docs/reproduction.md").read_text()))
OF_CONFIGS = {name: list(commands_of_config(name)) for name in test_configs.ALL}


@pytest.fixture(scope="module")
def place_of_configs(place_of_commands):
    """Add what stands for the words in capitals, and the runs that commands of docstrings go on with."""
    runs = place_of_commands / "runs"
    (place_of_commands / "SEARCH").symlink_to(runs / "oromo")
    (place_of_commands / "RUNS" / "1024").symlink_to(runs / "roberta-base")
    return place_of_commands


def check_command(words: list[str]) -> None:
    """Parse a command and its config, with all arms, points and tasks, as `--print_config` does before it prints."""
    verb, fields = verbs.parse(words)
    request = cli.Request(**fields | {"print_config": True})
    if request.config:
        cli.run_verb(verb, request)


@pytest.mark.parametrize("name", OF_CONFIGS)
def test_commands_in_docstrings_have_verbs_flags_configs_and_settings_that_exist(name, place_of_configs, monkeypatch):
    monkeypatch.chdir(place_of_configs)
    own = f"--config={name.removesuffix('.py')}"
    assert any(word.partition(":")[0] == own for words in OF_CONFIGS[name] for word in words)
    for words in OF_CONFIGS[name]:
        check_command(words)


def test_commands_on_the_page_of_records_are_found():
    assert {words[0] for words in ON_REPRODUCTION} == {"compare", "search"}


@pytest.mark.parametrize("words", ON_REPRODUCTION, ids=itertools.count())
def test_commands_on_the_page_of_records_exist(words, place_of_configs, monkeypatch):
    monkeypatch.chdir(place_of_configs)
    check_command(words)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("trian --config=quickstart --workdir=DIR", "expected one verb of .* got trian"),
        ("compare --config=quickstart --workdri=DIR", "workdri"),
        ("compare --config=quickstrat --workdir=DIR", "quickstrat"),
        ("compare --config=roberta/table1_masking:scael=small --workdir=DIR", "scael"),
        ("compare --config=roberta/table1_masking:arm=statik --workdir=DIR", "statik"),
        ("compare --config=ag/table6_electra --config.data.sorce=BOOKS --workdir=DIR", "sorce"),
        ("compare --config=modern/guidance --config.comparison.arms=none,al --workdir=DIR", "al"),
        ("compare --config=finetune/downstream:runs=RUNS,tasks=mnli,sst3 --workdir=DIR", "sst3"),
        ("compare --config=finetune/downstream:runs=RUN,tasks=mnli --workdir=DIR", "RUN/report.json"),
        ("train --config=finetune/glue:checkpoint=CHECKPOINT --workdir=DIR", "is for fine-tuning"),
        ("train --config=quickstart:arm=ag --topology=v5e:2x4 --workdir=DIR", "does not read --topology"),
    ],
)
def test_slips_in_commands_are_found(command, message, place_of_configs, monkeypatch):
    monkeypatch.chdir(place_of_configs)
    with pytest.raises((ValueError, OSError, flags.Error), match=message):
        check_command(command.split())
