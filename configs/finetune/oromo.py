"""Oromo from any checkpoint: fine-tune on named entities and topics of news.

Named entities are judged by ten-fold cross-validation. Deshpande & Narasimhan 2020, section 4.2, after Wang et al.
2020 (E-MBERT); Adelani et al. 2023 (MasakhaNEWS).

    ag-jax finetune --config=finetune/oromo:checkpoint=CHECKPOINT,data=FOLDER --workdir=DIR
    ag-jax finetune --config=finetune/oromo:checkpoint=CHECKPOINT,tasks=oromo_news,scale=small,data=FOLDER \
--workdir=DIR

`tasks`: oromo_ner (licensed, LORELEI: put it at FOLDER/oromo_ner/all.conll, one word and its tag per line) and
oromo_news.

Hardware and time: a thousand sentences in ten folds take minutes for each seed on a GPU. scale=small takes minutes on
2 CPU cores.

Expected: F1 over 9 tags 51.5 for RoBERTa-12 trained without guidance, 67.9 with (Deshpande & Narasimhan's table 4),
72.8 for E-MBERT. scale=paper has not been run with this program yet.

Deviations: the paper names neither settings nor how the folds are made. Here a fold is a contiguous part of the file;
each fold is tested once, the next fold chooses the epoch, and F1 is over the entities of all folds together (the
report has the mean of the folds, too). Training has 10 epochs, batches of 16 sentences and the learning rate 5e-5.
"""

from ag_jax.recipes import finetuning
from ag_jax.settings.config_files import ListOf, Scale

TASKS = ("oromo_ner", "oromo_news")


def get_config(
    *,
    checkpoint: str,
    tasks: ListOf(*TASKS) = ("oromo_ner",),
    seeds: int = 5,
    data: str = "",
    scale: Scale = "paper",
):
    """Return the config.

    checkpoint: run directory or Hugging Face directory of the model to fine-tune.
    tasks: comma-separated names of tasks, or `all`.
    seeds: number of seeds with which every trial is repeated.
    data: folder with the tasks' files.
    scale: `paper` as published, or `small` for 2 CPU cores.
    """
    config = finetuning.suite("Oromo", checkpoint=checkpoint, seeds=seeds, data=data)
    finetuning.oromo(config, tasks)
    if scale == "small":
        finetuning.small(config)
    return config
