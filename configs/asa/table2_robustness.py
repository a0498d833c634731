"""Fine-tune with and without adversarial self-attention on adversarial examples (table 2).

The examples of the tasks were made to mislead models. Wu et al. 2022 (Adversarial Self-Attention for Language
Understanding), table 2, with the settings of its table 5.

    ag-jax compare --config=asa/table2_robustness:checkpoint=CHECKPOINT,data=FOLDER --workdir=DIR
    ag-jax compare --config=asa/table2_robustness:checkpoint=CHECKPOINT,tasks=anli,hellaswag --workdir=DIR
    ag-jax compare --config=asa/table2_robustness:checkpoint=runs/quickstart/ag-seed0,tasks=anli,seeds=3,\
scale=small,data=FOLDER --workdir=DIR

`checkpoint` is a run or a Hugging Face directory. The paper has bert-base-uncased and deberta-large. `data` is the
folder with the tasks' files. Without it they are read from TensorFlow Datasets, which lacks PAWS-QQP (docs/tasks.md).

Hardware and time: the paper does not say what it used. 215k examples, three epochs, two arms and five seeds need an
accelerator. scale=small takes minutes for each trial on 2 CPU cores.

Expected (BERT-base, plain/asa): ANLI 48.0/50.4, PAWS-QQP 81.7/87.7, HellaSWAG 39.7/40.8 (dev); DeBERTa-large
57.6/58.2, 95.7/96.0, 94.3/95.4. scale=paper has not been run with this program yet.

Deviations: `anli` is all three rounds put together, for training and for testing; the paper says so of its test data,
and calls its training data ANLI's own. Epochs are chosen on development sets, where the released code takes the test
set (as --config.tasks.anli.legacy_eval=True does, and the report then says so). For PAWS-QQP, the paper trains on the
pairs of PAWS and QQP. Here training uses only PAWS's train set, without a tenth of it that chooses the epoch. Only the
attention of BERT's and DeBERTa's layers is attacked. Everything else is as in asa/table1_generalization.
"""

from ag_jax.recipes import finetuning
from ag_jax.settings.config_files import ListOf, OneOf, Scale

TASKS = ("anli", "paws_qqp", "hellaswag")
ARMS = ("plain", "asa")


def get_config(
    *,
    checkpoint: str,
    tasks: ListOf(*finetuning.ASA_TABLE_5) = TASKS,
    seeds: int = 5,
    data: str = "",
    arm: OneOf(*ARMS) = ARMS[0],
    scale: Scale = "paper",
):
    """Return the config.

    checkpoint: run directory or Hugging Face directory of the model to fine-tune.
    tasks: comma-separated names of tasks of the paper's table 5; by default the tasks of this table or figure.
    seeds: number of seeds with which every trial is repeated.
    data: folder with the tasks' files; without it they are read from TensorFlow Datasets.
    arm: variant to train; `ag-jax compare` trains them all.
    scale: `paper` as published, or `small` for 2 CPU cores.
    """
    config = finetuning.asa_suite(
        "Adversarial self-attention: robustness", tasks, scale, checkpoint=checkpoint, seeds=seeds, data=data
    )
    if arm == "asa":
        finetuning.attack(config, "asa")
    config.arms = ",".join(ARMS)
    return config
