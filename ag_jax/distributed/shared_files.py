"""Files that host 0 writes and the other hosts read, on a file system that they share."""

import time

from etils import epath

from ag_jax.distributed import hosts

TIMEOUT = 90.0  # seconds in which a file that one host wrote must show on another; NFS may take a minute


def wait_for(path: epath.Path) -> list[int]:
    """Wait up to `TIMEOUT` seconds until all hosts read the same text in a file; return those hosts that do not.

    The hosts are returned by number. Every host must call this function.
    """
    if hosts.count() == 1:
        return []
    written = hosts.from_first(f"the file {path.name}", path.read_text)
    deadline = time.monotonic() + TIMEOUT
    while not (is_same := path.exists() and path.read_text() == written) and time.monotonic() < deadline:
        time.sleep(0.5)
    return [
        host
        for host, is_same_there in enumerate(hosts.exchange(f"whether {path.name} is shared", is_same))
        if not is_same_there
    ]
