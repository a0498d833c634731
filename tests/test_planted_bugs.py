"""The list of bugs to plant fits the code; whether tests find them is what `python -m tests.planted_bugs` measures."""

import pytest

from tests.planted_bugs import BUGS, REPOSITORY


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.what)
def test_a_bug_can_be_planted(bug):
    """Its text is in its file, so that the code was not rewritten without it, and all of its tests exist."""
    assert bug.right in (REPOSITORY / bug.file).read_text() and bug.right != bug.wrong
    assert all((REPOSITORY / name).exists() for name in bug.tests.split())
