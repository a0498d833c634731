"""The generated pages of the site: README.md and other files, verbs, settings, configs, papers and the Python API."""

import json
import pathlib
from collections.abc import Iterable, Iterator

from ag_jax import cli, config_reader
from ag_jax.command_line import manual, settings, verbs
from ag_jax.command_line.verbs import FLAGS, HOSTS, VERBS, Flag
from site_builder import api, papers
from site_builder.docstrings import plain, to_markdown
from site_builder.links import GENERATED, OTHERS, Site

ROOT = pathlib.Path(__file__).resolve().parents[2]
SETTINGS = {"pre-training or translation": "pretraining", "fine-tuning": "finetuning", "probes": "probes"}


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
    """Return a notebook, as JSON, with the links of the site in its texts."""
    content = json.loads(notebook)
    for cell in content["cells"]:
        if cell["cell_type"] == "markdown":
            cell["source"] = site.rewritten("".join(cell["source"]), written_in, shown_in)
    return json.dumps(content, ensure_ascii=False, indent=1) + "\n"


def generated(site: Site) -> Iterator[tuple[str, str]]:
    """Yield (name, Markdown) of each generated page."""
    folder = site.docs / GENERATED
    for file, name in OTHERS.items():
        yield name, site.rewritten((ROOT / file).read_text(), (ROOT / file).parent, folder)
    yield "verbs", of_verbs()
    for kind in cli.KINDS:
        yield f"settings_{SETTINGS[manual.purpose(kind)]}", of_settings(kind)
    yield "configs", of_configs()
    for paper in papers.titles():
        yield f"paper_{paper}", papers.page(paper, site, folder)
    yield "python", api.page()


# --- Command line ------------------------------------------------------------------------------------


def of_verbs() -> str:
    """Return the page of all verbs with their flags, from the tables that the command line is parsed with."""
    parts = ["# Verbs", "`ag-jax help VERB` prints the same."]
    for name, verb in VERBS.items():
        parts += [f"## ag-jax {name}", f"{plain(sentence(verb.summary))}"]
        parts += [fence("bash", f"ag-jax {name} {verb.usage}".rstrip())]
        own = {key: FLAGS[key] for key in verb.flags if key not in HOSTS}
        if verb.has_config:
            own = {"config": Flag("file", verbs.CONFIG), "config.SECTION.KEY": Flag("value", verbs.SETTING)} | own
        parts += [definitions((flag_head(key, flag), flag_meaning(flag)) for key, flag in own.items())] if own else []
        if set(verb.flags) & set(HOSTS):
            parts += ["It also reads the [flags for several machines](#several-machines)."]
        parts += [fence("bash", "\n".join(verb.examples))]
    parts += [
        "## Several machines",
        "On several machines, run the same command on each. A TPU pod slice needs none of these flags.",
        definitions((flag_head(key, FLAGS[key]), flag_meaning(FLAGS[key])) for key in HOSTS),
    ]
    return joined(parts)


def flag_head(name: str, flag: Flag) -> str:
    """Return a flag with the kind of its value, such as `--step=NUMBER`."""
    return f"`--{name}`" if flag.kind == "switch" else f"`--{name}={flag.kind.upper()}`"


def flag_meaning(flag: Flag) -> str:
    """Return the meaning of a flag and its default, if it has one."""
    default = "" if flag.default in (None, "", (), False) else f" (default `{flag.default}`)"
    return f"{plain(sentence(flag.meaning).removesuffix('.'))}{default}."


# --- Settings ----------------------------------------------------------------------------------------


def of_settings(kind: type) -> str:
    """Return the page with all settings of a config, by section, from the dataclass and its docstrings."""
    purpose = manual.purpose(kind)
    found = list(settings.of(kind))
    sections = [setting for setting in found if setting.is_section]
    parts = [
        f"# Settings of {purpose.replace(' or ', ' and ')}",
        "`--config.SECTION.KEY=VALUE` changes a setting on the command line; a config file sets `config.SECTION.KEY`. "
        "`ag-jax help SECTION.KEY` prints what this page says of it."
        + (" `NAME` is the name of a task or a probe." if any("NAME" in setting.path for setting in found) else ""),
        definitions(map(entry, members("", found))),
    ]
    for section in sections:
        inside = section.path + (".NAME" if any(s.path.startswith(f"{section.path}.NAME.") for s in found) else "")
        parts += [f"## {plain(inside)}", plain(sentence(section.meaning))]
        parts += [definitions(map(entry, members(inside, found)))] if members(inside, found) else []
    return joined(parts)


def members(section: str, found: Iterable[settings.Setting]) -> list[settings.Setting]:
    """Return the settings that are directly in a section, "" for those outside sections."""
    return [setting for setting in found if not setting.is_section and setting.path.rpartition(".")[0] == section]


def entry(setting: settings.Setting) -> tuple[str, str]:
    """Return a setting's name, and its meaning with type, allowed values and default."""
    facts = f"*{plain(sentence(setting.allowed).removesuffix('.'))}; default* `{setting.default or '(empty)'}`"
    return f"`{setting.path}`", f"{plain(sentence(setting.meaning))}\\\n{facts}"


# --- Configs -----------------------------------------------------------------------------------------


def of_configs() -> str:
    """Return the page of the config files that are not in the folder of a paper."""
    names = [name for name in config_reader.packaged() if name.partition("/")[0] not in papers.titles()]
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
    path = config_reader.packaged()[name]
    choices = config_reader.choices_of(name)
    meanings = settings.entries(manual.docstring_of(path, "get_config"), choices)
    arguments = (
        (
            f"`{argument}`",
            f"{plain(sentence(meanings[argument]))} *{plain(sentence(manual.options_in_words(options)))}*",
        )
        for argument, options in choices.items()
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
