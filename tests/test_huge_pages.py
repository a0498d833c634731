"""The command restarts itself once with huge pages, where Linux leaves that choice to programs."""

import os
import subprocess
import sys

import pytest

from ag_jax.command_line import huge_pages

LINE = ["python", "-X", "dev", "ag-jax", "train"]


@pytest.mark.parametrize(
    ("line", "variable", "restarts"),
    [
        (LINE, None, True),
        (LINE, ("GLIBC_TUNABLES", "glibc.malloc.check=0"), True),
        (LINE, ("GLIBC_TUNABLES", "glibc.malloc.hugetlb=0"), False),
        (LINE, (huge_pages._RESTARTED, "1"), False),
        (["python", "-"], None, False),
        (["python"], None, False),
    ],
)
def test_it_restarts_once_and_not_against_a_choice(line, variable, restarts, monkeypatch):
    found = []
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    if variable:
        monkeypatch.setenv(*variable)
    monkeypatch.setattr(sys, "orig_argv", line)
    monkeypatch.setattr(huge_pages, "is_left_to_programs", lambda: True)
    monkeypatch.setattr(os, "execve", lambda _, line, environment: found.append((line, environment["GLIBC_TUNABLES"])))
    before = dict(os.environ)
    huge_pages.restart_with_huge_pages()
    others = f"{variable[1]}:" if variable else ""
    assert found == [([sys.executable, *line[1:]], f"{others}glibc.malloc.hugetlb=1")] * restarts
    assert dict(os.environ) == before


def test_a_real_restart_happens_once_and_one_that_fails_is_no_error():
    program = """
import os, sys
from ag_jax.command_line import huge_pages
print("started", os.environ.get("GLIBC_TUNABLES"), flush=True)
huge_pages.is_left_to_programs = lambda: True
python, sys.executable = sys.executable, "/nowhere/python"
huge_pages.restart_with_huge_pages()
sys.executable = python
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
        ("always [madvise] never\n", "glibc 2.35", True),
        ("always [madvise] never\n", "glibc 2.34", False),  # without the tunable
        ("[always] madvise never\n", "glibc 2.36", False),
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
