"""Settings of attention: guidance, relative positions (DeBERTa), and hard-coded heads."""

import dataclasses
import math
from typing import Annotated, Literal

import numpy as np
from annotated_types import Ge, Gt, Le

TERMS = ("c2p", "p2c")
GuidanceLoss = Literal["squared", "cross_entropy"]
Reduction = Literal["type_mean", "head_mean", "frobenius"]
Boundary = Literal["uniform", "zero", "ignore"]
Absent = Literal["uniform", "ignore"]
Probabilities = Literal["before_dropout", "after_dropout"]


@dataclasses.dataclass(frozen=True)
class GuidanceConfig:
    """Settings of attention guidance, with the defaults of the released code where the paper differs.

    mode: `loss` adds alpha(step) * L_AG to the objective; `bias` adds alpha(step) * P to the guided heads' scores, in
        training only; `none` is no guidance.
    loss: distance of a guided row H of attention to its target P: `squared` is ||H - P||^2 (the paper), divided by the
        square of the text's length. `cross_entropy` is KL(P || H), divided by the number of queries that have a target,
        so that its gradient does not shrink with the length; `alpha` is then well below 1.
    fraction: lambda, the share of the heads of every layer that is guided: one Next, one Prev, the rest First.
    heads: counts of heads for each pattern instead of `fraction`, from head 0 on, such as
        next:1,prev:1,first:2,period:2. Patterns are next, prev, first, delim, period, same, previous_same (the last
        earlier position with the same token), after_previous_same (the position after it), custom ones, named as
        `module.function`, and the columns of annotated text that `data.pointers` names, such as head. An empty text
        guides no head of the encoder, only those of a decoder.
    layers: layers of the encoder whose heads are guided: `all`, `global` or `local` ones (without or with
        `model.window`), or numbers from 0 with commas, such as 0-5,8.
    decoder_heads: counts of heads for each pattern in a decoder's self-attention, such as prev:1; none for no guidance
        of these heads.
    cross_heads: counts of heads for each pattern in a decoder's attention to the source, such as first:1,diagonal:1,
        where `diagonal` is the token at the same place of the source, in proportion to the lengths of both texts, and
        `alignment` the aligned source word of `data.alignments`; none for no guidance of these heads.
    alpha: coefficient of the guidance at the first step; `schedule` says how it falls.
    alpha_rule: `value` takes `alpha`. `auto` takes the power of ten that brings alpha * L_AG nearest to the model's own
        loss, both of the first batch before the first step (in pre-training, with mode `loss`).
    schedule: `hold_then_linear` keeps alpha for `hold_steps` and then lowers it to 0 at the last step, `linear` lowers
        it from the start, `constant` keeps it.
    hold_steps: steps for which `hold_then_linear` keeps alpha.
    reduction: how the distances of a text become one number: the mean over the heads of each pattern, summed over
        patterns (`type_mean`); the mean over all guided heads (`head_mean`); or the plain sum (`frobenius`, the paper's
        equations 2 and 3).
    boundary: with `loss=squared`, target of the first or last token of a text, which has no previous or next token:
        `uniform`, `zero`, or `ignore` its row.
    absent: with `loss=squared`, target of a pattern whose token is not in the text, such as a period, or which a
        decoder has not read yet: `uniform`, or `ignore` the rows without this token.
    probabilities: guide the softmax itself (`before_dropout`, the paper) or what dropout leaves of it (`after_dropout`,
        the code).
    """

    mode: Literal["none", "loss", "bias"] = "none"
    loss: GuidanceLoss = "squared"
    fraction: Annotated[float, Gt(0), Le(1)] = 0.5
    heads: str | None = None
    layers: str = "all"
    decoder_heads: str | None = None
    cross_heads: str | None = None
    alpha: Annotated[float, Ge(0)] = 10.0
    alpha_rule: Literal["value", "auto"] = "value"
    schedule: Literal["hold_then_linear", "linear", "constant"] = "hold_then_linear"
    hold_steps: Annotated[int, Ge(0)] = 20_000
    reduction: Reduction = "type_mean"
    boundary: Boundary = "uniform"
    absent: Absent = "uniform"
    probabilities: Probabilities = "before_dropout"

    def __post_init__(self):
        if self.mode == "bias" and self.layers != "all":
            raise ValueError(
                f"guidance.layers={self.layers} needs guidance.mode=loss: mode=bias changes the scores of all layers"
            )
        in_decoder = self.mode == "loss" and (self.decoder_heads or self.cross_heads)
        if self.mode != "none" and self.heads == "" and not in_decoder:
            raise ValueError(
                f"guidance.heads is empty, so that guidance.mode={self.mode} guides no head: name patterns, or set "
                "guidance.mode=loss and guidance.decoder_heads or guidance.cross_heads"
            )
        if self.mode == "loss" and self.loss == "cross_entropy" and self.probabilities == "after_dropout":
            raise ValueError(
                "guidance.probabilities=after_dropout needs guidance.loss=squared: the cross-entropy of a target that "
                "dropout drops is infinite"
            )

    @property
    def in_effect(self) -> "GuidanceConfig":
        """These settings, with every setting that has no effect at its default.

        Without effect are all settings if `mode` is `none`, `alpha` if the rule `auto` chooses it, `loss` with
        `mode=bias`, and `boundary` and `absent` with `loss=cross_entropy`.
        """
        if self.mode == "none":
            return GuidanceConfig()
        unused = ["alpha"] if self.alpha_rule == "auto" else []
        if self.mode == "bias":
            unused.append("loss")
        elif self.loss == "cross_entropy":
            unused += ["boundary", "absent"]
        return dataclasses.replace(self, **{name: getattr(GuidanceConfig, name) for name in unused})


@dataclasses.dataclass(frozen=True)
class DisentangledConfig:
    """Settings of DeBERTa's relative positions in an encoder; by default an encoder has none.

    terms: any of `c2p` (content to position) and `p2c` (position to content), with a comma; "" is plain attention.
    span: k, the distance from which on all are alike.
    buckets: number of logarithmic buckets on each side of 0, an even number (DeBERTa v2: 256 for a span of 512); None
        gives every distance its own.
    shared: embeddings of distances are projected as content is (v2, v3); otherwise by projections of their own (v1).
    normalized: LayerNorm on the embeddings of distances (v2, v3).
    key_bias: whether the projections to keys, of content and of distances, have a bias (v1: not).
    index: the row of a distance in p2c: of i - j as in the released `code`, or of j - i as in the `paper`, equation 4.
    """

    terms: str = ""
    span: Annotated[int, Ge(1), Le(1048576)] = 512
    buckets: Annotated[int, Ge(1), Le(1048576)] | None = None
    shared: bool = True
    normalized: bool = False
    key_bias: bool = True
    index: Literal["code", "paper"] = "code"

    def __post_init__(self):
        if len(set(self.names)) < len(self.names) or not set(self.names) <= set(TERMS):
            raise ValueError(
                f"model.relative.terms must be some of {', '.join(TERMS)}, each once, with a comma between, got "
                f"{self.terms!r}"
            )
        if self.buckets is not None and (self.buckets % 2 or self.buckets >= self.span):
            raise ValueError(
                f"model.relative.buckets must be even and below model.relative.span={self.span}, or none, got "
                f"{self.buckets}"
            )

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the enabled relative-position terms, such as `c2p` and `p2c`; empty for plain attention."""
        return tuple(self.terms.split(",")) if self.terms else ()

    @property
    def half(self) -> int:
        """Half the number of rows of the table of distance embeddings: `buckets` if set, otherwise `span`."""
        return self.buckets or self.span

    @property
    def content_scale(self) -> float:
        """Factor for plain attention's scale 1 / sqrt(width of a head): 1 / sqrt(1 + number of terms)."""
        return 1.0 / math.sqrt(1 + len(self.names))


@dataclasses.dataclass(frozen=True)
class FixedConfig:
    """Settings of hard-coded Gaussian attention, whose weights depend only on the distance of two tokens.

    offsets: for each head, the center of its Gaussian, counted from the query: -1,1 are the previous and the next
        token; repeated in turn if there are more heads; empty for learned attention.
    deviation: sigma, the standard deviation of the Gaussian, in tokens.
    normalized: divide the weights of each query by their sum, which is below 1 at the borders of a text; a query whose
        text has no token within five standard deviations of the offset keeps weights of 0.
    """

    offsets: tuple[Annotated[int, Ge(-64), Le(64)], ...] = ()
    deviation: Annotated[float, Gt(0), Le(16)] = 1.0
    normalized: bool = False

    def of_heads(self, heads: int) -> np.ndarray:
        """Return the offset of each head's Gaussian, `H`: `offsets`, repeated as often as needed."""
        return np.resize(np.asarray(self.offsets, np.int64), heads)
