"""Fine-tune with adversarial self-attention and with attacks on word embeddings (table 4).

The baselines are plain training and plain training at about the cost of an attack. Wu et al. 2022 (Adversarial
Self-Attention for Language Understanding), table 4, with the settings of its table 5; FreeLB after Zhu et al. 2020,
SMART after Jiang et al. 2020, SiFT after He et al. 2021.

    ag-jax compare --config=asa/table4_adversarial_training:checkpoint=CHECKPOINT,data=FOLDER --config.keep=best \
--workdir=DIR
    ag-jax compare --config=asa/table4_adversarial_training:checkpoint=CHECKPOINT,tasks=mnli,qnli,hellaswag \
--config.arms=plain,sift,asa --workdir=DIR
    ag-jax compare --config=asa/table4_adversarial_training:checkpoint=runs/quickstart/ag-seed0,tasks=qnli,\
seeds=3,scale=small,data=FOLDER --workdir=DIR

`longer` is plain training for twice the epochs, which costs about as much as ASA. FreeLB has three or four passes. The
arm `sift` is not in the paper; add it with --config.arms. `--config.keep=best` saves weights, from which the report
computes how far each attack changes attention: the paper writes that FreeLB and SMART hardly do (section 5.2).

Hardware and time: the paper does not say what it used. 550k examples, three epochs, five arms and five seeds need an
accelerator. scale=small takes minutes for each trial on 2 CPU cores.

Expected (BERT-base; MNLI, QNLI, PAWS-QQP, HellaSWAG): FreeLB 85.3, 91.1, 86.3, 39.6; SMART 85.5, 91.6, 85.8, 38.2; ASA
85.0, 91.4, 87.7, 40.8; plain (its tables 1 and 2) 84.1, 90.4, 81.7, 39.7. scale=paper has not been run with this
program yet. With scale=small the quickstart's model learns too little to compare the arms, and FreeLB's step size of
0.1, made for RoBERTa-large, is too long for it. asa/real_weights compares the arms on a published BERT, with the
results in docs/reproduction_attacks.md.

Deviations: the paper names no settings of FreeLB and SMART. FreeLB has the settings released for RoBERTa-large on each
task, with fairseq's count of passes (`freelb.count=fairseq`), on PAWS-QQP the settings of QQP and on HellaSWAG those
of MNLI; dropout is that of the checkpoint (0.1 in all of FreeLB's scripts for RoBERTa, attention dropout included).
SMART has the norm bound of its paper, one step and no proximal term (ag_jax/objectives/adversarial/smart.py). The
paper's GLUE scores are from the server. The deviations of asa/table1_generalization and asa/table2_robustness apply,
too.
"""

from ag_jax.recipes import finetuning
from ag_jax.settings.config_files import ListOf, OneOf, Scale

TASKS = ("mnli", "qnli", "paws_qqp", "hellaswag")
ARMS = ("plain", "longer", "freelb", "smart", "asa")


def get_config(
    *,
    checkpoint: str,
    tasks: ListOf(*finetuning.ASA_TABLE_5) = TASKS,
    seeds: int = 5,
    data: str = "",
    arm: OneOf(*ARMS, "sift") = ARMS[0],
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
        "Adversarial self-attention and adversarial training",
        tasks,
        scale,
        checkpoint=checkpoint,
        seeds=seeds,
        data=data,
    )
    if arm == "longer":
        finetuning.longer(config)
    elif arm == "freelb":
        finetuning.freelb(config)
    elif arm != "plain":
        finetuning.attack(config, arm)
    config.arms = ",".join(ARMS)
    return config
