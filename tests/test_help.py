"""`ag-jax help`, `configs` and `--version` explain every verb, config and setting without importing JAX."""

import dataclasses
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from ag_jax import cli, config_reader, main
from ag_jax.command_line import manual, settings, verbs

ROOT = pathlib.Path(__file__).resolve().parent.parent


def said(capsys, *arguments) -> str:
    assert main.main(["ag-jax", *arguments]) == 0
    return capsys.readouterr().out


def rejected(capsys, *arguments) -> str:
    assert main.main(["ag-jax", *arguments]) == 2
    return capsys.readouterr().err


def test_the_tables_of_verbs_and_flags_are_complete():
    assert tuple(cli.VERBS) == verbs.RUNNING
    request = {field.name: field.default for field in dataclasses.fields(cli.Request)}
    assert {flag.field or name for name, flag in verbs.FLAGS.items()} == request.keys() - {"config", "overrides"}
    assert {flag for verb in verbs.VERBS.values() for flag in verb.flags} == set(verbs.FLAGS) - {"path"}
    assert set(cli.ON_MANY_HOSTS) == {name for name, verb in verbs.VERBS.items() if "hosts" in verb.flags}
    assert all(bool(verb.parts) == ("part" in verb.flags) for verb in verbs.VERBS.values())
    for name, flag in verbs.FLAGS.items():
        assert request[flag.field or name] in (dataclasses.MISSING, flag.default), name


def test_every_setting_and_argument_is_explained():
    for kind in cli.KINDS:
        found = list(settings.of(kind))
        assert [setting.path for setting in found if len(setting.meaning) < 10] == []
        paths = {setting.path for setting in found if not setting.is_section}
        assert paths >= set(config_reader.flat(config_reader.default(kind).to_dict()))
    for name, path in config_reader.packaged().items():
        choices = config_reader.choices_of(name)
        assert choices and set(settings.entries(manual.docstring_of(path, "get_config"), choices)) == set(choices), name


def test_help_appears_without_jax():
    code = """
import sys
from ag_jax import main
for arguments in ([], ["--help"], ["--version"], ["configs"], ["help", "train"], ["plan", "-h"]):
    main.main(["ag-jax", *arguments])
assert not {"jax", "numpy"} & set(sys.modules), "slow to import"
"""
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def test_overview_and_verbs(capsys):
    text = said(capsys, "--help")
    assert all(f"\n  {name} " in text for name in verbs.VERBS) and max(map(len, text.splitlines())) <= 120
    assert main.main(["ag-jax"]) == 2 and capsys.readouterr().out == text == said(capsys, "help")
    assert said(capsys, "--version").startswith("ag-jax")
    for name, verb in verbs.VERBS.items():
        text = said(capsys, "help", name)
        assert text == said(capsys, name, "--help") and f"ag-jax {name}" in text.partition("Examples:")[2]
        meanings = {flag: verb.parts if flag == "part" else verbs.FLAGS[flag].meaning for flag in verb.flags}
        assert all(f"--{flag}" in text and meaning[:30] in text for flag, meaning in meanings.items())


@pytest.mark.parametrize(
    ("arguments", "unread"),
    [
        (["train", "--config=quickstart", "--part=1/4", "--retry"], "--part, --retry"),
        (["translate", "--config=quickstart", "--workdir=w"], "--config"),
        (["export", "--workdir=w", "--to=t", "--noretry"], "--retry"),
    ],
)
def test_flags_of_other_verbs_are_refused(arguments, unread, capsys):
    assert f"`ag-jax {arguments[0]}` does not read {unread};" in rejected(capsys, *arguments)
    read = [argument for argument in arguments if argument.split("=")[0].replace("--no", "--") not in unread]
    assert verbs.parse(read)[0] == arguments[0]


def test_configs_and_their_arguments(capsys):
    listed = said(capsys, "configs").splitlines()
    assert len(listed) == len(config_reader.packaged()) + 2
    assert [line.split()[0] for line in listed[:-2]] == list(config_reader.packaged())
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
    assert text.startswith("optimizer.learning_rate\n") and "a number at least 1e-12; default 0.0001" in text
    text = said(capsys, "help", "--config.tasks.sst2.learning_rates=1e-5")
    assert text.startswith("tasks.NAME.learning_rates\n") and "a list with commas, each a number at least 1e-12" in text
    assert "a list of texts" in said(capsys, "help", "translation.tests")
    section = said(capsys, "help", "data.tokenizer.")
    assert section == said(capsys, "help", "data.tokenizer") and section.count("data.tokenizer.") == 4
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
    found = settings.entries(text, ("rate", "x", "y", "z"))
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
    assert found == {f"{name}.py" for name in config_reader.packaged()}
    assert {"viewer.html", "viewer.css", "viewer.js"} <= set(os.listdir(built / "ag_jax" / "viewer"))
    code = (
        "from ag_jax import config_reader, main; print(config_reader.find('finetune/glue')); main.main(['', 'configs'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env={"PYTHONPATH": str(built)}, capture_output=True, text=True
    )
    assert done.stdout.startswith(f"{folder}/finetune/glue.py") and "\nquickstart " in done.stdout
