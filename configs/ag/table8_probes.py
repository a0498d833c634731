"""Probe the heads of models with no, half and all heads guided: coreference, reflexives (table 8).

Deshpande & Narasimhan 2020, section 5.6: how often the best head of a model attends from a mention to an antecedent,
and from a reflexive pronoun of a synthetic sentence to its antecedent. The models have no guided heads (`plain`), half
of the heads guided (`ag`, lambda = 1/2) or all of them (`ag_all`, lambda = 1).

    ag-jax compare --config=ag/table8_probes:plain=PLAIN,ag=AG,ag_all=AG_ALL,data=FOLDER --workdir=DIR
    ag-jax compare --config=ag/table8_probes:scale=small,data=FOLDER --workdir=DIR

The first command probes models that exist, runs or Hugging Face directories; `{seed}` in a path stands for the seeds.
The second command trains the models first, as `ag/table8_training` does, with three seeds. An interrupted command is
resumed by the same command; what is trained or probed is not done again.

FOLDER has a folder for each probe: `litbank_coref` (LitBank's .conll files), `gap` (GAP's .tsv files) and
`ud_english_ewt` (trees in the format CoNLL-U); and for scale=small `litbank_novels`, as `ag/table8_training` explains.
Files may be compressed. Reflexives are generated. GAP and dependencies are not in the paper's table;
`probes=coreference,reflexives` leaves them out.

Hardware and time: the paper does not say. scale=small trains 9 runs, each about 15 minutes on 2 idle CPU cores (a
forecast).

Expected (table 8; MLM loss, best head on coreference: all, nominal, pronominal, proper; on synthetic sentences):

    rule-based               -     .66  .48  .72  .73     -
    randomly initialised   11.0    .50  .41  .47  .60    .266
    BERT-base                -     .70  .64  .68  .76    .97
    RoBERTa-base             -     .74  .71  .74  .76    .99
    plain                  2.47    .68  .58  .69  .73    .87
    ag                     2.29    .28  .21  .32  .29    .84
    ag_all                 2.31    .21  .13  .21  .28    .00

The claim is that a model can have the lower language-modelling loss although none of its heads finds antecedents. The
paper does not say among what a head chooses. Its random model reaches .50, about as much as chance among earlier
mentions, so mode `mentions` is the one to compare with the coreference columns; in mode `words`, chance is far lower.
The synthetic column is mode `positions` (released code): a head that looks at its pattern is wrong by construction,
hence .00 where all heads are guided. The row *best head on test* is the paper's measure. These numbers have not been
reproduced.

What this cannot show: in mode `mentions` a head that looks at the previous token finds the nearest mention, and so may
be the best one, and a small model may have no head that beats the nearest mention: the report says so. Then its
coreference columns say nothing about guidance. That no single head finds antecedents does not mean that the model does
not know them. LitBank has chance, and the rules, at other levels than the paper's text.

Deviations: LitBank (novels, gold mentions, entities with a single mention) instead of OntoNotes, which is licensed;
with files of CoNLL-2012, use --config.probes.coreference.data=FOLDER. Windows of 128 tokens over whole documents. The
head is chosen on a fifth of the documents; the best head on the test documents is in the report, too. Reflexives are
in sentences of which every word is one token, with a distractor before them (the released code; the paper has it after
them). The MLM loss of a run that was trained is `validation_loss` in DIR/ARM-seedN/result.json. docs/probes.md
explains data, modes and rules; ag/table8_training says how scale=small differs.
"""

from ag_jax.probing.config import SEED, ProbeConfig, ProbingConfig
from ag_jax.settings import schema
from ag_jax.settings.config_files import ListOf, OneOf, Scale

ARMS = ("plain", "ag", "ag_all")
SEEDS = 3
FOLDERS = {"coreference": "litbank_coref", "gap": "gap", "dependencies": "ud_english_ewt"}
PROBES = {
    "coreference": {"modes": ("mentions", "words")},
    "reflexives": {"modes": ("positions", "words"), "distractor": "before"},
    "gap": {"modes": ("mentions", "words")},
    "dependencies": {"subtypes": False},
}


def get_config(
    *,
    data: str,
    plain: str = "",
    ag: str = "",
    ag_all: str = "",
    arm: OneOf(*ARMS) = ARMS[0],
    scale: Scale = "paper",
    steps: int = 0,
    seeds: int = 0,
    probes: ListOf(*PROBES) = tuple(PROBES),
):
    """Return the config.

    data: folder that has the folders litbank_coref, gap, ud_english_ewt and, for scale=small, litbank_novels; always
        needed.
    plain: run or Hugging Face directory of the model without guided heads.
    ag: run or Hugging Face directory of the model with half of the heads guided.
    ag_all: run or Hugging Face directory of the model with all heads guided; without all three, models are trained.
    arm: which of the models; `ag-jax compare` probes them all.
    scale: size of models to train: `paper` as published, or `small` for 2 CPU cores.
    steps: number of updates of models to train; 0 takes that of the scale.
    seeds: number of seeds of models to train, of which 0 takes 3, or of models whose directory has `{seed}`.
    probes: what is asked, separated by commas.
    """
    config = schema.default(ProbingConfig)
    config.title = "Probes of models with no, half and all heads guided"
    config.arms = ",".join(ARMS)
    given = {"plain": plain, "ag": ag, "ag_all": ag_all}
    if all(given.values()):
        if scale == "small" or steps:
            raise ValueError("scale and steps are for models to be trained, but plain, ag and ag_all name models")
        if any(SEED in directory for directory in given.values()) != (seeds > 0):
            raise ValueError(
                f"expected seeds, and {SEED} in plain, ag and ag_all, or neither; got seeds={seeds} and "
                f"{', '.join(f'{arm}={directory}' for arm, directory in given.items())}"
            )
        config.checkpoint = given[arm]
        if SEED in config.checkpoint:
            config.seeds = tuple(range(seeds))
    elif any(given.values()):
        missing = ", ".join(arm for arm, directory in given.items() if not directory)
        raise ValueError(
            f"give all three models, plain, ag and ag_all, or none, to train them first; missing: {missing}"
        )
    else:
        of_training = {"arm": arm, "scale": scale, "steps": steps}
        if scale == "small":
            of_training["data"] = data
        config.train = "ag/table8_training:" + ",".join(f"{name}={value}" for name, value in of_training.items())
        config.seeds = tuple(range(seeds or SEEDS))
    for name in probes:
        config.probes[name] = schema.default(ProbeConfig)
        config.probes[name].update({"kind": name, **PROBES[name]})
        if name in FOLDERS:
            config.probes[name].data = f"{data.rstrip('/')}/{FOLDERS[name]}"
    return config
