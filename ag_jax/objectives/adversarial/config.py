"""Settings of adversarial training: which attack a model is trained against, and how the attack works."""

import dataclasses
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le, Lt

from ag_jax.objectives.config import DivergenceConfig, SentenceTerm

NAIVE = ("bernoulli", "scheduled", "magnitude")
Method = Literal["none", "asa", "bernoulli", "scheduled", "magnitude", "freelb", "smart", "sift", "r_drop"]
SecondPassDropout = Literal["independent", "shared"]
# Beyond the limit, float32 loses the scores of a row that is masked as a whole beside what is taken from them.
Strength = Annotated[float, Gt(0), Le(1e6)]


@dataclasses.dataclass(frozen=True)
class AsaConfig:
    """Adversarial self-attention (Wu et al. 2022); where paper and released code differ, the defaults follow the code.

    tau: the coefficient of the adversary's penalty on masking is tau ** tau_power; with a lower tau more is masked.
    tau_power: exponent of tau: 1 in the paper, 2 in the released code.
    count: what the penalty counts: unmasked `units` of all layers, or the sum over layers of the unmasked `fraction`.
    strength: C, the number that is subtracted from the score of a masked unit.
    heads: whether the heads of a layer have one mask (`shared`), or each its `own`.
    keep_init: share of the units that is not masked at first, approximately; None leaves it to the initial values
        (about half).
    delay_steps: steps before the attack begins.
    dropout: dropout of the attacked pass: `independent` of the clean pass, or the same (`shared`).
    sentence: what pre-training compares at the first position of a text: the prediction of the model's head (`head`),
        the hidden state as logits (`softmax`) or by squared error (`squares`), or nothing (`none`).
    divergence: how clean and attacked predictions are compared.
    learning_rate: peak learning rate of the adversary's own optimizer; None takes the model's.
    weight_decay: weight decay of the adversary's own optimizer; None takes the model's.
    clip_norm: largest norm of the adversary's gradient; None does not clip it.
    """

    tau: Annotated[float, Gt(0)] = 0.3
    tau_power: Annotated[int, Ge(1), Le(2)] = 2
    count: Literal["units", "fraction"] = "units"
    strength: Strength = 1e4
    heads: Literal["shared", "own"] = "shared"
    keep_init: Annotated[float, Gt(0), Lt(1)] | None = None
    delay_steps: Annotated[int, Ge(0)] = 0
    dropout: SecondPassDropout = "independent"
    sentence: SentenceTerm = "head"
    divergence: DivergenceConfig = DivergenceConfig()
    learning_rate: Annotated[float, Ge(1e-12)] | None = None
    weight_decay: Annotated[float, Ge(0)] | None = None
    clip_norm: Annotated[float, Gt(0)] | None = 1.0

    @property
    def penalty(self) -> float:
        """Coefficient of the adversary's penalty on masking in the loss: `tau` to the power `tau_power`."""
        return self.tau**self.tau_power


@dataclasses.dataclass(frozen=True)
class FixedMaskConfig:
    """Attention masks without an adversary, as baselines for adversarial self-attention (Wu et al. 2022, table 3).

    share: share of the units that is masked, by `bernoulli` at random, by `magnitude` those of each query that are
        attended to most.
    trace: metrics.jsonl of a run or trial with method=asa, or its directory: `scheduled` masks at random as much as was
        masked there, layer by layer. In a suite `{arms}`, `{task}` and `{trial}` stand for the comparison's directory,
        the task and the trial.
    strength: number that is subtracted from the score of a masked unit.
    dropout: dropout of the attacked pass: `independent` of the clean pass, or the same (`shared`).
    sentence: what pre-training compares at the first position of a text: the prediction of the model's head (`head`),
        the hidden state as logits (`softmax`) or by squared error (`squares`), or nothing (`none`).
    divergence: how clean and attacked predictions are compared.
    """

    share: Annotated[float, Gt(0), Lt(1)] = 0.1
    trace: str | None = None
    strength: Strength = 1e4
    dropout: SecondPassDropout = "independent"
    sentence: SentenceTerm = "head"
    divergence: DivergenceConfig = DivergenceConfig()


@dataclasses.dataclass(frozen=True)
class FreeLBConfig:
    """FreeLB (Zhu et al. 2020): adversarial training on perturbed embeddings.

    The defaults of `steps`, `step_size`, `init_magnitude` and `max_norm` are the authors' for RoBERTa-large on MNLI,
    which they trained with `count=fairseq`.

    steps: K, as the program of the authors that `count` names counts it.
    count: which of the authors' two programs. With `huggingface` there are K passes, and K - 1 steps of ascent between
        them; with `fairseq` K + 1 passes and K steps. In both the first pass is at the initial perturbation, so it is
        clean only if `init_magnitude` is 0, and the gradient of the parameters is the mean over all passes.
    step_size: length of a step of ascent.
    init_magnitude: largest length of the initial perturbation; 0 begins without one.
    max_norm: largest norm of the perturbation of a text; None does not limit it.
    dropout: `shared` by all passes, or `independent` in each.
    begin_step: steps before the attack begins; until then a step is one pass without an attack.
    """

    steps: Annotated[int, Ge(1), Le(100)] = 2
    count: Literal["huggingface", "fairseq"] = "huggingface"
    step_size: Annotated[float, Ge(0)] = 0.1
    init_magnitude: Annotated[float, Ge(0)] = 0.1
    max_norm: Annotated[float, Gt(0)] | None = 0.3
    dropout: SecondPassDropout = "shared"
    begin_step: Annotated[int, Ge(0)] = 0

    @property
    def passes(self) -> int:
        """Number of passes in a training step, each of them forward and backward."""
        return self.steps + (self.count == "fairseq")


@dataclasses.dataclass(frozen=True)
class SmartConfig:
    """SMART's smoothness-inducing regularizer (Jiang et al. 2020), without SMART's proximal term (momentum teacher).

    alpha: coefficient of the regularizer.
    steps: K, steps of ascent on the noise.
    noise: standard deviation of the initial noise.
    step_size: length of a step of ascent; None takes the usual 1e-3, or 1e-5 with `mtdnn_compat`.
    epsilon: largest absolute value of a component of the noise.
    normalize: whether gradients are divided by the largest component of their `text`, or of their `token`.
    mtdnn_compat: as in the authors' program, where the noise of every token is divided by its largest component, so
        that `epsilon` and `normalize` are not read, and targets are fixed.
    dropout: dropout of each perturbed pass: `independent` of the clean pass, or the same (`shared`).
    """

    alpha: Annotated[float, Ge(0)] = 1.0
    steps: Annotated[int, Ge(1), Le(100)] = 1
    noise: Annotated[float, Ge(0)] = 1e-5
    step_size: Annotated[float, Gt(0)] | None = None
    epsilon: Annotated[float, Gt(0)] = 1e-5
    normalize: Literal["text", "token"] = "text"
    mtdnn_compat: bool = False
    dropout: SecondPassDropout = "independent"

    @property
    def length_of_step(self) -> float:
        """Step size of the ascent: `step_size` if it is set, else 1e-3, or mt-dnn's 1e-5 with `mtdnn_compat`."""
        return self.step_size or (1e-5 if self.mtdnn_compat else 1e-3)


@dataclasses.dataclass(frozen=True)
class SiftConfig:
    """SiFT, scale-invariant fine-tuning (He et al. 2021, section 5), with the defaults of the released code.

    weight: lambda, the coefficient of the divergence.
    noise: standard deviation of the initial perturbation, which is truncated at twice as much.
    step_size: length of the single step of ascent, for the largest component of each token.
    normalize: whether embeddings are normalized by `layer_norm`, without scale and offset, or to vectors of length 1
        (`unit`), which a model with `norm=rms` needs.
    dropout: dropout of each perturbed pass: `independent` of the clean pass, or the same (`shared`).
    """

    weight: Annotated[float, Ge(0)] = 5.0
    noise: Annotated[float, Ge(0)] = 1e-2
    step_size: Annotated[float, Ge(0)] = 1e-4
    normalize: Literal["layer_norm", "unit"] = "layer_norm"
    dropout: SecondPassDropout = "independent"


@dataclasses.dataclass(frozen=True)
class RDropConfig:
    """Settings of a second pass with other dropout masks, after R-Drop (Wu et al. 2021): a baseline for the attacks.

    weight: coefficient of the divergence.
    divergence: how the predictions of both passes are compared.
    """

    weight: Annotated[float, Ge(0)] = 1.0
    divergence: DivergenceConfig = DivergenceConfig()


@dataclasses.dataclass(frozen=True)
class AdversarialConfig:
    """The attack that a model is trained against; only the section of the chosen `method` is read.

    method: `asa` is adversarial self-attention; `bernoulli`, `scheduled` and `magnitude` are fixed masks (the section
        `masking`); `freelb`, `smart` and `sift` perturb embeddings; `r_drop` only compares two passes with different
        dropout; `none` is plain training.
    """

    method: Method = "none"
    asa: AsaConfig = AsaConfig()
    masking: FixedMaskConfig = FixedMaskConfig()
    freelb: FreeLBConfig = FreeLBConfig()
    smart: SmartConfig = SmartConfig()
    sift: SiftConfig = SiftConfig()
    r_drop: RDropConfig = RDropConfig()

    def __post_init__(self):
        if self.method == "scheduled" and not self.masking.trace:
            raise ValueError(
                "adversarial.method=scheduled masks the same shares of attention as an earlier run with method=asa: "
                "set adversarial.masking.trace to the directory of that run"
            )

    def check_begins(self, steps: int, warmup_steps: int) -> None:
        """Raise ValueError if the attack begins after the last step, or too late for the warm-up of its adversary.

        steps, warmup_steps: those of the training.
        """
        begins = {
            "asa": ("asa.delay_steps", self.asa.delay_steps),
            "freelb": ("freelb.begin_step", self.freelb.begin_step),
        }
        if self.method not in begins:
            return
        setting, begin = begins[self.method]
        if begin >= steps:
            raise ValueError(
                f"adversarial.{setting}={begin} must be below the {steps} steps of the training, or the attack never "
                "begins: lower it, or set adversarial.method=none"
            )
        if self.method == "asa" and warmup_steps >= steps - begin:
            raise ValueError(
                f"adversarial.{setting}={begin} leaves {steps - begin} of {steps} steps, which must be more than the "
                f"{warmup_steps} steps of warm-up, because the adversary warms up from there on: lower one of them"
            )

    @property
    def in_effect(self) -> "AdversarialConfig":
        """This config, in which the sections that the chosen `method` ignores have their default values."""
        section = "masking" if self.method in NAIVE else self.method
        sections = {section: getattr(self, section)} if self.method != "none" else {}
        return AdversarialConfig(self.method, **sections)

    @property
    def attention_attack(self) -> AsaConfig | FixedMaskConfig | None:
        """Settings of an attack that masks attention (section `asa` or `masking`); None for other methods."""
        return self.asa if self.method == "asa" else self.masking if self.method in NAIVE else None

    @property
    def sentence_prediction(self) -> SentenceTerm:
        """How pre-training compares the clean and the attacked pass at a text's first position (setting `sentence`).

        `head` compares the predictions of the model's head; `softmax` and `squares` compare hidden states, as logits or
        by squared error; `none` compares nothing, and stands for attacks that do not mask attention.
        """
        return self.attention_attack.sentence if self.attention_attack else "none"
