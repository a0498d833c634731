"""Oromo from any checkpoint: named entities by ten-fold cross-validation, and topics of news.

Deshpande & Narasimhan 2020, section 4.2, after Wang et al. 2020 (E-MBERT); Adelani et al. 2023 (MasakhaNEWS).

    ag-jax finetune --config=configs/finetune/oromo.py:checkpoint=DIR,data=FOLDER --workdir=DIR
    ag-jax finetune --config=configs/finetune/oromo.py:checkpoint=DIR,tasks=oromo_news,scale=small,data=FOLDER --workdir=DIR

`tasks`: oromo_ner (licensed, LORELEI: put it at FOLDER/oromo_ner/all.conll, a word and its tag a line) and oromo_news.

Hardware and time: a thousand sentences, ten folds: minutes a seed on a GPU. scale=small takes minutes on 2 CPU cores.

Expected: F1 over 9 tags 51.5 for RoBERTa-12 trained without guidance, 67.9 with (Deshpande & Narasimhan's table 4), 72.8 for
E-MBERT. Nobody has run scale=paper with this program yet.

Deviations: the paper names neither settings nor how folds are cut. Here folds are neighbours in the file; each is tested once, the
next one chooses the epoch, and F1 is that of all folds' entities together (the mean of the folds is in the report, too). 10
epochs of 16 sentences at 5e-5.
"""

from ag_jax import config_reader
from ag_jax.recipes import finetuning

TASKS = ("oromo_ner", "oromo_news")


def get_config(argument: str = ""):
    """Return the settings.

    checkpoint: run directory or Hugging Face directory of the model to fine-tune.
    tasks: names of tasks with commas, or all.
    seeds: how many seeds every trial is repeated with.
    data: folder with the tasks' files.
    scale: paper as published, or small for 2 CPU cores.
    """
    chosen = config_reader.arguments(
        argument, checkpoint=str, tasks="oromo_ner", seeds=5, data="", scale=finetuning.SCALES
    )
    config = finetuning.suite("Oromo", chosen)
    finetuning.oromo(config, finetuning.names(chosen.tasks, TASKS))
    if chosen.scale == "small":
        finetuning.small(config)
    return config
