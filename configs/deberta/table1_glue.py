"""Fine-tune a large DeBERTa on GLUE (table 1).

He et al. 2021 (DeBERTa: Decoding-enhanced BERT with Disentangled Attention), table 1 (section 5.1.1).

    ag-jax finetune --config=deberta/table1_glue:checkpoint=CHECKPOINT --workdir=DIR
    ag-jax finetune --config=deberta/table1_glue:checkpoint=CHECKPOINT,tasks=rte,scale=small,data=FOLDER \
--workdir=DIR
    ag-jax finetune --config=deberta/table1_glue:checkpoint=CHECKPOINT,tasks=rte,sweep=paper --workdir=DIR

`checkpoint` is a run or a Hugging Face directory, such as one of microsoft/deberta-large. RTE, STS-B and MRPC start
from MNLI's weights if MNLI is among the tasks; `mnli_first=False` starts them from the checkpoint.

Hardware and time: the paper does not say for fine-tuning. 24 layers of width 1024 need an accelerator. scale=small
takes about a minute for each trial of a small model on 2 CPU cores.

Expected (deberta-large, dev): CoLA 70.5, QQP 92.3, MNLI 91.1/91.1, SST-2 96.8, STS-B 92.8, QNLI 95.3, RTE 88.3, MRPC
91.9, mean 90.00. scale=paper has not been run with this program yet.

Deviations: the paper tunes each task and reports the best or the median of five runs. With sweep=short, learning rate,
batch size, epochs, warm-up, sequence length and dropout of the task's head are those of the scripts released for the
large model. sweep=paper keeps the sequence lengths and has the paper's sweep in the place of the rest, 192 points of
ten epochs; RTE has 96, and MRPC and STS-B have 144, because their trials are too short for the longest warm-ups.
Weights of MNLI are those of the same seed, where the scripts start from the published deberta-large-mnli. QQP's broken
lines are left out and counted. As in all configs here, Adam corrects the bias of its averages, and the decay of the
learning rate starts from the peak; the released program does neither, so its updates are larger in the first hundreds
of steps, and its rate drops at once when the warm-up ends.
"""

from ag_jax.recipes import finetuning
from ag_jax.settings.config_files import ListOf, OneOf, Scale

TASKS = tuple(task for task in finetuning.GLUE if task != "wnli")


def get_config(
    *,
    checkpoint: str,
    tasks: ListOf(*TASKS) = TASKS,
    mnli_first: bool = True,
    seeds: int = 5,
    data: str = "",
    sweep: OneOf("short", "paper") = "short",
    scale: Scale = "paper",
):
    """Return the config.

    checkpoint: run directory or Hugging Face directory of the model to fine-tune.
    tasks: comma-separated names of tasks, or `all`.
    mnli_first: start RTE, STS-B and MRPC from MNLI's weights, as the paper does.
    seeds: number of seeds with which every trial is repeated.
    data: folder with the tasks' files; without it they are read from TensorFlow Datasets.
    sweep: `short` with one point, that of the released scripts, or `paper` over learning rate, batch size, warm-up and
        dropout.
    scale: `paper` as published, or `small` for 2 CPU cores.
    """
    config = finetuning.suite("GLUE by DeBERTa's settings", checkpoint=checkpoint, seeds=seeds, data=data)
    finetuning.deberta_large(config, tasks)
    finetuning.deberta_sweep(config, sweep, "deberta_large")
    if mnli_first and "mnli" in config.tasks:
        finetuning.start_from_mnli(config)
    if scale == "small":
        finetuning.small(config)
    return config
