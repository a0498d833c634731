"""The report's section on the last layer's attention: its shares on the diagonal and on heavy columns, by arm.

`analysis.stripes` defines the shares. They are of held-out rows, before any token is masked, and of the model at the
last milestone, whose maps the report draws (He et al. 2021, figure 3).
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from etils import epath

from ag_jax.analysis import stripes
from ag_jax.analysis.report import DASH, Section
from ag_jax.analysis.stripes import LABELS, Measured
from ag_jax.analysis.tables import Table
from ag_jax.data import pipeline
from ag_jax.evaluation.significance import spread
from ag_jax.pretraining import corpus as pretraining_corpus
from ag_jax.pretraining import run_directory
from ag_jax.pretraining.config import ExperimentConfig
from ag_jax.pretraining.open_run import open_run

ROWS = 32  # held-out rows of which the attention is measured
TITLE = "Where the last layer attends"


def measure(
    configs: Mapping[tuple[str, int], ExperimentConfig], directories: Mapping[tuple[str, int], epath.Path]
) -> dict[str, Any]:
    """Return {arm: shares of last-layer attention on the diagonal, stripes and first token}; {} for translation runs.

    An arm has the list of its seeds' values for each share (`diagonal`, `stripes`, `first`), the shares of uniform
    attention to the same texts (`uniform`), and the number of texts. The texts are the first held-out rows of the arm's
    own data, which are the same for arms with equal settings of the data.

    configs, directories: the config and the directory of the run of each (arm, seed).
    """
    if any(config.translates for config in configs.values()):
        return {}
    result: dict[str, Any] = {}
    for (arm, seed), config in configs.items():
        shares = _of_run(directories[arm, seed], config)
        of_arm = result.setdefault(arm, {name: [] for name in LABELS})
        for name in LABELS:
            of_arm[name].append(float(getattr(shares.found, name)[-1]))
        of_arm["uniform"] = {name: float(getattr(shares.uniform, name)[-1]) for name in LABELS}
        of_arm["texts"] = shares.texts
    return result


def _of_run(directory: epath.Path, config: ExperimentConfig) -> Measured:
    opened = open_run(directory, run_directory.milestone_step(config, directory))
    corpus = pipeline.prepare(pretraining_corpus.with_own_tokenizer(config.data, directory), quiet=True)
    corpus = dataclasses.replace(corpus, tokenizer=opened.tokenizer)
    batch = next(pipeline.validation_batches(corpus, config.data, ROWS))
    read = {"tokens": batch["original"], **{name: batch[name] for name in ("segment_ids", "token_type_ids")}}
    return stripes.shares_of_texts(opened.model, opened.params, read)


def section(shares: Mapping[str, Any], has_mask_decoder: bool) -> Section:
    """Return the report's section on where the last layer attends, from the result of `measure`.

    has_mask_decoder: whether a model has passes behind its last layer, which are not measured.
    """
    header = ["Arm", *(label[0].upper() + label[1:] for label in LABELS.values()), "Texts"]
    rows = [
        [arm, *(str(spread(of_arm[name])) for name in LABELS), str(of_arm["texts"])] for arm, of_arm in shares.items()
    ]
    # Arms whose texts have other lengths, or whose last layer has a window, have another level of chance.
    levels: dict[tuple[str, ...], list[str]] = {}
    for arm, of_arm in shares.items():
        levels.setdefault(tuple(f"{of_arm['uniform'][name]:.3f}" for name in LABELS), []).append(arm)
    for level, arms in levels.items():
        of_arms = "" if len(levels) == 1 else f" ({', '.join(arms)})"
        rows.append([f"uniform attention{of_arms}", *level, DASH])
    explained = (
        "Shares of the last layer's attention, from 0 to 1, as means over all heads, also guided ones, over held-out "
        "texts, without masked tokens, and over the seeds. *Diagonal*: attention of tokens to themselves. *Stripes*: "
        f"on a text's heaviest columns, one for {stripes.TOKENS_OF_A_STRIPE} tokens, without the diagonal. *First "
        "token*: on the first column, without the diagonal; if it is among the heaviest, stripes contain it."
    )
    if has_mask_decoder:
        explained += " The layer is the last of the encoder; the passes of a mask decoder are not measured."
    return Section(TITLE, [explained, Table(header, rows)])
