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

from tests.multihost.launch import free_port

NODES = ("n1", "n2")
PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"
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
NodeName=n[1-2] NodeHostname=localhost NodeAddr=127.0.0.1 Port=[{ports[1]},{ports[2]}] CPUs=2 RealMemory=1000 Gres=gpu:2
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=test Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1 OverSubscribe=NO GraceTime=30
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=2 OverSubscribe=NO PreemptMode=OFF
"""


def lacking() -> str | None:
    """Return why no cluster can be started on this machine; None if it can."""
    if missing := [name for name in PROGRAMS if not shutil.which(name, path=PATH)]:
        return f"needs SLURM, but there is no {', '.join(missing)}: apt-get install slurm-wlm munge"
    if os.geteuid() != 0:
        return "starts daemons of SLURM in a namespace, which only root may"
    done = subprocess.run(["unshare", "--mount", "true"], capture_output=True)
    return None if done.returncode == 0 else "starts daemons in a mount namespace, which this machine does not allow"


class Cluster:
    """Two nodes of two processors each. Use it in a `with` statement: all daemons and jobs end with it."""

    def __init__(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="slurm-"))  # short: it holds a socket
        self.environment = os.environ | {"PATH": PATH, "SLURM_CONF": str(self.folder / "slurm.conf")}
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
        ports = [free_port() for _ in range(3)]
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
        self.wait_until_idle()

    def start_node(self, node: str) -> None:
        """Start the daemon of a node."""
        (self.folder / f"spool-{node}").mkdir(exist_ok=True)
        self._start(node, ["slurmd", "-D", "-N", node])

    def _start(self, name: str, command: Sequence[str]) -> None:
        """Start a daemon in a mount namespace; `name` is that of the node, or of the program.

        What the daemon starts is in the same namespace, by which it is found, because steps of jobs clear their
        environment and become sessions of their own.
        """
        script = f'mount --bind {self.folder}/hosts /etc/hosts && exec "$@"'
        with (self.folder / f"{name}.out").open("ab") as output:
            daemon = subprocess.Popen(
                ["unshare", "--mount", "bash", "-c", script, "bash", *command],
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
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True)
        assert done.returncode == 0 or not check, f"{' '.join(command)}: {done.stdout}{done.stderr}"
        return done.stdout

    def states(self) -> dict[str, str]:
        """Return the state of each node, such as `idle` or `down`, without the marks for those that do not answer."""
        lines = self.run("sinfo", "--noheader", "--Node", "--format=%N %t", "--partition=test", check=False)
        return dict(line.split() for line in lines.splitlines())

    def wait_until_idle(self) -> None:
        wait_for(lambda: self.states() == dict.fromkeys(NODES, "idle"), 60, "idle nodes")

    def jobs(self, number: str) -> list[dict[str, str]]:
        """Return what `scontrol show job` says about each task of an array."""
        shown = self.run("scontrol", "--oneliner", "show", "job", number, check=False)
        return [dict(re.findall(r"(\S+?)=(\S*)", line)) for line in shown.splitlines() if "JobId=" in line]

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


def _namespace(pid: int | str) -> str:
    """Return the mount namespace of a process; empty if it has ended, or if `pid` is no number."""
    try:
        return os.readlink(f"/proc/{pid}/ns/mnt")
    except OSError:
        return ""


def _kill_all(namespaces: set[str]) -> None:
    """Kill all processes in mount namespaces that a cluster made."""
    # They are stopped first, because a process that survives another one reports its end.
    for number in (signal.SIGSTOP, signal.SIGKILL):
        sent: set[int] = set()
        while found := {int(name) for name in os.listdir("/proc") if _namespace(name) in namespaces} - sent:
            for pid in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            sent |= found
