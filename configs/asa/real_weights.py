"""Compare attacks, and baselines without one, on a published BERT of 6 layers and small tasks.

Not a table of a paper: a test on real weights, at a size that 2 CPU cores train, of what Wu et al. 2022 (Adversarial
Self-Attention for Language Understanding) claim in its tables 1 to 4. Settings are those of its table 5.

    ag-jax compare --config=asa/real_weights:checkpoint=CHECKPOINT,data=FOLDER --workdir=DIR
    ag-jax compare --config=asa/real_weights:checkpoint=CHECKPOINT,data=FOLDER,tasks=sst2 \
--config.arms=plain,tau_0.1,tau_0.3,tau_0.5,tau_0.8 --workdir=DIR
    ag-jax compare --config=asa/real_weights:checkpoint=CHECKPOINT,data=FOLDER,tasks=anli,seeds=2,learning_rate=1e-4 \
--config.arms=plain,longer --workdir=DIR

The checkpoint is all-MiniLM-L6-v2 (a BERT of width 384), for which the numbers of examples and epochs were chosen. All
arms train on the same subset of each task. A model is evaluated once, after its last epoch, so the development set
chooses nothing. The arms:

`plain`: no attack;
`longer`: no attack, twice the epochs;
`r_drop`: the loss of an attacked pass whose mask keeps everything, so that passes differ in their dropout alone;
`asa`: adversarial self-attention, with the adversary's gradient clipped at norm 1;
`asa_unclipped`: the same without clipping, as in the released code;
`bernoulli`: masks of a random tenth of the attention;
`scheduled`: random masks of as much attention as `asa` masked in the trial of the same task and seed;
`magnitude`: masks of the largest tenth of each token's attention;
`freelb`: FreeLB with two steps of ascent and three passes;
`smart`: SMART's regularizer.

The arms `tau_...` are `asa` at other temperatures. Learning rates and FreeLB's step size are arguments, because they
are chosen on held-out training examples: `python benchmarks/finetuning_evidence.py --select` does that, and without
--select it trains the arms, one seed after another, with the values that it chose.

Hardware and time: a trial takes 2 to 10 minutes on SST-2, 3 to 8 on CoLA and 7 to 34 on WNUT-17, on one CPU core and
mostly beside other programs. All ten arms and three temperatures on SST-2, and six arms on the other tasks, with five
seeds, took 17 hours.

Expected: on SST-2, with learning_rate=1e-4, an accuracy of 83.6 for plain training, 81.6 for `asa`, 80.6 for
`asa_unclipped`, and 82.8 to 84.2 for the other arms but the temperatures; docs/reproduction_attacks.md has all scores.

The last command asks whether plain training learns anything from 2,399 examples of ANLI; if it does not, there is
nothing to compare. In the record, FOLDER had three quarters of ANLI's development sets for training, and the rest as
the development set.

Deviations: subsets of 3,200 examples (SST-2), 3,500 (CoLA), 1,000 (WNUT-17) and 2,399 (ANLI, of 163k), and 2 epochs on
SST-2; the paper has no CoLA, which gets SST-2's other settings. WNUT-17 has ten epochs, because after five some seeds
of plain training find hardly any entity. The paper does not say whether it scores the best or the last epoch. FreeLB
has the settings released for MNLI except for the step size, because all of these were made for RoBERTa-large, and an
initial perturbation as large as SST-2's (1.0) would leave nothing to the ascents. SMART has no proximal term (Jiang et
al. 2020), R-Drop only the task loss of the first pass (Wu et al. 2021).
"""

from ag_jax.recipes import finetuning
from ag_jax.settings.config_files import ListOf, OneOf

SIZES = {"sst2": (3_200, 2), "cola": (3_500, 3), "wnut17": (1_000, 10), "anli": (2_399, 3)}  # training examples, epochs
ARMS = ("plain", "longer", "r_drop", "asa", "asa_unclipped", "bernoulli", "scheduled", "magnitude", "freelb", "smart")
TEMPERATURES = {f"tau_{tau}": tau for tau in (0.1, 0.3, 0.5, 0.8)}
SHARE = 0.1  # of the attention, that fixed masks mask
LEARNING_RATE, FREELB_STEP = 5e-5, 0.03  # the middle of the values that the selection tries


def get_config(
    *,
    checkpoint: str,
    data: str = "",
    tasks: ListOf(*SIZES) = ("sst2", "cola", "wnut17"),
    seeds: int = 5,
    arm: OneOf(*ARMS, *TEMPERATURES) = ARMS[0],
    learning_rate: float = LEARNING_RATE,
    freelb_step: float = FREELB_STEP,
):
    """Return the config.

    checkpoint: run directory or Hugging Face directory of the model to fine-tune.
    data: folder with the tasks' files; without it they are read from TensorFlow Datasets.
    tasks: comma-separated names among sst2, cola, wnut17 and anli; by default the first three.
    seeds: number of seeds with which every trial is repeated.
    arm: variant to train; `ag-jax compare` trains all but the temperatures.
    learning_rate: peak learning rate of all tasks; `--config.tasks.TASK.learning_rates=...` sets that of one.
    freelb_step: length of a step of ascent of the arm `freelb`.
    """
    config = finetuning.suite("Attacks on real weights", checkpoint=checkpoint, seeds=seeds, data=data)
    finetuning.asa(config, tasks)
    for task, recipe in config.tasks.items():
        examples, epochs = SIZES[task]
        recipe.update(train_examples=examples, epochs=epochs, scored_epoch="last")
        recipe.learning_rates = (learning_rate,)
    if arm == "longer":
        finetuning.longer(config)
    elif arm == "asa_unclipped":
        finetuning.attack(config, "asa", clip_norm=None)
    elif arm in TEMPERATURES:
        finetuning.attack(config, "asa", tau=TEMPERATURES[arm])
    elif arm == "scheduled":
        finetuning.attack(config, "scheduled", trace="{arms}/asa/{task}/{trial}")
    elif arm == "freelb":
        settings = {"steps": 2, "count": "fairseq", "init_magnitude": 0.1, "max_norm": 0.3}
        finetuning.attack(config, "freelb", step_size=freelb_step, **settings)
    elif arm in ("bernoulli", "magnitude"):
        finetuning.attack(config, arm, share=SHARE)
    elif arm != "plain":
        finetuning.attack(config, arm)
    config.arms = ",".join(ARMS)
    return config
