"""Colours of attention weights and of patterns, for the viewer and for figures."""

# The palette of Okabe & Ito (2008), which readers with any kind of colour vision can tell apart.
CATEGORIES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#B8A600")

# From weight 0 to weight 1, as colours at equal distances: BuPu of ColorBrewer, as in figures, cividis,
# and shades of grey.
WEIGHTS = {
    "BuPu": "f7fcfd e0ecf4 bfd3e6 9ebcda 8c95c6 8c6ab1 88409c 800f7b 4d004b",
    "cividis": "00224e 1a386f 434e6c 61656f 7d7c78 9b9476 bcae6c dec958 fee838",
    "grey": "ffffff 000000",
}
# From -1 to 1. The dark end of blue is darker than that of orange, so that the ends differ without colour, too.
DIFFERENCES = "08306b 2171b5 6baed6 c6dbef ffffff fdd8b0 fdae6b f28e2b b35806"
