"""Packages of the wheel: ag_jax, and configs/ as ag_jax/configs.

So --config=quickstart is found without a checkout.
"""

import pathlib

import setuptools

HERE = pathlib.Path(__file__).resolve().parent
folders = sorted({path.parent.relative_to(HERE).as_posix() for path in (HERE / "configs").rglob("*.py")})
packaged = {"ag_jax." + folder.replace("/", "."): folder for folder in folders}

setuptools.setup(
    packages=[*setuptools.find_packages(str(HERE), include=["ag_jax*"]), *packaged],
    package_dir=packaged,
)
