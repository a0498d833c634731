"""Fine-tune with a learned adversary and with non-learned attention masks (table 3).

Wu et al. 2022 (Adversarial Self-Attention for Language Understanding), table 3, with the settings of its table 5.

    ag-jax compare --config=asa/table3_naive_masking:checkpoint=CHECKPOINT,data=FOLDER --workdir=DIR
    ag-jax compare --config=asa/table3_naive_masking:checkpoint=runs/quickstart/ag-seed0,tasks=wnut17,\
seeds=3,scale=small,data=FOLDER --workdir=DIR

Arms are trained in the order of the report. `scheduled` masks at random, in each layer as much as `asa` masked there
in its trial of the same task, settings and seed. So `asa` is trained before it.

Hardware and time: the paper does not say what it used. 55k examples, three to five epochs, six arms and five seeds
need an accelerator. scale=small takes one to three minutes for each trial on 2 CPU cores.

Expected (BERT-base; PAWS-QQP, HellaSWAG, WNUT-17): Bernoulli 86.1, 40.5, 48.2; scheduled 85.4, 40.2, 48.7; magnitude
84.6, 39.9, 47.3; ASA 87.7, 40.8, 49.8. scale=paper has not been run with this program yet. With scale=small the
quickstart's model learns too little to compare the arms. asa/real_weights compares them on a published BERT, with the
results in docs/reproduction_attacks.md.

Deviations: the paper's Bernoulli is the better of two shares. Here they are two arms, and the arm that is better on
the development set corresponds to that row. The paper does not say whether the schedule has a share for each layer
(here it has), nor how much the magnitude masks (here a tenth of the keys of each query, by the mean of the heads). The
baseline `plain` is from the paper's tables 1 and 2. The deviations of asa/table1_generalization and
asa/table2_robustness apply, too.
"""

from ag_jax.recipes import finetuning
from ag_jax.settings.config_files import ListOf, OneOf, Scale

TASKS = ("paws_qqp", "hellaswag", "wnut17")
SHARES = {"bernoulli_0.05": 0.05, "bernoulli_0.1": 0.1}
ARMS = ("plain", "asa", *SHARES, "scheduled", "magnitude")


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
        "Adversarial self-attention and naive masking",
        tasks,
        scale,
        checkpoint=checkpoint,
        seeds=seeds,
        data=data,
    )
    if arm == "asa":
        finetuning.attack(config, "asa")
    elif arm == "magnitude":
        finetuning.attack(config, "magnitude", share=0.1)
    elif arm == "scheduled":
        finetuning.attack(config, "scheduled", trace="{arms}/asa/{task}/{trial}")
    elif arm in SHARES:
        finetuning.attack(config, "bernoulli", share=SHARES[arm])
    config.arms = ",".join(ARMS)
    return config
