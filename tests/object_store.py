"""An in-memory object store for paths at `gs://`, as strict as a real one where disks are lenient."""

import etils.epath.backend as backends
from fsspec.implementations import memory

from ag_jax.data.text import remote


class ObjectStore(memory.MemoryFileSystem):
    """An object store in which files appear whole or not at all, and cannot be appended to or renamed."""

    cachable = False  # every test has its own

    def __init__(self):
        super().__init__()
        self.store, self.pseudo_dirs = {}, [""]
        self.writes = 0

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(path.removeprefix("gs://") if isinstance(path, str) else path)

    def _open(self, path, mode="rb", **options):
        if "a" in mode or "+" in mode:
            raise NotImplementedError(f"an object store cannot append to {path}")
        self.writes += "w" in mode
        return super()._open(path, mode=mode, **options)

    def mv(self, path1, path2, **_):
        raise NotImplementedError(f"an object store cannot rename {path1} to {path2} at once")

    rename = move = mv


def install(monkeypatch) -> ObjectStore:
    """Redirect all paths at `gs://` to a new store."""
    store = ObjectStore()
    fs = backends._FileSystemSpecBackend.fs

    def chosen(self, path):
        return store if str(path).startswith("gs://") else fs(self, path)

    monkeypatch.setattr(backends._FileSystemSpecBackend, "fs", chosen)
    monkeypatch.setattr(remote, "_filesystem", lambda path: store)
    monkeypatch.setenv("EPATH_USE_TF", "false")
    return store
