"""Find the head words of constituents in bracketed parses by the head rules of Collins (1999, appendix A).

The parse of a sentence is spread over its words: at each word, the brackets that open before it, * for the word itself,
and those that close after it, as in `(TOP(S(NP*`, `*)`, `(VP*)`, `*))`. The parts of speech stand elsewhere.
"""

import bisect
import dataclasses
import itertools
import re
from collections.abc import Collection, Sequence

from ag_jax.data.json_files import reading
from ag_jax.data.probes import rules
from ag_jax.data.probes.mentions import Document

_PIECE = re.compile(r"((?:\([^()*\s]*)*)\*(\)*)")
# For each label of a parent: the side at which the search begins, and the labels of children, most wanted first.
RULES: dict[str, tuple[str, tuple[str, ...]]] = {
    parent: (side, tuple(children.split()))
    for parent, side, children in (
        ("ADJP", "left", "NNS QP NN $ ADVP JJ VBN VBG ADJP JJR NP JJS DT FW RBR RBS SBAR RB"),
        ("ADVP", "right", "RB RBR RBS FW ADVP TO CD JJR JJ IN NP JJS NN"),
        ("CONJP", "right", "CC RB IN"),
        ("FRAG", "right", ""),
        ("INTJ", "left", ""),
        ("LST", "right", "LS :"),
        ("NAC", "left", "NN NNS NNP NNPS NP NAC EX $ CD QP PRP VBG JJ JJS JJR ADJP FW"),
        ("PP", "right", "IN TO VBG VBN RP FW"),
        ("PRN", "left", ""),
        ("PRT", "right", "RP"),
        ("QP", "left", "$ IN NNS NN JJ RB DT CD NCD QP JJR JJS"),
        ("RRC", "right", "VP NP ADVP ADJP PP"),
        ("S", "left", "TO IN VP S SBAR ADJP UCP NP"),
        ("SBAR", "left", "WHNP WHPP WHADVP WHADJP IN DT S SQ SINV SBAR FRAG"),
        ("SBARQ", "left", "SQ S SINV SBARQ FRAG"),
        ("SINV", "left", "VBZ VBD VBP VB MD VP S SINV ADJP NP"),
        ("SQ", "left", "VBZ VBD VBP VB MD VP SQ"),
        ("UCP", "right", ""),
        ("VP", "left", "TO VBD VBN MD VBZ VB VBG VBP VP ADJP NN NNS NP"),
        ("WHADJP", "left", "CC WRB JJ ADJP"),
        ("WHADVP", "right", "CC WRB"),
        ("WHNP", "left", "WDT WP WP$ WHADJP WHPP WHNP"),
        ("WHPP", "right", "IN TO FW"),
    )
}
# NML and NX are parts of noun phrases. Each step searches for any of its labels from its side.
PUNCTUATION = frozenset([",", ":", ".", "``", "''"])
NOUN_PHRASES = frozenset(["NP", "NX", "NML"])
NOUN_PHRASE_STEPS = (
    ("right", frozenset("NN NNP NNPS NNS NX NML JJR".split())),
    ("left", frozenset(["NP"])),
    ("right", frozenset("$ ADJP PRN".split())),
    ("right", frozenset(["CD"])),
    ("right", frozenset("JJ JJS RB QP".split())),
)


@dataclasses.dataclass(frozen=True)
class Node:
    """A node of a parse tree: a constituent, or a word as a leaf.

    label: category, or part of speech.
    begin: index of the first word in the sentence.
    end: index after the last word.
    children: the parts of a constituent; empty for a word.
    """

    label: str
    begin: int
    end: int
    children: tuple["Node", ...] = ()


def heads(document: Document) -> list[int]:
    """Return, for each mention, the index of its head word by the parses, counted from the mention's first word.

    The head of a mention that is not a constituent is found by the rule of words (`rules.head`).

    Raises ValueError, with the file, if the document has no parses, or a sentence has damaged ones.
    """
    if document.parses is None or document.tags is None:
        raise ValueError(
            f"{document.place}: document {document.name} has no parses, which head_word=parse needs: expected them in "
            "the columns 5 and 6; set head_word to rule or last"
        )
    trees = []
    for number, (begin, end) in enumerate(itertools.pairwise([*document.starts, len(document.words)]), 1):
        place = f"{document.place}: document {document.name}, sentence {number}"
        with reading(place, "mend the parse, or set head_word to rule"):
            trees.append(parse(document.parses[begin:end], document.tags[begin:end]))
    result = []
    for mention in document.mentions:
        sentence = bisect.bisect_right(document.starts, mention.begin) - 1
        first = document.starts[sentence]
        node = find(trees[sentence], mention.begin - first, mention.end - first)
        by_rule = rules.head(document.words[mention.begin : mention.end])
        result.append(head(node) - (mention.begin - first) if node else by_rule)
    return result


def parse(pieces: Sequence[str], tags: Sequence[str]) -> Node:
    """Return the parse tree of a sentence from the bracketed pieces at its words; the root has no label.

    pieces: the part of the parse at each word.
    tags: part of speech of each word.

    Raises ValueError for what is not a part of a parse, and for unbalanced brackets.
    """
    stack: list[tuple[str, int, list[Node]]] = [("", 0, [])]
    for index, (piece, tag) in enumerate(zip(pieces, tags, strict=True)):
        match = _PIECE.fullmatch(piece.strip())
        if not match:
            raise ValueError(f"expected a part of a parse such as (NP*), got {piece!r} at word {index + 1}")
        stack.extend((label, index, []) for label in match[1].split("(")[1:])
        stack[-1][2].append(Node(tag, index, index + 1))
        for _ in match[2]:
            if len(stack) == 1:
                raise ValueError(f"{piece!r} at word {index + 1} closes a bracket that is not open")
            label, begin, children = stack.pop()
            stack[-1][2].append(Node(label, begin, index + 1, tuple(children)))
    if len(stack) > 1:
        raise ValueError(f"({stack[-1][0]} at word {stack[-1][1] + 1} is not closed")
    return Node("", 0, len(pieces), tuple(stack[0][2]))


def find(tree: Node, begin: int, end: int) -> Node | None:
    """Return the highest constituent that covers exactly the words `begin` to `end` - 1, None if none does.

    The constituent may be a word.
    """
    node: Node | None = tree
    while node and (node.begin, node.end) != (begin, end):
        node = next((child for child in node.children if child.begin <= begin and end <= child.end), None)
    return node


def head(node: Node) -> int:
    """Return the index, in the sentence, of the head word of a constituent."""
    while node.children:
        node = node.children[_coordinated(node.children, _head_child(node))]
    return node.begin


def _head_child(node: Node) -> int:
    """Return the index of the child that contains the head word, by the head rules for the label of the node."""
    order = range(len(node.children))
    labels = [_category(child) for child in node.children]
    if _category(node) in NOUN_PHRASES:
        # A final 's is never the head, in contrast to Collins, because it refers to nothing.
        order = order[:-1] if labels[-1] == "POS" and len(labels) > 1 else order
        steps: Sequence[tuple[str, Collection[str]]] = NOUN_PHRASE_STEPS
        default = order[-1]
    else:
        side, preferences = RULES.get(_category(node), ("left", ()))
        steps = [(side, (label,)) for label in preferences]
        default = order[0] if side == "left" else order[-1]
    for side, choices in steps:
        for index in order if side == "left" else reversed(order):
            if labels[index] in choices:
                return index
    return default


def _coordinated(children: Sequence[Node], index: int) -> int:
    """Return the index of the head child: `index`, or in a coordination that of the conjunct before the conjunction.

    index: the child that the table of heads gives. If it follows a conjunction, the child before the conjunction is
        returned, and before the punctuation there.
    """
    if index < 2 or children[index - 1].label != "CC":
        return index
    words = [place for place in range(index - 1) if children[place].label not in PUNCTUATION]
    return words[-1] if words else index


def _category(node: Node) -> str:
    """Return the label of a node without function tags: NP for NP-SBJ, but -LRB- unchanged."""
    return node.label if node.label.startswith("-") else node.label.partition("-")[0]
