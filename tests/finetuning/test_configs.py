"""Config files of fine-tuning: every variant parses, arms differ, and each takes a tiny trial of its first task."""

import ast
import itertools
import json
import pathlib
import re

import pytest
from etils import epath

from ag_jax import config_reader, main
from ag_jax.data.tasks import catalogue
from ag_jax.finetuning import comparison, splits
from ag_jax.finetuning.config import FinetuningConfig, Recipe, SweepConfig
from ag_jax.pretraining import arms
from ag_jax.recipes import finetuning
from tests.cases import some
from tests.finetuning import tiny_tasks

CONFIGS = pathlib.Path(__file__).parent.parent.parent / "configs"
SCALE = ("paper", "small")
ARGUMENTS = {
    "finetune/glue.py": {
        "protocol": ("roberta", "asa", "ag", "deberta", "deberta_large"),
        "mnli_first": (False, True),
        "scale": SCALE,
    },
    "finetune/downstream.py": {
        "tasks": ("sst2,squad1,race",),
        "protocol": ("roberta", "ag", "deberta"),
        "arm": ("small", "large"),
        "scale": SCALE,
    },
    "finetune/superglue.py": {
        "protocol": ("deberta_large", "roberta", "asa"),
        "arm": ("plain", "sift"),
        "scale": SCALE,
    },
    "finetune/squad.py": {"tasks": ("squad1,squad2", "xquad_en,xquad_de"), "scale": SCALE},
    "finetune/tagging.py": {"tasks": ("all", "conll2003"), "scale": SCALE},
    "finetune/choice.py": {"tasks": ("all", "hellaswag,dream"), "scale": SCALE},
    "finetune/anli.py": {"scale": SCALE},
    "finetune/filipino.py": {"tasks": ("all", "filipino_hatespeech"), "scale": SCALE},
    "finetune/oromo.py": {"tasks": ("all", "oromo_ner"), "scale": SCALE},
    "finetune/own.py": {
        "kind": ("classification", "regression", "tagging", "span"),
        "protocol": ("moderate", "roberta", "deberta"),
        "seeds": (5,),
        "scale": SCALE,
    },
    "ag/table1_mismatched_pretraining.py": {"arm": ("random", "french", "english"), "scale": SCALE},
    "ag/table4_downstream.py": {"language": ("english", "filipino", "oromo"), "arm": ("mlm", "ag"), "scale": SCALE},
    "roberta/table5_glue.py": {"mnli_first": (False, True), "scale": SCALE},
    "roberta/table6_squad.py": {"scale": SCALE},
    "roberta/table7_race.py": {"scale": SCALE},
    "deberta/table1_glue.py": {"sweep": ("short", "paper"), "mnli_first": (True, False), "scale": SCALE},
    "deberta/table2_tasks.py": {"sweep": ("short", "paper"), "scale": SCALE},
    "deberta/table3_base.py": {"sweep": ("short", "paper"), "scale": SCALE},
    "asa/table1_generalization.py": {"arm": ("plain", "asa", "longer", "pretrained"), "scale": SCALE},
    "asa/table2_robustness.py": {"arm": ("plain", "asa"), "scale": SCALE},
    "asa/table3_naive_masking.py": {
        "arm": ("plain", "asa", "bernoulli_0.05", "bernoulli_0.1", "scheduled", "magnitude"),
        "scale": SCALE,
    },
    "asa/table4_adversarial_training.py": {
        "arm": ("plain", "longer", "freelb", "smart", "asa", "sift"),
        "tasks": ("mnli,sst2,stsb,dream", "mnli,qnli,paws_qqp,hellaswag"),
        "scale": SCALE,
    },
    "asa/figure4_temperature.py": {"arm": ("plain", "tau_0.3", "tau_0.6", "tau_1.0"), "scale": SCALE},
    "asa/figure5_masking.py": {"scale": SCALE},
    "asa/real_weights.py": {
        "arm": (
            *("plain", "longer", "r_drop", "asa", "asa_unclipped", "bernoulli", "scheduled", "magnitude", "freelb"),
            *("smart", "tau_0.1", "tau_0.3", "tau_0.5", "tau_0.8"),
        ),
        "tasks": ("all", "wnut17"),
        "learning_rate": ("2e-5", "1e-4"),
    },
}
GIVEN = {
    "ag/table1_mismatched_pretraining.py": "english=E,french=F",
    "ag/table4_downstream.py": "mlm=M,ag=A",
    "asa/table1_generalization.py": "checkpoint=C,longer=L,pretrained=P",
    "finetune/downstream.py": "runs=runs/table3",
    "finetune/own.py": "checkpoint=C,train=a.csv",
}


@pytest.fixture(autouse=True)
def compared(tmp_path, monkeypatch):
    """Work in a folder with the report of a comparison of two arms with two seeds, `runs/table3`."""
    folder = tmp_path / "runs" / "table3"
    folder.mkdir(parents=True)
    (folder / "report.json").write_text(json.dumps({"arms": {"small": {}, "large": {}}, "seeds": [0, 3]}))
    monkeypatch.chdir(tmp_path)
    return folder


def variants(name):
    for values in itertools.product(*ARGUMENTS[name].values()):
        chosen = zip(ARGUMENTS[name], values, strict=True)
        yield ",".join([GIVEN.get(name, "checkpoint=C"), *(f"{key}={value}" for key, value in chosen)])


def parsed(name: str, argument: str) -> FinetuningConfig:
    return config_reader.parse(FinetuningConfig, config_reader.load(f"{CONFIGS / name}:{argument}"))


@pytest.mark.parametrize("name", ARGUMENTS)
def test_every_variant_parses_and_its_tasks_can_be_judged(name):
    for argument in variants(name):
        config = parsed(name, argument)
        assert config.seeds == (0, 1, 2, 3, 4) and config.data is None
        for task, recipe in config.tasks.items():
            splits.find_task(task, recipe)
            assert recipe.max_length == 64 or "scale=small" not in argument
    with pytest.raises(ValueError, match="in the argument of the config file: unknown setting 'taks'"):
        parsed(name, f"{GIVEN.get(name, 'checkpoint=C')},taks=x")


COMMAND = re.compile(r"ag-jax (?:finetune|compare) --config=(\S+?):(\S+) --workdir=")


@pytest.mark.parametrize("name", ARGUMENTS)
def test_the_commands_of_a_docstring_have_the_data_that_they_need(name):
    """A command without a folder of data reads its tasks from TensorFlow Datasets, which must have them."""
    text = (CONFIGS / name).read_text().replace("\\\n", "")
    commands = COMMAND.findall(text)
    assert commands and {path for path, _ in commands} == {name.removesuffix(".py")}
    for _, argument in commands:
        config = parsed(name, argument)
        of_catalogue = [task for task, recipe in config.tasks.items() if not recipe.custom.kind]
        without = [task for task in of_catalogue if not catalogue.find(task).prepared]
        assert config.data or not without, f"{argument}: TFDS has no {', '.join(without)}"


@pytest.mark.parametrize("name", ["finetune/glue.py", "roberta/table5_glue.py", "ag/table4_downstream.py"])
def test_broken_lines_of_qqp_are_left_out_and_no_others(name):
    for argument in variants(name):
        tasks = parsed(name, argument).tasks
        assert {task for task, recipe in tasks.items() if recipe.skip_malformed} == {"qqp"} & set(tasks)
    docstring = " ".join(parsed_docstring(name).split())
    assert "QQP" in docstring and "broken lines" in docstring


def parsed_docstring(name):
    return ast.get_docstring(ast.parse((CONFIGS / name).read_text()))


def test_the_metrics_of_asas_table_1():
    asa, roberta = (
        parsed("finetune/glue.py", f"checkpoint=C,protocol={protocol}").tasks for protocol in ("asa", "roberta")
    )
    of = {task: splits.find_task(task, recipe).metric for task, recipe in asa.items()}
    assert (of["stsb"], of["qqp"], of["mnli"], of["cola"]) == ("spearman", "f1", "accuracy", "matthews")
    assert splits.find_task("stsb", roberta["stsb"]).metric == "pearson"


def test_a_task_that_a_file_does_not_have_is_named():
    with pytest.raises(ValueError, match="expected names among cola, sst2, .*, or all, got 'sst3'"):
        parsed("finetune/glue.py", "checkpoint=C,tasks=rte,sst3")
    with pytest.raises(ValueError, match="tasks.rte.initial_task must be another task of the suite"):
        parsed("finetune/glue.py", "checkpoint=C,tasks=rte,mnli_first=True")
    with pytest.raises(ValueError, match="the config file needs the argument checkpoint"):
        parsed("finetune/glue.py", "tasks=rte")


def test_arms_are_their_checkpoints():
    configs = comparison.arm_configs(f"{CONFIGS / 'ag/table4_downstream.py'}:mlm=M,ag=A", {})
    assert {arm: config.checkpoint for arm, config in configs.items()} == {"mlm": "M", "ag": "A"}
    configs = comparison.arm_configs(f"{CONFIGS / 'ag/table1_mismatched_pretraining.py'}:english=E,chinese=Z", {})
    assert {arm: (config.checkpoint, config.fresh) for arm, config in configs.items()} == {
        "random": ("E", True),
        "chinese": ("Z", False),
        "english": ("E", False),
    }


@pytest.mark.parametrize(
    ("name", "rates", "sizes", "weight_decay", "epochs", "max_length"),
    [
        ("table7_race.py", (1e-5,), (16,), 0.1, 4, 512),
        ("table6_squad.py", (1.5e-5,), (48,), 0.01, 2, 384),
        ("table5_glue.py", (1e-5, 2e-5, 3e-5), (16, 32), 0.1, 10, 512),
    ],
)
def test_robertas_table_10(name, rates, sizes, weight_decay, epochs, max_length):
    tasks = parsed(f"roberta/{name}", "checkpoint=C").tasks
    assert len(tasks) == {"table7_race.py": 1, "table6_squad.py": 2, "table5_glue.py": 9}[name]
    assert {task for task, recipe in tasks.items() if recipe.ranking} <= {"wnli"}
    assert {task for task, recipe in tasks.items() if recipe.answerability} <= {"squad2"}
    for recipe in tasks.values():
        if recipe.ranking:  # fairseq's settings for WSC
            assert (recipe.points, recipe.epochs, recipe.warmup_steps) == (((2e-5, 64, {}),), 400, 250)
            continue
        assert (recipe.learning_rates, recipe.batch_sizes) == (rates, sizes)
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


@pytest.mark.parametrize("row", DEBERTAS_SCRIPTS.strip().splitlines(), ids=lambda row: row.split()[0])
def test_debertas_scripts(row):
    task, *numbers = row.split()
    *of_sizes, length = map(float, numbers)
    for protocol, expected in (("deberta", of_sizes[:5]), ("deberta_large", of_sizes[5:])):
        recipe = parsed("finetune/glue.py", f"checkpoint=C,tasks={task},protocol={protocol}").tasks[task]
        ((learning_rate, batch_size, _),) = recipe.points
        found = [learning_rate, batch_size, recipe.epochs, recipe.warmup_steps, recipe.head_dropout]
        assert found == expected
        assert (recipe.max_length, recipe.weight_decay, recipe.epsilon, recipe.clip_norm) == (length, 0.01, 1e-6, 1.0)


def test_debertas_qqp_is_judged_by_accuracy_and_wnli_has_a_warmup_that_fits():
    for protocol in ("deberta", "deberta_large"):
        tasks = parsed("finetune/glue.py", f"checkpoint=C,protocol={protocol}").tasks
        assert {name for name, recipe in tasks.items() if recipe.metric == "accuracy"} == {"qqp"}
        wnli = tasks["wnli"]
        steps = [wnli.epochs * 635 // size for _, size, _ in wnli.points]
        assert all(0 < wnli.warmup_of(count) < count for count in steps)


def test_debertas_sweep_of_other_tasks():
    large, base = (parsed(f"deberta/{name}.py", "checkpoint=C").tasks for name in ("table2_tasks", "table3_base"))
    assert (len(large["mnli"].points), len(large["race"].points), len(base["squad2"].points)) == (1, 16, 16)
    assert large["conll2003"].learning_rates == (5e-6, 8e-6, 9e-6, 1e-5)
    assert base["squad1"].learning_rates == (1.5e-5, 2e-5, 3e-5, 4e-5) and base["squad1"].max_length == 384


def test_debertas_whole_sweep():
    """Over learning rate, batch size, warm-up and dropout of the head, where a task has a head with dropout, and a
    number of warm-up steps.
    """

    def sizes(name, arguments="checkpoint=C"):
        return {task: len(recipe.points) for task, recipe in parsed(name, arguments).tasks.items()}

    def whole(task):
        return parsed("finetune/superglue.py", "checkpoint=C,sweep=paper").tasks[task].sweep

    large = parsed("deberta/table2_tasks.py", "checkpoint=C,sweep=paper").tasks
    assert (
        large["race"].sweep
        == whole("boolq")
        == SweepConfig(head_dropout=(0.0, 0.1, 0.15), warmup_steps=(50, 100, 500, 1000))
    )
    assert sizes("deberta/table2_tasks.py", "checkpoint=C,sweep=paper") == {
        **{"squad1": 64, "squad2": 64},
        **dict.fromkeys(("mnli", "race", "record", "swag", "conll2003"), 192),
    }
    assert sizes("deberta/table3_base.py", "checkpoint=C,sweep=paper") == {"mnli": 192, "squad1": 64, "squad2": 64}
    assert sizes("deberta/table1_glue.py", "checkpoint=C,sweep=paper") == {
        **dict.fromkeys(("cola", "mnli", "qnli", "qqp", "sst2"), 192),
        **{"mrpc": 144, "stsb": 144, "rte": 96},
    }
    assert set(sizes("deberta/table1_glue.py").values()) == {1}
    for name, rates in (("table1_glue", (5e-6, 8e-6, 9e-6, 1e-5)), ("table3_base", (1.5e-5, 2e-5, 3e-5, 4e-5))):
        mnli = parsed(f"deberta/{name}.py", "checkpoint=C,sweep=paper").tasks["mnli"]
        assert (mnli.learning_rates, mnli.batch_sizes, mnli.epochs) == (rates, (16, 32, 48, 64), 10)
        assert {point["head_dropout"] for _, _, point in mnli.points} == {0.0, 0.1, 0.15}
    assert sizes("finetune/superglue.py", "checkpoint=C,sweep=paper") == {
        **dict.fromkeys(("boolq", "multirc", "record"), 192),
        **dict.fromkeys(("cb", "copa", "superglue_rte", "wsc"), 48),
        "wic": 144,
    }
    assert max(whole("wic").warmup_steps) < 850 and not whole("cb").warmup_steps
    own = GIVEN["finetune/own.py"]
    for kind, count in (("classification", 192), ("span", 64)):
        assert sizes("finetune/own.py", f"{own},protocol=deberta,kind={kind},sweep=paper") == {"own": count}
    assert set(sizes("deberta/table2_tasks.py", "checkpoint=C,sweep=paper,scale=small").values()) == {1}
    assert sizes("finetune/superglue.py") == sizes("finetune/superglue.py", "checkpoint=C,sweep=short")
    assert set(sizes("finetune/superglue.py").values()) == {16}
    with pytest.raises(ValueError, match="expected protocol=deberta or deberta_large, got roberta"):
        parsed("finetune/superglue.py", "checkpoint=C,protocol=roberta,sweep=paper")


@pytest.mark.parametrize(
    "verb, given, flag",
    [
        ("finetune", "sweep=paper", "sweep.head_dropout="),
        ("compare", "sweep=paper", "sweep.head_dropout="),
        ("finetune", "tasks=wsc --config.tasks.wsc.head_dropout=0.1", "head_dropout=none"),
    ],
)
def test_a_head_without_dropout_is_noticed_by_print_config_which_names_the_flag(capsys, verb, given, flag):
    source = f"--config={CONFIGS / 'finetune/superglue.py'}:checkpoint=C,tasks=wsc,"
    command = ["ag-jax", verb, *(source + given).split(), "--config.tasks.wsc.ranking=True", "--print_config"]
    assert main.main(command) == 1
    given = re.search(r"no dropout. Give (\S*)", " ".join(capsys.readouterr().err.split()))[1]
    assert given == f"--config.tasks.wsc.{flag}"
    assert main.main([*command, given]) == 0
    recipe = json.loads(capsys.readouterr().out)["tasks"]["wsc"]
    assert recipe["ranking"] and recipe["head_dropout"] is None and recipe["sweep"]["head_dropout"] == []


def test_warmup_of_a_number_of_steps():
    with pytest.raises(ValueError, match="^sweep.warmup_steps=50 must be .* the 50 steps .*: leave this value out of"):
        Recipe(warmup_steps=50, sweep=SweepConfig(warmup_steps=(10, 50))).warmup_of(50)
    assert Recipe(warmup_steps=50).warmup_of(51) == 50 and Recipe(warmup_fraction=0.1).warmup_of(101) == 11
    assert Recipe(warmup_steps=0).warmup_of(1) == 0
    assert Recipe(warmup_fraction=0.1).warmup_of(1) == 0 and Recipe(warmup_fraction=0.99).warmup_of(2) == 1
    with pytest.raises(ValueError, match="warmup_steps=50 must be fewer than the 50 steps of a trial"):
        Recipe(warmup_steps=50).warmup_of(50)


def test_downstream_tasks_of_the_models_of_a_comparison(compared):
    source = f"{CONFIGS / 'finetune/downstream.py'}:runs=runs/table3,tasks=sst2,squad2,race"
    configs = comparison.arm_configs(f"{source},seed=3", {})
    assert {arm: config.checkpoint for arm, config in configs.items()} == {
        "small": "runs/table3/small-seed3",
        "large": "runs/table3/large-seed3",
    }
    tasks = configs["small"].tasks
    assert {name: len(recipe.points) for name, recipe in tasks.items()} == {"sst2": 6, "squad2": 1, "race": 1}
    assert tasks == configs["large"].tasks and tasks["race"].max_length == 512
    for more, message in (
        (",seed=1", "seed=1: runs/table3 has the seeds 0, 3"),
        (",arm=huge", "arm=huge: runs/table3 has the arms small, large"),
    ):
        with pytest.raises(ValueError, match=message):
            parsed("finetune/downstream.py", source.partition(":")[2] + more)
    (compared / "report.json").unlink()
    with pytest.raises(ValueError, match="runs/table3/report.json"):
        parsed("finetune/downstream.py", source.partition(":")[2])


def test_only_what_should_start_from_mnli_does():
    tasks = parsed("roberta/table5_glue.py", "checkpoint=C,mnli_first=True").tasks
    assert {name for name, recipe in tasks.items() if recipe.initial_task == "mnli"} == {"rte", "stsb", "mrpc"}
    assert not any(recipe.initial_task for recipe in parsed("roberta/table5_glue.py", "checkpoint=C").tasks.values())


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
ROUNDS = "".join(f"anli_r{number} 3e-5 32 3 0.06 128 0.3\n" for number in (1, 2, 3))


@pytest.mark.parametrize("row", (PAPERS_TABLE_5 + ROUNDS).strip().splitlines(), ids=lambda row: row.split()[0])
def test_table_5_of_asa(row):
    task, *numbers = row.split()
    name = "finetune/glue.py" if task in finetuning.GLUE else "finetune/anli.py"
    name = {"wnut17": "finetune/tagging.py", "dream": "finetune/choice.py", "hellaswag": "finetune/choice.py"}.get(
        task, name
    )
    argument = f"checkpoint=C,tasks={task}" + (",protocol=asa" if name == "finetune/glue.py" else "")
    recipe = parsed(name, argument).tasks[task]
    shown = (recipe.learning_rates[0], recipe.batch_sizes[0], recipe.epochs, recipe.warmup_fraction, recipe.max_length)
    assert (*shown, recipe.adversarial.asa.tau) == tuple(map(float, numbers))
    assert len(recipe.points) == 1 and recipe.weight_decay == (0 if task in ("wnut17", "dream", "hellaswag") else 0.01)
    assert recipe.clip_norm is None and recipe.adversarial.method == "none"


def attacks(name, argument, **overrides):
    """The attack on each task of every arm."""
    configs = comparison.arm_configs(f"{CONFIGS / 'asa' / name}:{argument}", overrides)
    return {arm: {task: recipe.adversarial for task, recipe in config.tasks.items()} for arm, config in configs.items()}


def test_asas_table_1():
    of = attacks("table1_generalization.py", "checkpoint=C")
    assert list(of) == ["plain", "asa"]
    assert {task: attack.asa.tau for task, attack in of["asa"].items()} == {
        **dict.fromkeys(("sst2", "mnli", "qnli", "qqp", "stsb"), 0.3),
        **{"wnut17": 0.5, "dream": 0.5},
    }
    assert all(attack.method == "asa" and attack.asa.penalty == attack.asa.tau**2 for attack in of["asa"].values())
    assert all(attack.method == "none" for attack in of["plain"].values())
    source = f"{CONFIGS / 'asa/table1_generalization.py'}:checkpoint=C,longer=L,pretrained=P"
    configs = comparison.arm_configs(source, {})
    assert {arm: config.checkpoint for arm, config in configs.items()} == {
        "plain": "C",
        "asa": "C",
        "longer": "L",
        "pretrained": "P",
    }
    assert configs["longer"].tasks == configs["pretrained"].tasks == configs["plain"].tasks
    with pytest.raises(ValueError, match="for the arm longer the config file needs the argument longer, a run of"):
        attacks("table1_generalization.py", "checkpoint=C", arms="plain,longer")


def test_the_masks_of_asas_table_3():
    of = {arm: by_task["wnut17"] for arm, by_task in attacks("table3_naive_masking.py", "checkpoint=C").items()}
    shown = {arm: (attack.method, attack.masking.share, attack.masking.trace) for arm, attack in of.items()}
    assert shown == {
        "plain": ("none", 0.1, None),
        "asa": ("asa", 0.1, None),
        "bernoulli_0.05": ("bernoulli", 0.05, None),
        "bernoulli_0.1": ("bernoulli", 0.1, None),
        "scheduled": ("scheduled", 0.1, "{arms}/asa/{task}/{trial}"),
        "magnitude": ("magnitude", 0.1, None),
    }
    assert list(of).index("asa") < list(of).index("scheduled"), "whose trace it is"


def test_the_rivals_of_asas_table_4():
    tasks = "mnli,qnli,qqp,paws_qqp,hellaswag,sst2,stsb,dream"
    of = attacks("table4_adversarial_training.py", f"checkpoint=C,tasks={tasks}")
    assert {arm: by_task["qnli"].method for arm, by_task in of.items()} == {
        **{"plain": "none", "longer": "none", "freelb": "freelb", "smart": "smart", "asa": "asa"}
    }
    freelb = {task: attack.freelb for task, attack in of["freelb"].items()}
    found = {task: (one.step_size, one.init_magnitude, one.max_norm, one.steps) for task, one in freelb.items()}
    # reference: the scripts that were released with FreeLB
    assert found == {
        **dict.fromkeys(("mnli", "hellaswag", "dream"), (0.1, 0.1, 0.3, 2)),
        "qnli": (0.075, 0.15, 0.15, 2),
        **dict.fromkeys(("qqp", "paws_qqp"), (0.2, 0.32, 0.7, 2)),
        "sst2": (0.1, 1.0, 0.6, 2),
        "stsb": (0.1, 0.16, 0.28, 3),
    }
    # Their `--adv-steps` are ascents, after each of which there is a pass: one more than K.
    assert {task: one.passes for task, one in freelb.items()} == {task: one.steps + 1 for task, one in freelb.items()}
    others = config_reader.default(FinetuningConfig)
    finetuning.roberta_glue(others, ("cola", "mrpc", "rte"))
    finetuning.freelb(others)
    names = ("step_size", "init_magnitude", "max_norm", "steps", "count")
    assert {task: [recipe.adversarial.freelb[name] for name in names] for task, recipe in others.tasks.items()} == {
        "cola": [0.025, 0.4, 0.3, 3, "fairseq"],
        "mrpc": [0.04, 0.64, 0.4, 3, "fairseq"],
        "rte": [0.03, 0.16, 0.14, 3, "fairseq"],
    }
    for scale in SCALE:
        source = "asa/table4_adversarial_training.py", f"checkpoint=C,scale={scale},arm="
        plain, longer = (parsed(source[0], source[1] + arm) for arm in ("plain", "longer"))
        assert {task: recipe.total_epochs for task, recipe in longer.tasks.items()} == {
            task: 2 * recipe.epochs for task, recipe in plain.tasks.items()
        }
    assert list(attacks("table4_adversarial_training.py", "checkpoint=C", arms="plain,sift")) == ["plain", "sift"]


def test_twice_the_epochs_is_twice_those_of_a_flag():
    source = f"{CONFIGS / 'asa/table4_adversarial_training.py'}:checkpoint=C,tasks=sst2"
    overrides = {"arms": "plain,asa,longer", "tasks.sst2.epochs": 2}
    of = {arm: config.tasks["sst2"].total_epochs for arm, config in comparison.arm_configs(source, overrides).items()}
    assert of == {"plain": 2, "asa": 2, "longer": 4}
    assert arms.overridden(source, of, overrides) == [], "it is no setting in which they differ"


def test_arms_that_a_flag_makes_the_same_are_an_error():
    """Also where they still differ in settings that are not read, as those of FreeLB without it."""
    source = f"{CONFIGS / 'asa/table4_adversarial_training.py'}:checkpoint=C,tasks=sst2"
    flag = {"tasks.sst2.adversarial.method": "none"}
    for other in ("asa", "freelb"):
        message = (
            f"the arms plain and {other} of .* have the same settings, "
            "because --config.tasks.sst2.adversarial.method=none overrides what the "
            rf"arms set: none \(plain\), {other} \({other}\): leave that out, or name other arms"
        )
        with pytest.raises(ValueError, match=message):
            comparison.arm_configs(source, flag | {"arms": f"plain,{other}"})
    with pytest.raises(ValueError, match="arms must be different, got plain,plain"):
        comparison.arm_configs(source, {"arms": "plain,plain"})
    with pytest.raises(
        ValueError, match="the arms mlm and ag of .*same settings: change the arguments of the config file, or name"
    ):
        comparison.arm_configs(f"{CONFIGS / 'ag/table4_downstream.py'}:mlm=R,ag=R", {})


def test_the_temperatures_of_asas_figures():
    of = attacks("figure4_temperature.py", "checkpoint=C")
    assert {arm: by_task["dream"].asa.tau for arm, by_task in of.items() if arm != "plain"} == {
        "tau_0.3": 0.3,
        "tau_0.6": 0.6,
        "tau_1.0": 1.0,
    }
    figure5 = parsed("asa/figure5_masking.py", "checkpoint=C").tasks
    assert {(recipe.adversarial.method, recipe.adversarial.asa.tau) for recipe in figure5.values()} == {("asa", 0.3)}


def test_the_arms_on_real_weights():
    source = f"{CONFIGS / 'asa/real_weights.py'}:checkpoint=C,learning_rate=2e-5,freelb_step=0.01"
    configs = comparison.arm_configs(source, {})
    assert list(configs) == list(ARGUMENTS["asa/real_weights.py"]["arm"][:10])
    assert list(configs).index("asa") < list(configs).index("scheduled"), "whose trace it is"
    for arm, config in configs.items():
        found = {
            task: (recipe.train_examples, recipe.total_epochs, recipe.validation_examples, recipe.scored_epoch)
            for task, recipe in config.tasks.items()
        }
        twice = 1 + (arm == "longer")
        assert found == {
            "sst2": (3200, 2 * twice, None, "last"),
            "cola": (3500, 3 * twice, None, "last"),
            "wnut17": (1000, 10 * twice, None, "last"),
        }
        of = {(*recipe.learning_rates, recipe.clip_norm, recipe.subset_seed) for recipe in config.tasks.values()}
        assert of == {(2e-5, None, 0)}
    attack = {arm: config.tasks["wnut17"].adversarial for arm, config in configs.items()}
    assert {arm: of.method for arm, of in attack.items()} == {
        **dict.fromkeys(("plain", "longer"), "none"),
        **dict.fromkeys(("asa", "asa_unclipped"), "asa"),
        **{name: name for name in ("r_drop", "bernoulli", "scheduled", "magnitude", "freelb", "smart")},
    }
    assert (attack["asa"].asa.clip_norm, attack["asa_unclipped"].asa.clip_norm) == (1.0, None)
    assert {arm: config.tasks["sst2"].adversarial.asa.tau for arm, config in configs.items()} == dict.fromkeys(
        configs, 0.3
    )
    assert attack["asa"].asa.tau == attack["asa_unclipped"].asa.tau == 0.5
    assert attack["r_drop"].r_drop.weight == 1 and attack["r_drop"].r_drop.divergence == attack["asa"].asa.divergence
    assert attack["bernoulli"].masking.share == attack["magnitude"].masking.share == 0.1
    assert attack["scheduled"].masking.trace == "{arms}/asa/{task}/{trial}"
    assert (attack["freelb"].freelb.passes, attack["freelb"].freelb.step_size) == (3, 0.01)
    warmer = comparison.arm_configs(source, {"arms": "tau_0.1,tau_0.8"})
    taus = {arm: {recipe.adversarial.asa.tau for recipe in of.tasks.values()} for arm, of in warmer.items()}
    assert taus == {"tau_0.1": {0.1}, "tau_0.8": {0.8}}
    anli = parsed("asa/real_weights.py", "checkpoint=C,tasks=anli").tasks["anli"]
    assert (anli.train_examples, anli.total_epochs, anli.scored_epoch) == (2_399, 3, "last")
    for name in ("learning_rate", "freelb_step"):
        with pytest.raises(ValueError, match=f"{name} must be a number, got 'high'"):
            parsed("asa/real_weights.py", f"checkpoint=C,arm=freelb,{name}=high")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_tasks.write_superglue(tiny_tasks.write(tmp_path_factory.mktemp("data")))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return tiny_tasks.checkpoint(tmp_path_factory.mktemp("checkpoint"))


# A task of each kind and file: the rest is other words.
TRIED = {
    "finetune/glue.py": ("tasks=rte,protocol=asa", "rte"),
    "finetune/squad.py": ("tasks=squad2", "squad2"),
    "finetune/superglue.py": ("tasks=copa,arm=sift", "copa"),
    "finetune/tagging.py": ("tasks=wnut17", "wnut17"),
    "finetune/choice.py": ("tasks=dream", "dream"),
    "finetune/anli.py": ("tasks=anli_r1", "anli_r1"),
    "finetune/filipino.py": ("", "filipino_hatespeech"),
    "finetune/oromo.py": ("tasks=oromo_news", "oromo_news"),
    "finetune/own.py": ("task=wnut17,labels=person,location,date", "wnut17"),
    "ag/table1_mismatched_pretraining.py": ("tasks=sst2,arm=random", "sst2"),
    "ag/table4_downstream.py": ("language=oromo,arm=ag", "oromo_ner"),
    "roberta/table5_glue.py": ("tasks=stsb", "stsb"),
    "roberta/table6_squad.py": ("tasks=squad1", "squad1"),
    "roberta/table7_race.py": ("", "race"),
    "finetune/downstream.py": ("tasks=sst2,arm=large", "sst2"),
    "deberta/table1_glue.py": ("tasks=rte", "rte"),
    "deberta/table2_tasks.py": ("tasks=squad1", "squad1"),
    "deberta/table3_base.py": ("tasks=squad2", "squad2"),
    "asa/table1_generalization.py": ("tasks=wnut17,arm=asa", "wnut17"),
    "asa/table2_robustness.py": ("tasks=anli_r1,arm=asa", "anli_r1"),
    "asa/table3_naive_masking.py": ("tasks=stsb,arm=magnitude", "stsb"),
    "asa/table4_adversarial_training.py": ("tasks=sst2,arm=freelb", "sst2"),
    "asa/figure4_temperature.py": ("tasks=dream,arm=tau_1.0", "dream"),
    "asa/figure5_masking.py": ("tasks=sst2", "sst2"),
    "asa/real_weights.py": ("tasks=wnut17,arm=asa_unclipped", "wnut17"),
}


# Folds and an attack; the others train nearly the same programs for seconds each.
@pytest.mark.parametrize(
    "name",
    some(TRIED, "finetune/oromo.py", "asa/table4_adversarial_training.py"),
)
def test_one_tiny_trial(name, folder, checkpoint, compared, tmp_path, one_device):
    argument, task = TRIED[name]
    given = {
        "ag/table1_mismatched_pretraining.py": "english={0}",
        "ag/table4_downstream.py": "mlm={0},ag={0}",
        "finetune/downstream.py": "runs=runs/table3",
    }
    (compared / "large-seed0").symlink_to(checkpoint)
    model = given.get(name, "checkpoint={0}").format(checkpoint)
    few = {f"tasks.{task}.{key}": value for key, value in tiny_tasks.FEW.items()}
    few |= {f"tasks.{task}.folds": 3} if task == "oromo_ner" else {}
    scale = "scale=small" if "scale" in ARGUMENTS[name] else ""
    arguments = ",".join(filter(None, [model, argument, "seeds=1", scale, f"data={folder}"]))
    report = comparison.finetune(f"{CONFIGS / name}:{arguments}", few, epath.Path(tmp_path / "w"))
    numbers = json.loads((report.parent / "report.json").read_text())["tasks"][task]
    (of_arm,) = numbers["arms"].values()
    score = of_arm["splits"][of_arm["headline"]][numbers["metric"]]
    assert -1 <= score["mean"] <= 1 and score["n"] == 1
    assert f"| {task} | {numbers['metric']} |" in report.read_text()
    attacks_attention = name.startswith("asa/") and "freelb" not in argument
    assert ("masked" in of_arm) == attacks_attention
    if attacks_attention:
        assert 0 < of_arm["masked"]["all"] < 1 and (report.parent / "figures" / "masked_share.png").exists()


@pytest.mark.exhaustive
def test_every_naive_mask_beside_the_adversary_that_it_follows(folder, checkpoint, tmp_path, one_device):
    """The whole of table 3, in one command, with real trials."""
    few = {f"tasks.sst2.{key}": value for key, value in tiny_tasks.FEW.items()} | {"keep": "best"}
    source = (
        f"{CONFIGS / 'asa/table3_naive_masking.py'}:"
        f"checkpoint={checkpoint},tasks=sst2,seeds=1,scale=small,data={folder}"
    )
    report = comparison.compare(source, few | {"arms": "plain,asa,scheduled"}, epath.Path(tmp_path / "w"))
    arms = json.loads((report.parent / "report.json").read_text())["tasks"]["sst2"]["arms"]
    asa, scheduled = arms["asa"]["masked"]["all"], arms["scheduled"]["masked"]["all"]
    assert abs(asa - scheduled) < 0.1 < asa < 0.9
    assert (report.parent / "figures" / "attention_sst2_layer1.png").read_bytes().startswith(b"\x89PNG")
