"""Whether a model is attacked while it trains, and how."""

import dataclasses
import math

from ag_jax.attention.adversary import EMPTY_ROWS
from ag_jax.objectives.consistency import FORMS, STOPPED, DivergenceConfig
from ag_jax.objectives.sentences import SENTENCES

NAIVE = ("bernoulli", "scheduled", "magnitude")
METHODS = ("none", "asa", *NAIVE, "freelb", "smart", "sift")
DROPOUTS = ("independent", "shared")
CHOICES = {
    "dropout": DROPOUTS,
    "sentence": SENTENCES,
    "count": ("units", "fraction"),
    "empty_rows": EMPTY_ROWS,
    "heads": ("shared", "own"),
    "gate": ("threshold", "gumbel"),
    "form": FORMS,
    "stop_gradient": STOPPED,
}


STRONGEST = 1e6  # beyond, float32 loses the scores of a row of which all is masked beside what is taken from them


def check_choices(section: str, config, of: dict[str, tuple[str, ...]] = CHOICES) -> None:
    """Raise ValueError if a field that a section has, and that may be one of several, is none of them."""
    for name, choices in of.items():
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
        check_choices("adversarial.asa.divergence", self.divergence)
        for name in ("tau", "gumbel_temperature"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"adversarial.asa.{name} must be a finite number above 0, got {getattr(self, name)}")
        _check_strength("adversarial.asa", self)
        if self.tau_power not in (1, 2):
            raise ValueError(f"adversarial.asa.tau_power must be 1 (paper) or 2 (released code), got {self.tau_power}")
        if not 0 <= self.keep_init < 1:
            raise ValueError(f"adversarial.asa.keep_init must be in (0, 1), or 0 for none, got {self.keep_init}")
        for name in ("delay_steps", "learning_rate", "clip_norm"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"adversarial.asa.{name} must be at least 0, got {getattr(self, name)}")
        if self.weight_decay != -1 and not 0 <= self.weight_decay < math.inf:
            raise ValueError(
                f"adversarial.asa.weight_decay must be at least 0, or -1 for the model's, got {self.weight_decay}"
            )

    @property
    def penalty(self) -> float:
        """The coefficient of the penalty."""
        return self.tau**self.tau_power


@dataclasses.dataclass(frozen=True)
class MaskingConfig:
    """Masks that nobody learns, against which a model is trained as against an adversary's (Wu et al. 2022, table 3).

    share: of the units that are masked, by `bernoulli` at random, by `magnitude` those of each row that are attended to most.
    trace: metrics.jsonl of a run or trial with method=asa, or its directory: `scheduled` masks at random as much as was masked
        there, layer by layer. In a suite `{arms}`, `{task}` and `{trial}` stand for what `finetuning.traces` says.
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
        check_choices("adversarial.masking.divergence", self.divergence)
        if not 0 < self.share < 1:
            raise ValueError(f"adversarial.masking.share must be in (0, 1), got {self.share}")
        _check_strength("adversarial.masking", self)


@dataclasses.dataclass(frozen=True)
class FreeLBConfig:
    """FreeLB (Zhu et al. 2020).

    The defaults of `steps`, `step_size`, `init_magnitude` and `max_norm` are the authors' for RoBERTa-large on MNLI, which they
    trained with `count=fairseq`.

    steps: K, as one of the authors' two programs counts it.
    count: that program. With `huggingface` there are K passes, and K - 1 steps of ascent between them; with `fairseq` K + 1 passes
        and K steps. In both the first pass is at the initial perturbation, so it is clean only if `init_magnitude` is 0, and the
        gradient of the parameters is the mean over all passes.
    step_size: how far the perturbation of a text moves from pass to pass; max_norm: how long it may be, 0 for as long as it gets.
    init_magnitude: the most that its length can be at first; 0 begins without one.
    dropout: `shared` by all passes, or `independent` in each.
    begin_step: steps before the attack begins; until then passes are clean, and as many.
    """

    steps: int = 2
    count: str = "huggingface"
    step_size: float = 0.1
    init_magnitude: float = 0.1
    max_norm: float = 0.3
    dropout: str = "shared"
    begin_step: int = 0

    def __post_init__(self):
        check_choices("adversarial.freelb", self, CHOICES | {"count": ("huggingface", "fairseq")})
        _check_steps("adversarial.freelb", self)
        _check_at_least_0("adversarial.freelb", self, "step_size", "init_magnitude", "max_norm", "begin_step")

    @property
    def passes(self) -> int:
        """Forward and backward passes of a training step."""
        return self.steps + (self.count == "fairseq")


@dataclasses.dataclass(frozen=True)
class SmartConfig:
    """SMART's smoothness-inducing regularizer (Jiang et al. 2020), without the proximal term: no teacher is kept.

    alpha: its coefficient. steps: K, times that the noise moves.
    noise: standard deviation of the noise at first.
    step_size: how far it moves; 0 takes the usual 1e-3, or 1e-5 with `mtdnn_compat`.
    epsilon: the largest that a component may become.
    normalize: gradients are divided by the largest component of their `text`, or of their `token`.
    mtdnn_compat: as in the authors' program, where the noise of every token is divided by its largest component, so that
        `epsilon` and `normalize` are not read, and targets are fixed.
    dropout: of each perturbed pass, `independent` of the clean one's, or the same (`shared`).
    """

    alpha: float = 1.0
    steps: int = 1
    noise: float = 1e-5
    step_size: float = 0.0
    epsilon: float = 1e-5
    normalize: str = "text"
    mtdnn_compat: bool = False
    dropout: str = "independent"

    def __post_init__(self):
        check_choices("adversarial.smart", self, CHOICES | {"normalize": ("text", "token")})
        _check_steps("adversarial.smart", self)
        _check_at_least_0("adversarial.smart", self, "alpha", "noise", "step_size")
        if not 0 < self.epsilon < math.inf:
            raise ValueError(f"adversarial.smart.epsilon must be a finite number above 0, got {self.epsilon}")

    @property
    def length_of_step(self) -> float:
        """The step size, given or usual."""
        return self.step_size or (1e-5 if self.mtdnn_compat else 1e-3)


@dataclasses.dataclass(frozen=True)
class SiftConfig:
    """SiFT, scale-invariant fine-tuning (He et al. 2021, section 5); the defaults are those of the released code.

    weight: lambda, the coefficient of the divergence.
    noise: standard deviation of the perturbation at first, which is cut off at twice as much.
    step_size: how far the largest component of each token's moves, once.
    normalize: embeddings by `layer_norm`, without scale and offset, or to vectors of length 1 (`unit`).
    dropout: of each perturbed pass, `independent` of the clean one's, or the same (`shared`).
    """

    weight: float = 5.0
    noise: float = 1e-2
    step_size: float = 1e-4
    normalize: str = "layer_norm"
    dropout: str = "independent"

    def __post_init__(self):
        check_choices("adversarial.sift", self, CHOICES | {"normalize": ("layer_norm", "unit")})
        _check_at_least_0("adversarial.sift", self, "weight", "noise", "step_size")


def _check_steps(section: str, config) -> None:
    if config.steps < 1:
        raise ValueError(
            f"{section}.steps must be at least 1, got {config.steps}; adversarial.method=none is without an attack"
        )


def _check_strength(section: str, config) -> None:
    if not 0 < config.strength <= STRONGEST:
        raise ValueError(f"{section}.strength must be above 0 and at most {STRONGEST:g}, got {config.strength}")


def _check_at_least_0(section: str, config, *names: str) -> None:
    for name in names:
        if not 0 <= getattr(config, name) < math.inf:
            raise ValueError(f"{section}.{name} must be a finite number of at least 0, got {getattr(config, name)}")


@dataclasses.dataclass(frozen=True)
class AdversarialConfig:
    """The attack, and the settings of each; only those of the chosen `method` are read.

    method: `none`; `asa`, adversarial self-attention; `bernoulli`, `scheduled` and `magnitude`, masks that nobody learns;
        `freelb`, `smart` and `sift`, perturbed embeddings.
    """

    method: str = "none"
    asa: AsaConfig = AsaConfig()
    masking: MaskingConfig = MaskingConfig()
    freelb: FreeLBConfig = FreeLBConfig()
    smart: SmartConfig = SmartConfig()
    sift: SiftConfig = SiftConfig()

    def __post_init__(self):
        if self.method not in METHODS:
            raise ValueError(f"adversarial.method must be one of {', '.join(METHODS)}, got {self.method!r}")
        if self.method == "scheduled" and not self.masking.trace:
            raise ValueError(
                "adversarial.method=scheduled masks as much as was masked in a run with method=asa: name its directory in "
                "adversarial.masking.trace"
            )

    @property
    def in_effect(self) -> "AdversarialConfig":
        """The same attack, with the settings that its method does not read at their defaults."""
        section = "masking" if self.method in NAIVE else self.method
        read = {section: getattr(self, section)} if self.method != "none" else {}
        return AdversarialConfig(self.method, **read)

    @property
    def compares(self) -> AsaConfig | MaskingConfig | None:
        """The settings of the attack on attention that is used, if one is."""
        return self.asa if self.method == "asa" else self.masking if self.method in NAIVE else None

    @property
    def sentence(self) -> str:
        """What pre-training predicts of first positions for the attack's sake."""
        return self.compares.sentence if self.compares else "none"
