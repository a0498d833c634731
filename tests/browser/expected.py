"""The colours that a page must draw, from the palettes of matplotlib and of the viewer."""

import matplotlib
import numpy as np

from ag_jax.viewer import colours
from ag_jax.viewer import page as pages

SIGNED = np.array([[int(stop[at : at + 2], 16) for at in (0, 2, 4)] for stop in colours.DIFFERENCES.split()], float)


def save(path, given, **more):
    """Write a page with views; return its path."""
    path.write_text(pages.page("A title", given, **more), encoding="utf-8")
    return path


def weight_colours(places):
    """Colours of places from 0 to 1 on the scale of weights."""
    return np.array([[255 * channel for channel in matplotlib.colormaps["BuPu"](place)[:3]] for place in places])


def signed_colours(differences):
    """Colours of differences from -1 to 1, by the square root on both sides."""
    places = (0.5 + 0.5 * np.sign(differences) * np.sqrt(np.abs(differences))) * (len(SIGNED) - 1)
    return np.stack([np.interp(places, np.arange(len(SIGNED)), SIGNED[:, channel]) for channel in range(3)], -1)
