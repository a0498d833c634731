"""Sections on adversarial attacks in a fine-tuning report: masked share of attention, scores, attention maps.

Scores are compared between arms that were attacked at different temperatures, the setting `tau` of adversarial
self-attention: a lower one masks more.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from etils import epath

from ag_jax.analysis import attacks, changes, maps
from ag_jax.analysis.attacks import MaskedShare, Temperatures
from ag_jax.analysis.figures import attacks as attack_figures
from ag_jax.analysis.figures import canvas, plots
from ag_jax.analysis.report import Section, table_of_layers
from ag_jax.data.tasks.task import Choices, Example, Referent
from ag_jax.finetuning import attack
from ag_jax.finetuning.error_analysis import texts_of
from ag_jax.finetuning.plan import Suite
from ag_jax.finetuning.results import Chosen
from ag_jax.interop import finetuned
from ag_jax.interop.finetuned import FineTuned
from ag_jax.objectives.adversarial import wrap as adversarial
from ag_jax.objectives.adversarial.config import AdversarialConfig
from ag_jax.objectives.adversarial.self_attention import Attacker
from ag_jax.training.metrics import read_metrics

WORDS = range(6, 21)  # number of words of a sentence whose attention maps are easy to read
# Texts of Wu et al. 2022 by task: that of figure 1 (first layer) and that of figure 6 (layer 11 of 12, second head).
PAPERS_TEXTS = {"sst2": ("a smile on your face", "it has all the excitement of eating oatmeal.")}


@dataclasses.dataclass(frozen=True)
class Arm:
    """One arm (variant) of a comparison, after its training.

    suite: the arm's configuration, directory and planned trials.
    chosen: the best point of each task's sweep, by task.
    """

    suite: Suite
    chosen: Mapping[str, Chosen]

    def attack(self, task: str) -> AdversarialConfig:
        """Return the settings of the attack that a task was trained against."""
        return self.suite.config.tasks[task].adversarial

    def trials(self, task: str) -> list[epath.Path]:
        """Return the directories of a task's trials with the best settings of its sweep, for all seeds and folds."""
        settings = self.chosen[task].best.settings
        return [cell.directory for cell in self.suite.cells[task] if cell.trial.point == settings]

    def model(self, task: str) -> FineTuned | None:
        """Return the model of a task's first seed; None in cross-validation, or if its weights were not saved."""
        first = self.suite.of_seed(task, self.suite.config.seeds[0])
        directories = [cell.directory for cell in first if cell.trial.fold is None]
        saved = [directory for directory in directories if finetuned.locate(directory) is not None]
        return finetuned.load(saved[0]) if saved else None


def masked_shares(arms: Mapping[str, Arm]) -> dict[tuple[str, str], MaskedShare]:
    """Return {(task, arm): share of query-key pairs that the attack masked}, for arms with an attack on attention."""
    shares = {
        (task, name): attacks.masked_share([read_metrics(directory) for directory in arm.trials(task)])
        for task in next(iter(arms.values())).chosen
        for name, arm in arms.items()
        if arm.attack(task).attention_attack
    }
    return {key: share for key, share in shares.items() if share is not None}


def temperatures(arms: Mapping[str, Arm], numbers: Mapping[str, Any]) -> dict[str, Temperatures]:
    """Return {task: scores of the arms by temperature (tau) of adversarial self-attention, and without an attack}.

    Only tasks that the arms attack at two or more temperatures are included. The score without an attack is that of
    the first arm that was trained without one.

    numbers: the content of report.json, which has the scores of all arms.
    """
    by_task = {}
    for name, task in numbers["tasks"].items():
        attackers = {arm: of_arm.attack(name) for arm, of_arm in arms.items()}
        scores = {arm: of_arm["splits"][of_arm["headline"]][task["metric"]] for arm, of_arm in task["arms"].items()}
        # Reversed, so that of several arms with the same temperature the first is taken.
        by_tau = {attackers[arm].asa.tau: arm for arm in reversed(list(arms)) if attackers[arm].method == "asa"}
        if len(by_tau) > 1:
            ordered = [scores[by_tau[tau]] for tau in sorted(by_tau)]
            plain = next((scores[arm]["mean"] for arm in arms if attackers[arm].method == "none"), None)
            by_task[name] = Temperatures(
                metric=task["metric"],
                taus=tuple(sorted(by_tau)),
                means=tuple(score["mean"] for score in ordered),
                deviations=tuple(score["deviation"] for score in ordered),
                plain=plain,
            )
    return by_task


def sections(arms: Mapping[str, Arm], numbers: Mapping[str, Any], workdir: epath.Path) -> list[Section]:
    """Return the report's sections on attacks, and draw their figures in `workdir/figures`; [] without attacks.

    numbers: the content of report.json, to which the masked shares and the change of attention are added.
    """
    found, shares, by_task = [], masked_shares(arms), temperatures(arms, numbers)
    if shares:
        for (task, arm), share in shares.items():
            numbers["tasks"][task]["arms"][arm]["masked"] = share.numbers()
        figure = attack_figures.draw_masked(_groups(shares), workdir.name)
        block = canvas.save_for_report(figure, "Masked share", workdir / "figures" / "masked_share.png")
        found.append(attacks.masked_section(["Task", "Arm"], shares, block))
    if by_task:
        figure = attack_figures.draw_temperatures(by_task, workdir.name)
        path = workdir / "figures" / "temperature.png"
        block = canvas.save_for_report(figure, "Scores against the temperature", path)
        found.append(attacks.temperature_section(by_task, block))
    return found + _changes(arms, numbers) + _maps(arms, workdir)


def _changes(arms: Mapping[str, Arm], numbers: Mapping[str, Any]) -> list[Section]:
    """Return a list with the section on how far attacks change attention, and add the changes to `numbers`.

    They are of the arms that were trained under an attack and saved weights, on development examples; [] if none did.
    """
    rows = []
    for task in next(iter(arms.values())).chosen:
        for name, arm in arms.items():
            settings = arm.attack(task)
            predicted = arm.chosen[task].predicted.get("validation")
            if changes.unsupported_reason(settings) or predicted is None or (tuned := arm.model(task)) is None:
                continue
            if attack.unsupported_reason(tuned, settings):
                continue
            guidance = arm.suite.config.guidance
            change_N = attack.change_on_examples(tuned, predicted.task, predicted.examples, settings, guidance)
            numbers["tasks"][task]["arms"][name]["attention_change"] = change_N.tolist()
            rows.append(([task, name], [*map(changes.two_digits, (change_N.mean(), *change_N))]))
    if not rows:
        return []
    explanation = (
        f"{changes.EXPLAINED}, over the first {attack.EXAMPLES} development examples: the model of the first seed, "
        "without dropout, under the attack of its own training, with the examples' labels."
    )
    table = table_of_layers(["Task", "Arm"], rows)
    return [Section("How far attacks change attention", [table, explanation])]


def _groups(shares: Mapping[tuple[str, str], MaskedShare]) -> dict[str, dict[str, MaskedShare]]:
    """Group masked shares of attention for their figure: {title of a pair of panels: {name of a curve: share}}.

    shares: by (task, arm).

    One task gives one pair of panels with a curve for each arm; several tasks give a pair for each arm, with a curve
    for each task. The title is empty if several tasks have only one arm.
    """
    tasks, arms = (list(dict.fromkeys(key[index] for key in shares)) for index in (0, 1))
    if len(tasks) == 1:
        return {tasks[0]: {arm: shares[tasks[0], arm] for arm in arms}}
    return {
        arm if len(arms) > 1 else "": {task: shares[task, arm] for task in tasks if (task, arm) in shares}
        for arm in arms
    }


def _maps(arms: Mapping[str, Arm], workdir: epath.Path) -> list[Section]:
    """Draw attention maps for each task that an arm was trained on under attack; return a list with their section.

    The maps are those of the arms that saved weights, with and without the attack (Wu et al. 2022, figures 1 and 6), of
    the texts in `PAPERS_TEXTS` or else of one development example.
    """
    figures = []
    for task, of_first in next(iter(arms.values())).chosen.items():
        if all(arm.attack(task).method == "none" for arm in arms.values()):
            continue
        opened = {name: model for name, arm in arms.items() if (model := arm.model(task)) is not None}
        if not opened:
            continue
        examples = next(iter(of_first.predicted.values())).examples  # the same for all arms
        config = next(iter(opened.values())).config
        panels = pictures(task, examples, config.layers, config.heads)
        texts = dict.fromkeys(text for text, _ in panels.values())  # often one text for all layers
        columns = {text: _columns(opened, arms, task, text) for text in texts}
        for layer, (text, head) in panels.items():
            path = workdir / "figures" / f"attention_{task}_layer{layer}.png"
            caption = f"Attention to a sentence of {task}, layer {layer}, head {head}"
            figure = plots.draw_maps(columns[text], layer, head, f"{workdir.name}: {task}")
            figures.append(canvas.save_for_report(figure, caption, path))
    explanation = (
        "A head of the first layer and one of the last but one, in each arm's model of the first seed, without "
        "dropout. A row is a token, and dark is where it attends to. The model is attacked only in training; "
        "`attacked` shows the attention that the adversary of the same epoch leaves."
    )
    return [Section("Attention after training", [explanation, *figures])] if figures else []


def _columns(
    opened: Mapping[str, FineTuned], arms: Mapping[str, Arm], task: str, text: str
) -> dict[str, list[tuple[str, maps.AttentionMaps]]]:
    """Return {column of a figure: [(task, maps)]}: each arm's attention maps of a text, without and with its attack.

    opened: the fine-tuned model of each arm that saved weights.
    """
    columns = {}
    for name, tuned in opened.items():
        columns[name] = [(task, attention(tuned, text))]
        attacker = adversarial.learnt(arms[name].attack(task), tuned.config)
        if attacker is not None and tuned.adversary_params:
            columns[f"{name}, attacked"] = [(task, attention(tuned, text, attacker))]
    return columns


def attention(tuned: FineTuned, text: str, attacker: Attacker | None = None) -> maps.AttentionMaps:
    """Return the attention maps of a fine-tuned model for a text, under the attack of `attacker` if given."""
    params = tuned.params | tuned.adversary_params
    return maps.attention_maps(tuned.model, params, tuned.tokenizer, text, tuned.head.max_length, attacker)


def pictures(task: str, examples: Sequence[Example], layers: int, heads: int) -> dict[int, tuple[str, int]]:
    """Return which attention maps to draw: {layer: (text, head)}, from 0, for the first layer and the last but one.

    The head is the last one, because the first ones may be guided, or the second one where figure 6 of Wu et al. 2022
    shows that.
    """
    last_but_one = max(layers - 2, 0)
    if task not in PAPERS_TEXTS:
        return dict.fromkeys((0, last_but_one), (sentence(examples), heads - 1))
    first, second = PAPERS_TEXTS[task]
    panels = {last_but_one: (second, min(1, heads - 1)), 0: (first, heads - 1)}
    return dict(sorted(panels.items()))


def sentence(examples: Sequence[Example]) -> str:
    """Return the first text with 6 to 20 words (`WORDS`), or else the first text that is not empty.

    Each example counts with one text: the first of a pair, the question, the first candidate, or the text with the
    first phrase in the place of its pronoun.
    """
    texts = [text for example in examples if (text := _text(example)).strip()]
    return next((text for text in texts if len(text.split()) in WORDS), texts[0])


def _text(example: Example) -> str:
    if isinstance(example, Referent):
        return f"{example.before}{example.phrases[0]}{example.after}"
    return texts_of(example)[isinstance(example, Choices)]
