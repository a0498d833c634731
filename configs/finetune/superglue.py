"""SuperGLUE from any checkpoint: fine-tune plainly or with SiFT.

Wang et al. 2019 (SuperGLUE); He et al. 2021 (DeBERTa), section 4 (SiFT) and table 5.

    ag-jax compare --config=finetune/superglue:checkpoint=CHECKPOINT,data=FOLDER --workdir=DIR
    ag-jax finetune --config=finetune/superglue:checkpoint=CHECKPOINT,data=FOLDER,arm=sift,seeds=3 --workdir=DIR
    ag-jax finetune --config=finetune/superglue:checkpoint=CHECKPOINT,tasks=copa,scale=small,data=FOLDER --workdir=DIR

`checkpoint` is a run or a Hugging Face directory, in the paper microsoft/deberta-v2-xxlarge (`deberta_v2_xxlarge` among
the encoders in docs/encoders.md). `data` is a folder with SuperGLUE's files; without it they are read from TensorFlow
Datasets. `superglue_rte` also predicts the diagnostics AX-b and AX-g, if their files are there (AX-g only from files).
`compare` trains without and with SiFT. Files for SuperGLUE's server are written to `submission/`.

Hardware and time: MultiRC has 27k answers and ReCoRD 101k questions of about ten candidates, in sequences of 512
tokens, for a sweep of 16 points of ten epochs. These need accelerators. With sweep=paper, BoolQ, MultiRC and ReCoRD
have 192 points each, WiC 144, and the other tasks 48. scale=small takes minutes for each task on 2 CPU cores.

Expected: that model, of 1.5B parameters, with SiFT, on the test sets: 90.4 BoolQ, 94.9/97.2 CB (F1/accuracy), 96.8
COPA, 88.2/63.7 MultiRC (F1a/EM), 94.5/94.1 ReCoRD (F1/EM), 93.2 RTE, 76.4 WiC, 95.9 WSC (its table 5). scale=paper has
not been run with this program yet.

Deviations: the papers do not give settings for SuperGLUE; the scripts released with DeBERTa for ReCoRD and COPA are not
used. protocol=deberta_large has the sweep of DeBERTa's appendix, whole with sweep=paper, and otherwise over learning
rates and batch sizes alone; protocol=roberta has that of RoBERTa for GLUE. CB, COPA, RTE and WSC warm up over a share
of the steps, because DeBERTa's 500 warm-up steps are more than some of their trials have, and sweep=paper leaves out
1,000 steps for WiC. The settings of SiFT are those of the released code. In WiC and WSC the words are marked in the
text, and the first token is classified, where SuperGLUE's baseline classifies by the words' own hidden states. ReCoRD
is a choice among the entities of the passage, and any name that the passage uses for the right entity counts as right.
--config.tasks.wsc.ranking=True ranks phrases for WSC's pronoun, as RoBERTa does; the head has no dropout then, so with
sweep=paper add --config.tasks.wsc.sweep.head_dropout= (with no value). MultiRC classifies each answer by itself. In
MultiRC and ReCoRD a passage that is too long is cut.
"""

from ag_jax.recipes import finetuning
from ag_jax.settings.config_files import ListOf, OneOf, Scale

_CHOICES = ("copa", "record")
_FEW = ("cb", "copa", "superglue_rte", "wsc")  # tasks whose trials can have fewer than DeBERTa's 500 warm-up steps


def get_config(
    *,
    checkpoint: str,
    tasks: ListOf(*finetuning.SUPERGLUE) = finetuning.SUPERGLUE,
    protocol: OneOf(
        "deberta_large", *(name for name in finetuning.PROTOCOLS if name != "deberta_large")
    ) = "deberta_large",
    sweep: OneOf("short", "paper") = "short",
    seeds: int = 5,
    data: str = "",
    arm: OneOf("plain", "sift") = "plain",
    scale: Scale = "paper",
):
    """Return the config.

    checkpoint: run directory or Hugging Face directory of the model to fine-tune.
    tasks: comma-separated names of tasks, or `all`.
    protocol: paper whose settings are used, as in finetune/glue.
    sweep: of DeBERTa's settings, `short` over learning rates and batch sizes (16 points), or `paper` also over warm-up
        and dropout of the head (up to 192).
    seeds: number of seeds with which every trial is repeated.
    data: folder with the tasks' files; without it they are read from TensorFlow Datasets.
    arm: variant to train, without an attack (plain) or with SiFT; `ag-jax compare` trains both.
    scale: `paper` as published, or `small` for 2 CPU cores.
    """
    config = finetuning.suite("SuperGLUE", checkpoint=checkpoint, seeds=seeds, data=data)
    finetuning.PROTOCOLS[protocol](config, tasks)
    for task in set(_FEW) & set(config.tasks):
        config.tasks[task].warmup_steps = None
    finetuning.deberta_sweep(config, sweep, protocol)
    if arm == "sift":
        finetuning.attack(config, "sift")
    if scale == "small":
        finetuning.small(config)
        for task in set(_CHOICES) & set(config.tasks):
            config.tasks[task].update(train_examples=800, validation_examples=400)
    config.arms = "plain,sift"
    return config
