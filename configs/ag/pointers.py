"""Guide attention heads to the words that annotated text names, and compare with controls.

Do heads that are guided to the syntactic head of each word, or to any word that a column of your file names, make
masked language modelling better? Or does every regular pattern do as much, as Pham et al. 2019 (arXiv 1910.11218) saw
in translation? The text is CoNLL-U, or JSON lines with `words` (docs/pointers.md). Guided heads are two in each guided
layer; with both neighbours and a third pattern, three. The arms are

    none                     no guidance
    neighbours               the next and the previous token
    pointer                  the column, such as the head of the word
    offset_by_word           each token id looks at an offset of its own: as far as heads are, and learnable, without
                             syntax
    other_tree               the trees of other sentences of the same length: their shape without their meaning
    previous_same            the last earlier position with the same token, which needs no annotation
    lower                    neighbours, in the lower half of the layers alone
    neighbours_pointer       neighbours and the column
    neighbours_offset        neighbours and offset_by_word

Both controls of trees, offset_by_word and other_tree, go with column=head.

    ag-jax compare --config=ag/pointers:source=FILE.conllu --workdir=DIR
    ag-jax compare --config=ag/pointers:source=FILE.conllu,positions=rotary --workdir=DIR \
--config.comparison.arms=none,neighbours,neighbours_pointer,neighbours_offset --config.guidance.layers=2-5

Hardware and time: about the time of the quickstart's arms, a few minutes each on 2 CPU cores.

Expected: not known; the experiment has not been run with this program yet.

Deviations: no paper has this experiment. Model, optimizer and steps are the quickstart's, with sequences of 128 tokens
that begin and end with sentences, and half as many in a batch. The loss is the cross-entropy, whose alpha is the best
for the quickstart.
"""

from ag_jax.settings import config_files
from ag_jax.settings.config_files import OneOf

NEIGHBOURS = "next:1,prev:1"
ARMS = {  # `column` is replaced by the name of the column
    "none": "",
    "neighbours": NEIGHBOURS,
    "pointer": "column:2",
    "offset_by_word": "offset_by_word:2",
    "other_tree": "other_tree:2",
    "previous_same": "previous_same:2",
    "lower": NEIGHBOURS,
    "neighbours_pointer": f"{NEIGHBOURS},column:1",
    "neighbours_offset": f"{NEIGHBOURS},offset_by_word:1",
}
CONTROLS = ("offset_by_word", "other_tree")


def get_config(
    *,
    source: str,
    column: str = "head",
    arm: OneOf(*ARMS) = "pointer",
    positions: OneOf("learned", "rotary") = "learned",
):
    """Return the config.

    source: annotated text, as `data.source`.
    column: the column of the annotated text to which heads are guided, such as `head` or `antecedent`.
    arm: patterns that heads are guided by; `ag-jax compare` trains several.
    positions: `learned` position embeddings or `rotary` positions.
    """
    config = config_files.read("quickstart:arm=plain")
    config.title = f"Guidance to the words of the column {column}"
    # All arms have the same columns, so that they share the text in the cache, and their heads are measured alike. The
    # controls are made of syntactic heads, which a text with another column may lack.
    pointers = (column, *CONTROLS) if column == "head" else (column,)
    config.data.update(source=source, format="full_sentences", sequence_length=128, pointers=pointers)
    config.model.positions = positions
    config.training.update(batch_size=16, evaluate_every=110)
    if heads := ARMS[arm].replace("column", column):
        config.guidance.update(mode="loss", loss="cross_entropy", alpha=0.003, heads=heads)
    if arm == "lower":
        config.guidance.layers = f"0-{config.model.layers // 2 - 1}"
    config.comparison.arms = f"none,neighbours,pointer,{'offset_by_word' if column == 'head' else 'previous_same'}"
    return config
