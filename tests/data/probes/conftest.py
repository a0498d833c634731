"""Hand-written files of coreference, for the tests of probes."""

import pathlib

import pytest

from ag_jax.data.probes import conll
from ag_jax.data.probes.mentions import Reading

# Word, part of speech, parse and coreference of each word; a blank line ends a sentence.
QUEEN = """
The     DT   (TOP(S(NP(NP*  (1
old     JJ   *              -
queen   NN   *)             -
of      IN   (PP*           -
France  NNP  (NP*)))        (2)|1)
's      POS  *              -
saw     VBD  (VP*           -
Mr.     NNP  (NP*           (3
Green   NNP  *)             3)
and     CC   *              -
herself PRP  (NP*))         (1)
.       .    *))            -

He      PRP  (TOP(S(NP*)    (3)
and     CC   *              -
she     PRP  (NP*)          (1)
love    VBP  (VP*           -
their   PRP$ (NP(NP*        (4|(1)
French  JJ   *              (2)
king    NN   *)             -
and     CC   *              -
queen   NN   (NP*)))        4)
.       .    *))            -
"""


def conll_text(table: str, name: str = "nw/paris", part: int = 0, extra: int = 0) -> str:
    """The CoNLL-2012 file of a table such as `QUEEN`, with `extra` columns of arguments in its second sentence."""
    lines = [f"#begin document ({name}); part {part:03}"]
    number, sentence = 0, 0
    for row in table.strip("\n").split("\n"):
        if not row.strip():
            lines, number, sentence = [*lines, ""], 0, sentence + 1
            continue
        word, tag, parse, coreference = row.split()
        arguments = ["*"] * (extra if sentence == 1 else 0)
        columns = [name, str(part), str(number), word, tag, parse, "-", "-", "-", "Speaker#1", "*", *arguments]
        lines.append("   ".join([*columns, coreference]))
        number += 1
    return "\n".join([*lines, "", "#end document", ""])


@pytest.fixture
def write(tmp_path):
    """A function that writes a file, of text or bytes, and returns its path."""

    def written(name: str, content: str | bytes) -> pathlib.Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return written


@pytest.fixture(scope="session")
def litbank(shared) -> Reading:
    """All of LitBank, read once."""
    return conll.read(shared / "data" / "litbank_coref")
