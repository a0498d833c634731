"""Precision, recall and F1 of entities in tags of any scheme.

F1 = 2PR / (P + R) over all entities of all sentences (micro). A predicted entity is right if its type, its first word
and its last word are right (Tjong Kim Sang and De Meulder 2003; the script conlleval). `data.tasks.schemes.entities`
finds them. Values are 0 where a denominator is 0.
"""

from collections.abc import Sequence

import sklearn.metrics

from ag_jax.data.tasks.schemes import Scheme, entities, strict_entities
from ag_jax.evaluation import classes

Tags = Sequence[Sequence[str]]


def entity_scores(gold: Tags, predicted: Tags, scheme: Scheme | None = None) -> dict[str, float]:
    """Return {`precision`, `recall`, `f1`: value from 0 to 1} of the entities in predicted tags.

    scheme: if given, only entities count whose tags are as this scheme writes them.
    """
    counts = _counts(gold, predicted, scheme)
    return classes.ratios(*(sum(of_type[place] for of_type in counts.values()) for place in range(3)))


def scores_by_type(gold: Tags, predicted: Tags) -> dict[str, dict[str, float]]:
    """Return {type: {`precision`, `recall`, `f1`, `count`: value}} of entities; `count` is of the labelled ones."""
    counts = sorted(_counts(gold, predicted).items())
    return {kind: classes.ratios(*of_type) | {"count": of_type[2]} for kind, of_type in counts}


def _counts(gold: Tags, predicted: Tags, scheme: Scheme | None = None) -> dict[str, list[int]]:
    """Return {type of entity: [number of right predictions, of predictions, of labelled entities]}."""
    counts: dict[str, list[int]] = {}
    for gold_tags, predicted_tags in zip(gold, predicted, strict=True):
        labelled, found = (
            set(strict_entities(tags, scheme) if scheme else entities(tags)) for tags in (gold_tags, predicted_tags)
        )
        for place, group in enumerate((labelled & found, found, labelled)):
            for kind, _, _ in group:
                counts.setdefault(kind, [0, 0, 0])[place] += 1
    return counts


def token_f1(gold: Tags, predicted: Tags) -> float:
    """Return the micro-F1 of single tags other than O, as Adversarial Self-Attention's code computes it.

    It may be higher or lower than entity F1, because every tag counts instead of every entity.
    """
    gold_tags, predicted_tags = [tag for tags in gold for tag in tags], [tag for tags in predicted for tag in tags]
    labels = sorted({*gold_tags, *predicted_tags} - {"O"})
    if not labels:
        return 0.0
    return float(sklearn.metrics.f1_score(gold_tags, predicted_tags, labels=labels, average="micro", zero_division=0))
