"""Prose stays, everything else goes."""

from ag_jax.data.text.wikipedia import SHORTEST_ARTICLE, clean_wikipedia

PROSE = " ".join(["word"] * SHORTEST_ARTICLE) + "."


def test_headings_tables_and_what_follows_the_references_are_dropped():
    article = f'Early life\n{PROSE}\n| a | b |\nList item\nHe said  "so."\nReferences\n{PROSE}\nCategory:People'
    assert clean_wikipedia(article) == f'{PROSE}\nHe said "so."'


def test_short_articles_are_dropped():
    assert clean_wikipedia("A stub is short.") == ""
