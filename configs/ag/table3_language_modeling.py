"""Pre-train with and without attention guidance; compare language-modelling losses (table 3, figure 3, figure 5).

Train, validation and average train MLM loss. Deshpande & Narasimhan 2020, table 3 and figures 3 and 5; architectures of
table 10, hyperparameters of table 11.

    ag-jax compare --config=ag/table3_language_modeling:language=english,layers=12 --workdir=DIR
    ag-jax train   --config=ag/table3_language_modeling:layers=12,arm=ag,scale=small --workdir=DIR
    ag-jax compare --config=ag/table3_language_modeling:layers=12,best=SEARCH --workdir=DIR

The report has the step, and the share of the run, at which the guidance loss has settled (0.2 % in appendix A.3). With
`best`, the directory of a finished search (ag/section4_5_search), its best points take the place of table 11.

Hardware and time: the paper used 8 P40 GPUs for 4 days (English) and 4 for 2 days (Filipino, Oromo). scale=small takes
four to eight minutes for each arm on 2 CPU cores. It has the text, learning rate, warm-up, heads and steps of the
quickstart in both arms.

Expected (scale=paper, plain/ag): English validation 2.41/2.43 (8 layers), 2.47/2.29 (12), 7.28/2.46 (16); average train
2.48/2.09, 2.56/2.07, 6.67/2.24. scale=paper has not been run with this program yet. Training text of table 2: 2116M
tokens of English, 36M of Filipino, 4.6M of Oromo; the program prints the tokens that it finds as a share of these.

Deviations: the paper stops at 10 epochs or 4 days (English), and at 40 epochs or 2 days (Filipino, Oromo), whichever
comes first, with both arms for as many epochs; here only epochs count. --config.training.time_limit=345600 ends each
run after 4 days, but slower hardware or a slower arm then ends at an earlier step, which the report shows. The English
text is Wikipedia of June 2023 from TensorFlow Datasets. For Filipino (WikiText-TL-39) and Oromo (LORELEI, licensed),
give the files with --config.data.source=PATH. Filipino models are BERT-like with next-sentence prediction, as in
section 4.3. Their steps are counted as if a row read 510 tokens of the text, but half of the rows have a random second
text and put back what they do not use, so 40 epochs are about 30 passes over the text. As in the released code and not
in the paper, alpha_0 is held for 20,000 steps before it falls (a fifth of a shorter run), the guidance loss is a mean
over n x n, and AdamW has beta2 = .999, epsilon = 1e-8, no weight decay, and gradients clipped at norm 1.
"""

from ag_jax.pretraining import config as pretraining_config
from ag_jax.recipes import pretraining
from ag_jax.settings.config_files import OneOf, Scale

# Tokens of the training text (table 2), passes over it (section 4.5), share held out for validation (table 2).
CORPORA = {"english": (pretraining.ENGLISH_TOKENS, 10, 0.01), "filipino": (36e6, 40, 0.10), "oromo": (4.6e6, 40, 0.03)}


def get_config(
    *,
    language: OneOf(*CORPORA) = "english",
    layers: OneOf(12, 8, 16) = 12,
    arm: OneOf("ag", "plain") = "ag",
    scale: Scale = "paper",
    best: str = "",
):
    """Return the config.

    language: language of the text.
    layers: number of layers of the model.
    arm: variant to train; `ag-jax compare` trains them all.
    scale: `paper` as published, or `small` for 2 CPU cores.
    best: directory of a finished `ag-jax search`, whose best points are taken instead of table 11.
    """
    tokens, passes, held_out = CORPORA[language]
    config = pretraining_config.default_config()
    config.title = f"Language modelling ({language}, RoBERTa-{layers})"
    pretraining.attention_guidance_code(config)
    pretraining.table_11(config, language, layers, arm)
    config.data.update(source="tfds:wikipedia/20230601.en", validation_fraction=held_out)
    if language != "english":
        config.data.source = f"data/{language}/*.txt"
    if language == "filipino":
        config.data.format = "segment_pair_nsp"
        config.data.tokenizer.update(kind="wordpiece", vocabulary_size=30_101)
        config.model.update(token_types=2, position_offset=0, layer_norm_epsilon=1e-12)
    config.model.dtype = "bfloat16"
    pretraining.epochs(config, tokens, passes)
    if scale == "small":
        # As in the quickstart, whose search chose them without guidance: with the ratios of table 11, the arm `plain`
        # would not leave the plateau before the end of the run.
        pretraining.small(config, steps=1_100)
        config.optimizer.learning_rate = 2e-3
        config.optimizer.warmup_steps = config.training.get_ref("steps") // 5
        config.model.heads = 6
    if best:
        of_text = {"language": language} if scale == "paper" else {}  # at scale=small there is one text
        pretraining.searched(config, best, arm, layers=layers, scale=scale, **of_text)
    config.comparison.arms = "plain,ag"
    return config
