"""ANLI and PAWS-QQP from any checkpoint: fine-tune on adversarial examples.

ANLI with all its rounds, or each of the three. Nie et al. 2020 (ANLI); Zhang et al. 2019 (PAWS); settings of Wu et al.
2022 (ASA), table 5.

    ag-jax finetune --config=finetune/anli:checkpoint=CHECKPOINT,seeds=5,data=FOLDER --workdir=DIR
    ag-jax finetune --config=finetune/anli:checkpoint=CHECKPOINT,tasks=anli,anli_r1,anli_r2,anli_r3 --workdir=DIR
    ag-jax finetune --config=finetune/anli:checkpoint=CHECKPOINT,tasks=anli_r1,scale=small,data=FOLDER --workdir=DIR

Without `data` the tasks are read from TensorFlow Datasets, which has only ANLI; PAWS-QQP must be made from QQP by the
script of its repository.

Hardware and time: 163k examples of ANLI (17k, 45k and 100k in its rounds), need an accelerator for three epochs.
scale=small takes minutes on 2 CPU cores.

Expected: BERT-base 48.0 +- 0.68 on ANLI and 81.7 +- 1.24 on PAWS-QQP, DeBERTa-large 57.6 and 95.7 (ASA's table 2).
scale=paper has not been run with this program yet.

Deviations: epochs are chosen on the development set; the released code of ASA chose them on the test set, as
--config.tasks.anli.legacy_eval=True does (the report then says so). `anli` is all rounds put together, for training
and for testing: the paper puts the tests together, and calls its training data ANLI's own. `anli_r1`, `anli_r2` and
`anli_r3` are one round each. For PAWS-QQP, the paper trains on `train_+qqp.tsv`, the pairs of PAWS and QQP. Here
training uses only PAWS's train set, without a tenth of it that chooses the epoch.
"""

from ag_jax.recipes import finetuning
from ag_jax.settings.config_files import ListOf, Scale

TASKS = ("anli", "anli_r1", "anli_r2", "anli_r3", "paws_qqp")


def get_config(
    *,
    checkpoint: str,
    tasks: ListOf(*TASKS) = ("anli", "paws_qqp"),
    seeds: int = 5,
    data: str = "",
    scale: Scale = "paper",
):
    """Return the config.

    checkpoint: run directory or Hugging Face directory of the model to fine-tune.
    tasks: comma-separated names of tasks, or `all`.
    seeds: number of seeds with which every trial is repeated.
    data: folder with the tasks' files; without it they are read from TensorFlow Datasets, which has only ANLI.
    scale: `paper` as published, or `small` for 2 CPU cores.
    """
    config = finetuning.suite("Robustness", checkpoint=checkpoint, seeds=seeds, data=data)
    finetuning.asa(config, tasks)
    if scale == "small":
        finetuning.small(config)
    return config
