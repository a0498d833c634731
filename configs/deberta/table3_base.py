"""Fine-tune a base DeBERTa on MNLI and SQuAD (table 3).

He et al. 2021 (DeBERTa: Decoding-enhanced BERT with Disentangled Attention), table 3 (section 5.1.2).

    ag-jax finetune --config=deberta/table3_base:checkpoint=CHECKPOINT --workdir=DIR
    ag-jax finetune --config=deberta/table3_base:checkpoint=CHECKPOINT,tasks=mnli,scale=small,data=FOLDER \
--workdir=DIR

`checkpoint` is a run or a Hugging Face directory, such as one of microsoft/deberta-base.

Hardware and time: the paper does not say for fine-tuning. MNLI has 393k examples, and SQuAD a sweep of 16 points of ten
epochs, which need an accelerator. With sweep=paper, MNLI has 192 points and SQuAD 64. scale=small trains one point, in
minutes for each trial of a small model on 2 CPU cores.

Expected (deberta-base, dev): MNLI-m/mm 88.8/88.5, SQuAD 1.1 F1/EM 93.1/87.2, SQuAD 2.0 86.2/83.1. scale=paper has not
been run with this program yet.

Deviations: MNLI has the settings of the script released for the base model. For SQuAD no script was released; the sweep
is over learning rates and batch sizes, with 500 warm-up steps. sweep=paper tries the paper's sweep for both, also over
warm-up and, for MNLI, dropout of the head; the head for SQuAD has no dropout here. In SQuAD 2.0 the score of the first
token decides whether there is an answer. Sequences of SQuAD have 384 tokens, which is our choice. As in all configs
here, Adam corrects the bias of its averages, and the decay of the learning rate starts from the peak; the released
program does neither, so its updates are larger in the first hundreds of steps, and its rate drops at once when the
warm-up ends.
"""

from ag_jax.recipes import finetuning
from ag_jax.settings.config_files import ListOf, OneOf, Scale

TASKS = ("mnli", "squad1", "squad2")


def get_config(
    *,
    checkpoint: str,
    tasks: ListOf(*TASKS) = TASKS,
    seeds: int = 5,
    data: str = "",
    sweep: OneOf("short", "paper") = "short",
    scale: Scale = "paper",
):
    """Return the config.

    checkpoint: run directory or Hugging Face directory of the model to fine-tune.
    tasks: comma-separated names of tasks, or `all`.
    seeds: number of seeds with which every trial is repeated.
    data: folder with the tasks' files; without it they are read from TensorFlow Datasets.
    sweep: `short` over learning rates and batch sizes of SQuAD (16 points) and with one point of MNLI, or `paper` also
        over warm-up (64) and, for MNLI, dropout (192).
    scale: `paper` as published, or `small` for 2 CPU cores.
    """
    config = finetuning.suite(
        "MNLI and SQuAD by DeBERTa's settings for base models", checkpoint=checkpoint, seeds=seeds, data=data
    )
    finetuning.deberta(config, tasks)
    finetuning.deberta_sweep(config, sweep, "deberta")
    if scale == "small":
        finetuning.small(config)
    return config
