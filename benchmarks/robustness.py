"""Attack fine-tuned models with misspelt words (TextAttack), and record what each model still predicts right.

    python benchmarks/robustness.py --suite=DIR --data=FOLDER --results=NEW

DIR is the directory of an `ag-jax compare` of config asa/real_weights with `--config.keep=best`; docs/robustness.md has
the commands, and how to install TextAttack. All models get the same examples of the development set of SST-2, and each
example the same random numbers.

A model is a result in robustness_sst2/ in the folder --results. Models that have a result are skipped, and one whose
trial is not done yet is left to a later call of the same command. Results of other code, and uncommitted changes, are
errors (benchmarks/evidence.py). The fields of a result:

`accuracy`: share of the examples that the model predicts right;
`accuracy_under_attack`: share of the examples that it predicts right and for which no misspelling was found that
    changes the prediction;
`success_rate`: share of the attacks that found one, among the examples that the model predicts right, which alone are
    attacked;
`queries`: mean number of texts that an attack had the model predict, with the unchanged one;
`words_changed`: mean share of words that the successful attacks changed;
`outcomes`: a letter for each example: w for wrong without an attack, f for a misspelling found, r for robust.

Hardware and time: one to two and a half minutes a model on 2 CPU cores, beside other programs.
"""

import collections
import hashlib
import importlib.metadata
import os
import pathlib
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import evidence
import textattack
from evidence import Line
from textattack import transformations
from textattack.attack_results import AttackResult, SkippedAttackResult, SuccessfulAttackResult
from textattack.constraints.overlap import LevenshteinEditDistance
from textattack.constraints.pre_transformation import RepeatModification
from textattack.goal_functions import UntargetedClassification
from textattack.models.wrappers import ModelWrapper
from textattack.search_methods import GreedyWordSwapWIR
from textattack.shared.utils import set_seed

import ag_jax
from ag_jax.data.tasks import catalogue, readers
from ag_jax.data.tasks.task import Examples
from ag_jax.finetuning import splits

NAME, TASK = "robustness_sst2", "sst2"
EXAMPLES, SUBSET_SEED = 200, 0
PACKAGES = ("textattack", "transformers", "torch")


class Wrapper(ModelWrapper):
    """A fine-tuned model in the form in which TextAttack calls one: a list of texts -> an array [texts, classes]."""

    def __init__(self, directory):
        self.model = ag_jax.load(directory)

    def __call__(self, texts):
        return self.model.predict_proba(texts)


def attack_on(model):
    """Return the attack: misspell one word after another, the most important first, until the prediction changes."""
    swaps = [
        transformations.WordSwapNeighboringCharacterSwap(),
        transformations.WordSwapRandomCharacterSubstitution(),
        transformations.WordSwapRandomCharacterDeletion(),
        transformations.WordSwapRandomCharacterInsertion(),
    ]
    return textattack.Attack(
        UntargetedClassification(model),
        [RepeatModification(), LevenshteinEditDistance(30)],
        transformations.CompositeTransformation(swaps),
        GreedyWordSwapWIR("delete"),  # the default puts [UNK] in place of a word, which the model reads as a text
    )


@dataclass(frozen=True)
class Victim(evidence.Point):
    """A model that is attacked: an arm and a seed of the suite, and a hash of its weights."""

    arm: str
    seed: int
    weights: str


def victims(suite: pathlib.Path) -> dict[Victim, pathlib.Path]:
    """Return the trials of a suite that are done and have weights, with their directories."""
    found = {}
    for weights in sorted(suite.glob(f"*/{TASK}/*/weights/weights.safetensors")):
        trial = weights.parent.parent
        if (trial / "result.json").exists():
            digest = hashlib.sha256(weights.read_bytes()).hexdigest()[:16]
            found[Victim(trial.parent.parent.name, int(trial.name.rpartition("seed")[2]), digest)] = trial
    return found


def development_examples(data: str) -> Examples:
    """Return the examples of the development set that are attacked."""
    return splits.subset(readers.load(catalogue.find(TASK), data, "validation"), EXAMPLES, SUBSET_SEED)


def outcome(result: AttackResult) -> str:
    """Return the letter of an attack's result among `outcomes`."""
    if isinstance(result, SkippedAttackResult):
        return "w"
    return "f" if isinstance(result, SuccessfulAttackResult) else "r"


def words_changed(result: AttackResult) -> float:
    """Return the share of words that an attack changed."""
    before, after = result.original_result.attacked_text, result.perturbed_result.attacked_text
    return len(before.all_words_diff(after)) / len(before.words)


def measured(directory: pathlib.Path, examples: Examples) -> Line:
    """Attack a model on all examples; return the figures of its line."""
    begun, load = time.monotonic(), os.getloadavg()[0]
    attack, results = attack_on(Wrapper(directory)), []
    for number, example in enumerate(examples):
        set_seed(number)
        results.append(attack.attack(example.first, example.label))
    outcomes = "".join(map(outcome, results))
    counts = collections.Counter(outcomes)
    attacked = [result for result, letter in zip(results, outcomes, strict=True) if letter != "w"]
    found = [result for result, letter in zip(results, outcomes, strict=True) if letter == "f"]
    return {
        "task": TASK,
        "examples": len(examples),
        "accuracy": len(attacked) / len(examples),
        "accuracy_under_attack": counts["r"] / len(examples),
        "success_rate": len(found) / len(attacked) if attacked else None,
        "queries": statistics.fmean(result.num_queries for result in attacked) if attacked else None,
        "words_changed": statistics.fmean(map(words_changed, found)) if found else None,
        "outcomes": outcomes,
        "seconds": time.monotonic() - begun,
        "load_average": [load, os.getloadavg()[0]],
        "packages": {name: importlib.metadata.version(name) for name in PACKAGES},
    }


def main() -> None:
    """Attack the models that have no result yet, and print a line for each."""
    parser = evidence.options(__doc__, "suite", "the comparison")
    parser.add_argument("--data", required=True, help="folder with the tasks' files")
    options = parser.parse_args()
    examples, trials = development_examples(options.data), victims(options.suite)

    def measure(victim: Victim, lines: Sequence[Line]) -> Line:
        line = measured(trials[victim], examples)
        print(
            f"{victim.arm} seed {victim.seed}: accuracy {line['accuracy']:.3f}, "
            f"{line['accuracy_under_attack']:.3f} under attack, {line['seconds']:.0f} s",
            flush=True,
        )
        return line

    of = hashlib.sha256("".join(f"{one.id}\t{one.first}\t{one.label}\n" for one in examples).encode()).hexdigest()[:16]
    evidence.run(options.results / NAME, pathlib.Path(__file__), lambda _: (list(trials), True), measure, {"data": of})


if __name__ == "__main__":
    evidence.start(main)
