"""The hosts of a run: flags to positions, and what hosts tell each other."""

import time

import pytest

from ag_jax.distributed import hosts
from ag_jax.distributed.rollcall import HostPosition
from tests.distributed.fake_hosts import FakeHosts


def find(coordinator=None, number=None, host=None):
    return hosts.find_position(coordinator, number, host, 5)


def test_positions_of_flags():
    assert find() is None and find(number="1") is None and find("x:1", "1", 0) is None
    assert find("10.0.0.2:8482", "3", 2) == HostPosition("10.0.0.2:8482", 3, 2)
    assert find("10.0.0.2:8482", "3", 0) == HostPosition("10.0.0.2:8482", 3, 0)


def test_one_host_exchanges_nothing():
    assert (hosts.count(), hosts.index(), hosts.is_first()) == (1, 0, True)
    assert hosts.exchange("x", 3) == [3] and hosts.from_first("x", lambda: 4) == 4
    hosts.agree("x", {"a": 1})
    hosts.abandon(1, "it returns")


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (("x:1", None, None), "--hosts=N"),
        ((None, None, 1), "--hosts=N"),
        ((None, "2", 0), "--coordinator=HOST:PORT"),
        (("x:1", "2", None), "--host=I"),
        (("x:1", "2", 2), "--host must be from 0 to 1"),
        (("x:1", "2", -1), "--host must be from 0 to 1"),
        (("x", "2", 1), "--coordinator must be"),
        (("x:1", "two", 1), "--hosts must be"),
        (("x:1", "0", 0), "--hosts must be"),
        (("x:1", "auto", None), "--hosts=auto"),
        ((None, "auto", None), "--hosts=auto found no"),
    ],
)
def test_impossible_flags(flags, named):
    with pytest.raises(ValueError, match=named):
        find(*flags)


def test_slurm_is_found(monkeypatch):
    job = {"JOB_ID": "5000", "STEP_NODELIST": "node[3,7]", "NTASKS": "2", "PROCID": "1", "LOCALID": "0"}
    for name, value in job.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    assert find(number="auto") == HostPosition(f"node3:{5000 % 2**12 + 65535 - 2**12 + 1}", 2, 1, (0,))
    assert find() is None  # only when asked for: a job may hold several runs of one host


def test_a_tpu_pod_slice_is_found_without_a_flag(monkeypatch):
    monkeypatch.setattr(hosts, "_on_cloud_tpu", lambda: True)
    detection = hosts.clusters.ClusterEnv, "auto_detect_unset_distributed_params"
    for count, expected in ((4, HostPosition("10.1.0.1:8482", 4, 3)), (1, None)):
        found = ("10.1.0.1:8482", count, 3 % count, None)
        monkeypatch.setattr(*detection, lambda *_, found=found: found)
        assert find() == expected
        assert find(number="1") is None  # said by the user: this worker alone

    def fails(*_):
        raise ConnectionError("no route to metadata.google.internal")

    monkeypatch.setattr(*detection, fails)
    with pytest.raises(ValueError, match=r"no route.*--hosts=1"):
        find()


@pytest.fixture
def three(monkeypatch):
    return FakeHosts(monkeypatch, 3)


def test_exchange_keeps_the_order(three):
    def task(host):
        time.sleep(0.05 * (2 - host))
        return hosts.exchange("a", {"from": host}), hosts.exchange("b", -host)

    assert three.run(task) == [([{"from": 0}, {"from": 1}, {"from": 2}], [0, -1, -2])] * 3


def test_the_first_alone_makes_and_its_error_is_everyones(three):
    made = []

    def task(host):
        value = hosts.from_first("a", lambda: made.append(host) or {"x": [1, None]})
        try:
            return value, hosts.from_first("b", lambda: open("/not/there"))
        except FileNotFoundError as error:
            return value, error
        except ValueError as error:
            return value, str(error)

    values, errors = zip(*three.run(task), strict=True)
    assert values == ({"x": [1, None]},) * 3 and made == [0]
    assert isinstance(errors[0], FileNotFoundError)
    assert all("host 0: " in error and "/not/there" in error for error in errors[1:])


def test_whoever_differs_is_named_on_all(three):
    def task(host):
        hosts.agree("their settings", {"a": (1, 2), "b": None})
        hosts.agree("their settings", {"a": 1, "b": 2 if host < 2 else 3} | ({"c": 0} if host == 1 else {}))

    errors = three.run(task)
    assert len({str(error) for error in errors}) == 1
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
