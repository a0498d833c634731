"""Prose out of Wikipedia articles."""

import re

LAST_SECTIONS = frozenset("references|external links|see also|further reading|notes|bibliography|sources".split("|"))
SHORTEST_ARTICLE = 128  # words


def clean_wikipedia(text: str) -> str:
    """Prose of a Wikipedia article, after Megatron-LM's clean-up (Shoeybi et al. 2019, section 4.2).

    Drops headings, tables and list crumbs (lines without an end of a sentence), everything from the references on, and
    whole articles of fewer than 128 words: those give the empty string.
    """
    kept = []
    for line in text.splitlines():
        line = line.strip()
        if line.lower().rstrip(":") in LAST_SECTIONS:
            break
        if re.search(r"""[.!?…]["'”’)\]]*$""", line) and "|" not in line:
            kept.append(re.sub(r"\s+", " ", line))
    cleaned = "\n".join(kept)
    return cleaned if len(cleaned.split()) >= SHORTEST_ARTICLE else ""
