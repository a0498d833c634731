"""Settings: dataclasses to values and back, what is rejected and how, and the values that flags give."""

import copy
import dataclasses
from typing import Annotated, Any, Literal

import numpy as np
import pytest
from annotated_types import Ge, Gt, Le, Lt
from ml_collections import ConfigDict

from ag_jax.settings import schema
from ag_jax.settings.schema import flat, parse


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
    share: Annotated[float, Gt(0), Le(1)] = 0.5
    width: Annotated[int, Ge(1)] | None = None
    kind: Literal["float32", "bfloat16"] | None = None
    place: str | None = None
    clip: Annotated[float, Gt(0), Lt(9)] | None = 1.0
    steps: tuple[Annotated[int, Ge(0)], ...] = (0,)
    modes: tuple[Literal["a", "b"], ...] = ()
    names: tuple[str, ...] = ()
    deep: bool | None = None
    inner: Part = Part()


@dataclasses.dataclass(frozen=True)
class Typeds:
    """A config with sections of `Typed`, one with a name and several without."""

    one: Typed = Typed()
    many: dict[str, Typed] = dataclasses.field(default_factory=dict)
    any: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)


def test_named_parts_survive():
    whole = Whole(parts={"a": Part(count=3), "b": Part(rates=(1.0, 2.0))})
    values = schema.to_dict(whole)
    assert values["parts"]["a"] == {"rates": [0.5], "count": 3}
    assert parse(Whole, values) == whole and parse(Whole, schema.default(Whole)) == Whole()
    assert flat({"a": {"b": 1, "c": {"d": 2}}, "e": 3}) == {"a.b": 1, "a.c.d": 2, "e": 3}
    assert schema.kind_of(schema.default(Whole)) is Whole


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"parts": {"a": {"cuont": 1}}}, "'parts.a.cuont'.*'parts.a.count'"),
        ({"parts": {"a": {"count": 0}}}, "^parts.a.count must be at least 1, got 0"),
        ({"parts": {"a": {"count": "x"}}}, "^parts.a.count"),
        ({"parts": {"a": {"rates": (1, "x")}}}, "^parts.a.rates"),
        ({"parts": {"a": {"rates": 1.0}}}, "^parts.a.rates must be a list"),
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
        ({"mode": "los"}, "^one.mode .*none, loss, got 'los'; did you mean 'loss'"),
        ({"mode": None}, "^one.mode"),
        ({"share": 0}, "^one.share must be .*above 0 and at most 1, got 0"),
        ({"share": 1.001}, "^one.share"),
        ({"share": float("nan")}, "^one.share"),
        ({"share": None}, "^one.share"),
        ({"width": 0}, "^one.width must be .*at least 1, or none"),
        ({"width": 1.5}, "^one.width"),
        ({"width": True}, "^one.width"),
        ({"width": "3"}, "^one.width"),
        ({"kind": "float16"}, "^one.kind .*float32, bfloat16, or none"),
        ({"clip": 9}, "^one.clip must be .*above 0 and below 9, or none, got 9"),
        ({"steps": (1, -1)}, "^one.steps"),
        ({"modes": ("a", "c")}, "^one.modes must be a list .*one of a, b, got 'c'"),
    ],
)
def test_annotations_say_what_is_allowed(settings, named):
    with pytest.raises(ValueError, match=named):
        parse(Typeds, {"one": settings})
    with pytest.raises(ValueError, match=named.replace("^one", "^many.a")):
        parse(Typeds, {"many": {"a": settings}})
    with pytest.raises(ValueError, match=named):
        schema.check(Typeds(one=Typed(**settings)))
    with pytest.raises(ValueError, match=named.replace("^one", "^model.relative")):
        schema.check(Typed(**settings), "model.relative")


def test_whole_numbers_fit_into_32_bits():
    assert parse(Part, {"count": 2**31 - 1}) == Part(count=2**31 - 1)
    for too_large in (2**31, 10**400):
        with pytest.raises(ValueError, match="count.* 2147483647"):
            parse(Part, {"count": too_large})
        with pytest.raises(ValueError, match="one.steps.* 2147483647"):
            parse(Typeds, {"one": {"steps": [too_large]}})
    assert parse(Typeds, {"one": {"share": 1, "steps": [0, 2]}}).one == Typed(share=1.0, steps=(0, 2))
    assert parse(Part, {"rates": (10**12,)}) == Part((1e12,))
    with pytest.raises(ValueError, match="count.* 2147483647"):
        schema.check(Part(count=2**40))
    with pytest.raises(ValueError, match="rates must be .* a finite number"):
        parse(Part, {"rates": (10**400,)})


@pytest.mark.parametrize(
    ("path", "texts", "value"),
    [
        ("one.width", ["3"], 3),
        ("one.width", ["2", "1e3"], 1000),  # the last counts
        ("one.width", ["none"], None),
        ("one.width", ["1.5"], 1.5),
        ("one.share", ["1e-3"], 0.001),
        ("one.share", ["x"], "x"),
        ("one.mode", ["none"], "none"),
        ("one.kind", ["none"], None),
        ("one.place", ["none"], None),
        ("one.place", ["a, b"], "a, b"),
        ("one.steps", ["0,1e1,2"], (0, 10, 2)),
        ("one.steps", ["(0, 1)", "2"], (0, 1, 2)),
        ("one.steps", [""], ()),
        ("one.steps", ["0 1 2"], ("0 1 2",)),
        ("one.steps", ["0,,1"], (0, "", 1)),
        ("one.steps", ["(0,(1,2))"], (0, (1, 2))),
        ("one.modes", ["a, b"], ("a", "b")),
        ("one.modes", ["'a','b'"], ("a", "b")),
        ("one.names", ["a,b", "3"], ("a,b", "3")),
        ("one.names", ["('a,b', 'c')"], ("a,b", "c")),
        ("one.deep", ["True"], True),
        ("one.deep", ["none"], None),
        ("any.grid.of.values", ["1,1e-3,x"], (1, 0.001, "x")),
        ("many.x.inner.count", ["4"], 4),
    ],
)
def test_flags_give_values_of_the_type_of_the_setting(path, texts, value):
    found = schema.from_texts(schema.hint_of(Typeds, path), texts, is_cut=False)
    assert found == value and type(found) is type(value)


def test_settings_are_replaced():
    values = schema.to_dict(Typeds(many={"a": Typed(), "b": Typed()}))
    changed = schema.overlay(Typeds, values, {"many.a.share": 0.25, "one.steps": (1, 2)})
    assert parse(Typeds, changed) == Typeds(Typed(steps=(1, 2)), {"a": Typed(share=0.25), "b": Typed()})
    assert parse(Typeds, values) == Typeds(many={"a": Typed(), "b": Typed()})
    with pytest.raises(ValueError, match="'many.a.shaer'.*'many.a.share'"):
        schema.overlay(Typeds, values, {"many.a.shaer": 0.25})


def test_values_that_are_no_json():
    """Numbers of numpy, ranges and dataclasses become plain values; texts that are not UTF-8 are an error."""
    assert parse(Part, {"rates": np.float32([0.5, 1]), "count": np.int64(3)}) == Part((0.5, 1.0), 3)
    assert parse(Typeds, {"one": {"steps": range(3)}, "many": {"a": Typed(share=0.25)}}) == Typeds(
        Typed(steps=(0, 1, 2)), {"a": Typed(share=0.25)}
    )
    schema.check(Typed(steps=[0, 1]))
    with pytest.raises(ValueError, match="got <object"):
        parse(Part, {"rates": object()})
    with pytest.raises(ValueError, match="UTF-8"):
        parse(Whole, {"title": "\udcff"})
    for section in (None, 3):
        with pytest.raises(ValueError, match="other is a section of settings"):
            schema.check(dataclasses.replace(Whole(), other=section))


def test_a_copy_of_a_config_is_one_of_the_same_dataclass():
    assert schema.kind_of(copy.deepcopy(schema.default(Whole))) is Whole
    assert schema.kind_of(ConfigDict({"title": "x"})) is None


def test_arguments_of_config_files():
    names = Literal["plain", "ag"]
    for hint, text, value in (
        (names, "ag", "ag"),
        (Literal[8, 12], "12", 12),
        (tuple[names, ...], "ag,plain", ("ag", "plain")),
        (tuple[names, ...], "all", ("plain", "ag")),
        (tuple[str, ...], "all", ("all",)),
        (tuple[str, ...], "a, b", ("a", "b")),
        (str | None, "none", None),
        (int, "3", 3),
        (float, "1e-3", 0.001),
        (bool, "True", True),
        (str, "3", "3"),
        (int | Literal["best"] | None, "best", "best"),
    ):
        assert schema.argument("name", hint, text) == value
    for hint, text, named in (
        (names, "agg", "plain, ag, got 'agg'; did you mean 'ag'"),
        (Literal[8, 12], "9", "8, 12, got '9'"),
        (tuple[names, ...], "ag,x", "got 'x'"),
        (int, "many", "a whole number, got 'many'"),
        (bool, "maybe", "True or False, got 'maybe'"),
    ):
        with pytest.raises(ValueError, match=f"^name must be .*{named}"):
            schema.argument("name", hint, text)
