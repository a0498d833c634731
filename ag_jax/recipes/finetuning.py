"""Fine-tuning recipes that several config files share, each with its source."""

from collections.abc import Sequence
from typing import Any

from ag_jax.data.tasks import catalogue
from ag_jax.finetuning.config import FinetuningConfig, Recipe, SweepConfig
from ag_jax.settings import schema

Config = Any  # an `ml_collections.ConfigDict`

# Learning rate, batch size, epochs, warm-up fraction, max_length in tokens, temperature tau (Wu et al. 2022,
# Adversarial Self-Attention, table 5).
ASA_TABLE_5 = {
    "sst2": (2e-5, 32, 3, 0.06, 128, 0.3),
    "mnli": (3e-5, 32, 3, 0.06, 128, 0.3),
    "qnli": (2e-5, 32, 3, 0.06, 128, 0.3),
    "qqp": (5e-5, 32, 3, 0.06, 128, 0.3),
    "stsb": (5e-5, 16, 3, 0.06, 128, 0.3),
    "wnut17": (5e-5, 16, 5, 0.1, 64, 0.5),
    "dream": (3e-5, 16, 8, 0.1, 128, 0.5),
    "anli": (3e-5, 32, 3, 0.06, 128, 0.3),
    "anli_r1": (3e-5, 32, 3, 0.06, 128, 0.3),
    "anli_r2": (3e-5, 32, 3, 0.06, 128, 0.3),
    "anli_r3": (3e-5, 32, 3, 0.06, 128, 0.3),
    "paws_qqp": (5e-5, 16, 3, 0.06, 128, 0.3),
    "hellaswag": (2e-5, 32, 3, 0.1, 128, 0.3),
}
_ASA_WITHOUT_DECAY = ("wnut17", "dream", "hellaswag")  # tagging and choice, in the released code

# Step size, initial magnitude, maximal norm, ascent steps (Zhu et al. 2020, FreeLB, for RoBERTa-large: the fairseq
# scripts released with the paper; for RTE, which these leave open, issue 11 of its repository).
FREELB = {
    "mnli": (0.1, 0.1, 0.3, 2),
    "qnli": (0.075, 0.15, 0.15, 2),
    "qqp": (0.2, 0.32, 0.7, 2),
    "sst2": (0.1, 1.0, 0.6, 2),
    "stsb": (0.1, 0.16, 0.28, 3),
    "cola": (0.025, 0.4, 0.3, 3),
    "mrpc": (0.04, 0.64, 0.4, 3),
    "rte": (0.03, 0.16, 0.14, 3),
}
_FREELB_LIKE = {"paws_qqp": "qqp", "hellaswag": "mnli"}  # tasks without a script; all others take MNLI's settings

# Liu et al. 2019, table 10, and fairseq's commands: Adam's betas and epsilon as in pre-training, no clipping.
_ROBERTA = {"warmup_fraction": 0.06, "beta2": 0.98, "epsilon": 1e-6, "clip_norm": None, "max_length": 512}
_SWEEP = {"batch_sizes": (16, 32), "learning_rates": (1e-5, 2e-5, 3e-5)}
# fairseq, examples/roberta/wsc: 2,000 updates, which are 400 epochs of the about 300 examples with the right phrase.
_ROBERTA_WNLI = {"ranking": True, "batch_sizes": (64,), "learning_rates": (2e-5,), "epochs": 400, "warmup_steps": 250}
GLUE = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli")
SUPERGLUE = ("boolq", "cb", "copa", "multirc", "record", "superglue_rte", "wic", "wsc")
FROM_MNLI = ("rte", "stsb", "mrpc")
SQUAD = ("squad1", "squad2", "xquad_en", "xquad_de")
RACE = ("race", "race_middle", "race_high")

# He et al. 2021 (DeBERTa): learning rate, batch size, epochs, warm-up steps, longest sequence and dropout of the head
# in the scripts released for each task of GLUE (microsoft/DeBERTa, experiments/glue). Weight decay, betas, epsilon and
# clipping are the defaults of their program, whose Adam does not correct the bias of its averages.
_DEBERTA = {"decay": "linear", "weight_decay": 0.01, "beta2": 0.999, "epsilon": 1e-6, "clip_norm": 1.0}
_DEBERTA_GLUE = {
    "base": {
        "cola": (2e-5, 32, 6, 100, 64, 0.15),
        "mnli": (3e-5, 64, 3, 1000, 256, 0.1),
        "mrpc": (2e-5, 32, 6, 50, 128, 0.15),
        "qnli": (2e-5, 32, 4, 500, 512, 0.15),
        "qqp": (2e-5, 64, 8, 500, 320, 0.15),
        "rte": (2e-5, 32, 6, 100, 320, 0.2),
        "sst2": (2e-5, 32, 6, 500, 128, 0.15),
        "stsb": (2e-5, 32, 6, 100, 128, 0.15),
    },
    "large": {
        "cola": (7e-6, 32, 6, 100, 64, 0.15),
        "mnli": (1e-5, 64, 3, 1000, 256, 0.2),
        "mrpc": (1e-5, 32, 6, 50, 128, 0.15),
        "qnli": (1e-5, 32, 4, 500, 512, 0.15),
        "qqp": (1e-5, 64, 8, 500, 320, 0.15),
        "rte": (1e-5, 32, 6, 50, 320, 0.2),
        "sst2": (1e-5, 32, 6, 500, 128, 0.15),
        "stsb": (7e-6, 32, 4, 100, 128, 0.15),
    },
}
# The sweep of the same paper's appendix; the longest sequences of these tasks are our choice.
_DEBERTA_RATES = {"base": (1.5e-5, 2e-5, 3e-5, 4e-5), "large": (5e-6, 8e-6, 9e-6, 1e-5)}
_DEBERTA_BATCH_SIZES, _DEBERTA_EPOCHS = (16, 32, 48, 64), 10
_DEBERTA_HEAD_DROPOUT, _DEBERTA_WARMUP = (0.0, 0.1, 0.15), (50, 100, 500, 1000)
# Of tasks whose trials with the largest batches have no more steps than the longest warm-ups.
_WARMUP_THAT_FITS = {"rte": (50, 100), "mrpc": (50, 100, 500), "stsb": (50, 100, 500), "wic": (50, 100, 500)}
_DEBERTA_LENGTHS = {"squad1": 384, "squad2": 384, "swag": 128, "conll2003": 256}


def suite(title: str, *, seeds: int, data: str | None = None, checkpoint: str | None = None) -> Config:
    """Return a config for `ag-jax finetune` without tasks.

    `add` and functions such as `roberta_glue` add tasks.

    title: title of the report.
    seeds: number of seeds with which every trial is repeated.
    data: folder with the tasks' files; "" or None reads TensorFlow Datasets.
    checkpoint: run directory or Hugging Face directory of the model to fine-tune.
    """
    config = schema.default(FinetuningConfig)
    config.title = title
    config.seeds = tuple(range(seeds))
    config.data = data or None
    config.checkpoint = checkpoint
    return config


def add(config: Config, task: str, **settings: Any) -> None:
    """Add a task to a suite, with a recipe that differs from the defaults in `settings`.

    QQP's official train.tsv has broken lines, which are left out, as in ASA's released code, and counted.
    """
    config.tasks[task] = schema.default(Recipe)
    config.tasks[task].update({"skip_malformed": task == "qqp", **settings})


def roberta_glue(config: Config, tasks: Sequence[str]) -> None:
    """Add tasks with RoBERTa's sweep for GLUE: six pairs of learning rate and batch size, ten epochs each.

    The point and epoch that score best on the development set are reported. The primary metric of QQP is accuracy, as
    in RoBERTa's table 5. WNLI ranks phrases for a pronoun, with the settings of fairseq's commands for WSC, which the
    paper takes in its place.
    """
    for task in tasks:
        add(config, task, **_ROBERTA, **_SWEEP, epochs=10, weight_decay=0.1)
        if task == "qqp":
            config.tasks[task].metric = "accuracy"
        if task == "wnli":
            config.tasks[task].update(_ROBERTA_WNLI)


def start_from_mnli(config: Config) -> None:
    """Set RTE, STS-B and MRPC to start from the weights fine-tuned on MNLI, as for RoBERTa's test submissions.

    RoBERTa's development scores are without this. MNLI must be among the tasks.
    """
    for task in FROM_MNLI:
        if task in config.tasks:
            config.tasks[task].initial_task = "mnli"


def roberta_squad(config: Config, tasks: Sequence[str]) -> None:
    """Add SQuAD tasks with RoBERTa's settings.

    Rows have 384 tokens, as in Devlin et al. 2019, whose procedure RoBERTa follows. In SQuAD 2.0 a classifier decides
    whether a question has an answer.
    """
    for task in tasks:
        settings = _ROBERTA | {"max_length": 384, "answerability": task == "squad2"}
        add(config, task, **settings, batch_sizes=(48,), learning_rates=(1.5e-5,), epochs=2, weight_decay=0.01)


def roberta_race(config: Config, tasks: Sequence[str]) -> None:
    """Add RACE tasks with RoBERTa's settings: rows of 512 tokens, of which question and answer get 128 at most."""
    for task in tasks:
        add(config, task, **_ROBERTA, batch_sizes=(16,), learning_rates=(1e-5,), epochs=4, weight_decay=0.1)


def asa(config: Config, tasks: Sequence[str], like: str = "sst2") -> None:
    """Add tasks with their settings in table 5 of the Adversarial Self-Attention paper, else those of the task `like`.

    A task that the table lacks gets the settings of the task `like`. Weight decay is 0.01, none for tagging and choice,
    and gradients are not clipped, as in the released code (AdamW). The primary metric of STS-B is Spearman's
    correlation, as in the paper's table 1.
    """
    for task in tasks:
        row = task if task in ASA_TABLE_5 else like
        learning_rate, batch_size, epochs, warmup, length, tau = ASA_TABLE_5[row]
        add(
            config,
            task,
            learning_rates=(learning_rate,),
            batch_sizes=(batch_size,),
            epochs=epochs,
            warmup_fraction=warmup,
        )
        decay = 0.0 if row in _ASA_WITHOUT_DECAY else 0.01
        config.tasks[task].update(max_length=length, weight_decay=decay, clip_norm=None)
        config.tasks[task].adversarial.asa.tau = tau  # read only where the method is asa
        if task == "stsb":
            config.tasks[task].metric = "spearman"


def roberta(config: Config, tasks: Sequence[str]) -> None:
    """Add tasks with RoBERTa's settings for SQuAD, for RACE or, for any other task, for GLUE."""
    for task in tasks:
        add_one = roberta_squad if task in SQUAD else roberta_race if task in RACE else roberta_glue
        add_one(config, [task])


def deberta(config: Config, tasks: Sequence[str], size: str = "base") -> None:
    """Add tasks with DeBERTa's settings for its model of the size `base` or `large`.

    Tasks of GLUE have those of the released scripts: learning rate, batch size, epochs, warm-up steps, longest sequence
    and dropout of the task's head. Other tasks have the sweep of He et al. 2021 over learning rates and batch sizes,
    which are 16 points, with ten epochs, 500 warm-up steps, the checkpoint's dropout in the head and the longest
    sequence in `_DEBERTA_LENGTHS`; `deberta_sweep` takes the whole sweep instead, for all tasks. WNLI is too small for
    500 warm-up steps and has a fraction of its steps. QQP is judged by accuracy.
    """
    for task in tasks:
        add(config, task, **_DEBERTA)
        recipe = config.tasks[task]
        if task in _DEBERTA_GLUE[size]:
            learning_rate, batch_size, epochs, warmup_steps, length, dropout = _DEBERTA_GLUE[size][task]
            recipe.update(learning_rates=(learning_rate,), batch_sizes=(batch_size,), head_dropout=dropout)
        else:
            epochs, warmup_steps, length = _DEBERTA_EPOCHS, 500, _DEBERTA_LENGTHS.get(task, 512)
            recipe.update(learning_rates=_DEBERTA_RATES[size], batch_sizes=_DEBERTA_BATCH_SIZES)
        if task == "qqp":  # as the paper's table 1, whose row of RoBERTa is that of Liu et al. 2019
            recipe.metric = "accuracy"
        recipe.update(epochs=epochs, warmup_steps=warmup_steps, max_length=length)
        if task == "wnli":  # whose 635 examples do not make 500 steps
            recipe.warmup_steps = None


def deberta_large(config: Config, tasks: Sequence[str]) -> None:
    """Add tasks with DeBERTa's settings for large models, see `deberta`."""
    deberta(config, tasks, "large")


def deberta_sweep(config: Config, sweep: str, protocol: str) -> None:
    """With `sweep` "paper", set all tasks to the whole hyperparameter sweep of the DeBERTa paper; else change nothing.

    The sweep is over four learning rates, four batch sizes, 50, 100, 500 and 1,000 warm-up steps, and rates of 0, 0.1
    and 0.15 for the dropout of the task's head: 192 points of ten epochs. It takes the place of the released scripts'
    settings for tasks of GLUE. Tasks whose head has no dropout, such as SQuAD, have 64 points, and tasks that warm up
    over a fraction of their steps 48. RTE, MRPC, STS-B and WiC leave out the warm-ups that are too long for their
    shortest trials. For other small tasks such a warm-up is an error when their trials are planned.

    sweep: `short` changes nothing.
    protocol: a key of `PROTOCOLS`, whose settings the tasks have.

    Raises ValueError for `paper` with a protocol that is not DeBERTa's.
    """
    if sweep != "paper":
        return
    if protocol not in ("deberta", "deberta_large"):
        raise ValueError(
            f"sweep=paper is the sweep of DeBERTa's paper: expected protocol=deberta or deberta_large, got {protocol}; "
            "leave it out, or choose one of these protocols"
        )
    rates = _DEBERTA_RATES["large" if protocol == "deberta_large" else "base"]
    for task, recipe in config.tasks.items():
        recipe.update(learning_rates=rates, batch_sizes=_DEBERTA_BATCH_SIZES, epochs=_DEBERTA_EPOCHS)
        if recipe.warmup_steps is not None:
            recipe.sweep.warmup_steps = _WARMUP_THAT_FITS.get(task, _DEBERTA_WARMUP)
        if task not in catalogue.TASKS or catalogue.TASKS[task].kind != "span":  # whose head has no dropout
            recipe.sweep.head_dropout = _DEBERTA_HEAD_DROPOUT


def attention_guidance(config: Config, tasks: Sequence[str]) -> None:
    """Add tasks with the settings of `run_glue.py` in the code of Deshpande & Narasimhan 2020 (attention guidance).

    32 rows of 128 tokens, 3 epochs, learning rate 2e-5 decaying to 0 without warm-up, AdamW without weight decay,
    gradients clipped at norm 1: `run_glue.py` with the values of its README. The paper gives no values.
    """
    for task in tasks:
        add(config, task, warmup_fraction=0.0, weight_decay=0.0)


def oromo(config: Config, tasks: Sequence[str]) -> None:
    """Add Oromo tasks with 10 epochs, batches of 16 and learning rate 5e-5; `oromo_ner` with 10-fold cross-validation.

    These values are our choice: no paper gives any.
    """
    for task in tasks:
        settings = {"batch_sizes": (16,), "learning_rates": (5e-5,), "epochs": 10, "warmup_fraction": 0.1}
        add(config, task, **settings, folds=10 if task == "oromo_ner" else None)


def moderate(config: Config, tasks: Sequence[str]) -> None:
    """Add tasks with settings for data sets of any size: learning rate 2e-5, batches of 16 rows, at most 10 epochs.

    The learning rate warms up in a tenth of the steps, and three epochs without a better evaluation end a trial. Small
    data sets need more than the usual three epochs and a long warm-up (Mosbach et al. 2021, section 6).
    """
    for task in tasks:
        settings = {"batch_sizes": (16,), "learning_rates": (2e-5,), "epochs": 10, "patience": 3}
        add(config, task, **settings, warmup_fraction=0.1)


PROTOCOLS = {
    "roberta": roberta,
    "asa": asa,
    "ag": attention_guidance,
    "deberta": deberta,
    "deberta_large": deberta_large,
}


def small(config: Config, examples: int = 6400) -> None:
    """Shrink a suite to what a CPU can train: few examples, short rows, one learning rate and batch size.

    With a narrow model, which this function does not set, a trial takes about a minute.
    With cross-validation the `examples` are divided into the folds, and no others are used for validation.
    """
    for recipe in config.tasks.values():
        recipe.update(batch_sizes=(32,), learning_rates=(5e-4,), epochs=4, warmup_steps=None, max_length=64)
        recipe.update(train_examples=examples, validation_examples=None if recipe.folds else 1000)
        recipe.sweep = schema.default(SweepConfig)


def custom(config: Config, task: str, **settings: Any) -> None:
    """Set a task to read custom files or, without a training file, replace the tags of a task of the catalogue.

    settings: fields of `data.tasks.custom.CustomTask`; those that are empty keep their defaults. Without `train`, the
        task is one of the catalogue, and `labels` are its tags.

    Raises ValueError if neither a training file nor labels are given, or files without a training file.
    """
    settings = {name: value for name, value in settings.items() if value not in (None, "", ())}
    if "train" not in settings:
        if "labels" not in settings:
            raise ValueError(
                "the config file needs the argument train, a file with training examples, as in "
                "finetune/own:checkpoint=CHECKPOINT,train=a.csv; or task and labels, to replace the tags of a task of "
                "the catalogue"
            )
        if others := sorted(set(settings) - {"kind", "labels", "held_out"}):
            raise ValueError(f"the argument {others[0]} needs the argument train, a file with training examples")
        settings = {"labels": settings["labels"]}
    config.tasks[task].custom.update(settings)
    if settings.get("kind") == "span":
        config.tasks[task].sweep.head_dropout = ()  # the head has none


_SEVERAL_ROWS = ("dream", "hellaswag")  # tasks whose examples have a row for each candidate


def asa_suite(title: str, tasks: Sequence[str], scale: str, **settings: Any) -> Config:
    """Return a suite with the tasks of a table or figure of the Adversarial Self-Attention paper, without an attack.

    The function `attack` adds one.

    tasks: tasks of the paper's table 5.
    scale: `paper`, or `small` for small models on 2 CPU cores.
    settings: arguments of `suite`.
    """
    config = suite(title, **settings)
    asa(config, tasks)
    if scale == "small":
        small(config)
        for task in set(_SEVERAL_ROWS) & set(config.tasks):
            config.tasks[task].update(train_examples=800, validation_examples=400)
    return config


def attack(config: Config, method: str, **settings: Any) -> None:
    """Set all tasks of a suite to train against an attack; `settings` go to the attack's section of each recipe.

    method: the value of `adversarial.method`, the name of the attack.
    """
    for recipe in config.tasks.values():
        recipe.adversarial.method = method
        recipe.adversarial[method if method in recipe.adversarial else "masking"].update(settings)


def freelb(config: Config) -> None:
    """Set all tasks of a suite to train with FreeLB, with the settings in `FREELB`.

    Of tasks without settings there, `paws_qqp` gets those of QQP, and all others get those of MNLI. Steps are counted
    as in fairseq, because the settings were released for it.
    """
    for task, recipe in config.tasks.items():
        step_size, init_magnitude, max_norm, steps = FREELB[_FREELB_LIKE.get(task, task if task in FREELB else "mnli")]
        recipe.adversarial.method = "freelb"
        settings = {"step_size": step_size, "init_magnitude": init_magnitude, "max_norm": max_norm, "steps": steps}
        recipe.adversarial.freelb.update(count="fairseq", **settings)


def longer(config: Config, times: int = 2) -> None:
    """Multiply the epochs of all tasks by `times`, for a baseline that costs as much as training with an attack.

    The multiple is set as a factor, so that a flag for `epochs` lengthens or shortens this arm in proportion.
    """
    for recipe in config.tasks.values():
        recipe.epochs_factor = times
