"""Extract prose from Wikipedia articles."""

import re

LAST_SECTIONS = frozenset("references|external links|see also|further reading|notes|bibliography|sources".split("|"))
SHORTEST_ARTICLE = 128  # words


def clean_wikipedia(text: str) -> str:
    """Return the prose of a Wikipedia article, cleaned as in Megatron-LM (Shoeybi et al. 2019, section 4.2).

    Headings, tables and list items (lines that do not end like a sentence) are dropped, and everything from the
    references on. An article with fewer than 128 words of prose gives the empty string.
    """
    lines = []
    for line in text.splitlines():
        line = line.strip()
        if line.lower().rstrip(":") in LAST_SECTIONS:
            break
        if re.search(r"""[.!?…]["'”’)\]]*$""", line) and "|" not in line:
            lines.append(re.sub(r"\s+", " ", line))
    cleaned = "\n".join(lines)
    return cleaned if len(cleaned.split()) >= SHORTEST_ARTICLE else ""
