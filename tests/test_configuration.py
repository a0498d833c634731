"""The reader of configs: any dataclass laid out, taken back and refused; arguments, files and flags."""

import dataclasses

import pytest

from ag_jax import configuration
from ag_jax.configuration import arguments, check_flags, flat, load, parse, with_argument


@dataclasses.dataclass(frozen=True)
class Part:
    """A section of which a config has several."""

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


FILE = """
from ag_jax import configuration
from tests.test_configuration import Part, Whole

def get_config(argument=""):
    config = configuration.default(Whole)
    config.title = argument
    config.parts.first = configuration.default(Part)
    return config
"""


@pytest.fixture
def source(tmp_path) -> str:
    path = tmp_path / "c.py"
    path.write_text(FILE)
    return str(path)


def test_named_parts_survive():
    whole = Whole(parts={"a": Part(count=3), "b": Part(rates=(1.0, 2.0))})
    values = configuration.to_dict(whole)
    assert values["parts"]["a"] == {"rates": [0.5], "count": 3}
    assert parse(Whole, values) == whole
    assert parse(Whole, configuration.default(Whole)) == Whole()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"parts": {"a": {"cuont": 1}}}, "unknown setting 'parts.a.cuont'; did you mean 'parts.a.count'"),
        ({"parts": {"a": {"count": 0}}}, "^parts.a.count must be at least 1, got 0"),
        ({"parts": {"a": {"count": "x"}}}, "^parts.a.count must be of type int"),
        ({"parts": {"a": {"rates": (1, "x")}}}, "^parts.a.rates must be of type float"),
        ({"parts": {"a": 3}}, "parts.a is a section of settings, got 3"),
        ({"parts": 3}, "parts is a section of settings, got 3"),
        ({"parst": {}}, "did you mean 'parts'"),
    ],
)
def test_what_is_wrong_is_named(values, message):
    with pytest.raises(ValueError, match=message):
        parse(Whole, values)


def test_the_kind_of_a_config_is_that_of_its_keys():
    assert configuration.kind_of({"title": "x", "parts": {}, "tilte": 1}, (Part, Whole)) is Whole
    assert configuration.kind_of({"count": 3, "titel": 1}, (Whole, Part)) is Part
    assert configuration.kind_of({}, (Whole, Part)) is Whole


def test_flags_are_checked_against_the_file(source):
    check_flags(["train", f"--config={source}:x", "--config.parts.first.count=3", "--workdir=w"])
    check_flags(["train", "--config", source, "--config.title=t"])
    check_flags(["train", "--workdir=w"])
    with pytest.raises(ValueError, match="unknown setting 'parts.first.cout'; did you mean 'parts.first.count'"):
        check_flags(["--config", source, "--config.parts.first.cout=3"])
    with pytest.raises(ValueError, match="did you mean 'parts.first.count'"):
        check_flags([f"--config={source}", "--config.parts.frist.count=3"])
    with pytest.raises(ValueError, match="give one with --config=FILE"):
        check_flags(["--config.title=t"])
    with pytest.raises(ValueError, match="not/there.py does not exist"):
        check_flags(["--config=not/there.py", "--config.title=t"])


def test_settings_of_the_command_line_win(source):
    config = parse(Whole, load(f"{source}:arm=x", {"parts.first.rates": (0.25, 1.0), "other.count": 7}))
    assert config == Whole("arm=x", {"first": Part((0.25, 1.0))}, Part(count=7))


def test_arguments():
    choices = {"layers": (12, 8, 16), "arm": ("ag", "mlm")}
    assert vars(arguments("", **choices)) == {"layers": 12, "arm": "ag"}
    assert vars(arguments("arm=mlm,layers=8", **choices)) == {"layers": 8, "arm": "mlm"}
    with pytest.raises(ValueError, match="layers must be one of 12, 8, 16, got '9'"):
        arguments("layers=9", **choices)
    with pytest.raises(ValueError, match="unknown setting 'layer'; did you mean 'layers'"):
        arguments("layer=8", **choices)


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
