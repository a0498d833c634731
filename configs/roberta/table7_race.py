"""RACE by RoBERTa's protocol.

Liu et al. 2019 (RoBERTa), table 7 (section 5.3) and table 10.

    ag-jax finetune --config=configs/roberta/table7_race.py:checkpoint=DIR,data=FOLDER --workdir=DIR
    ag-jax finetune --config=configs/roberta/table7_race.py:checkpoint=DIR,scale=small,data=FOLDER --workdir=DIR

`data` holds the folder RACE with train, dev and test; TensorFlow Datasets without it.

Hardware and time: 88k questions with four rows of 512 tokens each, four epochs, five seeds: for an accelerator. scale=small takes
minutes on 2 CPU cores.

Expected (roberta-large, test): 83.2, of which middle school 86.5 and high school 81.3. Nobody has run it with this program yet.

Deviations: the table's middle and high are parts of one model's score; here `tasks=race,race_middle,race_high` trains one model
each. Weight decay is 0.1 as in table 10, where fairseq's README has 0.01.
"""

from ag_jax import config_reader
from ag_jax.recipes import finetuning

TASKS = ("race", "race_middle", "race_high")


def get_config(argument: str = ""):
    """Return the settings.

    checkpoint: run directory or Hugging Face directory of the model to fine-tune.
    tasks: names of tasks with commas, or all.
    seeds: how many seeds every trial is repeated with.
    data: folder with the tasks' files; TensorFlow Datasets without it.
    scale: paper as published, or small for 2 CPU cores.
    """
    chosen = config_reader.arguments(argument, checkpoint=str, tasks="race", seeds=5, data="", scale=finetuning.SCALES)
    config = finetuning.suite("RACE by RoBERTa's protocol", chosen)
    finetuning.roberta_race(config, finetuning.names(chosen.tasks, TASKS))
    if chosen.scale == "small":
        finetuning.small(config, examples=160)
    return config
