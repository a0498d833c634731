"""Config files of fine-tuning: the numbers of the papers, what their arms are, and a tiny trial of the main ones."""

import json
import pathlib

import pytest
from etils import epath

from ag_jax.finetuning import comparison, splits
from ag_jax.finetuning.config import FinetuningConfig, SweepConfig
from ag_jax.recipes import finetuning
from ag_jax.settings import config_files, schema
from tests.finetuning import tiny_tasks

CONFIGS = pathlib.Path(__file__).parent.parent.parent / "configs"
TABLE_4 = f"{CONFIGS / 'asa/table4_adversarial_training.py'}:checkpoint=C"


def parsed(name: str, argument: str = "checkpoint=C") -> FinetuningConfig:
    return config_files.load(f"{CONFIGS / name}.py:{argument}").settings


def compared(source: str, **overrides) -> dict[str, FinetuningConfig]:
    return comparison.arm_configs(config_files.load(f"{CONFIGS}/{source}", overrides))[0]


def test_metrics_of_glue_and_broken_lines_of_qqp():
    """Metrics are those of ASA's table 1; DeBERTa's QQP is judged by accuracy, as in RoBERTa's table 5."""
    tasks = {name: parsed("finetune/glue", f"checkpoint=C,protocol={name}").tasks for name in finetuning.PROTOCOLS}
    metrics = {
        name: [splits.find_task(task, of[task]).metric for task in ("stsb", "qqp", "mnli", "cola")]
        for name, of in tasks.items()
    }
    assert metrics["asa"] == ["spearman", "f1", "accuracy", "matthews"]
    assert metrics["roberta"] == metrics["deberta"] == metrics["deberta_large"]
    assert metrics["roberta"] == ["pearson", "accuracy", "accuracy", "matthews"]
    assert all({task for task, recipe in of.items() if recipe.skip_malformed} == {"qqp"} for of in tasks.values())


def test_arguments_that_cannot_be_meant():
    for argument, named in (
        ("checkpoint=C,tasks=rte,sst3", "sst3"),
        ("checkpoint=C,tasks=rte,mnli_first=True", "tasks.rte.initial_task"),
        ("tasks=rte", "checkpoint"),
    ):
        with pytest.raises(ValueError, match=named):
            parsed("finetune/glue", argument)


def test_arms_are_their_checkpoints(tmp_path):
    def checkpoints(source, **overrides):
        return {arm: (config.checkpoint, config.fresh) for arm, config in compared(source, **overrides).items()}

    assert checkpoints("ag/table4_downstream.py:plain=P,ag=A") == {"plain": ("P", False), "ag": ("A", False)}
    found = checkpoints("ag/table1_mismatched_pretraining.py:english=E,chinese=Z")
    assert found == {"random": ("E", True), "chinese": ("Z", False), "english": ("E", False)}
    found = checkpoints("asa/table1_generalization.py:checkpoint=C,longer=L,pretrained=P")
    assert [found[arm][0] for arm in ("plain", "asa", "longer", "pretrained")] == ["C", "C", "L", "P"]
    with pytest.raises(ValueError, match="the arm longer"):
        compared("asa/table1_generalization.py:checkpoint=C", arms="plain,longer")
    (tmp_path / "report.json").write_text(json.dumps({"arms": {"small": {}, "large": {}}, "seeds": [0, 3]}))
    source = f"finetune/downstream.py:runs={tmp_path},tasks=sst2,race"
    found = checkpoints(f"{source},seed=3")
    assert found == {arm: (f"{tmp_path}/{arm}-seed3", False) for arm in ("small", "large")}
    with pytest.raises(ValueError, match="seed=1"):
        compared(f"{source},seed=1")


@pytest.mark.parametrize(
    ("name", "count", "rates", "sizes", "weight_decay", "epochs", "max_length"),
    [
        ("table7_race", 1, (1e-5,), (16,), 0.1, 4, 512),
        ("table6_squad", 2, (1.5e-5,), (48,), 0.01, 2, 384),
        ("table5_glue", 9, (1e-5, 2e-5, 3e-5), (16, 32), 0.1, 10, 512),
    ],
)
def test_robertas_table_10(name, count, rates, sizes, weight_decay, epochs, max_length):
    tasks = parsed(f"roberta/{name}").tasks
    assert len(tasks) == count and not any(recipe.initial_task for recipe in tasks.values())
    assert {task for task, recipe in tasks.items() if recipe.answerability} == {"squad2"} & set(tasks)
    if name == "table5_glue":  # WNLI has fairseq's settings for WSC
        wnli = tasks.pop("wnli")
        assert (wnli.ranking, wnli.points, wnli.epochs, wnli.warmup_steps) == (True, ((2e-5, 64, {}),), 400, 250)
        first = parsed("roberta/table5_glue", "checkpoint=C,mnli_first=True").tasks
        assert {task for task, recipe in first.items() if recipe.initial_task == "mnli"} == {"rte", "stsb", "mrpc"}
    for recipe in tasks.values():
        assert (recipe.learning_rates, recipe.batch_sizes, recipe.ranking) == (rates, sizes, False)
        assert (recipe.weight_decay, recipe.epochs, recipe.max_length) == (weight_decay, epochs, max_length)
        assert (recipe.decay, recipe.warmup_fraction) == ("linear", 0.06)
        assert (recipe.beta1, recipe.beta2, recipe.epsilon, recipe.clip_norm) == (0.9, 0.98, 1e-6, None)


# Typed from the released scripts once more: task, then learning rate, batch size, epochs, warm-up steps and dropout of
# the head, of the base and of the large model, and the longest sequence (microsoft/DeBERTa, experiments/glue/TASK.sh).
DEBERTAS_SCRIPTS = """
cola 2e-5 32 6 100  0.15   7e-6 32 6 100  0.15   64
mnli 3e-5 64 3 1000  0.1   1e-5 64 3 1000  0.2   256
mrpc 2e-5 32 6 50   0.15   1e-5 32 6 50   0.15   128
qnli 2e-5 32 4 500  0.15   1e-5 32 4 500  0.15   512
qqp  2e-5 64 8 500  0.15   1e-5 64 8 500  0.15   320
rte  2e-5 32 6 100   0.2   1e-5 32 6 50    0.2   320
sst2 2e-5 32 6 500  0.15   1e-5 32 6 500  0.15   128
stsb 2e-5 32 6 100  0.15   7e-6 32 4 100  0.15   128
"""


def test_debertas_scripts():
    base, large = (
        parsed("finetune/glue", f"checkpoint=C,protocol={name}").tasks for name in ("deberta", "deberta_large")
    )
    for row in DEBERTAS_SCRIPTS.strip().splitlines():
        task, *numbers = row.split()
        *of_sizes, length = map(float, numbers)
        for recipe, expected in ((base[task], of_sizes[:5]), (large[task], of_sizes[5:])):
            ((learning_rate, batch_size, _),) = recipe.points
            found = [learning_rate, batch_size, recipe.epochs, recipe.warmup_steps, recipe.head_dropout]
            assert found == expected, task
            assert (recipe.max_length, recipe.weight_decay, recipe.clip_norm) == (length, 0.01, 1.0)
            assert (recipe.epsilon, recipe.beta2, recipe.decay) == (1e-6, 0.999, "linear")
    for wnli in (base["wnli"], large["wnli"]):
        steps = [wnli.epochs * 635 // size for _, size, _ in wnli.points]
        assert all(0 < wnli.warmup_of(count) < count for count in steps)


def test_debertas_sweep():
    """Over learning rate and batch size, and in whole also over warm-up and dropout of the head, if any."""
    sizes = {
        "deberta/table2_tasks": dict.fromkeys(("mnli", "race", "record", "swag", "conll2003"), 192),
        "deberta/table3_base": {"mnli": 192, "squad1": 64, "squad2": 64},
        "deberta/table1_glue": dict.fromkeys(("cola", "mnli", "qnli", "qqp", "sst2"), 192),
        "finetune/superglue": dict.fromkeys(("cb", "copa", "superglue_rte", "wsc"), 48),
    }
    sizes["deberta/table2_tasks"] |= {"squad1": 64, "squad2": 64}
    sizes["deberta/table1_glue"] |= {"mrpc": 144, "stsb": 144, "rte": 96}
    sizes["finetune/superglue"] |= {"boolq": 192, "multirc": 192, "record": 192, "wic": 144}
    whole = {name: parsed(name, "checkpoint=C,sweep=paper").tasks for name in sizes}
    for name, tasks in whole.items():
        assert {task: len(recipe.points) for task, recipe in tasks.items()} == sizes[name]
    rates = {"large": (5e-6, 8e-6, 9e-6, 1e-5), "base": (1.5e-5, 2e-5, 3e-5, 4e-5)}
    for recipe, size in (
        (parsed("deberta/table2_tasks").tasks["race"], "large"),
        (parsed("deberta/table3_base").tasks["squad1"], "base"),
        (whole["deberta/table1_glue"]["mnli"], "large"),
    ):
        assert (recipe.learning_rates, recipe.batch_sizes, recipe.epochs) == (rates[size], (16, 32, 48, 64), 10)
    swept = SweepConfig(head_dropout=(0.0, 0.1, 0.15), warmup_steps=(50, 100, 500, 1000))
    assert whole["finetune/superglue"]["boolq"].sweep == swept
    assert parsed("deberta/table3_base").tasks["squad2"].max_length == 384
    with pytest.raises(ValueError, match="sweep=paper"):
        parsed("finetune/superglue", "checkpoint=C,protocol=roberta,sweep=paper")


# Typed from the paper once more, so that a slip in `recipes.finetuning.ASA_TABLE_5` shows: task, learning rate, batch
# size, epochs, warm-up proportion, longest row, temperature (Wu et al. 2022, table 5). Rounds of ANLI have ANLI's row.
PAPERS_TABLE_5 = """
sst2      2e-5 32 3 0.06 128 0.3
mnli      3e-5 32 3 0.06 128 0.3
qnli      2e-5 32 3 0.06 128 0.3
qqp       5e-5 32 3 0.06 128 0.3
stsb      5e-5 16 3 0.06 128 0.3
wnut17    5e-5 16 5 0.1  64  0.5
dream     3e-5 16 8 0.1  128 0.5
anli      3e-5 32 3 0.06 128 0.3
paws_qqp  5e-5 16 3 0.06 128 0.3
hellaswag 2e-5 32 3 0.1  128 0.3
"""


def test_table_5_of_asa():
    config = schema.default(FinetuningConfig)
    finetuning.asa(config, tuple(finetuning.ASA_TABLE_5))
    rows = {row.split()[0]: [float(value) for value in row.split()[1:]] for row in PAPERS_TABLE_5.strip().splitlines()}
    rows |= {f"anli_r{number}": rows["anli"] for number in (1, 2, 3)}
    assert set(rows) == set(config.tasks)
    for task, recipe in config.tasks.items():
        ((rate,), (size,)) = recipe.learning_rates, recipe.batch_sizes
        shown = [rate, size, recipe.epochs, recipe.warmup_fraction, recipe.max_length, recipe.adversarial.asa.tau]
        assert shown == rows[task], task
        assert recipe.weight_decay == (0 if task in ("wnut17", "dream", "hellaswag") else 0.01)
        assert recipe.clip_norm is None and recipe.adversarial.method == "none"


def test_the_attacks_of_asas_tables_and_figures():
    def attacks(name, task, **overrides):
        configs = compared(f"asa/{name}.py:checkpoint=C,tasks={task}", **overrides)
        return {arm: config.tasks[task].adversarial for arm, config in configs.items()}

    of = attacks("table1_generalization", "dream")
    assert (of["plain"].method, of["asa"].method, of["asa"].asa.tau, of["asa"].asa.penalty) == (
        "none",
        "asa",
        0.5,
        0.25,
    )
    of = attacks("table3_naive_masking", "wnut17")
    assert [(arm, attack.method, attack.masking.share, attack.masking.trace) for arm, attack in of.items()] == [
        ("plain", "none", 0.1, None),
        ("asa", "asa", 0.1, None),
        ("bernoulli_0.05", "bernoulli", 0.05, None),
        ("bernoulli_0.1", "bernoulli", 0.1, None),
        ("scheduled", "scheduled", 0.1, "{arms}/asa/{task}/{trial}"),
        ("magnitude", "magnitude", 0.1, None),
    ]
    of = attacks("figure4_temperature", "dream", arms="tau_0.3,tau_0.6,tau_1.0")
    assert [attack.asa.tau for attack in of.values()] == [0.3, 0.6, 1.0]
    figure5 = parsed("asa/figure5_masking").tasks
    assert {(recipe.adversarial.method, recipe.adversarial.asa.tau) for recipe in figure5.values()} == {("asa", 0.3)}
    of = attacks("table4_adversarial_training", "sst2", arms="plain,longer,freelb,smart,asa,sift")
    assert [attack.method for attack in of.values()] == ["none", "none", "freelb", "smart", "asa", "sift"]


def test_freelbs_settings():
    """The released settings: step size, initial magnitude, largest norm, and steps as fairseq counts them."""
    config = schema.default(FinetuningConfig)
    finetuning.asa(config, ("mnli", "hellaswag", "dream", "qnli", "qqp", "paws_qqp", "sst2", "stsb"))
    finetuning.roberta_glue(config, ("cola", "mrpc", "rte"))
    finetuning.freelb(config)
    names = ("step_size", "init_magnitude", "max_norm", "steps", "count")
    found = {task: tuple(recipe.adversarial.freelb[name] for name in names) for task, recipe in config.tasks.items()}
    expected = {
        **dict.fromkeys(("mnli", "hellaswag", "dream"), (0.1, 0.1, 0.3, 2)),
        "qnli": (0.075, 0.15, 0.15, 2),
        **dict.fromkeys(("qqp", "paws_qqp"), (0.2, 0.32, 0.7, 2)),
        "sst2": (0.1, 1.0, 0.6, 2),
        "stsb": (0.1, 0.16, 0.28, 3),
        "cola": (0.025, 0.4, 0.3, 3),
        "mrpc": (0.04, 0.64, 0.4, 3),
        "rte": (0.03, 0.16, 0.14, 3),
    }
    assert found == {task: (*of, "fairseq") for task, of in expected.items()}
    assert {recipe.adversarial.method for recipe in config.tasks.values()} == {"freelb"}


def test_twice_the_epochs_is_twice_those_of_a_flag():
    overrides = {"arms": "plain,asa,longer", "tasks.sst2.epochs": 2}
    configs, overridden = comparison.arm_configs(config_files.load(f"{TABLE_4},tasks=sst2", overrides))
    assert [config.tasks["sst2"].total_epochs for config in configs.values()] == [2, 2, 4]
    assert overridden == [], "it is no setting in which they differ"
    # Arms that a flag makes the same are an error, also where settings differ that are not read.
    with pytest.raises(ValueError, match="plain and freelb .* same settings"):
        flags = {"tasks.sst2.adversarial.method": "none", "arms": "plain,freelb"}
        comparison.arm_configs(config_files.load(f"{TABLE_4},tasks=sst2", flags))[0]


@pytest.mark.exhaustive
def test_cross_validation(data, checkpoint, tmp_path, one_device):
    few = {f"tasks.oromo_ner.{key}": value for key, value in tiny_tasks.FEW.items()} | {"tasks.oromo_ner.folds": 3}
    arguments = f"plain={checkpoint},ag={checkpoint},language=oromo,arm=ag,seeds=1,scale=small,data={data}"
    source = f"{CONFIGS / 'ag/table4_downstream.py'}:{arguments}"
    report = comparison.finetune(config_files.load(source, few), epath.Path(tmp_path / "w"))
    (of_arm,) = json.loads((report.parent / "report.json").read_text())["tasks"]["oromo_ner"]["arms"].values()
    assert 0 <= of_arm["splits"]["all folds"]["entity_f1"]["mean"] <= 1 and of_arm["counts"]["trials"] == 3


@pytest.mark.exhaustive
def test_every_naive_mask_beside_the_adversary_that_it_follows(data, checkpoint, tmp_path, one_device):
    """The whole of table 3, in one command, with real trials."""
    few = {f"tasks.sst2.{key}": value for key, value in tiny_tasks.FEW.items()} | {"keep": "best"}
    arguments = f"checkpoint={checkpoint},tasks=sst2,seeds=1,scale=small,data={data}"
    source = f"{CONFIGS / 'asa/table3_naive_masking.py'}:{arguments}"
    report = comparison.compare(
        config_files.load(source, few | {"arms": "plain,asa,scheduled,magnitude"}), epath.Path(tmp_path / "w")
    )
    of = json.loads((report.parent / "report.json").read_text())["tasks"]["sst2"]["arms"]
    assert abs(of["asa"]["masked"]["all"] - of["scheduled"]["masked"]["all"]) < 0.1 < of["asa"]["masked"]["all"] < 0.9
    assert (report.parent / "figures" / "attention_sst2_layer0.png").read_bytes().startswith(b"\x89PNG")
