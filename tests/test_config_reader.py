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
    """A section that occurs several times."""

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
    clip: Annotated[float, "> 0", "< 9"] | None = 1.0
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
    assert parse(Whole, values) == whole and parse(Whole, config_reader.default(Whole)) == Whole()
    assert flat({"a": {"b": 1, "c": {"d": 2}}, "e": 3}) == {"a.b": 1, "a.c.d": 2, "e": 3}


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"parts": {"a": {"cuont": 1}}}, "'parts.a.cuont'.*'parts.a.count'"),
        ({"parts": {"a": {"count": 0}}}, "^parts.a.count must be at least 1, got 0"),
        ({"parts": {"a": {"count": "x"}}}, "^parts.a.count"),
        ({"parts": {"a": {"rates": (1, "x")}}}, "^parts.a.rates"),
        ({"parts": {"a": {"rates": 1.0}}}, "^parts.a.rates"),
        ({"parts": {"a": 3}}, "parts.a.NAME"),
        ({"parts": 3}, "parts.NAME"),
        ({"parst": {}}, "'parts'"),
    ],
)
def test_what_is_wrong_is_named(values, named):
    with pytest.raises(ValueError, match=named):
        parse(Whole, values)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"mode": "los"}, "^one.mode .*none, loss, got 'los'"),
        ({"mode": None}, "^one.mode"),
        ({"share": 0}, "^one.share must be above 0 and at most 1, got 0"),
        ({"share": 1.001}, "^one.share"),
        ({"share": float("nan")}, "^one.share"),
        ({"share": None}, "^one.share"),
        ({"width": 0}, "^one.width must be at least 1, or none"),
        ({"width": 1.5}, "^one.width"),
        ({"width": True}, "^one.width"),
        ({"kind": "float16"}, "^one.kind .*float32, bfloat16, or none"),
        ({"clip": 0}, "^one.clip"),
        ({"clip": 9}, "^one.clip must be above 0 and below 9, or none, got 9"),
        ({"steps": (1, -1)}, "^one.steps"),
    ],
)
def test_annotations_say_what_is_allowed(settings, named):
    with pytest.raises(ValueError, match=named):
        parse(Typeds, {"one": settings})
    with pytest.raises(ValueError, match=named):
        config_reader.check(Typeds(one=Typed(**settings)))
    with pytest.raises(ValueError, match=named.replace("^one", "^many.a")):
        config_reader.check(Typeds(many={"a": Typed(**settings)}))


def test_values_are_converted():
    values = {"one": {"width": "none", "kind": "none", "place": "none", "clip": None, "mode": "none"}}
    assert parse(Typeds, values).one == Typed(clip=None)
    assert parse(Typeds, {"one": {"width": 1.0, "share": 1, "steps": [0, 2]}}).one == Typed(
        width=1, share=1.0, steps=(0, 2)
    )
    assert parse(Part, {"count": 2**31 - 1}) == Part(count=2**31 - 1)
    for too_large in (2**31, 10**20):
        with pytest.raises(ValueError, match="count.* 2147483647"):
            parse(Part, {"count": too_large})
        with pytest.raises(ValueError, match="one.width.* 2147483647"):
            parse(Typeds, {"one": {"width": too_large}})
    with pytest.raises(ValueError, match="rates must be a finite number"):
        parse(Part, {"rates": (10**400,)})


def test_the_kind_of_a_config_is_that_of_its_keys():
    assert config_reader.kind_of({"title": "x", "parts": {}, "tilte": 1}, (Part, Whole)) is Whole
    assert config_reader.kind_of({"count": 3, "titel": 1}, (Whole, Part)) is Part
    assert config_reader.kind_of({}, (Whole, Part)) is Whole


def test_flags_are_checked_against_the_file(source):
    rest = ["train", "--config.parts.first.count=3", "--workdir=w"]
    assert read_flags([rest[0], f"--config={source}:x", *rest[1:]])[::2] == (f"{source}:x", rest)
    assert read_flags(["train", "--config", source, "--config.title=t"])[0] == source
    assert read_flags(["train", "--workdir=w"]) == (None, None, ["train", "--workdir=w"])
    for given, named in (
        (["--config", source, "--config.parts.first.cout=3"], "'parts.first.cout'.*'parts.first.count'"),
        ([f"--config={source}", "--config.parts.frist.count=3"], "'parts.first.count'"),
        (["--config.title=t"], "--config=FILE"),
        (["--config"], "--config needs"),
        ([f"--config={source}", "--config", source], "--config .*once"),
        (["--config=not/there.py", "--config.title=t"], "not/there.py"),
    ):
        with pytest.raises(ValueError, match=named):
            read_flags(given)


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("def get_config(:\n", "c.py, line 1: SyntaxError"),
        (b"x = '\xe9'\n", "c.py, line 1: SyntaxError: .*utf-8"),
        (b"x = 1\0", "c.py: SyntaxError"),
        ("get_config = 3", "c.py has no function get_config"),
        ("\nimport not_there", "c.py, line 2: ModuleNotFoundError: .*'not_there'"),
        ("import helper_of_a_config", "helper_of_a_config.py, line 1: SyntaxError"),
        ("import sys\ndef get_config(argument=''):\n    sys.exit(0)", "c.py, line 3: SystemExit: 0"),
        ("def get_config(one, two): pass", "c.py: TypeError: get_config"),
        ("def get_config(_):\n    {}['x']", "c.py, line 2: KeyError: x"),
        ("def get_config(_):\n    raise ValueError('no such arm')", "c.py, line 2: no such arm"),
        ("def get_config(_):\n    return get_config(_)", "c.py, line 2: RecursionError"),
        (FILE.replace("config.title = argument", "config.other.cuont += 1"), "c.py, line 7: AttributeError: .*count"),
        ("def get_config(_): return {'title': 'x'}", "c.py: .*ConfigDict.*dict"),
        (FILE.replace("return config", "return config_reader.FrozenConfigDict(config)"), "c.py: .*ConfigDict"),
    ],
)
def test_a_broken_file_is_named_with_the_line(tmp_path, monkeypatch, capsys, content, named):
    """The command ends with status 2, even if the file calls `sys.exit(0)`."""
    (tmp_path / "helper_of_a_config.py").write_text("x = (\n")
    (tmp_path / "c.py").write_bytes(content if isinstance(content, bytes) else content.encode())
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ValueError, match=f"(?is)^{tmp_path}.*{named}"):
        load(f"{tmp_path / 'c.py'}:x")
    assert main.main(["ag-jax", "train", f"--config={tmp_path / 'c.py'}:x"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"ag-jax: {tmp_path}") and "Traceback" not in error


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
    with pytest.raises(ValueError, match="other.count=x"):
        load(source, {"other.count": "x"})


def test_arguments():
    """An item without `=` belongs to the name before it."""
    choices = {"layers": (12, 8, 16), "arm": ("ag", "mlm")}
    assert vars(arguments("", **choices)) == {"layers": 12, "arm": "ag"}
    assert vars(arguments("arm=mlm, layers=8", **choices)) == {"layers": 8, "arm": "mlm"}
    for text, named in (
        ("layers=9", "layers .*12, 8, 16, got '9'"),
        ("layer=8", "'layer'.*'layers'"),
        ("arm=ag,mlm", "arm .*got 'ag,mlm'"),
        ("ag,arm=mlm", "'ag'"),
    ):
        with pytest.raises(ValueError, match=named):
            arguments(text, **choices)
    others = {"tasks": "all", "seeds": 5, "data": "here"}
    assert vars(arguments("", **others)) == others
    found = arguments("tasks=rte,sst2,seeds=2,data=a,b/c", **others)
    assert vars(found) == {"tasks": "rte,sst2", "seeds": 2, "data": "a,b/c"}
    assert config_reader.listed(found.tasks) == ("rte", "sst2")
    assert vars(arguments("run=a=b", run=str)) == {"run": "a=b"}
    with pytest.raises(ValueError, match="seeds .*'many'"):
        arguments("seeds=many", **others)
    with pytest.raises(ValueError, match="argument run"):
        arguments("", run=str)


def test_one_argument_is_replaced():
    assert with_argument("a/b.py", "arm", "mlm") == "a/b.py:arm=mlm"
    assert with_argument("c.py:tasks=rte,sst2,arm=a,data=d", "arm", "b") == "c.py:tasks=rte,sst2,data=d,arm=b"
    assert with_argument("c.py:tasks=rte,sst2,data=d", "tasks", "x") == "c.py:data=d,tasks=x"
    assert config_reader.argument_of("c.py:tasks=rte,sst2,data=d", "tasks") == "rte,sst2"
    assert config_reader.argument_of("c.py:data=d", "tasks") is None


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
    with pytest.raises(ValueError, match="ConfigDict"):  # a file that has changed is executed again
        load(str(path))


def test_configs_of_the_package_are_found_by_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    quickstart = config_reader.packaged()["quickstart"]
    for name in ("quickstart", "quickstart.py", "configs/quickstart.py", "configs/quickstart"):
        assert config_reader.find(name) == quickstart
    assert load("quickstart:arm=mlm").model.layers == 8
    assert load("finetune/glue:checkpoint=C,tasks=rte,sst2").checkpoint == "C"
    assert config_reader.find("nowhere/quickstart") is None
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "quickstart.py").write_text(FILE)  # the given path comes first
    (tmp_path / "c.txt").write_text(FILE)
    assert load("configs/quickstart.py:x").title == "x"
    for name in ("quikstart", "configs", "c.txt"):
        with pytest.raises(ValueError, match=f"--config={name} .*config file"):
            load(name)


def test_flags_are_read_as_the_values_that_they_were_made_of():
    """Of lists of texts, each text has a flag of its own; one with a comma or space is in quotes."""
    overrides = {
        "translation.tests": ("news=n.en=n.de", "talks=my talks.en=talks,de.gz", "a,b", "3", ""),
        "comparison.seeds": (0, 1),
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
    assert config_reader.shown((0, 1)) == "0,1" and config_reader.shown(()) == "()"
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
    assert capsys.readouterr().out.startswith("A config.\n")
