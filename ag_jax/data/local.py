"""Check that settings name files on a disk, where these files cannot be read from an object store."""

from ag_jax.data.records import remote


def check(name: str, value: str | None) -> None:
    """Raise ValueError if the value of a setting is an address in an object store, such as gs://BUCKET/FILES."""
    if value and remote.is_remote(value):
        raise ValueError(
            f"{name}={value} must be on a disk: copy the files there, and give the path of the copy (text for "
            "pre-training, checkpoints and --workdir may be in an object store)"
        )
