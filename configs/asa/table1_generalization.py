"""Fine-tune with and without adversarial self-attention on seven benign tasks (table 1).

Tasks of sentiment, inference, similarity, tagging and reading. Wu et al. 2022 (Adversarial Self-Attention for Language
Understanding), table 1, with the settings of its table 5.

    ag-jax compare --config=asa/table1_generalization:checkpoint=CHECKPOINT,data=FOLDER --config.keep=best --workdir=DIR
    ag-jax compare --config=asa/table1_generalization:checkpoint=CHECKPOINT,longer=LONGER,pretrained=PRETRAINED,\
data=FOLDER --workdir=DIR
    ag-jax compare --config=asa/table1_generalization:checkpoint=runs/quickstart/ag-seed0,\
tasks=sst2,stsb,wnut17,dream,seeds=3,scale=small,data=FOLDER --workdir=DIR

`checkpoint` is a run or a Hugging Face directory, such as one of bert-base-uncased or roberta-base. `longer` and
`pretrained` are the two runs of the config asa/table6_pretraining (arms plain and asa), which are fine-tuned without
an attack. They are the rows with a dagger in the paper's table. `--config.keep=best` saves weights, with which the
report has attention maps of the models side by side (figures 1 and 6).

Hardware and time: the paper does not say what it used. 940k examples, three epochs, two arms and five seeds need an
accelerator. An attacked trial costs about twice as much as a plain one. scale=small takes minutes for each trial on 2
CPU cores.

Expected (test, BERT-base, plain/asa): SST-2 93.2/94.1, MNLI 84.1/85.0 (the mean of both sets), QNLI 90.4/91.4, QQP F1
71.4/72.3, STS-B Spearman 84.7/86.5, WNUT-17 F1 47.8/49.8, DREAM 62.9/64.3; longer/pretrained 93.5/94.0, 84.4/84.7,
90.5/91.5, 71.5/72.3, 85.4/86.5, 49.2/50.3, 61.2/63.3; RoBERTa-base plain/asa 95.6/96.3, 87.2/88.0, 92.8/93.6,
72.2/73.7, 88.4/89.2, 54.8/57.3, 67.0/69.2. scale=paper has not been run with this program yet. With scale=small the
quickstart's model learns too little to compare the arms. asa/real_weights compares them on a published BERT, with the
results in docs/reproduction_attacks.md.

Deviations: the paper's GLUE scores are from the server, over three seeds. Here the table has scores on the development
sets, over `seeds` seeds for all tasks, and files for the server are written. Epochs are chosen on development sets,
where the released code takes the test set for DREAM, and all questions of DREAM are read (`ag-jax help
finetune/choice` says how to reproduce the released code). WNUT-17's F1 is that of whole entities. The attack uses
squared differences for STS-B and means over words for tags. Padding is not counted, and only the adversary's gradient
is clipped, at norm 1 (docs/adversarial.md). tau is squared, as in the released code.
"""

from ag_jax.recipes import finetuning
from ag_jax.settings.config_files import ListOf, OneOf, Scale

TASKS = ("sst2", "mnli", "qnli", "qqp", "stsb", "wnut17", "dream")
CONTINUED = ("longer", "pretrained")
ARMS = ("plain", "asa", *CONTINUED)


def get_config(
    *,
    checkpoint: str,
    longer: str = "",
    pretrained: str = "",
    tasks: ListOf(*finetuning.ASA_TABLE_5) = TASKS,
    seeds: int = 5,
    data: str = "",
    arm: OneOf(*ARMS) = ARMS[0],
    scale: Scale = "paper",
):
    """Return the config.

    checkpoint: run directory or Hugging Face directory of the model to fine-tune.
    longer: run pre-trained for longer without an attack; adds the arm `longer`.
    pretrained: run pre-trained with the attack; adds the arm `pretrained`.
    tasks: comma-separated names of tasks of the paper's table 5; by default the tasks of this table or figure.
    seeds: number of seeds with which every trial is repeated.
    data: folder with the tasks' files; without it they are read from TensorFlow Datasets.
    arm: variant to train; `ag-jax compare` trains them all.
    scale: `paper` as published, or `small` for 2 CPU cores.
    """
    config = finetuning.asa_suite(
        "Adversarial self-attention: generalization",
        tasks,
        scale,
        checkpoint=checkpoint,
        seeds=seeds,
        data=data,
    )
    if arm == "asa":
        finetuning.attack(config, "asa")
    runs = {"longer": longer, "pretrained": pretrained}
    if arm in runs:
        config.checkpoint = runs[arm]
        if not config.checkpoint:
            raise ValueError(
                f"for the arm {arm} the config file needs the argument {arm}, a run of table6_pretraining.py"
            )
    config.arms = ",".join(arm for arm in ARMS if runs.get(arm) != "")
    return config
