"""A SLURM cluster of two nodes on this machine, for the time of a test: munged, slurmctld and two slurmd.

Everything is in one temporary folder, and all ports are free ones. The daemons run in mount namespaces of their own, in
which /etc/hosts has the names of the nodes. Jobs, which the daemons start, see the same. Needs Linux, root, and the
packages `slurm-wlm` and `munge` of Debian.
"""

import contextlib
import os
import pathlib
import re
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence

NODES = ("n1", "n2")
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "scancel", "squeue", "sinfo", "unshare")
CONFIG = """
ClusterName=test
SlurmctldHost={hostname}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
ProctrackType=proctrack/pgid
TaskPlugin=task/none
MpiDefault=none
GresTypes=gpu
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=2,sched_min_interval=100000,bf_interval=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
SlurmdParameters=config_overrides
SlurmdTimeout=10
SlurmctldTimeout=10
KillWait=20
MessageTimeout=5
ReturnToService=2
NodeName=n[1-2] NodeHostname=localhost NodeAddr=127.0.0.1 Port=[{ports[1]}-{ports[2]}] CPUs=2 RealMemory=1000 Gres=gpu:2
PartitionName=test Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1 OverSubscribe=NO GraceTime=30
"""


def lacking() -> str | None:
    """Return why no cluster can be started on this machine; None if it can."""
    if missing := [name for name in PROGRAMS if not _find(name)]:
        return f"needs SLURM, but there is no {', '.join(missing)}: apt-get install slurm-wlm munge"
    if os.geteuid() != 0:
        return "starts daemons of SLURM in a namespace, which only root may"
    done = subprocess.run([_find("unshare"), "--mount", "true"], capture_output=True)
    return None if done.returncode == 0 else "starts daemons in a mount namespace, which this machine does not allow"


def _find(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")


class Cluster:
    """Two nodes of two processors each. Use it in a `with` statement: all daemons and jobs end with it."""

    def __init__(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="slurm-"))  # short: it holds a socket
        self.environment = os.environ | {"SLURM_CONF": str(self.folder / "slurm.conf")}
        self._daemons: dict[str, tuple[subprocess.Popen, str]] = {}

    def __enter__(self) -> "Cluster":
        try:
            self._begin()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _begin(self) -> None:
        (self.folder / "state").mkdir()
        (self.folder / "munge.key").write_bytes(secrets.token_bytes(128))
        (self.folder / "munge.key").chmod(0o600)
        names = " ".join(NODES)
        (self.folder / "hosts").write_text(pathlib.Path("/etc/hosts").read_text() + f"127.0.0.1 {names}\n")
        ports = _ports()
        text = CONFIG.format(hostname=socket.gethostname().split(".")[0], folder=self.folder, ports=ports)
        (self.folder / "slurm.conf").write_text(text)
        (self.folder / "gres.conf").write_text("Name=gpu File=/dev/null,/dev/zero\n")  # two GPUs that nothing can use
        files = {"socket": "socket", "key-file": "key", "pid-file": "pid", "seed-file": "seed", "log-file": "log"}
        options = [f"--{option}={self.folder}/munge.{file}" for option, file in files.items()]
        self._start("munged", ["munged", "--foreground", "--force", *options])
        wait_for(lambda: (self.folder / "munge.socket").exists(), 20, "munged")
        self._start("slurmctld", ["slurmctld", "-D"])
        for node in NODES:
            self.start_node(node)
        wait_for(lambda: self.states() == dict.fromkeys(NODES, "idle"), 60, "the nodes")

    def start_node(self, node: str, private: Sequence[pathlib.Path] = ()) -> None:
        """Start the daemon of a node.

        private: folders in whose place this node has empty ones of its own, as if they were on no shared disk.
        """
        (self.folder / f"spool-{node}").mkdir(exist_ok=True)
        self._start(node, ["slurmd", "-D", "-N", node], private)

    def _start(self, name: str, command: Sequence[str], private: Sequence[pathlib.Path] = ()) -> None:
        """Start a daemon in a mount namespace; `name` is that of the node, or of the program.

        What the daemon starts is in the same namespace, by which it is found, because steps of jobs clear their
        environment and become sessions of their own.
        """
        mounts = [f"mount --bind {self.folder}/hosts /etc/hosts", *(f"mount -t tmpfs none '{at}'" for at in private)]
        script = " && ".join([*mounts, 'exec "$@"'])
        found = [_find(command[0]), *command[1:]]
        with (self.folder / f"{name}.out").open("ab") as output:
            daemon = subprocess.Popen(
                [_find("unshare"), "--mount", "bash", "-c", script, "bash", *found],
                env=self.environment,
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        wait_for(lambda: _namespace(daemon.pid) not in ("", _namespace(os.getpid())), 10, name)
        self._daemons[name] = daemon, _namespace(daemon.pid)

    def kill_node(self, node: str) -> None:
        """Let a node die: everything on it ends at the same moment, and nothing is left to tell SLURM."""
        daemon, namespace = self._daemons.pop(node)
        _kill_all({namespace})
        daemon.wait()

    def run(self, *command: str, check: bool = True) -> str:
        """Run a command of SLURM and return what it prints."""
        done = subprocess.run([_find(command[0]), *command[1:]], env=self.environment, capture_output=True, text=True)
        assert done.returncode == 0 or not check, f"{' '.join(command)}: {done.stdout}{done.stderr}"
        return done.stdout

    def states(self) -> dict[str, str]:
        """Return the state of each node, such as `idle` or `down`, without the marks for those that do not answer."""
        lines = self.run("sinfo", "--noheader", "--Node", "--format=%N %t", "--partition=test", check=False)
        return dict(line.split() for line in lines.splitlines())

    def jobs(self, number: str) -> list[dict[str, str]]:
        """Return what `scontrol show job` says about each task of an array."""
        shown = self.run("scontrol", "--oneliner", "show", "job", number, check=False)
        return [dict(re.findall(r"(\S+?)=(\S*)", line)) for line in shown.splitlines() if "JobId=" in line]

    def wait(self, number: str, seconds: float, *states: str) -> list[dict[str, str]]:
        """Wait until a job, or all tasks of an array, are in one of the states; return what `jobs` says then."""
        wanted = states or ("COMPLETED", "FAILED", "TIMEOUT", "CANCELLED", "NODE_FAIL")
        wait_for(lambda: all(job["JobState"] in wanted for job in self.jobs(number)), seconds, f"job {number}")
        return self.jobs(number)

    def __exit__(self, *error) -> None:
        for daemon, _ in reversed(self._daemons.values()):  # munged last, because the others need it to end
            daemon.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.wait(5)
        _kill_all({namespace for _, namespace in self._daemons.values()})  # steps of jobs outlive the daemons
        for daemon, _ in self._daemons.values():
            daemon.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def wait_for(condition: Callable[[], bool], seconds: float, what: str) -> None:
    """Wait until a condition holds. Raises AssertionError, which names `what`, after so many seconds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds:.0f} seconds for {what}"
        time.sleep(0.3)


def _ports() -> list[int]:
    """Return three ports that are free now, the last two of them neighbours."""
    while True:
        with socket.socket() as probe, socket.socket() as first, socket.socket() as second:
            probe.bind(("", 0))
            first.bind(("", 0))
            after = first.getsockname()[1] + 1
            try:
                second.bind(("", after))
            except (OSError, OverflowError):
                continue
            return [probe.getsockname()[1], after - 1, after]


def _namespace(pid: int) -> str:
    """Return the mount namespace of a process; empty if it has ended."""
    try:
        return os.readlink(f"/proc/{pid}/ns/mnt")
    except OSError:
        return ""


def _kill_all(namespaces: set[str]) -> None:
    """Kill all processes in mount namespaces that a cluster made."""
    stopped: set[int] = set()
    pids = [int(path.name) for path in pathlib.Path("/proc").iterdir() if path.name.isdigit()]
    while found := {pid for pid in pids if _namespace(pid) in namespaces} - stopped:
        for pid in found:  # stopped first, because who survives another process reports its end
            _send(pid, signal.SIGSTOP)
        stopped |= found
        pids = [int(path.name) for path in pathlib.Path("/proc").iterdir() if path.name.isdigit()]
    for pid in stopped:
        _send(pid, signal.SIGKILL)


def _send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
