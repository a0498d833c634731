"""SQuAD 1.1, SQuAD 2.0 and XQuAD from any checkpoint: fine-tune with RoBERTa's settings.

The answers to the questions are spans of a text. Rajpurkar et al. 2016 and 2018; Artetxe et al. 2020 (XQuAD); Liu et
al. 2019 (RoBERTa), section 5.2 and table 10.

    ag-jax finetune --config=finetune/squad:checkpoint=CHECKPOINT,seeds=5 --workdir=DIR
    ag-jax finetune --config=finetune/squad:checkpoint=CHECKPOINT,tasks=xquad_en,scale=small,data=FOLDER \
--workdir=DIR

`tasks`: squad1, squad2, and the small xquad_en and xquad_de, which have questions of SQuAD in English and German.

Hardware and time: 88k and 130k questions in sequences of 384 tokens need an accelerator for two epochs. scale=small
takes minutes on 2 CPU cores.

Expected: RoBERTa-large 88.9 EM and 94.6 F1 on SQuAD 1.1, 86.5 and 89.4 on 2.0 (dev; its table 6). scale=paper has not
been run with this program yet.

SQuAD 2.0: as in RoBERTa, a classifier trained beside the span decides whether a question has an answer
(`answerability`), where its probability is above 1/2. --config.tasks.squad2.answerability=False decides by the span at
the first token, as Devlin et al. 2019. `best_f1` and `best_exact_match` are the scores with the threshold that is best
on the development set, as the official script prints them.

Deviations: RoBERTa does not say which span it trains where there is no answer; here it is the first token. A long
context is split into overlapping sequences that begin every 128 tokens (every half of a sequence if that is shorter).
An answer has 30 tokens at most, as in the official script. With an English tokenizer, 3 of the 86 questions of
xquad_de's development part have longer ones, so that 3.5 points of its exact match are out of reach with RoBERTa's (2
of 86 with BERT's).
"""

from ag_jax.recipes import finetuning
from ag_jax.settings.config_files import ListOf, Scale


def get_config(
    *,
    checkpoint: str,
    tasks: ListOf(*finetuning.SQUAD) = ("squad1", "squad2"),
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
    config = finetuning.suite("SQuAD", checkpoint=checkpoint, seeds=seeds, data=data)
    finetuning.roberta_squad(config, tasks)
    if scale == "small":
        finetuning.small(config)
    return config
