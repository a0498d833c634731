"""The views of the web page that `ag-jax inspect --html` writes."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from etils import epath

from ag_jax.analysis import maps
from ag_jax.analysis.maps import Heads
from ag_jax.distributed import storage
from ag_jax.inspection.heads import read_heads
from ag_jax.inspection.looking import Seen, look
from ag_jax.interop.opening import Inspected
from ag_jax.viewer import page as viewer
from ag_jax.viewer.page import View

Open = Callable[[epath.Path, int | None], Inspected]  # opens the model of a directory at a step, the newest by default


@dataclasses.dataclass(frozen=True)
class Page:
    """Settings of the web page that `ag-jax inspect --html` writes: its path, further models, steps and heads.

    path: of the file.
    open_model: opens further models and steps.
    against: directories of further models, whose attention to the same text is compared.
    steps: steps of the run's checkpoints to show, or `all`; none shows one step.
    heads: LAYER.HEAD of heads whose maps are stored at every step. Of other heads, the maps are stored at the first and
        at the last step, and the overview at all steps.
    """

    path: str
    open_model: Open
    against: Sequence[str] = ()
    steps: Sequence[str] = ()
    heads: Sequence[str] = ()


def check_place(path: str) -> None:
    """Raise ValueError if writing a page to `path` would replace a file that is not such a page.

    Raises OSError if `path` is a directory.
    """
    file = _file(path)
    if file.exists() and viewer.GENERATOR not in file.read_bytes()[:2000].decode("utf-8", "replace"):
        raise ValueError(f"--html={path} exists and was not written by `ag-jax inspect`: give another name")


def _file(path: str) -> epath.Path:
    """Return the absolute path of a page's file.

    Raises ValueError or OSError if its directory cannot be used.
    """
    file = epath.Path(path)
    return storage.directory(file.parent) / file.name


def write(page: Page, title: str, views: Sequence[View]) -> epath.Path:
    """Write the HTML file of a page with these views of attention maps and return its path."""
    file = _file(page.path)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(viewer.page(title, views), encoding="utf-8")
    return file


def make_views(page: Page, seen: Seen, text: str, without: Heads) -> list[View]:
    """Return the views of attention maps on a page: of a model, of its other steps, and of further models.

    All are of the same text and translation. The first of the further models is compared with the first view.

    seen: the attention of the first model.

    Raises ValueError for a step that the run does not have, for steps of a model without any, and if a further model
    lacks one of the heads `without`.
    """
    config = seen.opened.model.config
    heads = read_heads(page.heads, config.layers, config.heads, "heads")
    others = [page.open_model(storage.directory(directory), None) for directory in page.against]
    for other in others:
        _check_heads(other, without)
    first, *names = _short_names([seen.opened.directory, *(other.directory for other in others)])
    views = _of_steps(page, seen, first, text, without, heads) if page.steps else views_of(seen, first)
    for other, name in zip(others, names, strict=True):
        views += views_of(look(other, text, seen.target if other.translator else None, without), name)
    return viewer.side_by_side(views)


def _check_heads(other: Inspected, without: Heads) -> None:
    config = other.model.config
    for layer, head in without:
        if layer >= config.layers or head >= config.heads:
            raise ValueError(
                f"--without={layer}.{head}: expected heads that all models of the page have, but "
                f"--against={other.directory} has only {config.layers} layers of {config.heads} heads"
            )


def _short_names(directories: Sequence[epath.Path]) -> list[str]:
    """Return the last part of each directory's path, or as many parts as tell the directories apart."""
    for count in range(1, max(len(directory.parts) for directory in directories)):
        names = ["/".join(directory.parts[-count:]) for directory in directories]
        if len(set(names)) == len(set(directories)):
            return names
    return [str(directory) for directory in directories]


def _of_steps(page: Page, seen: Seen, model: str, text: str, without: Heads, heads: Heads) -> list[View]:
    """Return the views of attention maps at several training steps, newest first, since the page shows the first."""
    opened = seen.opened
    steps = _steps(page, opened)
    all_views = []
    for step in sorted(steps, reverse=True):
        at_step = page.open_model(opened.directory, step)
        is_small = viewer.encode.block(*seen.shown[0][0].weights_NHQK.shape[-2:]) == 1  # the overview saves little
        whole = None if is_small or step in (min(steps), max(steps)) else heads
        views = views_of(look(at_step, text, seen.target, without), model)
        all_views += [dataclasses.replace(view, whole=_heads_of(view, whole)) for view in views]
    return all_views


def _heads_of(view: View, heads: Heads | None) -> Heads | None:
    """Return those of `heads` that a view has, as a decoder may have fewer layers; None, for all heads, stays None."""
    layers, of_layer = view.weights_NHQK.shape[:2]
    return heads and tuple((layer, head) for layer, head in heads if layer < layers and head < of_layer)


def _steps(page: Page, opened: Inspected) -> list[int]:
    names = ",".join(page.steps)
    if opened.step is None:
        raise ValueError(f"--steps={names} selects checkpoints of a run, but {opened.directory} has none: leave it out")
    if names == "all":
        return list(opened.steps)
    absent = [step for step in page.steps if not step.isdecimal() or int(step) not in opened.steps]
    if absent:
        steps = ", ".join(map(str, opened.steps))
        raise ValueError(f"--steps={names}: there is no checkpoint of step {absent[0]}; the run has {steps}")
    return [int(step) for step in page.steps]


def _texts(seen: Seen, kind: maps.Kind) -> dict[str, Any]:
    """Return the fields of a view that name its text and print the other text of a model that translates."""
    if seen.target is None or kind == "cross":
        return {}
    source, target = (attention.text for attention, _ in seen.shown[:2])
    if kind == "decoder":
        return {"texts": ("Translation",), "other_texts": (("Source", source),)}
    return {"texts": ("Source",), "other_texts": (("Translation", target),)}


def views_of(seen: Seen, model: str) -> list[View]:
    """Return the maps that a page shows of a model at a step: its self- and cross-attention, and that under attack.

    model: its name, for people.
    """
    opened = seen.opened
    step = "" if opened.step is None else f", step {opened.step:,}"
    views = []
    for attention, assignment in seen.shown:
        kind = "" if len(seen.shown) == 1 and not attention.without else f", {attention.title}"
        views.append(
            maps.viewer_view(
                attention,
                f"{model}{step}{kind}",
                model,
                opened.special,
                assignment,
                step=opened.step,
                **_texts(seen, attention.kind),
            )
        )
    attacked = seen.attacked
    if attacked is not None and opened.attack is not None:
        pair = [("with the attack", attacked.attacked, attacked.masked_NHQK)]
        if attacked.plain.tokens != seen.shown[0][0].tokens:  # a copy with masked tokens was attacked
            pair.insert(0, ("without the attack", attacked.plain, None))
        for name, attention, masked in pair:
            view = maps.viewer_view(
                attention,
                f"{model}{step}, {name}",
                f"{model}, {name}",
                opened.special,
                opened.assignment,
                step=opened.step,
                hidden_NHQK=masked,
                before_NHQK=None if masked is None else attacked.plain.weights_NHQK,
                note=opened.attack.note,
                **_texts(seen, attention.kind),
            )
            views.append(view)
    return views
