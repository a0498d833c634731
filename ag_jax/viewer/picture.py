"""A PNG of all heads' attention maps in a view, for places that show no web page.

Shape letters: N layers, H heads, Q query position, K key position.
"""

import io

import numpy as np
from PIL import Image, ImageColor

from ag_jax.viewer import colours, encode
from ag_jax.viewer.page import View

SMALLEST = 40  # pixels of a head
FRAME, GAP = 2, 4  # pixels


def png(view: View) -> bytes:
    """Return a PNG of all heads' maps, layers downwards and heads across, guided heads framed in colour."""
    layers, heads = view.weights_NHQK.shape[:2]
    tiles_NHQK = encode.coarse(view.weights_NHQK)
    scale = -(-SMALLEST // max(tiles_NHQK.shape[-2:]))
    shade = np.rint(np.sqrt(np.clip(tiles_NHQK, 0, 1)) * 255).astype(np.uint8).repeat(scale, -2).repeat(scale, -1)
    pixels = _table()[shade]
    high, wide = (side + 2 * FRAME + GAP for side in shade.shape[-2:])
    sheet = np.full((layers * high + GAP, heads * wide + GAP, 3), 255, np.uint8)
    for layer, head in np.ndindex(layers, heads):
        top, left = GAP + layer * high, GAP + head * wide
        owner = view.guided[layer][head] if view.guided else None
        frame = view.targets[owner].colour if owner is not None and owner in view.targets else "#bbbbbb"
        sheet[top : top + high - GAP, left : left + wide - GAP] = ImageColor.getrgb(frame)
        inside = sheet[top + FRAME : top + high - GAP - FRAME, left + FRAME : left + wide - GAP - FRAME]
        inside[...] = pixels[layer, head]
    buffer = io.BytesIO()
    Image.fromarray(sheet).save(buffer, "png", optimize=True)
    return buffer.getvalue()


def _table() -> np.ndarray:
    """Return the colour scale of attention weights as 256 rows of red, green and blue."""
    stops = np.array([ImageColor.getrgb(f"#{stop}") for stop in colours.WEIGHTS["BuPu"].split()], np.float64)
    places = np.linspace(0, len(stops) - 1, 256)
    channels = [np.interp(places, np.arange(len(stops)), stops[:, channel]) for channel in range(3)]
    return np.rint(np.stack(channels, -1)).astype(np.uint8)
