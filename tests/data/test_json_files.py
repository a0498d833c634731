"""Reading JSON: whatever is wrong with a file is one error with its name."""

import pytest

from ag_jax.data.json_files import check_unicode, parse_json, read_json, reading


def test_a_file_is_read(tmp_path):
    file = tmp_path / "a.json"
    file.write_bytes(b'\xef\xbb\xbf{"a": "\xc3\xa4", "b": [1, {"c": null}], "loss": 2}')
    assert (
        read_json(file) == read_json(str(file), dict, {"loss": float}) == {"a": "ä", "b": [1, {"c": None}], "loss": 2}
    )
    file.write_text("[1, 2]")
    assert read_json(file, list) == [1, 2]
    assert parse_json(r'["\ud83d\ude00", "\\ud83d", "\ud55c"]', list) == ["\U0001f600", r"\ud83d", "\ud55c"]
    check_unicode("\U0001f600", "a text")
    for place in (ValueError("a.json: empty"), FileNotFoundError("b.json")):  # these name their file already
        with pytest.raises(type(place)) as caught, reading("a.json"):
            raise place
        assert caught.value is place


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"{", "JSON"),
        (b'{"a": \xff}', "0xff"),
        (b"9" * 5000, "JSON"),
        (b"[]", "list"),
        (b'{"a": "x\\ud83d"}', "ud83d"),
        (b'{"a": "\\ud83d\\ude00",\n"\\ude00": "\\\\ud83d"}', "ude00 in line 2"),
        (b"[" * 100_000 + b"]" * 100_000, "nesting"),
        (b'{"loss": null, "tasks": {}}', "'loss'.*None"),
        (b'{"loss": 2, "more": []}', "'tasks'.*nothing"),
    ],
)
def test_a_damaged_file_is_named(content, named, tmp_path):
    (tmp_path / "damaged.json").write_bytes(content)
    with pytest.raises(ValueError, match=rf"damaged\.json.*{named}"):
        read_json(tmp_path / "damaged.json", dict, {"loss": float, "tasks": dict})


FAULTS = {
    "'key'": lambda: {}["key"],
    "TypeError": lambda: 1 + "a",
    "OverflowError": lambda: int(float("inf")),
    "0xff": lambda: bytes([255]).decode(),
    "a text": lambda: check_unicode("a\ud800", "a text"),
}


@pytest.mark.parametrize("named", FAULTS)
def test_any_fault_of_code_that_reads_a_file_is_named(named):
    with pytest.raises(ValueError, match=rf"a\.json.*{named}.*fetch it"), reading("a.json", "fetch it"):
        FAULTS[named]()
