"""Filipino tweets from any checkpoint: fine-tune on hate speech detection and sentiment.

Cruz & Cheng 2020 and Cabasag et al. 2019 (the data); Deshpande & Narasimhan 2020, section 4.2, which compares with
their results.

    ag-jax finetune --config=finetune/filipino:checkpoint=CHECKPOINT,data=FOLDER --workdir=DIR
    ag-jax finetune --config=finetune/filipino:checkpoint=CHECKPOINT,scale=small,data=FOLDER --workdir=DIR

`tasks`: filipino_hatespeech, and filipino_sentiment for data with those labels.

Hardware and time: 10,000 tweets and three epochs take minutes on a GPU. scale=small takes minutes on 2 CPU cores.

Expected: accuracy 74.1 for RoBERTa-12 trained without guidance, 74.6 with (Deshpande & Narasimhan's table 4), 74.8 for
BERT (Cruz & Cheng 2020). scale=paper has not been run with this program yet.

Deviations: the paper names no settings. The settings here are those of its released code, with a tenth of the steps as
warm-up like Cruz & Cheng. The marks [LINK], [MENTION] and [HASHTAG] of the tweets are tokenised as text, not special
tokens.
"""

from ag_jax.recipes import finetuning
from ag_jax.settings.config_files import ListOf, Scale

TASKS = ("filipino_hatespeech", "filipino_sentiment")


def get_config(
    *,
    checkpoint: str,
    tasks: ListOf(*TASKS) = ("filipino_hatespeech",),
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
    config = finetuning.suite("Filipino", checkpoint=checkpoint, seeds=seeds, data=data)
    finetuning.attention_guidance(config, tasks)
    for task in tasks:
        config.tasks[task].warmup_fraction = 0.1
    if scale == "small":
        finetuning.small(config)
    return config
