"""Named entities from any checkpoint: fine-tune on WNUT-17 and CoNLL-2003.

Derczynski et al. 2017 (WNUT-17); Tjong Kim Sang & De Meulder 2003 (CoNLL-2003); settings of Wu et al. 2022 (ASA),
table 5.

    ag-jax finetune --config=finetune/tagging:checkpoint=CHECKPOINT,data=FOLDER --workdir=DIR
    ag-jax finetune --config=finetune/tagging:checkpoint=CHECKPOINT,tasks=wnut17,scale=small,data=FOLDER \
--workdir=DIR

Hardware and time: WNUT-17 has 3,394 sentences and CoNLL-2003 14,041, which take minutes on a GPU. scale=small takes
minutes on 2 CPU cores.

Expected: WNUT-17 F1 47.8 +- 1.08 for BERT-base, 54.8 +- 0.80 for RoBERTa-base (test; ASA's table 1). scale=paper has
not been run with this program yet.

Deviations: F1 is over whole entities; ASA's released code has F1 over tokens, and
--config.tasks.wnut17.metric=token_f1 selects by it (both are in the report). CoNLL-2003, which ASA's table 5 lacks,
has the settings of WNUT-17, with sequences of 128 tokens.
"""

from ag_jax.recipes import finetuning
from ag_jax.settings.config_files import ListOf, Scale

TASKS = ("wnut17", "conll2003")


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
    config = finetuning.suite("Named entities", checkpoint=checkpoint, seeds=seeds, data=data)
    for task in tasks:
        finetuning.asa(config, [task], like="wnut17")
        config.tasks[task].max_length = {"wnut17": 64, "conll2003": 128}[task]
    if scale == "small":
        finetuning.small(config)
    return config
