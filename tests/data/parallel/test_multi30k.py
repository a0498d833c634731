"""The real Multi30k; skipped where it is missing."""

import numpy as np

from ag_jax.data.parallel import layouts, pairs


def test_it_is_read_whole(shared):
    parts = layouts.find("multi30k", str(shared / "data" / "multi30k"), "en", "de")
    found = list(parts.train)
    words = [[len(side.split()) for side in pair] for pair in found]
    assert len(found) == 29_000 and np.min(words) > 0
    assert np.sum(words, axis=0).tolist() == [345_020, 322_383]
    tests = [list(zip(*pairs.read_test_set(test), strict=True)) for test in parts.tests.values()]
    assert [len(other) for other in (list(parts.validation), *tests)] == [1014, 1000, 1000]
    assert found[0].source.startswith("Two young, White males") and found[0].target.startswith("Zwei junge weiße")
