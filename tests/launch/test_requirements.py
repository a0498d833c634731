"""The versions of packages that are installed for tests, beside those that the package accepts."""

import pathlib
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def pins(file):
    """{name: [pinned version, one for each range of Pythons]}"""
    found = {}
    for line in file.read_text().splitlines():
        if "==" in line and not line.lstrip().startswith(("#", "-")):
            one = Requirement(line)
            (specifier,) = one.specifier
            found.setdefault(one.name.lower().replace("_", "-"), []).append(Version(specifier.version))
    return found


@pytest.mark.parametrize("file", sorted(ROOT.glob("requirements*.txt")), ids=lambda file: file.name)
def test_installed_versions_are_accepted(file):
    pinned = pins(file)
    for one in map(Requirement, PROJECT["dependencies"]):
        versions = pinned[one.name.lower().replace("_", "-")]
        assert all(one.specifier.contains(version, prereleases=True) for version in versions), one


def test_jax_is_tested_at_both_ends():
    """The lowest version and the newest minor version that the package accepts are those that tests install."""
    (accepted,) = (one for one in map(Requirement, PROJECT["dependencies"]) if one.name == "jax")
    bounds = {each.operator: Version(each.version) for each in accepted.specifier}
    tested = pins(ROOT / "requirements-test.txt")["jax"]
    assert min(tested) == bounds[">="]
    newest = max(tested)
    assert bounds["<"] == Version(f"{newest.major}.{newest.minor + 1}")
