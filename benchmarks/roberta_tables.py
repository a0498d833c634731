"""Write the tables of RoBERTa's claims into docs/reproduction.md, from the records of roberta_evidence.py.

    python benchmarks/roberta_tables.py

All differences are paired by seed, as in guidance_tables.py; p is corrected by Holm's method for all tests of a table.
A run that failed has no loss, and dashes stand for what is not recorded.
"""

from collections.abc import Iterator, Mapping, Sequence

import evidence
import guidance_tables
import pages
import roberta_evidence
from evidence import Line
from guidance_tables import LOSS, RECORDS
from pointers_tables import listed_steps

from ag_jax.evaluation.significance import SIGNIFICANT, PairedDifference

PAGE = "docs/reproduction.md"
HEADER = ("claim", "in the paper", "arms", "measured", "ours", *pages.DIFFERENCE, "holds here")
TITLES = {
    "masking": "Static and dynamic masking (table 1)",
    "formats": "Input formats and next-sentence prediction (table 2)",
    "batches": "Sizes of batches (table 3)",
    "text": "More text (table 4)",
}
MEASURED = {"formats": {f"loss, {name}": name for name in roberta_evidence.MEASURED}}
# Experiment -> (claim, numbers in the paper, arm without, arm with); the claim is that the loss of the last is lower.
CLAIMS = {
    "masking": (
        (
            "dynamic masking is as good as static or better",
            "SQuAD 2.0 78.3, 78.7; MNLI 84.3, 84.0; SST-2 92.5, 92.9",
            "static_4",
            "dynamic",
        ),
        ("also with one mask of each sequence", "no number", "static_1", "dynamic"),
    ),
    "formats": (
        (
            "segments are better than single sentences",
            "SQuAD 2.0 76.2, 78.7; MNLI 82.9, 84.0; SST-2 92.1, 92.9",
            "sentence_pair_nsp",
            "segment_pair_nsp",
        ),
        (
            "no next-sentence prediction is as good or better",
            "78.7, 79.1; 84.0, 84.7; 92.9, 92.5",
            "segment_pair_nsp",
            "full_sentences",
        ),
        (
            "also with sentences of one document",
            "78.7, 79.7; 84.0, 84.7; 92.9, 92.7",
            "segment_pair_nsp",
            "doc_sentences",
        ),
        (
            "sentences of one document are slightly better",
            "79.1, 79.7; 84.7, 84.7; 92.5, 92.7",
            "full_sentences",
            "doc_sentences",
        ),
    ),
    "batches": (
        ("larger batches are better", "perplexity 3.99 (256 sequences), 3.68 (2,000)", "16", "64"),
        ("also the largest", "3.99 (256), 3.77 (8,000)", "16", "256"),
    ),
    "text": (
        ("more text is better", "16 and 160 GB: SQuAD 2.0 87.3, 87.7; MNLI 89.0, 89.3; SST-2 95.3, 95.6", "2M", "8M"),
        ("even more text is better still", "same", "8M", "all"),
    ),
}

# The number of each run, by arm and seed.
Numbers = Mapping[str, Mapping[int, float]]


def verdict(by_seed: Mapping[int, float], test: PairedDifference | None) -> str:
    """Return whether a claim holds by which the differences of the seeds are below 0, with their test."""
    if not by_seed:
        return "–"
    agrees = sum(by_seed.values()) < 0
    if test is not None and test.p_corrected < SIGNIFICANT:
        return "yes" if agrees else "no"
    return f"not shown; {'agrees' if agrees else 'contradicts'}" + (" (one seed)" if len(by_seed) == 1 else "")


def of_claims(experiment: str, numbers: Mapping[str, Numbers]) -> list[str]:
    """Return the lines of a table of the claims of an experiment.

    numbers: the numbers of each measure.
    """
    contrasts = {}
    for _, _, *arms in CLAIMS[experiment]:
        for measure, of_arms in numbers.items():
            of: guidance_tables.Numbers = {(arm,): by_seed for arm, by_seed in of_arms.items()}
            contrasts[str((measure, *arms))] = guidance_tables.contrast(of, {(arms[1],): 1.0, (arms[0],): -1.0})
    found, rows = guidance_tables.tested(contrasts), []
    for claim, paper, *arms in CLAIMS[experiment]:
        for measure, of_arms in numbers.items():
            key = str((measure, *arms))
            ours = ", ".join(guidance_tables.shown(of_arms[arm], 3) for arm in arms)
            difference = pages.difference_cells(found[key], 3)
            rows.append(
                [claim, paper, ", ".join(arms), measure, ours, *difference, verdict(contrasts[key], found[key])]
            )
    return pages.table(HEADER, rows)


def of_arms(experiment: str, lines: Sequence[Line], numbers: Mapping[str, Numbers]) -> list[str]:
    """Return the lines of a table of the arms of an experiment.

    lines: those of all runs but the ones that choose learning rates.
    numbers: the numbers of each measure.
    """
    rows = []
    for arm in roberta_evidence.ARMS[experiment]:
        of = {line["seed"]: line for line in lines if line["arm"] == arm}
        done = {seed: line for seed, line in sorted(of.items()) if "failed" not in line}
        train = {seed: line["train_loss"] for seed, line in done.items()}
        rates, sizes, epochs = (
            ", ".join(sorted({f"{line[name]:.3g}" for line in done.values()})) or "–"
            for name in ("learning_rate", "batch_size", "epochs")
        )
        steps = listed_steps({seed: line["left_plateau_at_step"] for seed, line in done.items()})
        left = ", ".join(filter(None, (steps, *["diverged"] * (len(of) - len(done))))) or "–"
        losses = [guidance_tables.shown(of_arm.get(arm, {}), 3) for of_arm in numbers.values()]
        rows.append([arm, rates, sizes, epochs, *losses, guidance_tables.shown(train, 3), left])
    return pages.table(("arm", "learning rate", "batch", "epochs", *numbers, "train loss", "left at"), rows)


def of_experiment(experiment: str, every: Sequence[Line]) -> Iterator[str]:
    """Yield the lines of the tables of an experiment, as Markdown.

    every: the lines of its runs.
    """
    lines = [line for line in every if line["seed"] in roberta_evidence.SEEDS]
    names = MEASURED.get(experiment, {LOSS: ""})
    numbers = {
        measure: {
            arm: {
                line["seed"]: line["losses"][name] if name else line["validation_loss"]
                for line in lines
                if line["arm"] == arm and "failed" not in line
            }
            for arm in roberta_evidence.ARMS[experiment]
        }
        for measure, name in names.items()
    }
    yield from (f"**{TITLES[experiment]}**", "", *of_claims(experiment, numbers))
    yield from of_arms(experiment, lines, numbers)
    if tried := [line for line in every if line["seed"] == roberta_evidence.SEED_OF_RATES]:
        yield from ("Validation losses by which the learning rates were chosen:", "")
        rows = []
        for arm, rates in roberta_evidence.RATES.items():
            of = {line["learning_rate"]: line for line in tried if line["arm"] == arm}
            shown = (f"{rate:g}: {shown_loss(of.get(rate))}" for rate in rates)
            rows.append([arm, *shown])
        yield from pages.table(("batch", "", "", "", ""), rows)


def shown_loss(line: Line | None) -> str:
    """Return the validation loss of a run; a dash for one that is not recorded."""
    return "–" if line is None else "diverged" if "failed" in line else f"{line['validation_loss']:.3f}"


def of_records(records: Mapping[str, Sequence[Line]]) -> Iterator[str]:
    """Yield the lines of the tables of all experiments, by the lines of each, as Markdown."""
    if not any(records.values()):
        yield from ("No result is recorded.", "")
    for experiment, lines in records.items():
        if lines:
            yield from of_experiment(experiment, lines)


def recorded() -> Iterator[str]:
    """Return the tables from the records."""
    names = roberta_evidence.ARMS
    return of_records({name: evidence.read(RECORDS / f"{roberta_evidence.NAME}_{name}") for name in names})


if __name__ == "__main__":
    pages.write(PAGE, "roberta_tables.py", recorded())
