"""The settings of probes: which model is probed, on which texts, and how its heads are judged."""

import dataclasses
from typing import Annotated, Literal

from annotated_types import Ge, Le

from ag_jax.data import local
from ag_jax.data.probes.queries import From, Mode, To

SEED = "{seed}"  # stands for the seed in the path of a checkpoint
Kind = Literal["coreference", "reflexives", "gap", "dependencies", "custom"]
HELD_OUT = "held_out"  # the model's own texts, for head ablation
# Settings that only some kinds of probe read; others must leave them at their defaults.
READ_BY = {
    "window": ("coreference", "reflexives", "gap", "dependencies"),
    "direction": ("coreference",),
    "head_word": ("coreference",),
    "distractor": ("reflexives",),
    "subtypes": ("dependencies",),
    "function": ("custom",),
}


@dataclasses.dataclass(frozen=True)
class ProbeConfig:
    """Settings of one probe: its annotated texts, the kind of its queries, and how attention heads answer them.

    kind: what heads are asked: for an antecedent of a mention (`coreference`), for the antecedent of a reflexive
        pronoun in synthetic sentences of which every word is one token (`reflexives`), for the name that a pronoun
        stands for (`gap`), for the word on which a word depends in a tree (`dependencies`), or what a custom function
        asks (`custom`).
    data: file or folder with the annotated texts; None generates sentences (`reflexives`), and is passed on (`custom`).
    function: (custom) import path of the function that makes a custom probe, such as `my_probes.negation`.
    modes: `mentions` chooses among the candidates, such as earlier mentions, `words` among all other words, `positions`
        among all tokens of the text.
    window: most tokens of a text that the model reads at once, with the begin and end tokens; documents with
        coreference are cut at ends of sentences, other texts that are longer are cut or left out.
    direction: (coreference) whether antecedents are mentions `before`, or mentions on `both` sides.
    head_word: (coreference) how the head word of a mention is found: by `rule`, as the `last` word, or by the `parse`
        of the file.
    distractor: (reflexives) place of a text beside each synthetic sentence: `before` (the released code), `after` (the
        paper), or `none`.
    subtypes: (dependencies) whether relations keep their subtypes, such as `nsubj:pass`.
    transposed: whether a head's answer is the word that attends most to the asked word, instead of the word that the
        asked word attends to most.
    from_word: attention from a word of several tokens: the `mean` over its tokens, or that of its `first` token.
    to_word: attention to a word of several tokens: the `sum` over its tokens, or their `mean`; not in mode `positions`,
        and not with `transposed`, where all attention goes to the asked word.
    """

    kind: Kind = "coreference"
    data: str | None = None
    function: str | None = None
    modes: tuple[Mode, ...] = ("words",)
    window: Annotated[int, Ge(8), Le(1048576)] = 128
    direction: Literal["before", "both"] = "before"
    head_word: Literal["rule", "last", "parse"] = "rule"
    distractor: Literal["before", "after", "none"] = "before"
    subtypes: bool = True
    transposed: bool = False
    from_word: From = "mean"
    to_word: To = "sum"

    def __post_init__(self):
        if not self.modes or len(set(self.modes)) < len(self.modes):
            raise ValueError(f"modes must be one or more of mentions, words and positions, each once, got {self.modes}")
        local.check("data", self.data)
        has_candidates = self.kind != "dependencies" and (self.kind != "reflexives" or self.data)
        if "mentions" in self.modes and not has_candidates:
            raise ValueError("modes=mentions chooses among candidates, which these queries do not have: use words")
        if self.kind not in ("custom", "reflexives") and not self.data:
            raise ValueError(f"kind={self.kind} needs data, the file or folder with the annotated texts")
        # With `transposed`, `to_word` would only scale the attention to the asked word, which changes no answer. Where
        # a head chooses among tokens, words are asked but never chosen.
        without_effect = {
            "to_word": self.transposed or set(self.modes) == {"positions"},
            "from_word": self.transposed and set(self.modes) == {"positions"},
        }
        for name, has_none in without_effect.items():
            if has_none and getattr(self, name) != type(self).__dataclass_fields__[name].default:
                raise ValueError(
                    f"{name}={getattr(self, name)} has no effect with modes={','.join(self.modes)} and "
                    f"transposed={self.transposed}: leave it out"
                )
        for name, kinds in READ_BY.items():
            default = type(self).__dataclass_fields__[name].default
            if self.kind not in kinds and getattr(self, name) != default:
                raise ValueError(
                    f"{name}={getattr(self, name)} has no effect with kind={self.kind}, only with "
                    f"{' or '.join(kinds)}: leave it out"
                )


@dataclasses.dataclass(frozen=True)
class AblationConfig:
    """Settings of head ablation: how much a model's loss rises when the output of one head is zeroed.

    data: texts on which the loss is measured: `held_out` for the model's own, which are the held-out text of a run and
        the development examples of a fine-tuned trial; or a file with a text on each line, for models that predict
        masked words. None measures nothing.
    most: number of rows of held-out text (rounded up to whole batches of 16), of development examples or of lines to
        take; None takes all. The loss is computed on them once with all heads, and once without each head.
    """

    data: str | None = None
    most: Annotated[int, Ge(1)] | None = 256

    def __post_init__(self):
        if self.data == "":
            raise ValueError(f"ablation.data must be {HELD_OUT}, the path of a file, or none, got an empty text")
        local.check("ablation.data", self.data)
        if not self.data and self.most != type(self).most:
            raise ValueError(
                f"ablation.most={self.most} has no effect without ablation.data: set it, or leave most out"
            )


@dataclasses.dataclass(frozen=True)
class MinimalPairsConfig:
    """Settings of minimal pairs: how often a model finds the grammatical one of two sentences more probable.

    data: file or folder of pairs: BLiMP's `data`, or custom ones (.jsonl, .tsv, .csv) with the fields `sentence_good`
        and `sentence_bad`. None asks nothing.
    most: number of pairs of each paradigm, always the same ones; None takes all.
    milestones: whether all checkpoints of the runs are scored, not only the last.
    """

    data: str | None = None
    most: Annotated[int, Ge(1)] | None = None
    milestones: bool = False

    def __post_init__(self):
        if self.data == "":
            raise ValueError("minimal_pairs.data must be the path of a file or folder, or none, got an empty text")
        local.check("minimal_pairs.data", self.data)
        if not self.data and (self.most is not None or self.milestones):
            raise ValueError("minimal_pairs.most and milestones have no effect without minimal_pairs.data: set it")


@dataclasses.dataclass(frozen=True)
class ProbingConfig:
    """Settings of a comparison of models by probes.

    title: title of the report.
    checkpoint: run, trial or Hugging Face directory of the model; None trains one first (`train`). With `{seed}` in it,
        such as `runs/compared/ag-seed{seed}`, there is a model for each seed.
    step: step of a run's checkpoint; None takes the newest.
    train: config file, with its arguments, of a run to train first and then probe, such as `quickstart:arm=ag`; give
        either `train` or `checkpoint`.
    probes: settings of each probe, such as probes.coreference.window.
    ablation: whether, and on which texts, the loss is measured without each head.
    minimal_pairs: whether, and which, pairs of sentences are scored.
    seeds: seeds of the runs that `train` trains, or what stands for `{seed}` in `checkpoint`; a checkpoint without
        `{seed}` is one model, and has one seed.
    random_seeds: seeds of models with random weights, which show what heads find without training: for each different
        combination of architecture and tokenizer among the arms, a model for each of these seeds. An empty list probes
        none.
    arms: values of the config file's argument `arm` with commas, for `ag-jax compare`, the baseline first.
    resamples: number of times that documents are resampled for confidence intervals, and texts for those of ablation.
    """

    title: str = "Probes of attention heads"
    checkpoint: str | None = None
    step: Annotated[int, Ge(0)] | None = None
    train: str | None = None
    probes: dict[str, ProbeConfig] = dataclasses.field(default_factory=dict)
    ablation: AblationConfig = AblationConfig()
    minimal_pairs: MinimalPairsConfig = MinimalPairsConfig()
    seeds: tuple[Annotated[int, Ge(0)], ...] = (0,)
    random_seeds: tuple[Annotated[int, Ge(0)], ...] = (0,)
    arms: str | None = None
    resamples: Annotated[int, Ge(100), Le(1000000)] = 1_000

    def __post_init__(self):
        if not self.probes and not self.ablation.data and not self.minimal_pairs.data:
            raise ValueError(
                "probes must name at least one probe, such as probes.coreference, unless ablation.data has texts or "
                "minimal_pairs.data has pairs"
            )
        if self.minimal_pairs.milestones and self.step is not None:
            raise ValueError(f"minimal_pairs.milestones=True scores all checkpoints, but step={self.step} chooses one")
        if bool(self.checkpoint) == bool(self.train):
            raise ValueError(
                "give either checkpoint, the directory of a model, or train, the config file of a run to be trained "
                f"first; got checkpoint={self.checkpoint} and train={self.train}"
            )
        if self.step is not None and self.train:
            raise ValueError(f"step={self.step} chooses a checkpoint of a run, but train={self.train}: leave step out")
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds must be one or more integers without repetition, got {self.seeds}")
        if len(set(self.random_seeds)) < len(self.random_seeds):
            raise ValueError(f"random_seeds must be integers without repetition, got {self.random_seeds}")
        if len(self.seeds) > 1 and self.checkpoint and SEED not in self.checkpoint:
            raise ValueError(
                f"seeds={self.seeds}, but checkpoint={self.checkpoint} is one model: give one seed, or write {SEED} "
                "where the directories of several seeds differ"
            )

    def checkpoint_of(self, seed: int) -> str | None:
        """Return the directory of the model with this seed; None if the model is trained first."""
        return self.checkpoint.replace(SEED, str(seed)) if self.checkpoint else None
