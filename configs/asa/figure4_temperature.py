"""Fine-tune with adversarial self-attention at several temperatures tau (figure 4b).

Wu et al. 2022 (Adversarial Self-Attention for Language Understanding), figure 4 (b), with the settings of its table 5.

    ag-jax compare --config=asa/figure4_temperature:checkpoint=CHECKPOINT,data=FOLDER --workdir=DIR
    ag-jax compare --config=asa/figure4_temperature:checkpoint=runs/quickstart/ag-seed0,tasks=dream,\
seeds=3,scale=small,data=FOLDER --workdir=DIR

DREAM is the benign task, HellaSWAG the adversarial one. The report has the scores against tau as a table and a figure.

Hardware and time: the paper does not say what it used. 46k examples with three or four sequences each, three to eight
epochs, four arms and five seeds need an accelerator. scale=small takes minutes for each trial on 2 CPU cores.

Expected (BERT-base): DREAM is best with tau = 1.0, HellaSWAG with 0.3, and between these, one rises where the other
falls. The figure has no scale. scale=paper has not been run with this program yet.

Deviations: the arm `plain` is added for comparison. Everything else is as in asa/table1_generalization.
"""

from ag_jax.recipes import finetuning
from ag_jax.settings.config_files import ListOf, OneOf, Scale

TASKS = ("dream", "hellaswag")
TEMPERATURES = {f"tau_{tau}": tau for tau in (0.3, 0.6, 1.0)}
ARMS = ("plain", *TEMPERATURES)


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
        "Adversarial self-attention at several temperatures",
        tasks,
        scale,
        checkpoint=checkpoint,
        seeds=seeds,
        data=data,
    )
    if arm != "plain":
        finetuning.attack(config, "asa", tau=TEMPERATURES[arm])
    config.arms = ",".join(ARMS)
    return config
