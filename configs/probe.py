"""Probe the attention heads of an encoder: what each head looks at, and how often it is right.

A probe asks every attention head for a word: for the antecedent of a mention (coreference), of a reflexive pronoun in
synthetic sentences (reflexives), of a pronoun in Wikipedia's texts (gap), or for the word on which another one depends
(dependencies). A head answers with the word that it attends to most (Clark et al. 2019, What Does BERT Look At?;
Deshpande & Narasimhan 2020, section 5.6).

    ag-jax evaluate --config=probe:checkpoint=CHECKPOINT --workdir=DIR
    ag-jax evaluate --config=probe:checkpoint=CHECKPOINT,coreference=FOLDER,dependencies=FOLDER,gap=FOLDER --workdir=DIR
    ag-jax compare --config=probe:checkpoint=CHECKPOINT,OTHER,coreference=FOLDER --workdir=DIR
    ag-jax compare --config=probe:checkpoint=CHECKPOINT,OTHER,ablation=held_out --workdir=DIR
    ag-jax compare --config=probe:checkpoint=CHECKPOINT,OTHER,reflexives=none,minimal_pairs=FOLDER --workdir=DIR

The first command needs no data: its sentences are generated. A model with the same architecture and tokenizer but
random weights is probed, too. With several directories, `ag-jax compare` compares the models with the first one.
`{seed}` in a directory stands for the seeds of a comparison that `ag-jax compare` has trained:

    ag-jax compare --config=probe:checkpoint=RUNS/plain-seed{seed},RUNS/ag-seed{seed},seeds=3 --workdir=DIR

A probe shows what a head attends to. `ablation=held_out`, or `ablation=FILE` with a text on each line, measures what
each head does: how much the loss of masked words, or that of the task of a fine-tuned model, rises when the output of
the head is zeroed (Michel et al. 2019, section 3.2). Models with random weights have no trained loss, and are left out.

`minimal_pairs=FOLDER`, with the data of BLiMP or custom pairs, measures how often a model finds the grammatical one of
two sentences more probable (Warstadt et al. 2020). `--config.minimal_pairs.milestones=True` does so at all checkpoints.

`ag-jax help probes` explains the settings of a probe, such as --config.probes.coreference.window=256.

Hardware and time: each probe reads its texts once with the model and once with random weights. A model of 8 layers of
width 96 reads LitBank, 210,000 words, in about 10 seconds on 2 CPU cores. Ablation reads 256 texts once for each head,
and once with all heads.

Expected: depends on the model. docs/probes_results.md has scores of small models. BERT-base (Clark et al. 2019), best
head: coreference 65 %, dependencies such as 94 % for det and 87 % for dobj. These have not been reproduced with this
program.

Deviations: heads are chosen on development documents; papers report the best head on the test documents, which is in
the report, too. docs/probes.md explains data, modes and rules.
"""

from ag_jax.probing.config import SEED, ProbeConfig, ProbingConfig
from ag_jax.settings import schema


def get_config(
    *,
    checkpoint: str,
    arm: str = "",
    coreference: str = "",
    gap: str = "",
    dependencies: str = "",
    reflexives: str = "generated",
    custom: str = "",
    seeds: int = 0,
    ablation: str = "none",
    minimal_pairs: str = "none",
):
    """Return the config.

    checkpoint: run, trial or Hugging Face directory of the model to probe, or several, separated by commas; `{seed}` in
        a directory stands for the numbers of the seeds.
    arm: which of several models, by the name of its directory; `ag-jax compare` probes all of them.
    coreference: file or folder with texts in the format of CoNLL-2012, LitBank or PreCo.
    gap: folder with the files of GAP.
    dependencies: file or folder with trees in the format CoNLL-U.
    reflexives: `generated` for generated sentences, a file of sentences such as refl.0, or `none` to leave this out.
    custom: import path of a function that makes a custom probe, such as my_probes.negation.
    seeds: number of seeds, from 0, of the models whose directory has `{seed}`, which need it; others have one.
    ablation: texts on which the loss is measured without each head: `held_out` for the held-out text of a run or the
        development examples of a trial, a file with a text on each line, or `none`.
    minimal_pairs: file or folder of pairs of sentences, such as BLiMP's folder `data`, or `none`.
    """
    directories = checkpoint.split(",")
    models = {_name(directory)[-1]: directory for directory in directories}
    if len(models) < len(directories):  # the last names alone would not say which is which
        models = {"-".join(_name(directory)): directory for directory in directories}
    if len(models) < len(directories) or not all(models):
        raise ValueError(f"checkpoint={checkpoint} must name different directories, each by its name")
    if arm and arm not in models:
        raise ValueError(f"arm={arm} is no model of checkpoint: expected one of {', '.join(models)}")
    config = schema.default(ProbingConfig)
    config.checkpoint = models[arm or next(iter(models))]
    config.arms = ",".join(models)
    if any(SEED in directory for directory in directories) != (seeds > 0):
        raise ValueError(
            f"expected seeds, and {SEED} in checkpoint where the directories of the seeds differ, or neither; got "
            f"checkpoint={checkpoint} and seeds={seeds}"
        )
    if SEED in config.checkpoint:
        config.seeds = tuple(range(seeds))

    def add(name: str, **settings) -> None:
        config.probes[name] = schema.default(ProbeConfig)
        config.probes[name].update(settings)

    if coreference:
        add("coreference", data=coreference, modes=("mentions", "words"))
    if gap:
        add("gap", kind="gap", data=gap, modes=("mentions", "words"))
    if dependencies:
        add("dependencies", kind="dependencies", data=dependencies, subtypes=False)
        add("dependencies_to", kind="dependencies", data=dependencies, subtypes=False, transposed=True)
    if reflexives != "none":
        add("reflexives", kind="reflexives", modes=("words", "positions"), distractor="before")
        if reflexives != "generated":
            config.probes.reflexives.data = reflexives
    if custom:
        name = custom.rpartition(".")[2]
        if name in config.probes:
            raise ValueError(f"custom={custom} has the name of another probe: give the function another name")
        add(name, kind="custom", function=custom)
    if ablation != "none":
        config.ablation.data = ablation
    if minimal_pairs != "none":
        config.minimal_pairs.data = minimal_pairs
    return config


def _name(directory: str) -> list[str]:
    """Return the names of the folders on the path of a model, without seeds; an empty name if there are none."""
    names = [name.replace(f"-seed{SEED}", "").replace(SEED, "") for name in directory.split("/")]
    return [name for name in names if name] or [""]
