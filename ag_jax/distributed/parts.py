"""Shares of a work that several processes do without talking to each other: the flag `--part=K/N`."""

import re


def parse_part(text: str) -> tuple[int, int]:
    """Parse the flag `--part=K/N` into (K, N). Raises ValueError for anything else."""
    match = re.fullmatch(r"([1-9][0-9]{0,5})/([1-9][0-9]{0,5})", text)
    if not match or int(match[1]) > int(match[2]):
        raise ValueError(f"--part must be K/N with K from 1 to N, such as --part=2/4, got {text!r}")
    return int(match[1]), int(match[2])
