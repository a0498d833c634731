"""Reading JSON: whatever is wrong with a file is one error with its name."""

import pytest

from ag_jax.data.json_files import DEEPEST, parse_json, read_json


def test_a_file_is_read(tmp_path):
    file = tmp_path / "a.json"
    file.write_bytes(b'\xef\xbb\xbf{"a": "\xc3\xa4", "b": [1, {"c": null}]}')
    assert read_json(file) == read_json(str(file)) == {"a": "ä", "b": [1, {"c": None}]}
    file.write_text("[1, 2]")
    assert read_json(file, list) == [1, 2]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "expected JSON, got text"),
        (b"{", "expected JSON, got text"),
        (b'{"a": \xff}', "can't decode byte 0xff"),
        (b"9" * 5000, "expected JSON, got text"),
        (b"[]", "expected a JSON object, got list"),
        (b'{"a": "x\\ud83d"}', r"ud83d, half of a surrogate pair"),
        (b'{"a": "\\ud83d\\ude00",\n"\\ude00": "\\\\ud83d"}', r"ude00 in line 2, half"),
        (b"null", "expected a JSON object, got NoneType"),
        (b'{"a":' * 3000 + b"1" + b"}" * 3000, "nested at most"),
        (b"[" * 100_000 + b"]" * 100_000, "nested at most"),
        (b'{"a":' * (DEEPEST + 1) + b"1" + b"}" * (DEEPEST + 1), "nested at most"),
    ],
)
def test_a_damaged_file_is_named(content, said, tmp_path):
    file = tmp_path / "damaged.json"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=said) as caught:
        read_json(file)
    assert str(file) in str(caught.value)


def test_fields_that_an_object_must_have(tmp_path):
    file = tmp_path / "a.json"
    fields = {"loss": float, "tasks": dict}
    file.write_text('{"loss": 2, "tasks": {}, "more": 3}')
    assert read_json(file, dict, fields) == {"loss": 2, "tasks": {}, "more": 3}
    for content, said in (
        ("{}", "a.json: expected a JSON number under the key 'loss', got nothing"),
        ('{"loss": null, "tasks": {}}', "expected a JSON number under the key 'loss', got None"),
        ('{"loss": 2, "tasks": []}', r"expected a JSON object under the key 'tasks', got \[\]"),
    ):
        file.write_text(content)
        with pytest.raises(ValueError, match=said):
            read_json(file, dict, fields)


def test_the_deepest_nesting_that_is_read():
    text = '{"a":' * DEEPEST + "1" + "}" * DEEPEST
    assert parse_json(text)["a"]


def test_surrogate_pairs_and_escaped_backslashes_are_text():
    assert parse_json(r'["\ud83d\ude00", "\\ud83d", "\ud55c"]', list) == ["\U0001f600", r"\ud83d", "\ud55c"]


def test_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere.json"):
        read_json(tmp_path / "nowhere.json")
