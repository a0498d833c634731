"""The hosts of a run: flags to places, and what they tell each other."""

import subprocess
import sys
import time

import pytest

from ag_jax.distributed import hosts
from ag_jax.distributed.rollcall import HostPosition
from tests.distributed.fake_hosts import FakeHosts


def find(coordinator=None, number=None, host=None):
    return hosts.find_position(coordinator, number, host, 5)


def test_one_host_needs_nothing():
    assert find() is None and find(number="1") is None and find("x:1", "1", 0) is None
    assert (hosts.count(), hosts.index(), hosts.is_first()) == (1, 0, True)
    assert hosts.exchange("x", 3) == [3] and hosts.from_first("x", lambda: 4) == 4
    hosts.agree("x", {"a": 1})
    hosts.abandon(1, "it returns")


def test_one_host_starts_nothing():
    program = "from jax._src import xla_bridge, distributed\nfrom ag_jax.distributed import hosts\n"
    program += "assert hosts.find_position(None, None, None, 5) is None and hosts.count() == 1\n"
    program += "assert not xla_bridge.backends_are_initialized() and distributed.global_state.client is None"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_places():
    assert find("10.0.0.2:8482", "3", 2) == HostPosition("10.0.0.2:8482", 3, 2)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("x:1", None, None), "--coordinator and --host need --hosts=N"),
        ((None, None, 1), "--coordinator and --host need --hosts=N"),
        ((None, "2", 0), "--hosts=2 needs --coordinator=HOST:PORT"),
        (("x:1", "2", None), "--hosts=2 needs --host=I"),
        (("x:1", "2", 2), "--host must be from 0 to 1, as --hosts=2; got 2"),
        (("x:1", "2", -1), "--host must be from 0 to 1"),
        (("x", "2", 1), "--coordinator must be HOST:PORT"),
        (("x:1", "two", 1), "--hosts must be a number from 1 on, or auto, got 'two'"),
        (("x:1", "0", 0), "--hosts must be a number from 1 on"),
        (("x:1", "auto", None), "leave the other flags out"),
        ((None, "auto", None), "--hosts=auto found no Cloud TPU pod slice"),
    ],
)
def test_impossible_flags(flags, message):
    with pytest.raises(ValueError, match=message):
        find(*flags)


def test_slurm_is_found(monkeypatch):
    job = {"JOB_ID": "5000", "STEP_NODELIST": "node[3,7]", "NTASKS": "2", "PROCID": "1", "LOCALID": "0"}
    for name, value in job.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    assert find(number="auto") == HostPosition(f"node3:{5000 % 2**12 + 65535 - 2**12 + 1}", 2, 1, (0,))
    assert find() is None  # only when asked for: a job may hold several runs of one host


def test_a_tpu_pod_slice_is_found_without_a_flag_and_a_single_worker_needs_no_others(monkeypatch):
    monkeypatch.setattr(hosts, "_on_cloud_tpu", lambda: True)
    for count, expected in ((4, HostPosition("10.1.0.1:8482", 4, 3)), (1, None)):
        found = ("10.1.0.1:8482", count, 3 % count, None)
        monkeypatch.setattr(
            hosts.clusters.ClusterEnv, "auto_detect_unset_distributed_params", lambda *_, found=found: found
        )
        assert find() == expected
        assert find(number="1") is None  # said by the user: this worker alone


def test_a_metadata_server_that_does_not_answer(monkeypatch):
    def fails(*_):
        raise ConnectionError("no route to metadata.google.internal")

    monkeypatch.setattr(hosts, "_on_cloud_tpu", lambda: True)
    monkeypatch.setattr(hosts.clusters.ClusterEnv, "auto_detect_unset_distributed_params", fails)
    with pytest.raises(ValueError, match="cannot find out which hosts there are.*no route.*or --hosts=1"):
        find()


@pytest.fixture
def three(monkeypatch):
    return FakeHosts(monkeypatch, 3)


def test_exchange_keeps_the_order(three):
    def task(host):
        time.sleep(0.05 * (2 - host))
        return hosts.exchange("a", {"from": host}), hosts.exchange("b", -host)

    assert three.run(task) == [([{"from": 0}, {"from": 1}, {"from": 2}], [0, -1, -2])] * 3


def test_the_first_alone_makes(three):
    made = []
    assert (
        three.run(lambda host: hosts.from_first("a", lambda: made.append(host) or {"x": [1, None]}))
        == [{"x": [1, None]}] * 3
    )
    assert made == [0]


def test_an_error_of_the_first_is_everyones(three):
    def task(host):
        return hosts.from_first("a", lambda: open("/not/there"))

    def guarded(host):
        try:
            return task(host)
        except FileNotFoundError as error:
            return error

    first, *others = three.run(guarded)
    assert isinstance(first, FileNotFoundError)
    assert all(
        isinstance(error, ValueError) and "host 0: " in str(error) and "/not/there" in str(error) for error in others
    )


def test_agreement(three):
    assert three.run(lambda host: hosts.agree("their settings", {"a": (1, 2), "b": None})) == [None] * 3


def test_whoever_differs_is_named_on_all(three):
    def task(host):
        hosts.agree("their settings", {"a": 1, "b": 2 if host < 2 else 3} | ({"c": 0} if host == 1 else {}))

    errors = three.run(task)
    assert len({str(error) for error in errors}) == 1
    assert "the hosts differ in their settings" in str(errors[0])
    lines = str(errors[0]).splitlines()[1:]
    assert [line.strip()[:7] for line in lines] == ["host 1 ", "host 2 "]
    assert "c is 0, on host 0 None" in lines[0] and "b is 3, on host 0 2" in lines[1]


def test_a_failure_is_published_before_the_process_ends(three, monkeypatch):
    ended = []
    monkeypatch.setattr(hosts, "leave_at_once", ended.append)
    monkeypatch.setattr(hosts, "LOOK_EVERY", 0.01)
    three.run(lambda host: hosts.abandon(7, "no room") if host == 2 else None)
    assert three.run(lambda host: hosts.look("failure")) == [{"host": 2, "status": 7, "message": "no room"}] * 3
    assert ended == [7]
