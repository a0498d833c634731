"""Config files: their arguments, errors in them, and the command lines that change their settings."""

import json
import shlex

import pytest

from ag_jax import main
from ag_jax.command_line import parser
from ag_jax.pretraining import arms
from ag_jax.settings import config_files, schema
from ag_jax.settings.config_files import load
from tests.test_schema import Part, Whole

FILE = """
from ag_jax.settings import schema
from ag_jax.settings.config_files import ListOf, OneOf
from tests.test_schema import Part, Whole

TASKS = ("rte", "sst2")

def get_config(
    *, title: str = "", layers: OneOf(12, 8) = 12, tasks: ListOf(*TASKS) = ("rte",), seeds: int = 5, deep: bool = False
):
    config = schema.default(Whole)
    config.title = title
    config.parts.first = schema.default(Part)
    return config
"""


@pytest.fixture
def source(tmp_path) -> str:
    path = tmp_path / "c.py"
    path.write_text(FILE)
    return str(path)


def test_arguments(source):
    """An item without `=` belongs to the name before it."""
    assert load(source).arguments == {"title": "", "layers": 12, "tasks": ("rte",), "seeds": 5, "deep": False}
    found = load(f"{source}:title=a,b, layers=8,tasks=rte,sst2,deep=true")
    assert found.arguments == {"title": "a,b", "layers": 8, "tasks": ("rte", "sst2"), "seeds": 5, "deep": True}
    assert found.settings.title == "a,b"
    for text, named in (
        ("layers=9", "layers .*12, 8, got '9'"),
        ("layer=8", "'layer'.*'layers'"),
        ("tasks=rte,sst3", "tasks .*got 'sst3'; did you mean 'sst2'"),
        ("seeds=many", "seeds .*'many'"),
        ("8,layers=12", "'8'"),
    ):
        with pytest.raises(ValueError, match=f"--config={source}:{text}: .*{named}"):
            load(f"{source}:{text}")


def test_an_argument_without_a_default_must_be_given(source, tmp_path):
    needing = tmp_path / "needing.py"
    needing.write_text(FILE.replace('title: str = ""', "title: str"))
    assert load(f"{needing}:title=x=y").settings.title == "x=y"
    with pytest.raises(ValueError, match="argument title is missing: give .*needing.py:title=VALUE"):
        load(str(needing))


def test_one_argument_is_replaced(source):
    config = load(f"{source}:tasks=rte,sst2,title=a", {"other.count": 7})
    changed = config.with_argument("title", "b")
    assert changed.source == f"{source}:tasks=rte,sst2,title=b" and changed.settings.other == Part(count=7)
    assert changed.arguments == config.arguments | {"title": "b"} and changed.texts == {
        "tasks": "rte,sst2",
        "title": "b",
    }
    assert config.with_overrides({"other.count": 8}).settings.other == Part(count=8)
    assert config.settings.other == Part(count=7)


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("def get_config(:\n", "c.py, line 1: SyntaxError"),
        (b"x = '\xe9'\n", "c.py, line 1: SyntaxError: .*utf-8"),
        (b"x = 1\0", "c.py: SyntaxError"),
        ("get_config = 3", "c.py has no function get_config"),
        ("\nimport not_there", "c.py, line 2: ModuleNotFoundError: .*'not_there'"),
        ("import helper_of_a_config", "helper_of_a_config.py, line 1: SyntaxError"),
        ("import sys\ndef get_config(*, x: str):\n    sys.exit(0)", "c.py, line 3: SystemExit: 0"),
        ("def get_config(argument=''): pass", r"c.py: .*get_config\(\*, arm: OneOf.*get_config\(argument=''\)"),
        ("def get_config(*, x): pass", "c.py: .*argument x .*annotation"),
        ("def get_config(*, x: dict): pass", "c.py: .*argument x .*annotation .*dict"),
        ("def get_config(*, x: Unknown): pass", "c.py, line 1: NameError"),
        ("def get_config(*, x: str):\n    {}['x']", "c.py, line 2: KeyError: x"),
        ("def get_config(*, x: str):\n    raise ValueError('no such arm')", "c.py, line 2: no such arm"),
        ("def get_config(*, x: str):\n    return get_config(x=x)", "c.py, line 2: RecursionError"),
        (
            FILE.replace("title: str", "x: str, title: str").replace("config.title = title", "config.other.cuont += 1"),
            "c.py, line 12: AttributeError: .*count",
        ),
        ("def get_config(*, x: str): return {'title': 'x'}", "c.py:x=x: .*default.*dict"),
    ],
)  # fmt: skip
def test_a_broken_file_is_named_with_the_line(tmp_path, monkeypatch, capsys, content, named):
    """The command ends with status 2, even if the file calls `sys.exit(0)`."""
    (tmp_path / "helper_of_a_config.py").write_text("x = (\n")
    (tmp_path / "c.py").write_bytes(content if isinstance(content, bytes) else content.encode())
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ValueError, match=f"(?is)^{tmp_path}.*{named}"):
        load(f"{tmp_path / 'c.py'}:x=x")
    assert main.main(["ag-jax", "train", f"--config={tmp_path / 'c.py'}:x=x"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"ag-jax: {tmp_path}") and "Traceback" not in error


def test_a_section_with_two_names_is_changed_under_one(tmp_path):
    path = tmp_path / "config.py"
    path.write_text(
        FILE.replace("    return config", "    config.parts.second = config.parts.first\n    return config")
    )
    found = load(str(path), {"parts.second.count": 2}).settings
    assert found.parts == {"first": Part(), "second": Part(count=2)}


def test_settings_that_are_computed_from_others(tmp_path):
    """A flag changes the setting that it names, and those that the file computes from it unless a flag names them."""
    path = tmp_path / "c.py"
    computed = """config.parts.first.count = config.other.get_ref("count") * 2
    config.parts.second = schema.default(Part)
    config.parts.second.rates = (config.parts.first.get_ref("count") / 10, 0.5)
    return config"""
    path.write_text(FILE.replace("return config", computed))
    config = load(str(path))
    for count, overrides in ((2, {}), (14, {"other.count": 7}), (3, {"other.count": 7, "parts.first.count": 3})):
        settings = config.with_overrides(overrides).settings
        expected = Part(count=count), Part(rates=(count / 10, 0.5)), Part(count=overrides.get("other.count", 1))
        assert (settings.parts["first"], settings.parts["second"], settings.other) == expected
    assert config.with_overrides({"other.count": 7}).values == config.values  # those of the file
    assert config.values["parts"]["second"]["rates"] == [0.2, 0.5]
    path.write_text(
        FILE.replace(
            "return config",
            """config.parts.first.count = config.other.get_ref("count")
    return config""",
        )
    )
    with pytest.raises(ValueError, match="is computed from another"):  # the two are one setting
        _ = load(str(path), {"parts.first.count": 3, "other.count": 7}).settings
    for value in ("x", 1.5, None, 2**31):
        with pytest.raises(ValueError, match=r": other\.count must be"):
            _ = config.with_overrides({"other.count": value}).settings


def test_settings_of_the_command_line_win(source):
    config = load(f"{source}:title=x", {"parts.first.rates": (0.25, 1.0), "other.count": 7}).settings
    assert config == Whole("x", {"first": Part((0.25, 1.0))}, Part(count=7))
    with pytest.raises(ValueError, match=f"--config={source}: other.count .*'x'"):
        _ = load(source, {"other.count": "x"}).settings


def test_a_config_file_is_executed_once(tmp_path, capsys):
    path, executed = tmp_path / "c.py", tmp_path / "executed"
    path.write_text(
        "from ag_jax.pretraining import config\n"
        "def get_config():\n"
        f"    with open({str(executed)!r}, 'a') as file:\n        file.write('x')\n"
        "    return config.default_config()\n"
    )
    arguments = ["train", f"--config={path}", "--config.seed=3", "--config.training.profile=4,5", "--print_config"]
    assert main.main(["ag-jax", *arguments]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["seed"], printed["training"]["profile"]) == (3, [4, 5]) and executed.read_text() == "x"
    path.write_text(path.read_text().replace("config.default_config()", "{}"))
    with pytest.raises(ValueError, match="default"):  # a file that has changed is executed again
        load(str(path))


def test_configs_of_the_package_are_found_by_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    quickstart = config_files.packaged()["quickstart"]
    for name in ("quickstart", "quickstart.py", "configs/quickstart.py", "configs/quickstart"):
        assert config_files.find(name) == quickstart
    assert load("quickstart:arm=plain").settings.model.layers == 8
    assert load("finetune/glue:checkpoint=C,tasks=rte,sst2").settings.checkpoint == "C"
    assert config_files.find("nowhere/quickstart") is None
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "quickstart.py").write_text(FILE)  # the given path comes first
    (tmp_path / "c.txt").write_text(FILE)
    assert load("configs/quickstart.py:title=x").settings.title == "x"
    for name, named in (("quikstart", "mean quickstart"), ("configs", "config file"), ("c.txt", "config file")):
        with pytest.raises(ValueError, match=f"--config={name} .*{named}"):
            load(name)


def test_flags_are_read_as_the_values_that_they_were_made_of():
    """Of lists of texts, each text has a flag of its own."""
    source = "finetune/own:checkpoint=c,train=a.csv"
    overrides = {
        "tasks.own.custom.labels": ("two, or 'three'", "a,b", "3"),
        "seeds": (0, 1),
        "tasks.own.sweep.dropout": (),
        "title": "two, or 'three'",
        "tasks.own.clip_norm": None,
        "fresh": True,
        "tasks.own.learning_rates": (1e-05,),
    }
    given = schema.flags(overrides)
    assert given[1] == "--config.tasks.own.custom.labels=a,b" and "--config.seeds=0,1" in given
    assert "--config.tasks.own.sweep.dropout=" in given
    assert schema.shown((0, 1)) == "0,1" and schema.shown(()) == "()"
    command = shlex.split(arms.command("compare", load(source, overrides)))
    assert command == ["ag-jax", "compare", f"--config={source}", *given]
    verb = parser.parse([*command[1:], "--workdir=w"])
    assert verb.config.overrides == overrides and verb.config == load(source, overrides)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["trian"], "trian; did you mean train"),
        (["--config=quickstart", "train"], "a verb as the first word .*, got --config=quickstart"),
        (["train", "quickstart"], "got quickstart"),
        (["train", "--workdir=w"], "needs --config=CONFIG"),
        (["train", "--config=quickstart"], "needs --workdir=DIR"),
        (["evaluate", "--workdir="], "needs --workdir=DIR"),
        (["translate", "--workdir=w", "--input=-"], "needs --output=FILE"),
        (["train", "--config"], "--config needs"),
        (["train", "--config=quickstart", "--config", "quickstart:arm=ag"], "--config .*once"),
        (["train", "--config.title=t"], "add --config=FILE"),
        (["train", "--config=not/there.py"], "not/there.py"),
        (["train", "--config=quickstart", "--config.guidance.alfa=3"], "'guidance.alfa'; .*'guidance.alpha'"),
        (["train", "--config=quickstart", "--noconfig.data.shufle"], "'data.shufle'"),
        (["train", "--config=quickstart", "--config.=3"], "''"),
        (["train", "--config=quickstart", "--config.modl.layers=3"], "did you mean 'model.layers'"),
        (["train", "--config=quickstart", "--config.x=3"], "expected one of adversarial, comparison, data, decoder"),
        (["train", "--config=quickstart", "--config.training=3"], "training is a section"),
        (["train", "--config=quickstart", "--config.title=\udcff"], "UTF-8"),
        (["train", "--config=quickstart", "--config.training.tensorboard=x"], "training.tensorboard.*True or False"),
        (["train", "--config=quickstart", "--guidance.alpha=3"], "--config.guidance.alpha"),
        (["train", "--config=quickstart", "--config.comparison.seeds=1"], "only `ag-jax compare` reads it"),
        (["train", "--config=quickstart", "--part=1/4"], "`ag-jax train` has no flag --part"),
        (["train", "--config=quickstart", "--workdr=w"], "did you mean --workdir"),
        (["translate", "--config=quickstart", "--workdir=w"], "`ag-jax translate` reads no --config"),
        (["export", "--workdir=w", "--to=t", "--noretry"], "no flag --noretry|no flag --retry"),
        (["export", "--workdir=w", "--to=t", "--dtype=float64"], "--dtype must be one of float32"),
        (["evaluate", "--workdir=w", "--step=bets"], "--step must be .*did you mean 'best'"),
        (["evaluate", "--workdir=w", "--workdir=v"], "--workdir .*once"),
        (["export", "--workdir=w", "--to=t", "--format=run", "--push=me"], "--push applies to Hugging Face models"),
        (["inspect", "--workdir=w", "--coordinator=x:1"], "no flag --coordinator, which only train, .* read"),
        (["train", "--config=quickstart", "--workdir=w", "--join_timeout=0"], "--join_timeout must be .*at least 1"),
        (["plan", "--config=quickstart", "--topology=v4-8", "--price=-1"], "--price must be .*at least 0"),
    ],
)  # fmt: skip
def test_wrong_command_lines(arguments, named, capsys):
    assert main.main(["ag-jax", *arguments]) == 2
    (message,) = capsys.readouterr().err.splitlines()
    import re

    assert re.match(f"ag-jax: .*({named})", message), message


def test_values_of_a_grid_are_set_by_flags():
    changed = ["--config.search.grids.ag.optimizer.warmup_steps=0,100"]
    verb = parser.parse(["search", "--config=quickstart_search", "--workdir=w", *changed])
    assert verb.config.settings.search.settings_of("ag")["optimizer.warmup_steps"] == [0, 100]


def test_a_verb_has_the_values_of_its_flags():
    verb = parser.parse(["inspect", "--workdir", "w", "--html", "--heads=3.2,4.1", "--step=1e1"])
    assert (verb.workdir, verb.html, verb.heads, verb.step, verb.layers) == ("w", "maps.html", ("3.2", "4.1"), 10, ())
    assert parser.parse(["inspect", "--workdir=w", "--html=x.html"]).html == "x.html"
    verb = parser.parse(["plan", "--config", "quickstart:arm=plain", "--topology=v4-8", "--nosearch_batch"])
    assert (verb.config.source, verb.search_batch, verb.price, verb.workdir) == (
        "quickstart:arm=plain",
        False,
        None,
        None,
    )
