"""Fine-tune on SQuAD 1.1 and 2.0 by RoBERTa's protocol (table 6).

Liu et al. 2019 (RoBERTa), table 6 (section 5.2) and table 10.

    ag-jax finetune --config=roberta/table6_squad:checkpoint=CHECKPOINT --workdir=DIR
    ag-jax finetune --config=roberta/table6_squad:checkpoint=CHECKPOINT,scale=small,data=FOLDER --workdir=DIR

Hardware and time: batches of 48 sequences of 384 tokens, two epochs of 88k and 130k questions and five seeds need an
accelerator. scale=small takes minutes on 2 CPU cores. If you do not have SQuAD's files, finetune/squad has the small
XQuAD.

Expected (roberta-large, dev, EM/F1): 88.9/94.6 on SQuAD 1.1, 86.5/89.4 on 2.0. scale=paper has not been run with this
program yet.

Deviations: a classifier decides whether a question has an answer, and its loss is added to that of the span, as in the
paper, which does not say which span it trains where there is no answer; here it is the first token. Nor does the paper
say whether it tunes a threshold: `f1` and `exact_match` have none, `best_f1` and `best_exact_match` have the threshold
that is best on the development set.
"""

from ag_jax.recipes import finetuning
from ag_jax.settings.config_files import ListOf, Scale

TASKS = ("squad1", "squad2")


def get_config(
    *,
    checkpoint: str,
    tasks: ListOf(*TASKS) = TASKS,
    seeds: int = 5,
    data: str = "",
    scale: Scale = "paper",
):
    """Return the config.

    checkpoint: run directory or Hugging Face directory of the model to fine-tune.
    tasks: comma-separated names of tasks, or `all`.
    seeds: number of seeds with which every trial is repeated.
    data: folder with the tasks' files; without it they are read from TensorFlow Datasets.
    scale: `paper` as published, or `small` for 2 CPU cores.
    """
    config = finetuning.suite("SQuAD by RoBERTa's protocol", checkpoint=checkpoint, seeds=seeds, data=data)
    finetuning.roberta_squad(config, tasks)
    if scale == "small":
        finetuning.small(config)
    return config
