"""Read the examples of a task from its files or from TFDS.

Malformed rows are an error that names and counts them, or are skipped and counted on request.
"""

import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ag_jax.data.json_files import FAULTS, reason
from ag_jax.data.records import prepared
from ag_jax.data.records.formats import LocatedRecord, Record
from ag_jax.data.tasks import choice, containers, marked, referents, spans, tagging, texts
from ag_jax.data.tasks.task import Example, Examples, FileLayout, Task, is_held_out, is_labelled

Parser = Callable[[Record, Task, bool], Sequence[Example]]
PARSERS: dict[str, Parser] = {
    "texts": texts.texts,
    "numbers": texts.numbers,
    "paws": texts.paws,
    "multirc": texts.multirc,
    "wic": marked.wic,
    "wsc": marked.wsc,
    "wsc_referents": referents.wsc,
    "wnli_referents": referents.wnli,
    "hellaswag": choice.hellaswag,
    "copa": choice.copa,
    "swag": choice.swag,
    "race": choice.race,
    "dream": choice.dream,
    "record": choice.record,
    "words": tagging.words,
    "chunked_words": tagging.chunked_words,
    "squad": spans.squad,
}
SHOWN = 5  # the most malformed rows that an error lists


def load(task: Task, root: str, split: str, *, skip_malformed: bool = False, legacy: bool = False) -> Examples:
    """Return the examples of a split of a task from files below `root` or, if it is "", TensorFlow Datasets (TFDS).

    The examples have the order of their file.

    root: a directory with the folders of the tasks, in any of the layouts of the catalogue; "" reads TFDS.
    skip_malformed: leave malformed rows out and count them in `Examples.skipped`; otherwise they are an error.
        Malformed rows of a file that is both train and validation are counted in train.
    legacy: read as the released code does (`Task.legacy`): of DREAM, only the first question about each dialogue.

    Raises FileNotFoundError if no file of the split is found, and ValueError for malformed rows, or if there is no
    example.
    """
    layout, files = _local(task, root, split) if root else _prepared(task, split)
    source = ", ".join(str(file) for file in files)
    shared = _is_shared(layout, split)
    items: list[Example] = []
    problems: list[str] = []
    for file in files:
        groups, faults = parse_records(_records(layout, file, split), PARSERS[task.form], task, is_labelled(split))
        problems += faults
        for group in groups:
            items.extend(group[:1] if legacy and task.form == "dream" else group)
    check_problems(task, split, problems, skip_malformed)
    if shared:  # train and validation are parts of one file, divided by a hash
        items = [item for item in items if is_held_out(item) == (split != "train")]
    if not items:
        detail = f"; all of {len(problems)} rows are malformed, the first: {problems[0]}" if problems else ""
        raise ValueError(f"{source} holds no example of task {task.name}, split {split}: expected at least one{detail}")
    return Examples(tuple(items), source, 0 if shared and split != "train" else len(problems))


def find_files(task: Task, root: str) -> dict[str, list[pathlib.Path]]:
    """Return {split: files that `load` reads} for the splits of a task that have files.

    root: as for `load`.
    """
    files = {}
    for split in task.splits:
        try:
            layout, paths = _local(task, root, split) if root else _prepared(task, split)
        except FileNotFoundError:
            continue
        if layout.container == "tfds":
            paths = [file for path in paths for file in sorted(path.glob(f"*-{layout.files[split]}.*"))]
        elif layout.container == containers.TREE:
            paths = [file for path in paths for file in containers.tree_files(path)]
        files[split] = paths
    return files


def parse_records(
    located: Iterable[LocatedRecord], parser: Parser, task: Task, labelled: bool
) -> tuple[list[Sequence[Example]], list[str]]:
    """Return the examples of each well-formed record of a file, and a sentence about each malformed one.

    labelled: whether every example must have a label.
    """
    groups, problems = [], []
    for place, record in located:
        try:
            if isinstance(record, ValueError):
                raise record
            groups.append(parser(record, task, labelled))
        except FAULTS as fault:
            problems.append(f"{place}: {reason(fault)}")
    return groups, problems


def check_problems(task: Task, split: str, problems: Sequence[str], skip_malformed: bool) -> None:
    """Raise ValueError that counts and lists the malformed records of a split, unless they are to be skipped."""
    if problems and not skip_malformed:
        lines = "\n".join(f"  {problem}" for problem in problems[:SHOWN])
        more = f"\n  and {len(problems) - SHOWN} more" if len(problems) > SHOWN else ""
        raise ValueError(
            f"task {task.name}, split {split}: {len(problems)} malformed rows; mend them, or set "
            f"--config.tasks.{task.name}.skip_malformed=True to leave them out, counted:\n{lines}{more}"
        )


def _is_shared(layout: FileLayout, split: str) -> bool:
    """Return whether `split` is the training or validation split of a layout that divides one file into both."""
    others = [file for name, file in layout.files.items() if name in ("train", "validation") and name != split]
    return split in ("train", "validation") and layout.files[split] in others


def _local(task: Task, root: str, split: str) -> tuple[FileLayout, list[pathlib.Path]]:
    """Return the first file layout of a task whose files of a split exist below `root`, and these files."""
    base = pathlib.Path(root).expanduser()
    names = []
    for layout in task.layouts:
        if split not in layout.files:
            continue
        for folder in layout.folders:
            if layout.sign and not (base / folder / layout.sign).exists():
                names.append(f"{folder}/{layout.files[split]} beside {layout.sign}")
                continue
            for name in layout.files[split].split("|"):
                # A split of several files joins them with "+".
                files = [base / folder / part for part in name.split("+")]
                compressed = [file.with_name(f"{file.name}.gz") for file in files]
                for paths in (files, compressed):
                    if all(file.exists() for file in paths):
                        return layout, paths
                names.append(f"{folder}/{name}")
    raise FileNotFoundError(
        f"task {task.name}: no split {split!r} below {base}: "
        + (f"expected one of {', '.join(dict.fromkeys(names))}; put such a file there, or " if names else "")
        + "set data to another directory, or to none for TFDS"
    )


def _prepared(task: Task, split: str) -> tuple[FileLayout, list[pathlib.Path]]:
    """Return the layout of a split in TensorFlow Datasets (TFDS), and the directories of its prepared data."""
    layout = next((layout for layout in task.prepared if split in layout.files), None)
    if layout is None:
        raise FileNotFoundError(
            f"task {task.name}: TFDS has no split {split!r} of it; set data to a directory that has the task's files "
            "in one of the folders "
            f"{', '.join(dict.fromkeys(folder for form in task.layouts for folder in form.folders))}"
        )
    return layout, [prepared.directory(name) for name in layout.folders]


def _records(layout: FileLayout, file: pathlib.Path, split: str) -> Iterator[LocatedRecord]:
    """Yield (location, record) for each record of a file, with the fields that the task's parser expects.

    Every record has the field "id". In place of a malformed record, the ValueError that describes the fault is yielded.
    """
    if layout.container == "tfds":
        located = _tfds(file, layout.files[split])
    else:
        located = containers.read(layout.container, file, **layout.options)
    for number, (place, record) in enumerate(located):
        yield place, record if isinstance(record, ValueError) else _renamed(record, layout.columns, number)


def _renamed(record: Record, names: Mapping[str, Any], number: int) -> Record | ValueError:
    """Return a record with fields added by `names`, {field: its column or columns}; a ValueError if one is missing.

    Only an id or a label may be missing; a record without an id gets `number` as its id.
    """
    renamed = dict(record)
    for field, source in names.items():
        parts = source if isinstance(source, tuple) else (source,)
        absent = [part for part in parts if part not in record]
        if absent and field not in ("id", "label"):  # test sets may lack these
            return ValueError(f"expected the field {absent[0]!r}, got {', '.join(record)}")
        if not absent:
            renamed[field] = record[source] if parts == (source,) else " ".join(record[part] for part in parts)
    renamed["id"] = str(renamed.get("id", number))
    return renamed


def _tfds(folder: pathlib.Path, split: str) -> Iterator[LocatedRecord]:
    builder, records = prepared.records(folder, split)
    names = {name: _class_names(feature) for name, feature in builder.info.features.items()}
    for number, record in enumerate(records):
        yield f"{folder}, record {number}", {name: _plain(value, names[name]) for name, value in record.items()}


def _class_names(feature: Any) -> list[str] | None:
    """Return the class names of a TFDS feature or of the elements of a sequence feature; None if it has no classes."""
    feature = getattr(feature, "feature", feature)
    return list(feature.names) if hasattr(feature, "names") else None


def _plain(value: Any, names: list[str] | None) -> Any:
    """Return a TFDS value in plain Python: bytes as str, arrays as lists, class indices as names, but -1 unchanged."""
    if isinstance(value, dict):
        return {name: _plain(part, None) for name, part in value.items()}
    if isinstance(value, (list, tuple)) or (isinstance(value, np.ndarray) and value.ndim):
        return [_plain(part, names) for part in value]
    if isinstance(value, bytes):
        return value.decode()
    value = value.item() if hasattr(value, "item") else value
    return names[value] if names and isinstance(value, int) and value >= 0 else value
