"""Names of heads that a user gives: LAYER.HEAD, both counted from 1."""

import re
from collections.abc import Sequence

from ag_jax.analysis.maps import Heads


def read_heads(names: Sequence[str], layers: int, heads: int, flag: str = "without") -> Heads:
    """Return the heads with the given names as (layer, head), counted from 0, sorted and each once.

    names: LAYER.HEAD, both counted from 1, as in the tables and figures of `inspect`.
    layers, heads: numbers of layers and of heads in each layer.
    flag: the flag that has the names, for errors.

    Raises ValueError for a name of another form, or of a head that does not exist.
    """
    found = set()
    for name in names:
        if not re.fullmatch(r"[0-9]+\.[0-9]+", name.strip()):
            raise ValueError(
                f"--{flag}={','.join(names)}: expected heads as LAYER.HEAD, both counted from 1, such as "
                f"--{flag}=3.2,4.1; got {name!r}"
            )
        layer, head = map(int, name.strip().split("."))
        if not (1 <= layer <= layers and 1 <= head <= heads):
            raise ValueError(
                f"--{flag}={','.join(names)}: there is no head {name.strip()}, because the encoder has {layers} "
                f"layers of {heads} heads: give heads between 1.1 and {layers}.{heads}"
            )
        found.add((layer - 1, head - 1))
    return tuple(sorted(found))
