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
WITHOUT_JAX = """
import sys
from ag_jax import main
for arguments in ([], ["--help"], ["--version"], ["configs"], ["help", "train"], ["plan", "-h"]):
    main.main(["ag-jax", *arguments])
assert not {"jax", "numpy"} & set(sys.modules), "slow to import"
"""


def said(capsys, *arguments) -> str:
    assert main.main(["ag-jax", *arguments]) == 0
    return capsys.readouterr().out


def in_one_line(text: str) -> str:
    return " ".join(text.split())


def rejected(capsys, *arguments) -> str:
    assert main.main(["ag-jax", *arguments]) == 2
    return capsys.readouterr().err


def test_the_tables_of_verbs_and_flags_are_complete():
    assert tuple(cli.VERBS) == verbs.RUNNING
    fields = {field.name for field in dataclasses.fields(cli.Request)} - {"config", "overrides"}
    assert {flag.field or name for name, flag in verbs.FLAGS.items()} == fields
    assert {flag for verb in verbs.VERBS.values() for flag in verb.flags} == set(verbs.FLAGS) - {"path"}
    assert set(cli.ON_MANY_HOSTS) == {name for name, verb in verbs.VERBS.items() if "hosts" in verb.flags}
    assert all(bool(verb.parts) == ("part" in verb.flags) for verb in verbs.VERBS.values())
    request = {field.name: field.default for field in dataclasses.fields(cli.Request)}
    for name, flag in verbs.FLAGS.items():
        if request[flag.field or name] is not dataclasses.MISSING:
            assert request[flag.field or name] == flag.default, name


@pytest.mark.parametrize("kind", cli.KINDS, ids=lambda kind: kind.__name__)
def test_every_setting_is_explained(kind):
    found = list(settings.of(kind))
    assert [setting.path for setting in found if len(setting.meaning) < 10] == []
    flat = {setting.path for setting in found if not setting.is_section}
    assert {path for path in flat if "NAME" not in path} >= set(
        config_reader.flat(config_reader.default(kind).to_dict())
    )


def test_every_argument_of_a_config_is_explained():
    for name, path in config_reader.packaged().items():
        choices = config_reader.choices_of(name)
        meanings = settings.entries(manual.docstring_of(path, "get_config"), choices)
        assert choices and set(meanings) == set(choices), name


def test_help_appears_without_jax():
    done = subprocess.run([sys.executable, "-c", WITHOUT_JAX], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_overview_and_verbs(capsys):
    text = said(capsys, "--help")
    assert all(f"\n  {name} " in text for name in verbs.VERBS) and max(map(len, text.splitlines())) <= 120
    assert main.main(["ag-jax"]) == 2 and capsys.readouterr().out == text == said(capsys, "help")
    assert said(capsys, "--version").startswith("ag-jax")
    for name in verbs.VERBS:
        text = said(capsys, "help", name)
        assert text == said(capsys, name, "--help")
        assert verbs.VERBS[name].summary in text and f"ag-jax {name}" in text.partition("Examples:")[2]
        verb = verbs.VERBS[name]
        meanings = {flag: verbs.FLAGS[flag].meaning for flag in verb.flags} | (
            {"part": verb.parts} if verb.parts else {}
        )
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
    message = f"`ag-jax {arguments[0]}` does not read {unread}; `ag-jax help {arguments[0]}` lists the flags"
    assert message in rejected(capsys, *arguments)
    read = [argument for argument in arguments if argument.split("=")[0].replace("--no", "--") not in unread]
    assert verbs.parse(read)[0] == arguments[0]


def test_configs_and_their_arguments(capsys):
    listed = said(capsys, "configs").splitlines()
    (quickstart,) = [line for line in listed if line.startswith("quickstart ")]
    assert len(listed) == len(config_reader.packaged()) + 2 and "State of the Union" in quickstart
    assert "takes no arguments, got quickstart" in rejected(capsys, "configs", "quickstart")
    text = said(capsys, "help", "finetune/glue")
    assert text.startswith("GLUE from any checkpoint") and "--config=finetune/glue:checkpoint=..." in text
    assert (
        "(one of roberta, asa, ag, deberta, deberta_large; default roberta)" in in_one_line(text)
        and "(must be given)" in text
    )
    assert text == said(capsys, "help", "--config=finetune/glue:checkpoint=x")
    assert said(capsys, "help", "configs/finetune/glue.py").startswith("GLUE from any checkpoint")


def test_a_config_with_the_name_of_a_verb_is_found(capsys):
    assert "`ag-jax help --config=translate` explains the config file" in said(capsys, "help", "translate")
    text = said(capsys, "help", "--config=translate")
    assert text.startswith("Train a Transformer to translate") and "--config=translate:source=..." in text


def test_settings_and_sections(capsys):
    text = said(capsys, "help", "optimizer.learning_rate")
    assert text.splitlines()[0] == "optimizer.learning_rate" and "peak learning rate" in text
    assert "a number at least 1e-12; default 0.0001" in text
    text = said(capsys, "help", "--config.tasks.sst2.learning_rates=1e-5")
    assert text.startswith("tasks.NAME.learning_rates\n") and "a list with commas, each a number at least 1e-12" in text
    assert "a list of texts; repeat the flag for each" in said(capsys, "help", "translation.tests")
    section = said(capsys, "help", "data.tokenizer.")
    assert section == said(capsys, "help", "data.tokenizer") and section.count("data.tokenizer.") == 4
    assert "one of byte_bpe, wordpiece" in section and "a text, or none; default none" in section
    both = said(capsys, "help", "data")
    assert "In a config for pre-training or translation:" in both and "In a config for fine-tuning:" in both


def test_unknown_names_come_with_near_ones(capsys):
    for name, near in (
        ("trian", "did you mean train"),
        ("quikstart", "did you mean quickstart"),
        ("learning_rate", "did you mean adversarial.asa.learning_rate, optimizer.learning_rate"),
        ("optimizer.lerning_rate", "did you mean optimizer.learning_rate"),
        ("zzzzzz", "`ag-jax --help` and `ag-jax configs` list what there is"),
    ):
        assert f"there is no verb, config file or setting '{name}'; {near}" in rejected(capsys, "help", name)
    assert "expected one verb, config file or setting" in rejected(capsys, "help", "train", "plan")


def test_entries_of_a_docstring():
    text = "Summary: no entry.\n\nrate: one\n    more.\nx, y: both.\nother: not asked for.\n    its rest\nz: last"
    found = settings.entries(text, ("rate", "x", "y", "z"))
    assert found == {"rate": "one more.", "x": "both.", "y": "both.", "z": "last"}


def test_the_wheel_has_the_configs(tmp_path):
    """The wheel has the configs, as seen from another folder, without a checkout."""
    source, built = tmp_path / "source", tmp_path / "built"
    for folder in ("ag_jax", "configs"):
        shutil.copytree(ROOT / folder, source / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, source / file)
    build = [sys.executable, "setup.py", "--quiet", "build_py", f"--build-lib={built}"]
    subprocess.run(build, cwd=source, check=True, capture_output=True)
    found = {
        path.relative_to(built / "ag_jax" / "configs").as_posix() for path in (built / "ag_jax/configs").rglob("*.py")
    }
    assert found == {f"{name}.py" for name in config_reader.packaged()}
    assert {"viewer.html", "viewer.css", "viewer.js"} <= set(os.listdir(built / "ag_jax" / "viewer"))
    shutil.rmtree(source)
    code = (
        "from ag_jax import config_reader as c, main; print(c.find('finetune/glue')); main.main(['ag-jax', 'configs'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env={"PYTHONPATH": str(built)}, capture_output=True, text=True
    )
    assert done.stdout.startswith(str(built / "ag_jax/configs/finetune/glue.py")) and "\nquickstart " in done.stdout
