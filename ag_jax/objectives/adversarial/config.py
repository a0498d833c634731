"""Whether a model is attacked while it trains, and how."""

import dataclasses
import math

from ag_jax.objectives.divergence import DivergenceConfig
from ag_jax.objectives.sentences import SENTENCES

NAIVE = ("bernoulli", "scheduled", "magnitude")
METHODS = ("none", "asa", *NAIVE)
DROPOUTS = ("independent", "shared")
CHOICES = {
    "dropout": DROPOUTS,
    "sentence": SENTENCES,
    "count": ("units", "fraction"),
    "empty_rows": ("uniform", "keep_diagonal"),
    "heads": ("shared", "own"),
    "gate": ("threshold", "gumbel"),
}


def check_choices(section: str, config) -> None:
    """Raise ValueError if a field of `CHOICES` that a section has is none of them."""
    for name, choices in CHOICES.items():
        if hasattr(config, name) and getattr(config, name) not in choices:
            raise ValueError(f"{section}.{name} must be one of {', '.join(choices)}, got {getattr(config, name)!r}")


@dataclasses.dataclass(frozen=True)
class AsaConfig:
    """Adversarial self-attention (Wu et al. 2022); the defaults are those of the released code where paper and code differ.

    tau, tau_power: the penalty's coefficient is tau ** tau_power; the paper writes tau, the code squares it. Lower attacks more.
    count: what the penalty counts: kept `units` of all layers, or the sum over layers of the kept `fraction`.
    strength: C, what is taken from the score of a masked unit.
    heads: of a layer have one mask (`shared`), or each its `own`.
    gate: a unit is kept where its score is above 0 (`threshold`), or above logistic noise (`gumbel`, at `gumbel_temperature`).
    empty_rows: a row of which everything is masked attends to its text evenly (`uniform`), or to itself (`keep_diagonal`).
    protect_specials, protect_diagonal: keep what is of special tokens, or of a token with itself, from being masked.
    keep_init: about this share of the units is kept at first, 0 for what comes of itself (about half).
    delay_steps: steps before the attack begins.
    dropout: of the attacked pass: `independent` of the clean one's, or the same (`shared`).
    sentence: the sentence-level term in pre-training (`Sentences.of`).
    learning_rate, weight_decay, clip_norm: of the adversary's own optimizer; a rate of 0 and a decay of -1 are the model's.
    """

    tau: float = 0.3
    tau_power: int = 2
    count: str = "units"
    strength: float = 1e4
    heads: str = "shared"
    gate: str = "threshold"
    gumbel_temperature: float = 1.0
    empty_rows: str = "uniform"
    protect_specials: bool = False
    protect_diagonal: bool = False
    keep_init: float = 0.0
    delay_steps: int = 0
    dropout: str = "independent"
    sentence: str = "head"
    divergence: DivergenceConfig = DivergenceConfig()
    learning_rate: float = 0.0
    weight_decay: float = -1.0
    clip_norm: float = 1.0

    def __post_init__(self):
        check_choices("adversarial.asa", self)
        for name in ("tau", "strength", "gumbel_temperature"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"adversarial.asa.{name} must be a finite number above 0, got {getattr(self, name)}")
        if self.tau_power not in (1, 2):
            raise ValueError(f"adversarial.asa.tau_power must be 1 (paper) or 2 (released code), got {self.tau_power}")
        if not 0 <= self.keep_init < 1:
            raise ValueError(f"adversarial.asa.keep_init must be in (0, 1), or 0 for none, got {self.keep_init}")
        for name in ("delay_steps", "learning_rate", "clip_norm"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"adversarial.asa.{name} must be at least 0, got {getattr(self, name)}")
        if self.weight_decay != -1 and not 0 <= self.weight_decay < math.inf:
            raise ValueError(f"adversarial.asa.weight_decay must be at least 0, or -1 for the model's, got {self.weight_decay}")

    @property
    def penalty(self) -> float:
        """The coefficient of the penalty."""
        return self.tau**self.tau_power


@dataclasses.dataclass(frozen=True)
class MaskingConfig:
    """Masks that nobody learns, against which a model is trained as against an adversary's (Wu et al. 2022, table 3).

    share: of the units that are masked, by `bernoulli` at random, by `magnitude` those of each row that are attended to most.
    trace: metrics.jsonl of a run or trial with method=asa, or its directory: `scheduled` masks at random what was masked there.
    strength, empty_rows, dropout, sentence, divergence: as of `AsaConfig`.
    """

    share: float = 0.1
    trace: str = ""
    strength: float = 1e4
    empty_rows: str = "uniform"
    dropout: str = "independent"
    sentence: str = "head"
    divergence: DivergenceConfig = DivergenceConfig()

    def __post_init__(self):
        check_choices("adversarial.masking", self)
        if not 0 < self.share < 1:
            raise ValueError(f"adversarial.masking.share must be in (0, 1), got {self.share}")
        if not 0 < self.strength < math.inf:
            raise ValueError(f"adversarial.masking.strength must be a finite number above 0, got {self.strength}")


@dataclasses.dataclass(frozen=True)
class AdversarialConfig:
    """The attack, and the settings of each; only those of the chosen `method` are read.

    method: `none`; `asa`, adversarial self-attention; `bernoulli`, `scheduled` and `magnitude`, masks that nobody learns.
    """

    method: str = "none"
    asa: AsaConfig = AsaConfig()
    masking: MaskingConfig = MaskingConfig()

    def __post_init__(self):
        if self.method not in METHODS:
            raise ValueError(f"adversarial.method must be one of {', '.join(METHODS)}, got {self.method!r}")
        if self.method == "scheduled" and not self.masking.trace:
            raise ValueError(
                "adversarial.method=scheduled masks as much as was masked in a run with method=asa: name its directory in "
                "adversarial.masking.trace"
            )

    @property
    def compares(self) -> AsaConfig | MaskingConfig | None:
        """The settings of the attack on attention that is used, if one is."""
        return self.asa if self.method == "asa" else self.masking if self.method in NAIVE else None

    @property
    def sentence(self) -> str:
        """What pre-training predicts of first positions for the attack's sake."""
        return self.compares.sentence if self.compares else "none"
