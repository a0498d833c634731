"""The text and the task that the goldens were trained on, from a seed: nothing of it is stored."""

import pathlib
import random
import shutil

CONFIGS = pathlib.Path(__file__).parent / "configs"
WORDS = "the house of our union is strong and we will build roads . they said no ; he went home early .".split()
GOOD, BAD = ("warm", "funny", "charming", "good", "best"), ("cold", "boring", "tired", "bad", "worst")
EXAMPLES = {"train": 24, "dev": 11, "test": 5}


def write(folder: pathlib.Path) -> None:
    """Write `text/`, `tasks/` and `configs/`, which the settings of the goldens name by relative paths."""
    chosen = random.Random(1)
    (folder / "text").mkdir()
    for name, count in (("train", 120), ("validation", 20)):
        lines = [" ".join(chosen.choices(WORDS, k=9)).capitalize() + "." for _ in range(count)]
        (folder / "text" / f"{name}.txt").write_text("\n".join(lines) + "\n")
    (folder / "tasks" / "SST-2").mkdir(parents=True)
    for split, count in EXAMPLES.items():
        rows = [_example(chosen, number, labelled=split != "test") for number in range(count)]
        header = "sentence\tlabel" if split != "test" else "index\tsentence"
        (folder / "tasks" / "SST-2" / f"{split}.tsv").write_text("\n".join([header, *rows]) + "\n")
    shutil.copytree(CONFIGS, folder / "configs", ignore=shutil.ignore_patterns("__pycache__"))


def _example(chosen: random.Random, number: int, *, labelled: bool) -> str:
    words = chosen.choices(WORDS, k=chosen.randint(2, 6))
    words.insert(chosen.randrange(len(words)), chosen.choice((BAD, GOOD)[number % 2]))
    text = " ".join(words)
    return f"{text}\t{number % 2}" if labelled else f"{number}\t{text}"
