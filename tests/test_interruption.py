"""Ctrl-C and SIGTERM before training: the command ends with one line and leaves no partial files."""

import signal
import threading
import time
from types import SimpleNamespace
from unittest import mock

import pytest

from ag_jax.command_line import cli
from ag_jax.data import tokenizers
from ag_jax.data.config import TokenizerConfig
from ag_jax.distributed import interruption
from ag_jax.training.stopping import Interrupted
from tests import commands, endless
from tests.verbs import verb_of

INT, TERM = signal.SIGINT, signal.SIGTERM
TRAINING, TOKENISING, ROWS = "training a byte_bpe tokenizer", "tokenising", "documents, "

# The patch that makes the command endless, the text it prints there, the signals, the exit status, the files left in
# the cache.
CASES = {
    "training a tokenizer": (endless.text, TRAINING, [TERM], 75, []),
    "a long call": (endless.call, TRAINING, [INT], 130, []),
    "tokenising": (endless.text, TOKENISING, [INT], 130, []),
    "rows": (endless.rows, ROWS, [TERM], 75, ["text", "tokenizer"]),
    # The unfinished part of the text and its lock, which the next process takes over.
    "Ctrl-C twice in a long call": (endless.document, TOKENISING, [INT, INT], 130, ["part", "part"]),
}


@pytest.mark.parametrize("case", CASES)
def test_a_signal_ends_the_command_in_one_line(tmp_path, case):
    make_endless, phase, signals, status, kept = CASES[case]
    (tmp_path / "text.txt").write_text("\n".join(endless.SENTENCES))
    settings = {"source": tmp_path / "text.txt", "cache_dir": tmp_path / "cache", "tokenizer.vocabulary_size": 300}
    if phase == TOKENISING:
        tokenizers.train(TokenizerConfig(vocabulary_size=300), endless.SENTENCES).save(tmp_path / "tokenizer")
        settings["tokenizer.path"] = tmp_path / "tokenizer"
    flags = [f"--config.data.{key}={value}" for key, value in settings.items()]
    arguments = ["train", "--config=configs/quickstart.py", *flags, f"--workdir={tmp_path / 'run'}"]
    running = commands.Running(arguments, before=make_endless)
    running.wait_for(phase)
    for number in signals:
        time.sleep(0.3)
        running.send_signal(number)
    done = running.wait(60)
    assert done.returncode == status, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if not line.startswith(("data: ", "run: "))]
    assert signals[0].name in line and "run the same command again" in line
    at_once = len(signals) > 1
    assert ("at once" in line) == at_once
    left = [path.name for path in (tmp_path / "cache").glob("*")]
    assert sorted(name.split("-")[0] for name in left) == kept
    assert any("partial" in name for name in left) == at_once, "only then is nothing cleaned up"


def fails_beside_a_thread() -> None:
    """Fail while a non-daemon thread is busy, as Orbax's threads are when a save has failed."""

    def fail(*_):
        threading.Thread(target=time.sleep, args=(3600,)).start()
        raise OSError("no space")

    cli.run_verb = fail


def test_a_command_that_fails_does_not_wait_for_its_threads():
    done = commands.Running(
        ["train", "--config=configs/quickstart.py", "--workdir=w"], before=fails_beside_a_thread
    ).wait(60)
    assert (done.returncode, done.stderr) == (1, "ag-jax train: no space\n")


def test_in_a_notebook_an_interrupt_is_as_python_has_it():
    """Without `guard`, an interrupt raises KeyboardInterrupt at the next check, and is forgotten afterwards."""
    before = signal.getsignal(INT)
    with pytest.raises(KeyboardInterrupt), interruption.deferred():
        signal.raise_signal(INT)
        assert interruption.requested() == "SIGINT"
        interruption.check()
    assert interruption.requested() is None and signal.getsignal(INT) == before
    with pytest.raises(KeyboardInterrupt), interruption.deferred(), interruption.deferred():
        signal.raise_signal(TERM)
        signal.raise_signal(TERM)  # schedulers send it more than once
        signal.raise_signal(INT)
    assert interruption.requested() is None


def test_a_script_can_tell_a_command_that_was_stopped_from_one_that_is_done(monkeypatch):
    for signal_name, status in (("SIGTERM", 75), ("SIGTERM on host 1", 75), ("SIGINT", 130), ("SIGINT on host 1", 130)):
        stop = mock.Mock(side_effect=Interrupted(f"{signal_name}: stopped at step 3"))
        monkeypatch.setattr(cli, "run_verb", stop)
        assert cli.run_safely(verb_of("import")) == status


def test_work_that_is_waited_for():
    assert interruption.wait_for(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        interruption.wait_for(lambda: 1 // 0)


def test_a_signal_on_one_of_several_hosts_ends_all(monkeypatch, capsys):
    def interrupted(*_):
        raise KeyboardInterrupt

    abandoned = []
    monkeypatch.setattr(cli, "run_verb", interrupted)
    monkeypatch.setattr(cli.hosts, "count", lambda: 2)
    monkeypatch.setattr(cli.hosts, "abandon", lambda *note: abandoned.append(note))
    monkeypatch.setattr(interruption, "_state", SimpleNamespace(received=TERM))
    assert cli.run_safely(verb_of("train")) == 75
    assert abandoned == [(75, "ag-jax train: stopped by SIGTERM")]
    assert capsys.readouterr().err == "host 0: ag-jax train: stopped by SIGTERM\n"
