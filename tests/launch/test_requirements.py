"""The locks of packages: they agree, and fit the ranges that the package accepts."""

import pathlib
import tomllib

from packaging.requirements import Requirement
from packaging.version import Version

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
ACCEPTED = {one.name.lower().replace("_", "-"): one for one in map(Requirement, PROJECT["dependencies"])}


def lines(name):
    """The lines of a lock, without its comments."""
    return [line for line in (ROOT / name).read_text().splitlines() if line and not line.lstrip().startswith("#")]


def pins(name):
    """{name: [pinned version, one for each range of Pythons]}"""
    found = {}
    for one in map(Requirement, lines(name)):
        (specifier,) = one.specifier
        found.setdefault(one.name.lower().replace("_", "-"), []).append(Version(specifier.version))
    return found


def test_pinned_versions_are_accepted():
    """Tests install the lowest version of jax and the newest minor version that the package accepts."""
    for path in ROOT.glob("requirements*.txt"):
        for name, accepted in ACCEPTED.items():
            assert all(accepted.specifier.contains(version, prereleases=True) for version in pins(path.name)[name]), (
                name
            )
    bounds = {each.operator: Version(each.version) for each in ACCEPTED["jax"].specifier}
    tested = pins("requirements-test.txt")["jax"]
    assert min(tested) == bounds[">="]
    assert bounds["<"] == Version(f"{max(tested).major}.{max(tested).minor + 1}")


def test_locks_agree_and_name_no_place():
    def versions(name):
        return {line.partition(";")[0].strip() for line in lines(name)}

    assert set(lines("requirements.txt")) <= set(lines("requirements-test.txt"))
    assert versions("requirements-test.txt") <= versions("requirements-browser.txt")
    assert versions("requirements.txt") <= versions("requirements-docs.txt")
    shared = {pin.partition("==")[0] for pin in versions("requirements-docs.txt") & versions("requirements-test.txt")}
    assert {"ipykernel", "jax", "numpy"} <= shared
    for path in ROOT.glob("requirements*.txt"):
        assert "://" not in path.read_text() and "/" not in "".join(lines(path.name))
        assert all("==" in line for line in lines(path.name))
