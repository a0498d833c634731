"""Names of files that do not depend on where the files are."""

import io
import tarfile

import pytest

from ag_jax.data.probes import files


@pytest.mark.parametrize("given", ["litbank", "./litbank", "{here}/litbank"])
def test_names_of_members_do_not_depend_on_the_path(given, tmp_path, monkeypatch):
    """Also if a member of an archive has the name of the given folder, or a file the words of a place."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "litbank"
    (folder / "deep").mkdir(parents=True)
    with tarfile.open(folder / "x.tar", "w") as archive:
        for name in ("litbank/coref/a.conll", "a of litbank.conll"):
            member = tarfile.TarInfo(name)
            member.size = 4
            archive.addfile(member, io.BytesIO(b"text"))
    (folder / "deep" / "b.conll").write_text("text")
    path = given.replace("{here}", str(tmp_path))
    places = [place for place, _ in files.texts(path, (".conll",))]
    expected = ["deep/b.conll", "x.tar/a of litbank.conll", "x.tar/litbank/coref/a.conll"]
    assert sorted(files.below(place, path) for place in places) == expected
