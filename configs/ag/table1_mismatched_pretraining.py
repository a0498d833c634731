"""Fine-tune models pre-trained on Chinese, French, English or nothing on English tasks (table 1).

Deshpande & Narasimhan 2020, table 1 (section 3.1), after Kovaleva et al. 2019.

    ag-jax compare --config=ag/table1_mismatched_pretraining:chinese=CHINESE,french=FRENCH,english=ENGLISH --workdir=DIR

Each argument is a run or a Hugging Face directory: bert-base-chinese, camembert-base and bert-base-uncased in the
paper. Arms without a directory are left out. The arm `random` has the architecture and tokenizer of `english` with
randomly initialised weights, so `english` must be given.

Hardware and time: 176k examples, three epochs, four arms and five seeds need an accelerator. scale=small takes about a
minute for each trial on 2 CPU cores.

Expected (dev, SST-2, MRPC F1/accuracy, QNLI): random 0.80, 0.81/0.68, 0.49; Chinese 0.86, 0.86/0.81, 0.83; French
0.88, 0.88/0.84, 0.85; English 0.93, 0.89/0.84, 0.91. scale=paper has not been run with this program yet.

Deviations: the paper takes the random model's numbers from Kovaleva et al. and names no settings. The settings here
are those of the released code's README: 32 sequences of 128 tokens, learning rate 2e-5, 3 epochs.
"""

from ag_jax.recipes import finetuning
from ag_jax.settings.config_files import ListOf, OneOf, Scale

TASKS = ("sst2", "mrpc", "qnli")
ARMS = ("random", "chinese", "french", "english")


def get_config(
    *,
    english: str,
    french: str = "",
    chinese: str = "",
    tasks: ListOf(*TASKS) = TASKS,
    seeds: int = 5,
    data: str = "",
    arm: OneOf(*ARMS) = ARMS[0],
    scale: Scale = "paper",
):
    """Return the config.

    english: run pre-trained on English.
    french: run pre-trained on French.
    chinese: run pre-trained on Chinese.
    tasks: comma-separated names of tasks, or `all`.
    seeds: number of seeds with which every trial is repeated.
    data: folder with the tasks' files; without it they are read from TensorFlow Datasets.
    arm: variant to train; `ag-jax compare` trains them all.
    scale: `paper` as published, or `small` for 2 CPU cores.
    """
    config = finetuning.suite("English tasks after mismatched pre-training", seeds=seeds, data=data)
    runs = {"english": english, "french": french, "chinese": chinese}
    config.fresh = arm == "random"
    config.checkpoint = english if config.fresh else runs[arm]
    finetuning.attention_guidance(config, tasks)
    if scale == "small":
        finetuning.small(config)
    config.arms = ",".join(arm for arm in ARMS if arm == "random" or runs[arm])
    return config
