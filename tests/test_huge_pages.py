"""The command restarts itself once with huge pages, where Linux leaves that choice to programs."""

import os
import subprocess
import sys

import pytest

from ag_jax.command_line import huge_pages


@pytest.fixture
def restarts(monkeypatch):
    """The command lines and tunables of restarts, which are recorded instead of executed."""
    found = []
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    monkeypatch.setattr(sys, "orig_argv", ["python", "-X", "dev", "ag-jax", "train"])
    monkeypatch.setattr(huge_pages, "is_left_to_programs", lambda: True)
    monkeypatch.setattr(os, "execve", lambda _, line, environment: found.append((line, environment["GLIBC_TUNABLES"])))
    return found


def test_it_restarts_with_the_same_command_line(restarts):
    huge_pages.restart_with_huge_pages()
    assert restarts == [([sys.executable, "-X", "dev", "ag-jax", "train"], "glibc.malloc.hugetlb=1")]
    assert "GLIBC_TUNABLES" not in os.environ


@pytest.mark.parametrize("variable", [("GLIBC_TUNABLES", "glibc.malloc.hugetlb=0"), (huge_pages._RESTARTED, "1")])
def test_it_does_not_restart_twice_or_against_a_choice(restarts, monkeypatch, variable):
    monkeypatch.setenv(*variable)
    huge_pages.restart_with_huge_pages()
    assert not restarts


@pytest.mark.parametrize("line", [[], ["python"], ["python", "-"]])
def test_it_does_not_restart_what_cannot_be_started_again(restarts, monkeypatch, line):
    monkeypatch.setattr(sys, "orig_argv", line)
    huge_pages.restart_with_huge_pages()
    assert not restarts


def test_it_goes_on_without_if_the_restart_fails(monkeypatch):
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    monkeypatch.setattr(huge_pages, "is_left_to_programs", lambda: True)
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    huge_pages.restart_with_huge_pages()


def test_other_tunables_are_kept():
    environment = {"GLIBC_TUNABLES": "glibc.malloc.check=0"}
    assert huge_pages.request(environment)
    assert environment["GLIBC_TUNABLES"] == "glibc.malloc.check=0:glibc.malloc.hugetlb=1"


def test_a_real_restart_happens_once():
    program = """
import os
from ag_jax.command_line import huge_pages
print("started", os.environ.get("GLIBC_TUNABLES"), flush=True)
huge_pages.is_left_to_programs = lambda: True
huge_pages.restart_with_huge_pages()
print("runs")
"""
    environment = {name: value for name, value in os.environ.items() if name != "GLIBC_TUNABLES"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split("\n") == ["started None", "started glibc.malloc.hugetlb=1", "runs", ""]


@pytest.mark.parametrize(
    ("mode", "library", "expected"),
    [
        ("always [madvise] never\n", "glibc 2.36", True),
        ("always [madvise] never\n", "glibc 2.34", False),  # without the tunable
        ("[always] madvise never\n", "glibc 2.36", False),
        ("always madvise [never]\n", "glibc 2.36", False),
        (None, "glibc 2.36", False),  # not Linux, or a kernel without huge pages
        ("always [madvise] never\n", None, False),  # another C library
    ],
)
def test_when_it_is_left_to_programs(mode, library, expected, tmp_path, monkeypatch):
    if mode is not None:
        (tmp_path / "enabled").write_text(mode)
    monkeypatch.setattr(huge_pages, "_MODE", tmp_path / "enabled")
    monkeypatch.setattr(os, "confstr", lambda name: library)
    assert huge_pages.is_left_to_programs() == expected
