"""Fine-tune on RACE by RoBERTa's protocol (table 7).

Liu et al. 2019 (RoBERTa), table 7 (section 5.3) and table 10.

    ag-jax finetune --config=roberta/table7_race:checkpoint=CHECKPOINT,data=FOLDER --workdir=DIR
    ag-jax finetune --config=roberta/table7_race:checkpoint=CHECKPOINT,scale=small,data=FOLDER --workdir=DIR

`data` contains the folder RACE with train, dev and test; without it RACE is read from TensorFlow Datasets.

Hardware and time: 88k questions with four sequences of 512 tokens each, four epochs and five seeds need an
accelerator. scale=small takes minutes on 2 CPU cores.

Expected (roberta-large, test): 83.2, of which middle school 86.5 and high school 81.3. scale=paper has not been run
with this program yet.

Deviations: the table's scores for middle and high school are parts of one model's score. Here
`tasks=race,race_middle,race_high` trains one model for each. Weight decay is 0.1 as in table 10, where fairseq's
README has 0.01.
"""

from ag_jax.recipes import finetuning
from ag_jax.settings.config_files import ListOf, Scale


def get_config(
    *,
    checkpoint: str,
    tasks: ListOf(*finetuning.RACE) = ("race",),
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
    config = finetuning.suite("RACE by RoBERTa's protocol", checkpoint=checkpoint, seeds=seeds, data=data)
    finetuning.roberta_race(config, tasks)
    if scale == "small":
        finetuning.small(config, examples=160)
    return config
