"""`ag-jax help`, `configs` and `--version` explain every verb, config and setting without importing JAX."""

import os
import pathlib
import re
import shutil
import subprocess
import sys

from ag_jax import main
from ag_jax.command_line import cli, manual, verbs
from ag_jax.settings import config_files, documentation, schema

ROOT = pathlib.Path(__file__).resolve().parent.parent


def said(capsys, *arguments) -> str:
    assert main.main(["ag-jax", *arguments]) == 0
    return capsys.readouterr().out


def rejected(capsys, *arguments) -> str:
    assert main.main(["ag-jax", *arguments]) == 2
    return capsys.readouterr().err


def test_every_verb_is_run_and_every_flag_is_explained():
    assert cli.RUN_BY.keys() == verbs.VERBS.keys()
    for verb in verbs.VERBS.values():
        assert all(len(flag.meaning) > 10 for flag in verbs.flags_of(verb).values()), verb


def test_every_setting_and_argument_is_explained():
    for kind in verbs.KINDS:
        found = list(documentation.of(kind))
        assert [setting.path for setting in found if len(setting.meaning) < 10] == []
        paths = {setting.path for setting in found if not setting.is_section}
        assert paths >= set(schema.flat(schema.default(kind).to_dict()))
    for name, path in config_files.packaged().items():
        taken = config_files.arguments_of(name)
        assert taken and set(documentation.entries(manual.docstring_of(path, "get_config"), taken)) == set(taken), name


def test_help_and_errors_appear_without_jax():
    code = """
import sys
from ag_jax import main
for words in (
    "", "--help", "--version", "configs", "help train", "plan -h", "help guidance.alpha --config=quickstart:arm=ag",
    "train --config=quickstart --workdir=w --config.guidance.alpha=x", "finetune --config=finetune/glue:checkpoint=c",
):
    main.main(["ag-jax", *words.split()])
assert not {"jax", "flax", "optax", "orbax"} & set(sys.modules), "slow to import"
"""
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True)


def test_overview_and_verbs(capsys):
    text = said(capsys, "--help")
    names = [*verbs.VERBS, *manual.EXPLAINING]
    assert all(f"\n  {name} " in text for name in names) and max(map(len, text.splitlines())) <= 80
    assert main.main(["ag-jax"]) == 2 and capsys.readouterr().out == text == said(capsys, "help")
    assert said(capsys, "--version").startswith("ag-jax")
    for name in names:
        text = said(capsys, "help", name)
        assert text == said(capsys, name, "--help") and f"ag-jax {name}" in text.partition("Examples:")[2]
        flags = verbs.flags_of(verbs.VERBS[name]) if name in verbs.VERBS else {}
        assert all(f"--{word}" in text and flag.meaning[:30] in text for word, flag in flags.items())


def test_configs_and_their_arguments(capsys):
    listed = said(capsys, "configs").splitlines()
    names = [line.strip() for line in listed if re.match("  [^ ]", line)]
    assert sorted(names) == sorted(config_files.packaged()) and max(map(len, listed)) <= 80
    assert names[:2] == ["quickstart", "quickstart_search"] and names.index("finetune/own") < names.index(
        "ag/table1_mismatched_pretraining"
    )
    groups = {line: listed[number + 1].strip() for number, line in enumerate(listed) if line.endswith(":")}
    assert groups.keys() == {"Pre-train:", "Translate:", "Fine-tune:", "Probe:"} and groups["Probe:"] == "probe"
    assert "quickstart" in rejected(capsys, "configs", "quickstart")
    text = " ".join(said(capsys, "help", "finetune/glue").split())
    assert "--config=finetune/glue:checkpoint=..." in text and "(must be given)" in text
    assert "(one of roberta, asa, ag, deberta, deberta_large; default roberta)" in text
    for name in ("--config=finetune/glue:checkpoint=x", "configs/finetune/glue.py"):
        assert text.partition("Arguments")[0] in " ".join(said(capsys, "help", name).split())
    assert "help --config=translate" in said(capsys, "help", "translate")  # a verb and a config
    assert "--config=translate:source=..." in said(capsys, "help", "--config=translate")


def test_settings_and_sections(capsys):
    text = said(capsys, "help", "optimizer.learning_rate")
    assert text.startswith("--config.optimizer.learning_rate=VALUE\n")
    assert "a finite number at least 1e-12; default 0.0001" in text
    text = said(capsys, "help", "guidance.alpha", "--config=quickstart:arm=ag")
    assert "default 10.0" in text and "\n  1.0 in quickstart:arm=ag" in text
    text = said(capsys, "help", "--config.tasks.sst2.learning_rates=1e-5")
    assert text.startswith("--config.tasks.sst2.learning_rates=VALUE\n")
    assert "a list with commas, each a finite number at least 1e-12" in text
    assert "a list of texts" in said(capsys, "help", "translation.tests")
    section = said(capsys, "help", "data.tokenizer.")
    assert section == said(capsys, "help", "data.tokenizer") and section.count("--config.data.tokenizer.") == 4
    assert "one of byte_bpe, wordpiece" in section and "a text, or none; default none" in section
    assert said(capsys, "help", "data").count("In a config for ") == 2


def test_unknown_names_come_with_near_ones(capsys):
    for name, near in (
        ("trian", "did you mean train"),
        ("quikstart", "did you mean quickstart"),
        ("learning_rate", "did you mean adversarial.asa.learning_rate, optimizer.learning_rate"),
        ("optimizer.lerning_rate", "did you mean optimizer.learning_rate"),
        ("zzzzzz", "`ag-jax --help`"),
    ):
        message = rejected(capsys, "help", name)
        assert f"'{name}'" in message and near in message
    assert "train plan" in rejected(capsys, "help", "train", "plan")


def test_entries_of_a_docstring():
    text = "Summary: no entry.\n\nrate: one\n    more.\nx, y: both.\nother: not asked for.\n    its rest\nz: last"
    found = documentation.entries(text, ("rate", "x", "y", "z"))
    assert found == {"rate": "one more.", "x": "both.", "y": "both.", "z": "last"}


def test_the_wheel_has_the_configs(tmp_path):
    """The wheel is used from another folder, without a checkout."""
    source, built = tmp_path / "source", tmp_path / "built"
    for folder in ("ag_jax", "configs"):
        shutil.copytree(ROOT / folder, source / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, source / file)
    build = [sys.executable, "setup.py", "--quiet", "build_py", f"--build-lib={built}"]
    subprocess.run(build, cwd=source, check=True, capture_output=True)
    shutil.rmtree(source)
    folder = built / "ag_jax/configs"
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*.py")}
    assert found == {f"{name}.py" for name in config_files.packaged()}
    assert {"viewer.html", "viewer.css", "viewer.js", "lines.js", "saved.js"} <= set(
        os.listdir(built / "ag_jax" / "viewer")
    )
    code = """
from ag_jax import main
from ag_jax.settings import config_files
print(config_files.find("finetune/glue"))
main.main(["", "configs"])
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env={"PYTHONPATH": str(built)}, capture_output=True, text=True
    )
    assert done.stdout.startswith(f"{folder}/finetune/glue.py") and "\n  quickstart\n" in done.stdout
