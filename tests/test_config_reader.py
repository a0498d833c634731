"""The config reader: dataclasses to configs and back, rejected settings, arguments, files and flags."""

import dataclasses
import json
import shlex
from typing import Annotated, Literal

import pytest

from ag_jax import config_reader, main
from ag_jax.command_line import verbs
from ag_jax.config_reader import arguments, flat, load, parse, read_flags, with_argument
from ag_jax.pretraining import arms


@dataclasses.dataclass(frozen=True)
class Part:
    """A config section that occurs several times in a config."""

    rates: tuple[float, ...] = (0.5,)
    count: int = 1

    def __post_init__(self):
        if self.count < 1:
            raise ValueError(f"count must be at least 1, got {self.count}")


@dataclasses.dataclass(frozen=True)
class Whole:
    """A config with named parts."""

    title: str = "whole"
    parts: dict[str, Part] = dataclasses.field(default_factory=dict)
    other: Part = Part()


@dataclasses.dataclass(frozen=True)
class Typed:
    """Settings whose annotations say which values are allowed."""

    mode: Literal["none", "loss"] = "none"
    share: Annotated[float, "> 0", "<= 1"] = 0.5
    width: Annotated[int, ">= 1"] | None = None
    kind: Literal["float32", "bfloat16"] | None = None
    place: str | None = None
    clip: Annotated[float, "> 0"] | None = 1.0
    steps: tuple[Annotated[int, ">= 0"], ...] = (0,)
    inner: Part = Part()


@dataclasses.dataclass(frozen=True)
class Typeds:
    """A config with sections of `Typed`, one with a name and several without."""

    one: Typed = Typed()
    many: dict[str, Typed] = dataclasses.field(default_factory=dict)


FILE = """
from ag_jax import config_reader
from tests.test_config_reader import Part, Whole

def get_config(argument=""):
    config = config_reader.default(Whole)
    config.title = argument
    config.parts.first = config_reader.default(Part)
    return config
"""


@pytest.fixture
def source(tmp_path) -> str:
    path = tmp_path / "c.py"
    path.write_text(FILE)
    return str(path)


def test_named_parts_survive():
    whole = Whole(parts={"a": Part(count=3), "b": Part(rates=(1.0, 2.0))})
    values = config_reader.to_dict(whole)
    assert values["parts"]["a"] == {"rates": [0.5], "count": 3}
    assert parse(Whole, values) == whole
    assert parse(Whole, config_reader.default(Whole)) == Whole()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"parts": {"a": {"cuont": 1}}}, "unknown setting 'parts.a.cuont'; did you mean 'parts.a.count'"),
        ({"parts": {"a": {"count": 0}}}, "^parts.a.count must be at least 1, got 0"),
        ({"parts": {"a": {"count": "x"}}}, "^parts.a.count must be a whole number"),
        ({"parts": {"a": {"rates": (1, "x")}}}, "^parts.a.rates must be a finite number"),
        ({"parts": {"a": 3}}, "parts.a is a section of settings, got the value 3: set parts.a.NAME=VALUE instead"),
        ({"parts": 3}, "parts is a section of settings, got the value 3"),
        ({"parst": {}}, "did you mean 'parts'"),
    ],
)
def test_what_is_wrong_is_named(values, message):
    with pytest.raises(ValueError, match=message):
        parse(Whole, values)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mode": "los"}, "^one.mode must be one of none, loss, got 'los'"),
        ({"mode": None}, "^one.mode must be one of none, loss, got None"),
        ({"share": 0}, "^one.share must be above 0 and at most 1, got 0"),
        ({"share": 1.5}, "^one.share must be above 0 and at most 1, got 1.5"),
        ({"share": float("nan")}, "^one.share must be a finite number, got nan"),
        ({"share": None}, "^one.share must be a finite number, got None"),
        ({"width": 0}, "^one.width must be at least 1, or none, got 0"),
        ({"width": 1.5}, "^one.width must be a whole number, or none, got 1.5"),
        ({"width": True}, "^one.width must be a whole number, or none, got True"),
        ({"kind": "float16"}, "^one.kind must be one of float32, bfloat16, or none, got 'float16'"),
        ({"clip": 0}, "^one.clip must be above 0, or none, got 0"),
        ({"steps": (1, -1)}, "^one.steps must be at least 0, got -1"),
    ],
)
def test_annotations_say_what_is_allowed(settings, message):
    with pytest.raises(ValueError, match=message):
        parse(Typeds, {"one": settings})
    with pytest.raises(ValueError, match=message):
        config_reader.check(Typeds(one=Typed(**settings)))
    with pytest.raises(ValueError, match=message.replace("^one", "^many.a")):
        config_reader.check(Typeds(many={"a": Typed(**settings)}))


def test_none_is_written_as_a_word():
    values = {"one": {"width": "none", "kind": "none", "place": "none", "clip": None, "mode": "none"}}
    assert parse(Typeds, values).one == Typed(clip=None)
    assert parse(Typeds, {"one": {"width": 3, "clip": 2}}).one == Typed(width=3, clip=2.0)


def test_the_kind_of_a_config_is_that_of_its_keys():
    assert config_reader.kind_of({"title": "x", "parts": {}, "tilte": 1}, (Part, Whole)) is Whole
    assert config_reader.kind_of({"count": 3, "titel": 1}, (Whole, Part)) is Part
    assert config_reader.kind_of({}, (Whole, Part)) is Whole


def test_flags_are_checked_against_the_file(source):
    read_flags(["train", f"--config={source}:x", "--config.parts.first.count=3", "--workdir=w"])
    read_flags(["train", "--config", source, "--config.title=t"])
    read_flags(["train", "--workdir=w"])
    with pytest.raises(ValueError, match="unknown setting 'parts.first.cout'; did you mean 'parts.first.count'"):
        read_flags(["--config", source, "--config.parts.first.cout=3"])
    with pytest.raises(ValueError, match="did you mean 'parts.first.count'"):
        read_flags([f"--config={source}", "--config.parts.frist.count=3"])
    with pytest.raises(ValueError, match="but none is given: add --config=FILE"):
        read_flags(["--config.title=t"])
    with pytest.raises(ValueError, match="--config is given more than once"):
        read_flags([f"--config={source}", "--config", source])
    with pytest.raises(ValueError, match="not/there.py does not exist"):
        read_flags(["--config=not/there.py", "--config.title=t"])


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("def get_config(:\n", "c.py, line 1: SyntaxError: invalid syntax"),
        ("if 1:\n        x = 1\n\ty = 2\n", "c.py, line 3: TabError"),
        (b"x = '\xe9'\n", "c.py, line 1: SyntaxError: .*utf-8"),
        (b"x = 1\0", "c.py: SyntaxError: .*null bytes"),
        ("", "c.py has no function get_config"),
        ("get_config = 3", "c.py has no function get_config"),
        ("\nimport not_there", "c.py, line 2: ModuleNotFoundError: No module named 'not_there'"),
        ("import helper_of_a_config", "helper_of_a_config.py, line 1: SyntaxError"),
        ("import sys\nsys.exit(0)", "c.py, line 2: SystemExit: 0"),
        ("import sys\ndef get_config(argument=''):\n    sys.exit(0)", "c.py, line 3: SystemExit: 0"),
        ("def get_config(one, two): pass", "c.py: TypeError: get_config.* missing 1 required positional argument"),
        ("def get_config(_):\n    {}['x']", "c.py, line 2: KeyError: x"),
        ("def get_config(_):\n    raise ValueError('no such arm')", "c.py, line 2: no such arm"),
        ("def get_config(_):\n    raise ValueError", "c.py, line 2: ValueError: "),
        ("def get_config(_):\n    return get_config(_)", "c.py, line 2: RecursionError"),
        (
            FILE.replace("config.title = argument", "config.other.cuont += 1"),
            "c.py, line 7: AttributeError: .*did you mean .count",
        ),
        ("def get_config(_): pass", "c.py: get_config must return a ConfigDict, .* got NoneType"),
        ("def get_config(_): return {'title': 'x'}", "c.py: get_config must return a ConfigDict, .* got dict"),
        (
            FILE.replace("return config", "return config_reader.FrozenConfigDict(config)"),
            "c.py: get_config must return a ConfigDict",
        ),
    ],
)
def test_a_broken_file_is_named_with_the_line(tmp_path, monkeypatch, capsys, content, said):
    """A broken config file ends in one error that names it, and status 2, even if the file calls `sys.exit(0)`."""
    (tmp_path / "helper_of_a_config.py").write_text("x = (\n")
    (tmp_path / "c.py").write_bytes(content if isinstance(content, bytes) else content.encode())
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ValueError, match=f"(?is)^{tmp_path}.*{said}"):
        load(f"{tmp_path / 'c.py'}:x")
    assert main.main(["ag-jax", "train", f"--config={tmp_path / 'c.py'}:x"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"ag-jax: {tmp_path}") and "Traceback" not in error


def test_what_is_no_file_of_python(tmp_path):
    (tmp_path / "d.py").mkdir()
    (tmp_path / "c.txt").write_text(FILE)
    for name in ("d.py", "c.txt"):
        with pytest.raises(ValueError, match=f"--config={tmp_path / name} is no Python file"):
            load(str(tmp_path / name))


def test_whole_numbers_have_32_bits():
    assert parse(Part, {"count": 2**31 - 1}) == Part(count=2**31 - 1)
    with pytest.raises(ValueError, match="count must be between -2147483647 and 2147483647, got "):
        parse(Part, {"count": 99999999999999999999})
    with pytest.raises(ValueError, match="rates must be a finite number"):
        parse(Part, {"rates": (10**400,)})


def test_a_section_with_two_names_is_changed_under_one(tmp_path):
    path = tmp_path / "config.py"
    path.write_text(
        "from ml_collections import ConfigDict\n"
        "def get_config():\n"
        "    inner = {'rate': 1.0}\n"
        "    return ConfigDict({'one': {'inner': inner}, 'other': {'inner': inner}, 'third': inner})\n"
    )
    found = load(str(path), {"other.inner.rate": 2.0}).to_dict()
    assert found == {"one": {"inner": {"rate": 1.0}}, "other": {"inner": {"rate": 2.0}}, "third": {"rate": 1.0}}


def test_settings_of_the_command_line_win(source):
    config = parse(Whole, load(f"{source}:arm=x", {"parts.first.rates": (0.25, 1.0), "other.count": 7}))
    assert config == Whole("arm=x", {"first": Part((0.25, 1.0))}, Part(count=7))


def test_arguments():
    choices = {"layers": (12, 8, 16), "arm": ("ag", "mlm")}
    assert vars(arguments("", **choices)) == {"layers": 12, "arm": "ag"}
    assert vars(arguments("arm=mlm,layers=8", **choices)) == {"layers": 8, "arm": "mlm"}
    assert vars(arguments("arm=mlm, layers=8", **choices)) == {"layers": 8, "arm": "mlm"}
    with pytest.raises(ValueError, match="layers must be one of 12, 8, 16, got '9'"):
        arguments("layers=9", **choices)
    with pytest.raises(ValueError, match="unknown setting 'layer'; did you mean 'layers'"):
        arguments("layer=8", **choices)
    with pytest.raises(ValueError, match="arm must be one of ag, mlm, got 'ag,mlm'"):
        arguments("arm=ag,mlm", **choices)
    with pytest.raises(ValueError, match="unknown setting 'ag'"):
        arguments("ag,arm=mlm", **choices)


def test_lists_are_written_with_commas():
    """An item without `=` belongs to the name before it."""
    found = arguments("tasks=rte,sst2,seeds=2,data=a,b/c", tasks="all", seeds=5, data="")
    assert vars(found) == {"tasks": "rte,sst2", "seeds": 2, "data": "a,b/c"}
    assert config_reader.listed(found.tasks) == ("rte", "sst2")
    assert with_argument("c.py:tasks=rte,sst2,arm=a,data=d", "arm", "b") == "c.py:tasks=rte,sst2,data=d,arm=b"
    assert with_argument("c.py:tasks=rte,sst2,data=d", "tasks", "x") == "c.py:data=d,tasks=x"
    assert config_reader.shown((0, 1)) == "0,1" and config_reader.shown(()) == "()"


def test_a_config_file_is_executed_once(tmp_path, capsys):
    path, executed = tmp_path / "c.py", tmp_path / "executed"
    path.write_text(
        "from ag_jax.pretraining import config\n"
        f"with open({str(executed)!r}, 'a') as file:\n    file.write('x')\n"
        "def get_config(argument=''):\n    return config.default_config()\n"
    )
    arguments = ["train", f"--config={path}", "--config.seed=3", "--config.training.profile=4,5", "--print_config"]
    assert main.main(["ag-jax", *arguments]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["seed"], printed["training"]["profile"]) == (3, [4, 5]) and executed.read_text() == "x"
    path.write_text(path.read_text().replace("config.default_config()", "{}"))
    with pytest.raises(ValueError, match="must return a ConfigDict"):  # a file that has changed is executed again
        load(str(path))


def test_configs_of_the_package_are_found_by_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    quickstart = config_reader.packaged()["quickstart"]
    for name in ("quickstart", "quickstart.py", "configs/quickstart.py", "configs/quickstart"):
        assert config_reader.find(name) == quickstart and load(f"{name}:arm=mlm").model.layers == 8
    assert load("finetune/glue:checkpoint=C,tasks=rte,sst2").checkpoint == "C"
    assert config_reader.find("nowhere/quickstart") is None
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "quickstart.py").write_text(FILE)  # the given path comes first
    assert load("configs/quickstart.py:x").title == "x"
    with pytest.raises(ValueError, match="--config=quikstart does not exist: give a config file"):
        load("quikstart")


def test_arguments_that_any_value_may_take_the_place_of():
    assert vars(arguments("", seeds=5, data="here")) == {"seeds": 5, "data": "here"}
    assert vars(arguments("seeds=2,data=a/b", seeds=5, data="here")) == {"seeds": 2, "data": "a/b"}
    assert vars(arguments("run=a=b", run=str)) == {"run": "a=b"}
    with pytest.raises(ValueError, match="seeds must be a whole number, got 'many'"):
        arguments("seeds=many", seeds=5)
    with pytest.raises(ValueError, match="needs the argument run"):
        arguments("", run=str)


def test_one_argument_is_replaced():
    assert with_argument("a/b.py", "arm", "mlm") == "a/b.py:arm=mlm"
    assert with_argument("a/b.py:layers=8,arm=ag,scale=small", "arm", "mlm") == "a/b.py:layers=8,scale=small,arm=mlm"


def test_flat():
    assert flat({"a": {"b": 1, "c": {"d": 2}}, "e": 3}) == {"a.b": 1, "a.c.d": 2, "e": 3}


def test_flags_are_read_as_the_values_that_they_were_made_of():
    """Of lists of texts, each text has a flag of its own; one with a comma or space is in quotes."""
    tests = ("news=n.en=n.de", "talks=my talks.en=talks,de.gz", "a,b", "3", "")
    overrides = {
        "translation.tests": tests,
        "comparison.seeds": (0, 1),
        "training.profile": (7, 9),
        "training.milestones": (),
        "search.rungs": (0.25,),
        "title": "two, or 'three'",
        "optimizer.clip_norm": None,
        "training.keep_best": True,
        "optimizer.learning_rate": 1e-05,
    }
    given = config_reader.flags(overrides)
    assert given[0] == "--config.translation.tests=news=n.en=n.de" and "--config.comparison.seeds=0,1" in given
    assert "--config.training.milestones=" in given
    command = shlex.split(arms.command("compare", "quickstart", overrides))
    assert command == ["ag-jax", "compare", "--config=quickstart", *given]
    assert verbs.parse(command[1:])[1]["overrides"] == overrides


def test_a_config_file_whose_function_has_no_parameter_takes_no_arguments(tmp_path, capsys):
    path = tmp_path / "c.py"
    path.write_text(
        '"""A config."""\nfrom ag_jax.pretraining import config\n'
        "def get_config():\n    return config.default_config()\n"
    )
    assert config_reader.choices_of(str(path)) == config_reader.values_of(str(path)) == {}
    assert main.main(["ag-jax", "help", str(path)]) == 0
    assert capsys.readouterr().out == "A config.\n\nThis config takes no arguments of the form name=value.\n"
