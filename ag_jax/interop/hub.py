"""Push an exported model to the Hugging Face hub, through `huggingface_hub`."""

import dataclasses
import pathlib
import re
import shlex
from typing import Any

from ag_jax.interop import sentence_vectors, tensors, tokenizer_files
from ag_jax.interop.front_matter import REPOSITORY
from ag_jax.interop.importing import GENERATION

MAIN = "main"  # the revision that is opened if none is named
# Files that an upload replaces or deletes: transformers would read those of an earlier model beside the new ones.
REPLACED = ("model*.safetensors", tensors.INDEX, GENERATION, *tokenizer_files.NAMES, *sentence_vectors.NAMES)


@dataclasses.dataclass(frozen=True)
class Repository:
    """A repository of the Hugging Face hub that may not exist yet, and the account that writes to it.

    name: OWNER/NAME.
    api: `huggingface_hub.HfApi`.
    private: whether it must be visible only to its owner.
    """

    name: str
    api: Any
    private: bool

    def push(self, directory: pathlib.Path, revision: str = MAIN) -> str:
        """Create the repository if it does not exist, upload a directory to it, and return its address.

        Weights, tokenizer and settings of generation of an earlier model there are deleted.

        revision: the branch to upload to, which is created if it does not exist.

        Raises ValueError, in one line, if the hub does not accept it; the directory stays as it is.
        """
        deleted = " ".join(f"--delete={shlex.quote(pattern)}" for pattern in REPLACED)
        options = deleted if revision == MAIN else f"--revision={revision} {deleted}"
        try:
            address = self.api.create_repo(self.name, private=self.private or None, exist_ok=True)
            # `exist_ok` leaves an existing repository as visible as it is.
            is_public = self.private and not self.api.model_info(self.name).private
            if not is_public:
                branch = {}
                if revision != MAIN:
                    self.api.create_branch(self.name, branch=revision, exist_ok=True)
                    branch = {"revision": revision}
                self.api.upload_folder(
                    repo_id=self.name,
                    folder_path=directory,
                    commit_message="Upload a model exported by ag_jax",
                    delete_patterns=list(REPLACED),
                    **branch,
                )
        except Exception as error:  # exceptions of huggingface_hub, and of libraries below it
            raise ValueError(
                f"the model is saved in {directory}, but the Hugging Face hub did not take it as {self.name} "
                f"({reason(error)}); check that your token may write there, then run: "
                f"hf upload {self.name} {directory} {options}{' --private' if self.private else ''}"
            ) from error
        if is_public:
            raise ValueError(
                f"the model is saved in {directory}, but {self.name} is public, so --private pushed nothing: make it "
                f"private on the hub, then run: hf upload {self.name} {directory} {options}"
            )
        return str(address)


def find(name: str, private: bool = False) -> Repository:
    """Return a hub repository to push to, after a check that the user is logged in to the hub.

    name: NAME or OWNER/NAME; without an owner it belongs to the account that is logged in.

    Raises ValueError, in one line, for another name, and if the hub knows no account.
    """
    if not re.fullmatch(REPOSITORY, name):
        raise ValueError(f"--push must be a name on the Hugging Face hub, NAME or OWNER/NAME, got {name!r}")
    import huggingface_hub  # slow

    try:
        api = huggingface_hub.HfApi()
        account = api.whoami()["name"]
    except Exception as error:  # exceptions of huggingface_hub, and of libraries below it
        raise ValueError(
            f"--push={name}: the Hugging Face hub did not say who you are ({reason(error)}), so nothing was written; "
            "log in with a token that may write: hf auth login"
        ) from error
    return Repository(name if "/" in name else f"{account}/{name}", api, private)


def reason(error: BaseException) -> str:
    """Return an exception's type with the first line of its message."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}".removesuffix(": ")
