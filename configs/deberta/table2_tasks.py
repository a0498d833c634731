"""Fine-tune a large DeBERTa on MNLI, SQuAD, RACE, ReCoRD, SWAG and CoNLL-2003 (table 2).

He et al. 2021 (DeBERTa: Decoding-enhanced BERT with Disentangled Attention), table 2 (section 5.1.1).

    ag-jax finetune --config=deberta/table2_tasks:checkpoint=CHECKPOINT,data=FOLDER --workdir=DIR
    ag-jax finetune --config=deberta/table2_tasks:checkpoint=CHECKPOINT,tasks=swag,sweep=paper,data=FOLDER \
--workdir=DIR
    ag-jax finetune --config=deberta/table2_tasks:checkpoint=CHECKPOINT,tasks=swag,scale=small,data=FOLDER \
--workdir=DIR

`checkpoint` is a run or a Hugging Face directory, such as one of microsoft/deberta-large. SWAG is not in TensorFlow
Datasets, so it needs `data`.

Hardware and time: the paper does not say for fine-tuning. Except for MNLI, each task has a sweep of 16 points (learning
rate and batch size) of ten epochs, which needs several accelerators. sweep=paper has the paper's whole sweep, also over
warm-up and dropout: 192 points of a task, also of MNLI, and 64 of SQuAD. scale=small trains one point, in minutes for
each trial of a small model on 2 CPU cores.

Expected (deberta-large, dev): MNLI-m/mm 91.1/91.1, SQuAD 1.1 F1/EM 95.5/90.1, SQuAD 2.0 90.7/88.0, RACE 86.8, ReCoRD
F1/EM 91.4/91.0, SWAG 90.8, NER F1 93.8. scale=paper has not been run with this program yet.

Deviations: the paper's sweep also has the warm-up (50, 100, 500 or 1,000 steps) and the dropout of the task's head (0,
0.1 or 0.15). Without sweep=paper, the warm-up has 500 steps and the head the checkpoint's dropout, and MNLI has the
settings of the script released for the large model. The scripts released for CoNLL-2003 (15 epochs, a warm-up of a
tenth, 512 tokens, a head of two layers), ReCoRD (3 epochs, 1,000 warm-up steps, dropout of .3) and RACE are not used.
The head for SQuAD has no dropout. In SQuAD 2.0 the score of the first token decides whether there is an answer.
Sequences have 384 tokens for SQuAD, 512 for RACE and ReCoRD, 128 for SWAG and 256 for CoNLL-2003, which is our choice.
RACE is `race`, middle and high school. As in all configs here, Adam corrects the bias of its averages, and the decay of
the learning rate starts from the peak; the released program does neither, so its updates are larger in the first
hundreds of steps, and its rate drops at once when the warm-up ends.
"""

from ag_jax.recipes import finetuning
from ag_jax.settings.config_files import ListOf, OneOf, Scale

TASKS = ("mnli", "squad1", "squad2", "race", "record", "swag", "conll2003")


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
    sweep: `short` over learning rates and batch sizes (16 points, one of MNLI), or `paper` also over warm-up and
        dropout (192).
    scale: `paper` as published, or `small` for 2 CPU cores.
    """
    config = finetuning.suite(
        "Question answering, inference and names by DeBERTa's settings", checkpoint=checkpoint, seeds=seeds, data=data
    )
    finetuning.deberta_large(config, tasks)
    finetuning.deberta_sweep(config, sweep, "deberta_large")
    if scale == "small":
        finetuning.small(config)
    return config
