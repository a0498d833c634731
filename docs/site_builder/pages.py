"""The generated pages of the site: README.md and other files, verbs, settings, configs, papers and the Python API."""

import json
import pathlib
from collections.abc import Iterable, Iterator
from typing import Any

from ag_jax.command_line import manual
from ag_jax.command_line.verbs import KINDS, VERBS, Flag, OnHosts, flags_of
from ag_jax.settings import config_files, documentation
from site_builder import api, papers
from site_builder.docstrings import plain, to_markdown
from site_builder.links import GENERATED, OTHERS, Site

ROOT = pathlib.Path(__file__).resolve().parents[2]
SETTINGS = {"pre-training or translation": "pretraining", "fine-tuning": "finetuning", "probes": "probes"}
# Directives of the settings on these pages, each a kind of object of the search; they begin the ids of the settings.
DIRECTIVES = {"pretraining": "setting", "finetuning": "finetuning-setting", "probes": "probes-setting"}


def write(site: Site) -> None:
    """Write all generated pages; leave files whose content stays the same, so that Sphinx does not read them again."""
    folder = site.docs / GENERATED
    written = {folder / f"{name}.md": text.encode() for name, text in generated(site)}
    for notebook in sorted((ROOT / "notebooks").glob("*.ipynb")):
        target = folder / "notebooks" / notebook.name
        written[target] = with_links(notebook.read_text(), site, notebook.parent, target.parent).encode()
    for path, content in written.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_bytes() != content:
            path.write_bytes(content)
    for path in folder.rglob("*"):
        if path.is_file() and path not in written:
            path.unlink()


def with_links(notebook: str, site: Site, written_in: pathlib.Path, shown_in: pathlib.Path) -> str:
    """Return a notebook, as JSON, with the links of the site in its texts, and without pictures of its pages.

    Such a picture is stored before a page of attention maps for readers without scripts (`notebooks/execute.py`).
    """
    content = json.loads(notebook)
    for cell in content["cells"]:
        if cell["cell_type"] == "markdown":
            cell["source"] = site.rewritten("".join(cell["source"]), written_in, shown_in)
        elif outputs := cell.get("outputs"):
            pairs = zip(outputs, [*outputs[1:], {}], strict=True)
            cell["outputs"] = [output for output, after in pairs if not _is_still_of(output, after)]
    return json.dumps(content, ensure_ascii=False, indent=1) + "\n"


def _is_still_of(output: dict[str, Any], after: dict[str, Any]) -> bool:
    """Return whether an output of a cell is the picture of the page that is the output after it."""
    return bool(output.get("metadata", {}).get("still")) and "text/html" in after.get("data", {})


def generated(site: Site) -> Iterator[tuple[str, str]]:
    """Yield (name, Markdown) of each generated page."""
    folder = site.docs / GENERATED
    for file, name in OTHERS.items():
        text = (ROOT / file).read_text()
        if name == "start":  # its title is that of the first page
            text = text.replace("# ag_jax\n", "# Get started\n", 1)
        yield name, site.rewritten(text, (ROOT / file).parent, folder)
    yield "verbs", of_verbs()
    for kind, (purpose, _) in KINDS.items():
        yield f"settings_{SETTINGS[purpose]}", of_settings(kind)
    yield "configs", of_configs()
    for paper in papers.titles():
        yield f"paper_{paper}", papers.page(paper, site, folder)
    yield from api.pages()


# --- Command line ------------------------------------------------------------------------------------


def of_verbs() -> str:
    """Return the page of all verbs with their flags, from the tables that the command line is parsed with."""
    parts = ["# Verbs", "`ag-jax help VERB` prints the same."]
    for name, verb in VERBS.items():
        flags = flags_of(verb)
        own = {word: flag for word, flag in flags.items() if word not in OnHosts.__annotations__}
        entries = [(f"`{manual.flag_head(word, flag)}`", flag_meaning(flag)) for word, flag in own.items()]
        if verb.kinds:
            settings_entry = ("`--config.SECTION.KEY=VALUE`", f"{plain(sentence(manual.SETTING).removesuffix('.'))}.")
            entries = [
                ("`--config=CONFIG`", f"{plain(sentence(manual.CONFIG.format('quickstart')))}"),
                settings_entry,
                *entries,
            ]
        parts += [f"## ag-jax {name}", plain(manual.summary(verb))]
        parts += [fence("bash", f"ag-jax {name} {manual.usage(verb)}"), definitions(entries)]
        if len(own) < len(flags):
            parts += ["It also reads the [flags for several machines](#several-machines)."]
        parts += [fence("bash", "\n".join(verb.examples))]
    for name, (summary, usage, examples) in manual.EXPLAINING.items():
        parts += [f"## ag-jax {name}", summary, fence("bash", f"ag-jax {name} {usage}".rstrip())]
        parts += [fence("bash", "\n".join(examples))]
    hosts = {word: flag for word, flag in flags_of(VERBS["train"]).items() if word in OnHosts.__annotations__}
    parts += [
        "## Several machines",
        "On several machines, run the same command on each. A TPU pod slice needs none of these flags.",
        definitions((f"`{manual.flag_head(word, flag)}`", flag_meaning(flag)) for word, flag in hosts.items()),
    ]
    return joined(parts)


def flag_meaning(flag: Flag) -> str:
    """Return the meaning of a flag and its default, if it has one."""
    return f"{plain(sentence(manual.flag_meaning(flag)).removesuffix('.'))}."


# --- Settings ----------------------------------------------------------------------------------------


def of_settings(kind: type) -> str:
    """Return the page with all settings of a config, by section, from the dataclass and its docstrings."""
    purpose, _ = KINDS[kind]
    found, directive = list(documentation.of(kind)), DIRECTIVES[SETTINGS[purpose]]
    sections = [setting for setting in found if setting.is_section]
    parts = [
        f"# Settings of {purpose.replace(' or ', ' and ')}",
        "`--config.SECTION.KEY=VALUE` changes a setting on the command line; a config file sets `config.SECTION.KEY`. "
        "`ag-jax help SECTION.KEY` prints what this page says of it."
        + (" `NAME` is the name of a task or a probe." if any("NAME" in setting.path for setting in found) else ""),
        *(described(setting, directive) for setting in members("", found)),
    ]
    for section in sections:
        inside = section.path + (".NAME" if any(s.path.startswith(f"{section.path}.NAME.") for s in found) else "")
        parts += [f"## {plain(inside)}", plain(sentence(section.meaning))]
        parts += [described(setting, directive) for setting in members(inside, found)]
    return joined(parts)


def members(section: str, found: Iterable[documentation.Setting]) -> list[documentation.Setting]:
    """Return the settings that are directly in a section, "" for those outside sections."""
    return [setting for setting in found if not setting.is_section and setting.path.rpartition(".")[0] == section]


def described(setting: documentation.Setting, directive: str) -> str:
    """Return a setting's name over its meaning with type, allowed values and default, as an object of the search."""
    facts = f"*{plain(sentence(setting.allowed).removesuffix('.'))}; default* `{setting.default or '(empty)'}`"
    meaning = f"{plain(sentence(setting.meaning))}\\\n{facts}"
    return f"```{{{directive}}} {setting.path}\n{meaning}\n```"


# --- Configs -----------------------------------------------------------------------------------------


def of_configs() -> str:
    """Return the page of the config files that are not in the folder of a paper."""
    names = [name for name in config_files.packaged() if name.partition("/")[0] not in papers.titles()]
    parts = [
        "# Configs",
        "Config files that come with the program, except those of the papers, which are under *Reproduction*. "
        "`ag-jax configs` lists all of them. `--config=NAME:ARGUMENT=VALUE,...` uses one.",
    ]
    for name in names:
        parts += [f"## {name}", *of_config(name)]
    return joined(parts)


def of_config(name: str) -> list[str]:
    """Return what a config's docstring says of it, and its arguments."""
    path = config_files.packaged()[name]
    taken = config_files.arguments_of(name)
    meanings = documentation.entries(manual.docstring_of(path, "get_config"), taken)
    arguments = (
        (
            f"`{name}`",
            f"{plain(sentence(meanings[name]))} *{plain(sentence(manual.in_words(argument)))}*",
        )
        for name, argument in taken.items()
    )
    return [to_markdown(manual.docstring_of(path)), "Arguments:", definitions(arguments)]


# --- Markdown ----------------------------------------------------------------------------------------


def sentence(text: str) -> str:
    """Return text with a capital letter and a full stop."""
    text = text.strip()
    first = text.split(" ", 1)[0]
    # A name such as `alpha_rule` or ag-jax keeps its letters.
    is_word = first.rstrip(",;:").replace("-", "").isalpha() and first != "ag-jax"
    text = text[:1].upper() + text[1:] if is_word else text
    return text if text.endswith((".", "!", "?")) or not text else f"{text}."


def definitions(pairs: Iterable[tuple[str, str]]) -> str:
    """Return a definition list of (term, meaning); a meaning may have several paragraphs."""
    return "\n\n".join(f"{term}\n: {meaning.replace(chr(10), chr(10) + '  ')}" for term, meaning in pairs)


def fence(language: str, code: str) -> str:
    """Return a block of code."""
    return f"```{language}\n{code}\n```"


def joined(parts: Iterable[str]) -> str:
    """Return the text of a page of which `parts` are the blocks."""
    return "\n\n".join(parts) + "\n"
