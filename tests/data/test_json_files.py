"""Reading JSON: whatever is wrong with a file is one error with its name."""

import pytest

from ag_jax.data.json_files import parse_json, read_json, reading


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
        (b"[" * 100_000 + b"]" * 100_000, "nesting"),
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


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("{}['key']", "expected the key 'key', got none"),
        ("[][0]", "IndexError"),
        ("1 + 'a'", "TypeError"),
        ("(1).items()", "AttributeError"),
        ("float('inf') // 1 and int(float('inf'))", "OverflowError"),
        ("bytes([255]).decode()", "can't decode byte 0xff"),
        ("int('x')", "invalid literal"),
    ],
)
def test_any_fault_of_code_that_reads_a_file_is_named(code, said):
    message = rf"(?s)^a\.json, line 3: .*{said}.*; fetch it again$"
    with pytest.raises(ValueError, match=message), reading("a.json, line 3", "fetch it again"):
        eval(code)


def test_a_message_that_names_the_place_and_a_missing_file_stay_as_they_are():
    for error in (ValueError("a.json: empty"), FileNotFoundError("b.json"), BrokenPipeError()):
        with pytest.raises(type(error)) as caught, reading("a.json"):
            raise error
        assert caught.value is error


def test_surrogate_pairs_and_escaped_backslashes_are_text():
    assert parse_json(r'["\ud83d\ude00", "\\ud83d", "\ud55c"]', list) == ["\U0001f600", r"\ud83d", "\ud55c"]


def test_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere.json"):
        read_json(tmp_path / "nowhere.json")
