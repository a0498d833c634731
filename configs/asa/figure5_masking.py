"""Measure how much attention the adversary masks in each layer and for each task (figure 5).

Wu et al. 2022 (Adversarial Self-Attention for Language Understanding), figure 5, with the settings of its table 5.

    ag-jax finetune --config=asa/figure5_masking:checkpoint=CHECKPOINT,data=FOLDER --workdir=DIR
    ag-jax finetune --config=asa/figure5_masking:checkpoint=runs/quickstart/ag-seed0,tasks=sst2,stsb,\
wnut17,seeds=1,scale=small,data=FOLDER --workdir=DIR

All tasks have the same temperature tau. The report has a table of the masked share of every layer and task, and a
figure of it over training.

Hardware and time: the paper does not say what it used. With one seed, 940k examples and three epochs need an
accelerator. scale=small takes minutes for each trial on 2 CPU cores.

Expected (BERT-base, tau = 0.3): the share falls from the lowest layer to the highest; it is smaller for sentiment than
for tagging and reading. The figure's numbers are not in the text. scale=paper has not been run with this program yet.

Deviations: tau is 0.3 for all tasks, as in the figure, where table 5 has 0.5 for WNUT-17 and DREAM. The paper does not
say when in training the figure was measured; the report's table is from the end of training. Everything else is as in
asa/table1_generalization.
"""

from ag_jax.recipes import finetuning
from ag_jax.settings.config_files import ListOf, Scale

TASKS = ("sst2", "mnli", "qnli", "qqp", "stsb", "wnut17", "dream")


def get_config(
    *,
    checkpoint: str,
    tasks: ListOf(*finetuning.ASA_TABLE_5) = TASKS,
    seeds: int = 5,
    data: str = "",
    scale: Scale = "paper",
):
    """Return the config.

    checkpoint: run directory or Hugging Face directory of the model to fine-tune.
    tasks: comma-separated names of tasks of the paper's table 5; by default the tasks of this table or figure.
    seeds: number of seeds with which every trial is repeated.
    data: folder with the tasks' files; without it they are read from TensorFlow Datasets.
    scale: `paper` as published, or `small` for 2 CPU cores.
    """
    config = finetuning.asa_suite(
        "What adversarial self-attention masks", tasks, scale, checkpoint=checkpoint, seeds=seeds, data=data
    )
    finetuning.attack(config, "asa", tau=0.3)
    return config
