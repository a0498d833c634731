"""Probe the attention heads of an encoder: what each head looks at, and how often it is right.

A probe asks every head of a model for a word: for the antecedent of a mention (coreference), of a reflexive pronoun in
synthetic sentences (reflexives), of a pronoun in Wikipedia's texts (gap), or for the head of a word in a dependency
tree (dependencies). A head answers with the word that it attends to most (Clark et al. 2019, What Does BERT Look At?;
Deshpande & Narasimhan 2020, section 5.6).

    ag-jax evaluate --config=probe:checkpoint=DIR --workdir=DIR
    ag-jax evaluate --config=probe:checkpoint=DIR,coreference=FOLDER,dependencies=FOLDER,gap=FOLDER --workdir=DIR
    ag-jax compare --config=probe:checkpoint=DIR,DIR,coreference=FOLDER --workdir=DIR

The first command needs no data: its sentences are generated. A model with the same architecture and tokenizer but
random weights is always probed, too. With several directories, `ag-jax compare` compares the models with the first one.

Hardware and time: two cores read about 25,000 tokens a second with a model of 8 layers of width 96, and 3,000 with one
of 6 layers of width 384. LitBank has 210,000 words.

Expected: depends on the model. BERT-base (Clark et al. 2019), best head: coreference 65, dependencies such as 94.3 for
det and 86.8 for dobj. No run with this program has repeated them.

Deviations: heads are chosen on development documents; papers report the best head on the test documents, which is in
the report, too. docs/probes.md explains data, modes and rules.
"""

import pathlib

from ag_jax import config_reader
from ag_jax.probing.config import ProbeConfig, ProbingConfig


def get_config(argument: str = ""):
    """Return the config for the arguments in `argument`, such as `name=value,name=value`.

    checkpoint: run, trial or Hugging Face directory of the model to probe, or several, separated by commas.
    arm: name of the directory of the model; `ag-jax compare` probes them all.
    coreference: file or folder with texts in the format of CoNLL-2012, LitBank or PreCo.
    gap: folder with the files of GAP.
    dependencies: file or folder with trees in the format CoNLL-U.
    reflexives: file with reflexive pronouns, such as refl.0; without it sentences are generated; `none` asks nothing.
    custom: import path of a function that makes a custom probe, such as my_probes.negation.
    """
    chosen = config_reader.arguments(
        argument, checkpoint=str, arm="", coreference="", gap="", dependencies="", reflexives="", custom=""
    )
    directories = [pathlib.PurePath(directory) for directory in chosen.checkpoint.split(",")]
    models = {directory.name: str(directory) for directory in directories}
    if len(models) < len(directories):  # the names alone would not say which is which
        models = {str(directory).strip("/").replace("/", "-"): str(directory) for directory in directories}
    if chosen.arm and chosen.arm not in models:
        raise ValueError(f"arm={chosen.arm} is no model of checkpoint: expected one of {', '.join(models)}")
    config = config_reader.default(ProbingConfig)
    config.checkpoint = models[chosen.arm or next(iter(models))]
    config.arms = ",".join(models)

    def add(name: str, **settings) -> None:
        config.probes[name] = config_reader.default(ProbeConfig)
        config.probes[name].update(settings)

    if chosen.coreference:
        add("coreference", data=chosen.coreference, modes=("mentions", "words"))
    if chosen.gap:
        add("gap", kind="gap", data=chosen.gap, modes=("mentions", "words"))
    if chosen.dependencies:
        add("dependencies", kind="dependencies", data=chosen.dependencies, subtypes=False)
        add("dependencies_to", kind="dependencies", data=chosen.dependencies, subtypes=False, transposed=True)
    if chosen.reflexives != config_reader.NONE:
        add("reflexives", kind="reflexives", modes=("words", "positions"), distractor="before")
        if chosen.reflexives:
            config.probes.reflexives.data = chosen.reflexives
    if chosen.custom:
        add(chosen.custom.rpartition(".")[2], kind="custom", function=chosen.custom)
    return config
