"""Settings of what a model is trained to predict, and of how two predictions are compared."""

import dataclasses
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le, Lt

Form = Literal["symmetric", "one_way"]
StopGradient = Literal["none", "clean", "targets"]
SentenceTerm = Literal["head", "softmax", "squares", "none"]


@dataclasses.dataclass(frozen=True)
class DivergenceConfig:
    """Settings of the divergence between the predictions of a clean and of a disturbed pass.

    form: `symmetric` or `one_way`, from the clean prediction to the other; squared error of numbers is the same either
        way.
    stop_gradient: `none` lets both passes learn; `clean` makes the clean pass a teacher; `targets` keeps the gradient
        from the first distribution of every KL.
    legacy: as in the code released with adversarial self-attention: numbers are compared by softmax across the batch,
        and tags summed over all positions, padding too, of a row.
    """

    form: Form = "symmetric"
    stop_gradient: StopGradient = "none"
    legacy: bool = False


@dataclasses.dataclass(frozen=True)
class ReplacedTokensConfig:
    """Settings of replaced-token detection (Clark et al. 2020).

    generator: `none` is masked language modelling instead; `unigram` goes with `data.masking.replacement=unigram`;
        `mlm` is a small encoder that is trained jointly and shares its embeddings.
    weight: of the detection's loss; None takes the usual one, 1 with `unigram` and 50 with `mlm`, whose own loss counts
        once.
    generator_fraction: of the encoder's width, heads and feed-forward features that the `mlm` generator has; layers are
        as many.
    tokens: `all` that are not padding are judged, or `words` alone, without those that begin and end a text.
    """

    generator: Literal["none", "unigram", "mlm"] = "none"
    weight: Annotated[float, Gt(0)] | None = None
    generator_fraction: Annotated[float, Gt(0), Le(1)] = 0.25
    tokens: Literal["all", "words"] = "all"

    @property
    def coefficient(self) -> float:
        """The factor of the detection loss: `weight` if set, else 50 for the generator `mlm` and 1 for all others."""
        return self.weight or (50.0 if self.generator == "mlm" else 1.0)


@dataclasses.dataclass(frozen=True)
class TranslationConfig:
    """Settings of training to translate, and of the scores of translations.

    label_smoothing: epsilon, the share of the probability that the model is trained to give to other tokens than the
        right one (Szegedy et al. 2016); 0 is plain cross entropy.
    smooth_over: epsilon is spread over the `others`, the V - 1 tokens but the right one (fairseq), or over `all` V
        tokens, so that the right one has 1 - epsilon + epsilon / V.
    average: number of newest checkpoints whose parameters are averaged before texts are translated (Vaswani et al.
        2017, section 6.1); 1 takes the newest one.
    tests: test sets whose translations `ag-jax evaluate` and `compare` score, each as NAME=SOURCE=TARGET with a file of
        texts to translate and a file of their translations, line by line; for several, repeat the flag.
    tokenize: how BLEU cuts texts into words, by sacreBLEU's name; `char` suits languages without spaces.
    """

    label_smoothing: Annotated[float, Ge(0), Lt(1)] = 0.1
    smooth_over: Literal["others", "all"] = "others"
    average: Annotated[int, Ge(1)] = 1
    tests: tuple[str, ...] = ()
    tokenize: Literal["13a", "intl", "char", "zh", "none"] = "13a"

    def __post_init__(self):
        names = [test.partition("=")[0] for test in self.tests]
        for test in self.tests:
            parts = test.split("=")
            if len(parts) != 3 or not all(parts):
                raise ValueError(
                    "translation.tests must be a list of NAME=SOURCE=TARGET, such as "
                    f"test2016=test.en.gz=test.de.gz, got {test!r}"
                )
        if unsuitable := [name for name in names if "/" in name or name.startswith(".")]:
            raise ValueError(
                "translation.tests must have names that files can have, without a slash and not beginning with a dot, "
                f"got {unsuitable[0]!r}"
            )
        if len(set(names)) < len(names):
            raise ValueError(f"translation.tests must have different names, got {', '.join(names)}")

    @property
    def test_sets(self) -> dict[str, tuple[str, str]]:
        """The files of each test set, as {name: (file of source texts, file of their translations)}."""
        return {name: (source, target) for name, source, target in (test.split("=") for test in self.tests)}

    def smoothing(self, words: int) -> float:
        """Return the label smoothing as the probability spread over all `words` words, the right one included."""
        share = self.label_smoothing
        return share if self.smooth_over == "all" else share * words / (words - 1)
