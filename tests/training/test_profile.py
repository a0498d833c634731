"""Traces of training steps: files that TensorBoard opens, with the steps that were asked for and no others."""

import dataclasses
import gzip
import json
import os
import signal

import pytest

from ag_jax import config_reader
from ag_jax.training import loop
from ag_jax.training.config import TrainingConfig
from tests.training.jobs import batch, tiny_job
from tests.training.test_loop import rows


def steps_of(folder):
    """The numbers of the training steps in a trace."""
    [trace] = folder.glob("*.trace.json.gz")
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    return sorted(int(event["args"]["step_num"]) for event in events if "step_num" in event.get("args", {}))


def test_the_trace_has_the_steps_of_the_setting(tmp_path):
    job, plain = tiny_job(tmp_path / "run", profile=(3, 5)), tiny_job(tmp_path / "plain")
    loop.Loop(job).run()
    folder = tmp_path / "run" / "profile" / "plugins" / "profile" / "steps_3-5"
    assert steps_of(folder) == [3, 4, 5] and len(list(folder.glob("*.xplane.pb"))) == 1
    loop.Loop(plain).run()
    assert rows(job) == rows(plain)


def test_a_run_that_is_interrupted_ends_the_trace(tmp_path):
    """Otherwise the next trace in the process, such as that of the resumed run, is an error."""

    def batches(start, stop):
        for step in range(start, stop):
            if step == 3:
                os.kill(os.getpid(), signal.SIGTERM)
            yield batch(step)

    job = tiny_job(tmp_path / "run", profile=(3, 6))
    with pytest.raises(loop.Interrupted):
        loop.Loop(dataclasses.replace(job, batches=batches)).run()
    assert not (tmp_path / "run" / "profile").exists()
    loop.Loop(job).run()
    [folder] = (tmp_path / "run" / "profile" / "plugins" / "profile").iterdir()
    assert folder.name == f"steps_{steps_of(folder)[0]}-6" and steps_of(folder)[-1] == 6
    assert steps_of(folder)[0] in (4, 5, 6)


@pytest.mark.parametrize("steps", [(3,), (5, 3), (3, 13), (1, 2, 3), (0, 3)])
def test_other_steps_are_rejected(steps):
    with pytest.raises(ValueError, match="training.profile"):
        config_reader.check(TrainingConfig(steps=12, profile=steps), "training")
