"""Tasks from TFDS: small sets with the features of the real ones, prepared here without TensorFlow."""

import pathlib

import numpy as np
import pytest
import tensorflow_datasets as tfds

from ag_jax.data.tasks.catalogue import TASKS
from ag_jax.data.tasks.readers import find_files, load
from ag_jax.data.tasks.task import Choices, Question, TaggedSentence, Texts

F = tfds.features
TAGS = ["O", "B-PER", "I-PER", "B-ORG", "I-ORG", "B-LOC", "I-LOC", "B-MISC", "I-MISC"]
INT, TEXTS = np.int32, F.Sequence(F.Text())


class Small(tfds.core.GeneratorBasedBuilder):
    """A data set of given features and records; `root` makes one for each entry of `PREPARED`."""

    VERSION = tfds.core.Version("1.0.0")
    given: tuple

    def _info(self):
        return self.dataset_info_from_configs(features=F.FeaturesDict(self.given[0]))

    def _split_generators(self, dl_manager):
        return {split: enumerate(records) for split, records in self.given[1].items()}

    def _generate_examples(self):
        raise NotImplementedError


def texts(*names, **others):
    return {name: F.Text() for name in names} | others


NLI = texts("premise", "hypothesis", label=F.ClassLabel(names=["entailment", "neutral", "contradiction"]), idx=INT)
TRUTH = F.ClassLabel(names=["False", "True"])
SQUAD = texts("id", "title", "context", "question", answers=F.Sequence({"text": F.Text(), "answer_start": INT}))
ANNA = {"id": "a", "title": "T", "context": "Anna met Bo.", "question": "Who?"}
ANSWERS = [{"text": ["Anna", "Bo"], "answer_start": [0, 9]}, {"text": ["Cleo"], "answer_start": [3]}]
# Of these contexts TFDS has cut off spaces, of the last one more than a context may begin with.
ANSWERS += [{"text": ["Bo"], "answer_start": [9 + more]} for more in (2, 16, 17)]
# Lists of lists are written by TensorFlow alone, but they are stored as these two, so `root` can pretend.
REAL_RACE = texts("article", "example_id", questions=TEXTS, answers=TEXTS, options=F.Sequence(TEXTS))
RACE = REAL_RACE | {"options": {"ragged_flat_values": TEXTS, "ragged_row_lengths_0": F.Sequence(np.int64)}}
ARTICLE = {"article": "A", "questions": ["Q?", "R?"], "answers": ["A", "B"]}
ARTICLE |= {"options": {"ragged_flat_values": ["x", "y", "z", "w", "v"], "ragged_row_lengths_0": [2, 3]}}
MULTIRC = texts(
    "paragraph", "question", "answer", label=TRUTH, idx=dict.fromkeys(("paragraph", "question", "answer"), INT)
)
WSC = texts("text", "span1_text", "span2_text", label=TRUTH, span1_index=INT, span2_index=INT, idx=INT)
RECORD = texts("passage", "query", entities=TEXTS, answers=TEXTS, idx={"passage": INT, "query": INT})
PREPARED = {  # (data set, config): features, records of each split; the labels of a test set are -1
    ("Glue", "mnli"): (NLI, {
        "validation_matched": [{"premise": "Grüße", "hypothesis": "H", "label": "contradiction", "idx": 4}],
        "test_mismatched": [{"premise": "P", "hypothesis": "H", "label": -1, "idx": 5}]}),
    ("Glue", "ax"): (NLI, {"test": [{"premise": "D", "hypothesis": "I", "label": -1, "idx": 6}]}),
    ("Glue", "stsb"): (texts("sentence1", "sentence2", label=np.float32, idx=INT), {
        "train": [{"sentence1": "A", "sentence2": "B", "label": 3.5, "idx": 1}],
        "test": [{"sentence1": "A", "sentence2": "B", "label": -1.0, "idx": 2}]}),
    ("Squad", "v1.1"): (SQUAD, {"train": [ANNA | {"answers": answers} for answers in ANSWERS]}),
    ("Squad", "v2.0"): (SQUAD | {"is_impossible": np.bool_}, {
        "validation": [ANNA | {"is_impossible": True, "answers": {"text": [], "answer_start": []}}]}),
    ("Race", "high"): (RACE, {"dev": [ARTICLE | {"example_id": "high"}]}),
    ("Race", "middle"): (RACE, {"dev": [ARTICLE | {"example_id": "middle"}]}),
    ("Anli", "r3"): (texts("uid", "context", "hypothesis", label=NLI["label"]), {
        "test": [{"uid": "u", "context": "C", "hypothesis": "H", "label": "neutral"}]}),
    ("SuperGlue", "multirc"): (MULTIRC, {"train": [{"paragraph": "P", "question": "Q", "answer": "A", "label": "True",
        "idx": {"paragraph": 3, "question": 4, "answer": 5}}]}),
    ("SuperGlue", "wsc.fixed"): (WSC, {"test": [{"text": "Ann ran, she said.", "span1_index": 0, "span2_index": 2,
        "span1_text": "Ann", "span2_text": "she", "idx": 8, "label": -1}]}),
    ("SuperGlue", "record"): (RECORD, {"train": [{"passage": "P", "query": "@placeholder ran", "entities": ["A", "B"],
        "answers": ["B"], "idx": {"passage": 0, "query": 1}}]}),
    ("Hellaswag", None): (texts("context", "activity_label", endings=TEXTS, label=INT), {
        "validation": [{"context": "C", "endings": list("abcd"), "label": 3, "activity_label": "x"}]}),
    ("Conll2003", None): ({"tokens": TEXTS, "ner": F.Sequence(F.ClassLabel(names=TAGS))}, {
        "dev": [{"tokens": ["Anna", "Lee", "ran"], "ner": ["B-PER", "I-PER", "O"]}]}),
}  # fmt: skip
PAIR = (("P", "A ran"), ("P", "B ran"))
SETS = [
    ("mnli", "validation", (Texts("4", "Grüße", "H", 2),)),
    ("mnli", "test_mismatched", (Texts("5", "P", "H", None),)),
    ("mnli", "diagnostic", (Texts("6", "D", "I", None),)),
    ("stsb", "train", (Texts("1", "A", "B", 3.5),)),
    ("stsb", "test", (Texts("2", "A", "B", None),)),
    ("squad2", "validation", (Question("a", "Who?", "Anna met Bo.", ()),)),
    ("race_high", "validation",
        (Choices("high-0", (("A", "Q? x"), ("A", "Q? y")), (0,)),
        Choices("high-1", (("A", "R? z"), ("A", "R? w"), ("A", "R? v")), (1,)))),
    ("anli_r3", "test", (Texts("u", "C", "H", 1),)),
    ("multirc", "train", (Texts("3-4-5", "P", "Q A", 1, "3-4"),)),
    ("wsc", "test", (Texts("8", "* Ann * ran, # she # said.", None, None),)),
    ("record", "train", (Choices("1", PAIR, (1,), ("A", "B")),)),
    ("hellaswag", "validation", (Choices("0", tuple(("C", ending) for ending in "abcd"), (3,)),)),
    ("conll2003", "validation", (TaggedSentence("0", ("Anna", "Lee", "ran"), ("B-PER", "I-PER", "O")),)),
]  # fmt: skip


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> pathlib.Path:
    directory = tmp_path_factory.mktemp("tfds")
    for (name, config), given in PREPARED.items():
        configs = [tfds.core.BuilderConfig(name=config)] if config else []
        with tfds.core.registered.skip_registration():  # several configs have classes of one name
            small = type(name, (Small,), {"given": given, "BUILDER_CONFIGS": configs, "__module__": __name__})
        builder = small(config=config, data_dir=directory, file_format="array_record")
        builder.download_and_prepare()
        if name == "Race":
            F.FeaturesDict(REAL_RACE).save_config(builder.data_dir)
    return directory


@pytest.fixture(autouse=True)
def prepared(root, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(root))


def test_examples_of_prepared_sets(root):
    for name, split, expected in SETS:
        assert load(TASKS[name], "", split).items == expected, name
    levels = load(TASKS["race"], "", "validation")
    assert [example.id for example in levels] == ["middle-0", "middle-1", "high-0", "high-1"]
    # The files are those of the validation split, which is `dev` in TFDS, and not those of other splits.
    found = find_files(TASKS["race_high"], "")["validation"]
    assert found == [root / "race/high/1.0.0/race-dev.array_record-00000-of-00001"]


def test_answers_that_white_space_moved_are_found_and_others_refused():
    with pytest.raises(ValueError, match=r"(?s)(?=.*'Bo' at character 26 )(?=.*'Cleo' at character 3 )"):
        load(TASKS["squad1"], "", "train")
    examples = load(TASKS["squad1"], "", "train", skip_malformed=True)
    assert examples.skipped == 2
    assert sorted(example.answers for example in examples) == [(("Anna", 0), ("Bo", 9)), (("Bo", 9),), (("Bo", 9),)]


def test_a_split_that_was_not_prepared():
    with pytest.raises(ValueError, match="'train'"):
        load(TASKS["mnli"], "", "train")
