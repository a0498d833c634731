"""Multiple choice from any checkpoint: fine-tune on HellaSWAG, SWAG, DREAM, ReCoRD and RACE.

Zellers et al. 2019 and 2018; Sun et al. 2019; Zhang et al. 2018; Lai et al. 2017. Settings of Wu et al. 2022 (ASA),
table 5; for RACE those of Liu et al. 2019 (RoBERTa), table 10.

    ag-jax finetune --config=finetune/choice:checkpoint=CHECKPOINT,tasks=hellaswag,dream,data=FOLDER --workdir=DIR
    ag-jax finetune --config=finetune/choice:checkpoint=CHECKPOINT,tasks=dream,scale=small,data=FOLDER --workdir=DIR

Hardware and time: an example has three or four sequences of 128 tokens, and there are 40k examples of HellaSWAG and 6k
of DREAM. These need an accelerator. scale=small takes minutes on 2 CPU cores.

Expected: HellaSWAG 39.7 +- 0.28 for BERT-base (dev; ASA's table 2), DREAM 62.9 +- 0.16 for BERT-base and 67.0 +- 0.62
for RoBERTa-base (test; its table 1). scale=paper has not been run with this program yet.

Deviations: DREAM has all questions of a dialogue, and its epochs are chosen on the development set; ASA's released
code reads only the first question (--config.tasks.dream.first_question=True) and chooses on the test set
(--config.tasks.dream.legacy_eval=True). SWAG and ReCoRD, which ASA's table 5 lacks, have the settings of HellaSWAG.
ReCoRD's sequences have 512 tokens. `race` is middle and high school together.
"""

from ag_jax.recipes import finetuning
from ag_jax.settings.config_files import ListOf, Scale

TASKS = ("hellaswag", "swag", "dream", "record", "race", "race_middle", "race_high")


def get_config(
    *,
    checkpoint: str,
    tasks: ListOf(*TASKS) = ("hellaswag", "dream"),
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
    config = finetuning.suite("Multiple choice", checkpoint=checkpoint, seeds=seeds, data=data)
    of_race = [task for task in tasks if task.startswith("race")]
    finetuning.asa(config, [task for task in tasks if task not in of_race], like="hellaswag")
    finetuning.roberta_race(config, of_race)
    if "record" in tasks:
        config.tasks.record.max_length = 512
    if scale == "small":
        finetuning.small(config, examples=320)
    return config
