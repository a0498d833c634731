"""Hosts with a common cache share the work on the text, and read the same rows there."""

import functools
import json

from tests.data.conftest import text
from tests.multihost.launch import command, finish, start
from tests.test_preparing import log, watch


def test_no_part_of_the_text_is_made_on_two_hosts(tmp_path):
    (tmp_path / "text").mkdir()
    for number in range(30):
        documents = [{"text": text(70 * number + 9 * at, 70 * number + 9 * at + 9)} for at in range(4)]
        (tmp_path / "text" / f"{number:02}.jsonl").write_text("\n".join(map(json.dumps, documents)))
    more = [f"--config.data.cache_dir={tmp_path / 'cache'}", "--config.training.steps=2"]
    arguments = command(tmp_path / "text", tmp_path / "run", *more, "--config.training.evaluate_every=none")
    before = functools.partial(watch, str(tmp_path / "log"), 1500, False, 0.5, 2)
    outputs = finish(start(2, arguments, 1, before=before))
    assert len(log(tmp_path)) > 10 and set(log(tmp_path).values()) == {1}
    assert len({line.split()[1] for line in (tmp_path / "log").read_text().splitlines()}) == 2, outputs
    summary = json.loads((tmp_path / "run" / "corpus.json").read_text())
    [source] = summary["sources"]
    assert source["train"]["rows"] == summary["train rows"] and summary["train documents"] == 114
    kinds = sorted(path.name.split("-")[0] for path in (tmp_path / "cache").iterdir())
    assert kinds == ["files", "rows", "text", "tokenizer"]
