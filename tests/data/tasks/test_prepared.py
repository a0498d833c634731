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


class Small(tfds.core.GeneratorBasedBuilder):
    """A data set of given features and records; the classes below say which."""

    VERSION = tfds.core.Version("1.0.0")
    BUILDER_CONFIGS = [
        tfds.core.BuilderConfig(name=name)
        for name in (
            "mnli",
            "ax",
            "stsb",
            "v1.1",
            "v2.0",
            "high",
            "middle",
            "r3",
            "record",
            "multirc",
            "wsc.fixed",
            "plain",
        )
    ]
    features: dict
    splits: dict

    def _info(self):
        return self.dataset_info_from_configs(features=F.FeaturesDict(self.features[self.builder_config.name]))

    def _split_generators(self, dl_manager):
        return {split: enumerate(records) for split, records in self.splits[self.builder_config.name].items()}

    def _generate_examples(self):
        raise NotImplementedError


NLI = F.ClassLabel(names=["entailment", "neutral", "contradiction"])
SQUAD = {
    "id": F.Text(),
    "title": F.Text(),
    "context": F.Text(),
    "question": F.Text(),
    "answers": F.Sequence({"text": F.Text(), "answer_start": np.int32}),
}
ANNA = {
    "id": "a",
    "title": "T",
    "context": "Anna met Bo.",
    "question": "Who?",
    "answers": {"text": ["Anna", "Bo"], "answer_start": [0, 9]},
}


class Glue(Small):
    """GLUE."""

    features = {
        "mnli": {"premise": F.Text(), "hypothesis": F.Text(), "label": NLI, "idx": np.int32},
        "ax": {"premise": F.Text(), "hypothesis": F.Text(), "label": NLI, "idx": np.int32},
        "stsb": {"sentence1": F.Text(), "sentence2": F.Text(), "label": np.float32, "idx": np.int32},
    }
    splits = {
        "mnli": {
            "validation_matched": [{"premise": "Grüße", "hypothesis": "H", "label": "contradiction", "idx": 4}],
            "test_mismatched": [{"premise": "P", "hypothesis": "H", "label": -1, "idx": 5}],
        },
        "ax": {"test": [{"premise": "D", "hypothesis": "I", "label": -1, "idx": 6}]},
        "stsb": {
            "train": [{"sentence1": "A", "sentence2": "B", "label": 3.5, "idx": 1}],
            "test": [{"sentence1": "A", "sentence2": "B", "label": -1.0, "idx": 2}],
        },
    }


class Squad(Small):
    """SQuAD: of the first context TFDS has cut off two spaces, which the places do not know."""

    moved = ANNA | {"answers": {"text": ["Bo"], "answer_start": [11]}}
    features = {"v1.1": SQUAD, "v2.0": SQUAD | {"is_impossible": np.bool_}}
    splits = {
        "v1.1": {"train": [ANNA, moved, ANNA | {"answers": {"text": ["Cleo"], "answer_start": [3]}}]},
        "v2.0": {"validation": [ANNA | {"is_impossible": True, "answers": {"text": [], "answer_start": []}}]},
    }


ARTICLE = {"article": "A", "questions": ["Q?", "R?"], "answers": ["A", "B"]}
REAL_RACE = {
    "article": F.Text(),
    "questions": F.Sequence(F.Text()),
    "options": F.Sequence(F.Sequence(F.Text())),
    "answers": F.Sequence(F.Text()),
    "example_id": F.Text(),
}


class Race(Small):
    """RACE. Lists of lists are written by TensorFlow alone, but they are stored as these two, so `root` can pretend."""

    stored = REAL_RACE | {
        "options": {"ragged_flat_values": F.Sequence(F.Text()), "ragged_row_lengths_0": F.Sequence(np.int64)}
    }
    options = {"ragged_flat_values": ["x", "y", "z", "w", "v"], "ragged_row_lengths_0": [2, 3]}
    features = {"high": stored, "middle": stored}
    splits = {
        "high": {"dev": [ARTICLE | {"example_id": "high", "options": options}]},
        "middle": {"dev": [ARTICLE | {"example_id": "middle", "options": options}]},
    }


class Anli(Small):
    """ANLI."""

    features = {"r3": {"uid": F.Text(), "context": F.Text(), "hypothesis": F.Text(), "label": NLI}}
    splits = {"r3": {"test": [{"uid": "u", "context": "C", "hypothesis": "H", "label": "neutral"}]}}


class SuperGlue(Small):
    """ReCoRD, MultiRC and WSC; the labels of a test set are -1."""

    features = {
        "multirc": {
            "paragraph": F.Text(),
            "question": F.Text(),
            "answer": F.Text(),
            "idx": {"paragraph": np.int32, "question": np.int32, "answer": np.int32},
            "label": F.ClassLabel(names=["False", "True"]),
        },
        "wsc.fixed": {
            "text": F.Text(),
            "span1_index": np.int32,
            "span2_index": np.int32,
            "span1_text": F.Text(),
            "span2_text": F.Text(),
            "idx": np.int32,
            "label": F.ClassLabel(names=["False", "True"]),
        },
        "record": {
            "passage": F.Text(),
            "query": F.Text(),
            "entities": F.Sequence(F.Text()),
            "answers": F.Sequence(F.Text()),
            "idx": {"passage": np.int32, "query": np.int32},
        },
    }
    splits = {
        "multirc": {
            "train": [
                {"paragraph": "P", "question": "Q", "answer": "A", "label": "True"}
                | {"idx": {"paragraph": 3, "question": 4, "answer": 5}}
            ]
        },
        "wsc.fixed": {
            "test": [
                {"text": "Ann ran, she said.", "span1_index": 0, "span2_index": 2, "span1_text": "Ann"}
                | {"span2_text": "she", "idx": 8, "label": -1}
            ]
        },
        "record": {
            "train": [
                {
                    "passage": "P",
                    "query": "@placeholder ran",
                    "entities": ["A", "B"],
                    "answers": ["B"],
                    "idx": {"passage": 0, "query": 1},
                }
            ]
        },
    }


class Hellaswag(Small):
    """HellaSwag; like CoNLL-2003 it has no configs in TFDS."""

    BUILDER_CONFIGS = []
    features = {"context": F.Text(), "endings": F.Sequence(F.Text()), "label": np.int32, "activity_label": F.Text()}
    splits = {"validation": [{"context": "C", "endings": list("abcd"), "label": 3, "activity_label": "x"}]}

    def _info(self):
        return self.dataset_info_from_configs(features=F.FeaturesDict(self.features))

    def _split_generators(self, dl_manager):
        return {split: enumerate(records) for split, records in self.splits.items()}


class Conll2003(Hellaswag):
    """CoNLL-2003."""

    features = {"tokens": F.Sequence(F.Text()), "ner": F.Sequence(F.ClassLabel(names=TAGS))}
    splits = {"dev": [{"tokens": ["Anna", "Lee", "ran"], "ner": ["B-PER", "I-PER", "O"]}]}


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
    for small in (Glue, Squad, Race, Anli, SuperGlue):
        for config in small.features:
            builder = small(config=config, data_dir=directory, file_format="array_record")
            builder.download_and_prepare()
            if small is Race:
                F.FeaturesDict(REAL_RACE).save_config(builder.data_dir)
    for small in (Hellaswag, Conll2003):
        small(data_dir=directory, file_format="array_record").download_and_prepare()
    return directory


@pytest.fixture(autouse=True)
def prepared(root, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(root))


@pytest.mark.parametrize(("name", "split", "expected"), SETS)
def test_examples_of_prepared_sets(name, split, expected):
    assert load(TASKS[name], "", split).items == expected


def test_both_levels_of_race():
    assert [example.id for example in load(TASKS["race"], "", "validation")] == [
        "middle-0",
        "middle-1",
        "high-0",
        "high-1",
    ]


def test_files_of_prepared_sets(root):
    """Those of the validation split, which is `dev` in TFDS, and not those of other splits."""
    found = find_files(TASKS["race_high"], "")["validation"]
    assert found == [root / "race/high/1.0.0/race-dev.array_record-00000-of-00001"]


def test_answers_that_white_space_moved_are_found_and_others_refused():
    with pytest.raises(
        ValueError, match=r"record 2: expected the answer 'Cleo' at character 3 of the context, found no such text"
    ):
        load(TASKS["squad1"], "", "train")
    examples = load(TASKS["squad1"], "", "train", skip_malformed=True)
    assert examples.skipped == 1
    assert [example.answers for example in examples] == [(("Anna", 0), ("Bo", 9)), (("Bo", 9),)]


def test_a_split_that_was_not_prepared():
    with pytest.raises(ValueError, match="cannot be read as split 'train'"):
        load(TASKS["mnli"], "", "train")
