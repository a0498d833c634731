"""Pre-train BERT-base with static and with dynamic masking (table 1).

Liu et al. 2019 (RoBERTa), table 1 (section 4.1).

    ag-jax compare --config=roberta/table1_masking --workdir=RUNS
    ag-jax compare --config=finetune/downstream:runs=RUNS,tasks=squad2,mnli,sst2 --workdir=DIR
    ag-jax compare --config=roberta/table1_masking:scale=small --workdir=DIR

Hardware and time: each arm has 1M steps of 256 sequences. The paper gives neither hardware nor time for its ablations.
scale=small takes about four minutes for each arm on 2 CPU cores.

The second command fine-tunes the model of each arm, which gives the numbers of the table.

Expected (static/dynamic, dev, medians of five seeds): SQuAD 2.0 F1 78.3/78.7, MNLI-m 84.3/84.0, SST-2 92.5/92.9.
scale=paper has not been run with this program yet.

Deviations: BookCorpus is not available, so the text is only Wikipedia. The model has 12 layers of RoBERTa's
architecture without next-sentence prediction, so that masking is the only difference. Static masking has 10 fixed masks
of each sequence, used in turn.
"""

from ag_jax.pretraining import config as pretraining_config
from ag_jax.recipes import pretraining
from ag_jax.settings.config_files import OneOf, Scale


def get_config(*, arm: OneOf("static", "dynamic") = "static", scale: Scale = "paper"):
    """Return the config.

    arm: variant to train; `ag-jax compare` trains them all.
    scale: `paper` as published, or `small` for 2 CPU cores.
    """
    config = pretraining_config.default_config()
    config.title = "Static and dynamic masking"
    pretraining.bert_base(config)
    config.data.update(source="tfds:wikipedia/20230601.en", validation_fraction=0.01)
    config.model.dtype = "bfloat16"
    if scale == "small":
        pretraining.small(config)
        config.model.layers = 4
    config.data.masking.static_copies = 10 if arm == "static" else None
    config.comparison.arms = "static,dynamic"
    return config
