"""Pre-train BERT-base with four input formats, two with next-sentence prediction (table 2).

Pairs of segments or of sentences with next-sentence prediction; full sentences, or sentences of one document, without.
Liu et al. 2019 (RoBERTa), table 2 (section 4.2).

    ag-jax compare --config=roberta/table2_input_formats --workdir=RUNS
    ag-jax compare --config=finetune/downstream:runs=RUNS,tasks=squad1,squad2,mnli,sst2,race \
--workdir=DIR
    ag-jax compare --config=roberta/table2_input_formats:scale=small --workdir=DIR

Hardware and time: each arm has 1M steps of 256 sequences. scale=small takes about four minutes for each arm on 2 CPU
cores.

The second command fine-tunes the model of each arm, which gives the numbers of the table. The losses of the arms cannot
be ranked, because their inputs differ.

Expected (SQuAD 1.1/2.0 F1, MNLI-m, SST-2, RACE, dev, medians of five seeds):

    segment_pair_nsp    90.4/78.7   84.0   92.9   64.2
    sentence_pair_nsp   88.7/76.2   82.9   92.1   63.0
    full_sentences      90.4/79.1   84.7   92.5   64.8
    doc_sentences       90.6/79.7   84.7   92.7   65.6

scale=paper has not been run with this program yet.

Deviations: the text is only Wikipedia. Sequences of sentence pairs and of document sentences are shorter. The paper
enlarges their batches so that a step sees about as many tokens, but does not say by how much. At scale=paper, the
factor here is 4 for sentence pairs and 1.25 for document sentences.
"""

from ag_jax.pretraining import config as pretraining_config
from ag_jax.recipes import pretraining
from ag_jax.settings.config_files import OneOf, Scale

BATCH_FACTORS = {"segment_pair_nsp": 1.0, "sentence_pair_nsp": 4.0, "full_sentences": 1.0, "doc_sentences": 1.25}


def get_config(*, arm: OneOf(*BATCH_FACTORS) = "segment_pair_nsp", scale: Scale = "paper"):
    """Return the config.

    arm: variant to train; `ag-jax compare` trains them all.
    scale: `paper` as published, or `small` for 2 CPU cores.
    """
    config = pretraining_config.default_config()
    config.title = "Input formats and next-sentence prediction"
    pretraining.bert_base(config)
    config.data.update(source="tfds:wikipedia/20230601.en", validation_fraction=0.01)
    config.model.dtype = "bfloat16"
    config.training.batch_size = round(config.training.batch_size * BATCH_FACTORS[arm])
    if scale == "small":
        pretraining.small(config)
        config.model.layers = 4
    config.data.format = arm
    if arm.endswith("_nsp"):
        config.model.token_types = 2
    config.comparison.arms = ",".join(BATCH_FACTORS)
    return config
