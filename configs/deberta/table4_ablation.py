"""Pre-train DeBERTa without its mask decoder or disentangled terms: an ablation (table 4, figure 3).

The mask decoder (emd), content to position (c2p) and position to content (p2c) are left out one by one, and the mask
decoder also together with each of the others. The arm `roberta` has none of them, but positions in its input. He et al.
2021 (DeBERTa: Decoding-enhanced BERT with Disentangled Attention), table 4 (section 5.2) and figure 3.

The report shows the last layer of all arms side by side, and how much of its attention is on the diagonal and on
vertical stripes (figure 3).

    ag-jax compare --config=deberta/table4_ablation --workdir=RUNS
    ag-jax compare --config=finetune/downstream:runs=RUNS,tasks=mnli,squad1,squad2,race,protocol=deberta \
--workdir=DIR
    ag-jax compare --config=deberta/table4_ablation:scale=small --config.comparison.seeds=0,1,2 --workdir=DIR

Hardware and time: each arm has 1M steps of 256 sequences of 512 tokens, which took seven days on 16 V100 GPUs in the
paper. scale=small trains a model of 4 layers for 900 steps, 4 to 15 minutes for each run on one CPU core.

Expected: the paper reports downstream scores, MNLI-m/mm, SQuAD v1.1 F1/EM, v2.0 F1/EM and RACE:

    deberta       86.3/86.2   92.1/86.1   82.5/79.3   71.7
    no_emd        86.1/86.1   91.8/85.8   81.3/78.0   70.3
    no_c2p        85.9/85.7   91.6/85.8   81.3/78.3   69.3
    no_p2c        86.0/85.8   91.7/85.7   80.8/77.6   69.6
    no_emd_c2p    85.8/85.9   91.5/85.3   80.3/77.2   68.1
    no_emd_p2c    85.8/85.8   91.3/85.1   80.2/77.1   68.5
    roberta       84.9/85.1   91.1/84.8   79.5/76.0   66.8

The second command fine-tunes the model of each arm, which gives these numbers. The first compares losses on masked
words. All arms have the same task, so the losses can be ranked. scale=small, mean of the validation loss over three
seeds, in the order above: 5.610, 5.712, 5.708, 5.603, 5.805, 5.767, 6.236
(benchmarks/results/table4_deberta_small.json). Of the differences from `deberta`, only that of `roberta` is shown after
Holm's correction. As in the paper, leaving out two parts is worse than leaving out one, but leaving out position to
content changes nothing. scale=paper has not been run with this program yet.

Of figure 3 the paper says: RoBERTa has a clear diagonal line, DeBERTa does not, and DeBERTa without emd has more of it;
RoBERTa has stripes at frequent words and punctuation, DeBERTa only in the first column. At scale=small no arm has a
diagonal; .20 of RoBERTa's attention is on stripes, and .11 of DeBERTa's (uniform attention: .06).

Deviations: the text is only Wikipedia, without BookCorpus. The released code masks single tokens for its RoBERTa, here
all arms have spans of up to three words; it draws one span in each window of words, here they begin anywhere. The
numbers above are of spans of up to three tokens (--config.data.masking.unit=token). The paper does not say whether its
models without the mask decoder have absolute positions. By default they have none here; positions=input adds them to
the input, as the released code does in pre-training without the decoder. The relative-position terms have separate
projections, as in the released base models. The second command gives `roberta` RoBERTa's head of tasks, and all others
DeBERTa's. Figure 3 is of the model's ordinary layers; the mask decoder's two passes through the last layer, which
predict the masked words, are not drawn. scale=small has the learning rate and the number of steps with which the
quickstart's model leaves its plateau (the loss of guessing words without context). Nothing was tuned for a single arm.
"""

from ag_jax.pretraining import config as pretraining_config
from ag_jax.recipes import pretraining
from ag_jax.settings.config_files import OneOf, Scale

# The parts of the model that each arm keeps.
ARMS = {
    "deberta": ("emd", "c2p", "p2c"),
    "no_emd": ("c2p", "p2c"),
    "no_c2p": ("emd", "p2c"),
    "no_p2c": ("emd", "c2p"),
    "no_emd_c2p": ("p2c",),
    "no_emd_p2c": ("c2p",),
    "roberta": (),
}


def get_config(
    *,
    arm: OneOf(*ARMS) = "deberta",
    positions: OneOf("none", "input") = "none",
    scale: Scale = "paper",
):
    """Return the config.

    arm: variant to train; `ag-jax compare` trains them all.
    positions: absolute positions of the arms without the mask decoder, except `roberta`: `none`, or `input` as in BERT.
    scale: `paper` as published, or `small` for 2 CPU cores.
    """
    config = pretraining_config.default_config()
    config.title = "Parts of DeBERTa"
    pretraining.deberta_base(config)
    config.data.update(source="tfds:wikipedia/20230601.en", validation_fraction=0.01)
    config.model.dtype = "bfloat16"
    if scale == "small":
        pretraining.small(config, steps=900)
        config.optimizer.learning_rate = 2e-3
        config.optimizer.warmup_steps = config.training.get_ref("steps") // 9
        config.model.layers = 4
        config.model.relative.span = config.data.get_oneway_ref("sequence_length")  # as 512 is in the paper
    parts = ARMS[arm]
    config.model.relative.terms = ",".join(part for part in parts if part != "emd")
    if "emd" not in parts:
        positions = positions if parts else "input"
        config.model.update(absolute_positions=positions, mask_decoder_passes=0)
    config.comparison.arms = ",".join(ARMS)
    return config
