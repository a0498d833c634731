"""Run two commits side by side on this machine, and list the paths of their results that differ.

    python -m tests.same_numbers OLD NEW                      # every scenario but `full`; 25 minutes on two cores
    python -m tests.same_numbers OLD NEW --only=full,search   # these scenarios alone
    python -m tests.same_numbers --list                       # print the scenarios with their commands and stop

OLD and NEW are commits, or directories of checkouts with changes that are not committed. Recorded numbers differ
between processors by hundredths, so a change of the program is compared with the program before it, not with a record.

Each scenario is a series of commands, such as a comparison or a search, with a cache of its own; `data` has digests of
rows, batches and masks in all formats (tests/same_data.py). The results are the
values of JSON files, the lines of other texts, and the arrays of .npz and .safetensors files; settings, tokenizers,
figures, checkpoints, and whatever measures time, are left out. A path is a file with the keys in it, such as
`quickstart/plain-seed0/summary.json: validation_loss`. A value that moved, so that the old path is gone and a new one
with the same last key has the same value, counts as equal. The exit status is 1 if a value differs or is gone.
"""

import argparse
import collections
import contextlib
import dataclasses
import hashlib
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from safetensors.numpy import load_file

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
MOST = 40  # paths that are printed of each kind
TIMES = re.compile(r"(.*_)?seconds|tokens_per_second|commit")  # keys whose values differ from run to run
NO_RESULTS = {"config.json", "tokenizer_config.json", "tokenizer.json", "special_tokens_map.json", "lock.json"}
FOLDERS = {"checkpoints", "tokenizer", "figures", "cache", "data"}
ARRAYS = (".npz", ".safetensors")
LINES = (".tsv", ".csv", ".txt", ".out")

TEXT = ("--config.data.source=data/documents.jsonl", "--config.data.validation_fraction=0.1")
BRIEF = (*TEXT, "--config.training.batch_size=8", "--config.training.log_every=4", "--config.training.evaluate_every=6")
SHORT = (*BRIEF, "--config.training.steps=12", "--config.optimizer.warmup_steps=4")
TWO_LAYERS = "--config.model.layers=2"
QUICKSTART = ("compare", "--config=quickstart", "--workdir=quickstart")
TASK = "finetune/own:checkpoint=encoder,train=data/reviews.csv,scale=small"
MASKING = "asa/table3_naive_masking:checkpoint=encoder,tasks=wnut17,seeds=1,data=data,scale=small"
PAIRS = "source=data/pairs.en,target=data/pairs.de,test_source=data/test.en,test_target=data/test.de"
PLAIN, AG, STRENGTH = (f"--config.search.grids.{arm}." for arm in ("plain", "ag", "ag_strength"))
SCENARIOS: dict[str, tuple[tuple[str, ...], ...]] = {
    "quickstart": (
        (*QUICKSTART, "--config.training.steps=120", "--config.optimizer.warmup_steps=24"),
        ("evaluate", "--workdir=quickstart/ag-seed0"),
        ("export", "--workdir=quickstart/ag-seed0", "--to=exported"),
    ),
    "search": (
        (
            *("search", "--config=ag/section4_5_search:scale=small", "--workdir=search", *BRIEF, TWO_LAYERS),
            *("--config.search.steps=20", "--config.search.rungs=0.5"),
            *(f"{PLAIN}model.attention_dropout=0.1", f"{PLAIN}optimizer.learning_rate=2e-3"),
            f"{PLAIN}optimizer.warmup_steps=0,4",
            *(f"{AG}model.attention_dropout=0", f"{AG}optimizer.learning_rate=1e-3,4e-3"),
            f"{AG}optimizer.warmup_steps=0,4",
            *(f"{STRENGTH}guidance.fraction=0.5,1", f"{STRENGTH}guidance.alpha=1"),
            f"{STRENGTH}optimizer.learning_rate=4e-3",
        ),
    ),
    "tasks": (
        ("train", "--config=quickstart:arm=ag", "--workdir=encoder", *SHORT, TWO_LAYERS),
        ("finetune", f"--config={TASK},seeds=2", "--workdir=suite", "--config.tasks.own.epochs=2"),
        (
            "compare",
            f"--config={TASK}",
            "--workdir=attacks",
            "--config.tasks.own.epochs=2",
            "--config.arms=r_drop,smart",
        ),
        (
            *("compare", f"--config={MASKING}", "--workdir=masking"),
            *("--config.tasks.wnut17.epochs=2", "--config.arms=asa,scheduled"),
        ),
        ("evaluate", "--config=probe:checkpoint=encoder,ablation=held_out", "--workdir=probes"),
    ),
    "encoders": (
        ("train", "--config=deberta/table4_ablation:scale=small", "--workdir=deberta", *SHORT, TWO_LAYERS),
        ("train", "--config=ag/table6_electra:generator=mlm,scale=small", "--workdir=electra", *SHORT),
        (
            *("train", "--config=modern/modernbert:arm=ag,scale=small", "--workdir=modernbert", *SHORT),
            *("--config.training.earlier_batch_sizes=4", "--config.training.earlier_batch_sizes_until=6"),
        ),
        (
            *("train", "--config=roberta/table2_input_formats:arm=segment_pair_nsp,scale=small", "--workdir=pairs"),
            *(*SHORT, TWO_LAYERS, "--config.optimizer.kind=muon"),
        ),
        ("train", "--config=asa/table6_pretraining:run=pairs,arm=asa,scale=small", "--workdir=asa", *SHORT),
    ),
    "translation": (
        (
            *("compare", f"--config=translate:{PAIRS},steps=60", "--workdir=translation"),
            *("--config.comparison.arms=hard_coded,ag", "--config.model.width=32", "--config.model.layers=2"),
            *("--config.decoder.layers=2", "--config.optimizer.learning_rate=1e-2", "--config.training.log_every=10"),
            *("--config.training.evaluate_every=20", "--config.decoding.beam_size=2", "--config.translation.average=2"),
        ),
        ("translate", "--workdir=translation/ag-seed0", "--input=data/test.en", "--output=translation/test.out"),
    ),
    "data": (("tests/same_data.py",),),
    "full": (QUICKSTART,),
}


@dataclasses.dataclass(frozen=True)
class Differences:
    """Paths of results of two commits: those whose values differ, those that are in one of them alone."""

    differ: list[str]
    gone: list[str]
    new: list[str]
    moved: int
    equal: int

    @property
    def any(self) -> bool:
        return bool(self.differ or self.gone)


def main() -> int:
    """Return 0 if no value differs or is gone, else 1."""
    description = sys.modules[__name__].__doc__
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commits", nargs="*", metavar="OLD NEW", help="commits or directories")
    parser.add_argument("--only", help="names of scenarios, with commas")
    parser.add_argument("--list", action="store_true", help="print the scenarios and stop")
    flags = parser.parse_args()
    names = flags.only.split(",") if flags.only else [name for name in SCENARIOS if name != "full"]
    if unknown := {*names} - SCENARIOS.keys():
        parser.error(f"the scenarios are {', '.join(SCENARIOS)}, got {', '.join(unknown)}")
    if flags.list:
        print(*(f"{name}: {' '.join(one)}" for name in SCENARIOS for one in SCENARIOS[name]), sep="\n")
        return 0
    if len(flags.commits) != 2:
        parser.error(f"expected two commits, OLD and NEW, got {len(flags.commits)}")
    failed = False
    with tempfile.TemporaryDirectory(prefix="same-numbers-") as folder, contextlib.ExitStack() as stack:
        places = [stack.enter_context(checkout(commit)) for commit in flags.commits]
        for name in names:
            results = []
            for side, place in zip(("old", "new"), places, strict=True):
                work = pathlib.Path(folder) / name / side
                seconds = run(SCENARIOS[name], place, work, pathlib.Path(folder) / "compiled")
                results.append(dict(read(work)))
                print(f"{name}, {side}: {len(results[-1]):,} values, {seconds:.0f} s", file=sys.stderr, flush=True)
            differences = compare(*results)
            failed |= differences.any
            print(
                f"{name}: {differences.equal:,} values are equal, {differences.moved:,} of the same value moved",
                flush=True,
            )
            kinds = {"differ": differences.differ, "are gone": differences.gone, "are new": differences.new}
            for kind, paths in kinds.items():
                if paths:
                    print(f"{name}: {len(paths):,} {kind}:", *paths[:MOST], sep="\n  ", flush=True)
    return int(failed)


@contextlib.contextmanager
def checkout(commit: str) -> Iterator[pathlib.Path]:
    """Within, there is a directory with a commit of this repository; a directory is itself one."""
    if pathlib.Path(commit).is_dir():
        yield pathlib.Path(commit).resolve()
        return
    with tempfile.TemporaryDirectory(prefix="checkout-") as folder:
        subprocess.run(["git", "clone", "-q", REPOSITORY, folder], check=True)
        subprocess.run(["git", "checkout", "-q", commit], cwd=folder, check=True)
        yield pathlib.Path(folder)


def run(
    commands: tuple[tuple[str, ...], ...], place: pathlib.Path, work: pathlib.Path, compiled: pathlib.Path
) -> float:
    """Run commands of the checkout `place` in the new folder `work`, and return the seconds that they took."""
    write_data(work / "data")
    environment = os.environ | {
        "PYTHONPATH": str(place),
        "JAX_PLATFORMS": "cpu",
        "AG_JAX_CACHE": str(work / "cache"),
        "JAX_COMPILATION_CACHE_DIR": str(compiled),
    }
    began = time.time()
    for command in commands:
        program = [REPOSITORY / command[0]] if command[0].endswith(".py") else ["-m", "ag_jax.main", *command]
        process = subprocess.run([sys.executable, *program], cwd=work, env=environment, capture_output=True, text=True)
        if process.returncode:
            sys.exit(f"{place}: {' '.join(command)} ended with {process.returncode}\n{process.stderr[-4000:]}")
    return time.time() - began


def write_data(folder: pathlib.Path) -> None:
    """Write documents, labelled texts and words, and pairs of texts, from which a model learns within some steps."""
    (folder / "wnut17").mkdir(parents=True)
    rng = random.Random(0)
    words = "house road people law congress war peace year money land great good old free strong little".split()
    texts = [rng.choices(words, k=rng.randint(3, 9)) for _ in range(400)]
    lines = [" ".join(text) for text in texts]
    documents = [". ".join(rng.choices(lines, k=rng.randint(4, 12))) + "." for _ in range(200)]
    (folder / "documents.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))
    rows = [f"{line},{'yes' if 'peace' in line or 'good' in line else 'no'}\n" for line in lines[:160]]
    (folder / "reviews.csv").write_text("text,label\n" + "".join(rows))
    places = {"house", "road", "land"}
    tagged = ["".join(f"{word}\t{'B-location' if word in places else 'O'}\n" for word in text) for text in texts]
    for name, part in (("train", slice(64)), ("validation", slice(64, 88)), ("test", slice(88, 112))):
        (folder / "wnut17" / f"{name}.conll").write_text("\n".join(tagged[part]))
    for name, part in (("pairs", slice(384)), ("test", slice(384, None))):
        (folder / f"{name}.en").write_text("".join(f"{line}\n" for line in lines[part]))
        (folder / f"{name}.de").write_text("".join(f"{' '.join(w[::-1] for w in text)}\n" for text in texts[part]))


def read(work: pathlib.Path) -> Iterator[tuple[str, Any]]:
    """Yield the path and the value of each result below a folder."""
    for file in sorted(work.rglob("*")):
        name = file.relative_to(work)
        if not file.is_file() or file.name in NO_RESULTS or FOLDERS & {*name.parts}:
            continue
        if file.suffix == ".json":
            yield from leaves(f"{name}:", json.loads(file.read_text(), parse_constant=str), str(work))
        elif file.suffix == ".jsonl":
            for number, line in enumerate(file.read_text().splitlines(), 1):
                yield from leaves(f"{name}:{number}:", json.loads(line, parse_constant=str), str(work))
        elif file.suffix in LINES:
            yield from ((f"{name}:{number}", line) for number, line in enumerate(file.read_text().splitlines(), 1))
        elif file.suffix in ARRAYS:
            arrays = load_file(file) if file.suffix == ".safetensors" else np.load(file)
            for key in arrays:
                digest = hashlib.sha256(np.ascontiguousarray(arrays[key]).tobytes()).hexdigest()
                yield f"{name}: {key}", f"{arrays[key].dtype}{arrays[key].shape} {digest}"


def leaves(path: str, value: Any, folder: str) -> Iterator[tuple[str, Any]]:
    """Yield the path and the value of each number and text in a JSON value, without those that measure time."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if not TIMES.fullmatch(key):
                yield from leaves(f"{path} {key}", inner, folder)
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from leaves(f"{path} {number}", inner, folder)
    else:
        yield path, value.replace(folder, "") if isinstance(value, str) else value


def compare(old: Mapping[str, Any], new: Mapping[str, Any]) -> Differences:
    """Return how the results of two commits differ, as values by path."""
    differ = [f"{path}: {old[path]} -> {new[path]}" for path in old if path in new and old[path] != new[path]]
    equal = sum(path in new and old[path] == new[path] for path in old)

    def as_moved(path: str, value: Any) -> tuple[str, str]:
        return path.split()[-1], repr(value)

    added = collections.Counter(as_moved(path, value) for path, value in new.items() if path not in old)
    gone, moved = [], 0
    for path, value in old.items():
        if path in new:
            continue
        if added[key := as_moved(path, value)]:
            added[key] -= 1
            moved += 1
        else:
            gone.append(f"{path}: {value}")
    arrived = [path for path, value in new.items() if path not in old and added[as_moved(path, value)]]
    return Differences(differ, gone, arrived, moved, equal)


if __name__ == "__main__":
    sys.exit(main())
