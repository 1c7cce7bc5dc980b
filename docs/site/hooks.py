"""Pages that mkdocs makes of the code: the API, the command line, the recipes; and llms.txt.

The package's own environment is asked for what is public (``public.py``), so that no page drifts.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Navigation, Section
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
PYTHON = os.environ.get("CEDAR_PYTHON", str(ROOT / ".venv" / "bin" / "python"))
RECIPES = ROOT / "examples" / "recipes"
GROUPS = json.loads((Path(__file__).parent / "recipes.json").read_text())
PROPER = {
    "numpy": "NumPy",
    "delta": "Delta",
    "iceberg": "Iceberg",
    "Hugging face": "Hugging Face",
    "cutmix": "and CutMix",
}
OTHER = "Transform"  # the group of recipes that recipes.json does not name

SOURCES = ("read_", "from_", "mix", "zip", "concat")
PAGES: dict[str, tuple[str, str, str, tuple[str, ...]]] = {
    # page: title, first sentence, module, names or their beginnings (by default all that no page before it has)
    "sources": ("Sources", "Functions that make a pipeline. [Sources](../sources.md) is the guide.", "cedar", SOURCES),
    "pipeline": (
        "Pipeline",
        "All methods of a pipeline. Each returns a new one. [Pipelines](../pipelines.md) is the guide.",
        "cedar",
        ("Pipeline",),
    ),
    "loader": (
        "Loader",
        "What `p.loader(...)` returns, and the policy for rows that fail. [Loader](../loader.md) is the guide.",
        "cedar",
        ("Loader", "Skip"),
    ),
    "batches": (
        "Batches",
        "The two classes of list columns. [Columns](../columns.md) has all kinds of columns.",
        "cedar",
        ("JaggedTensor", "InverseKeyedJaggedTensor"),
    ),
    "plans": (
        "Plans and profiles",
        "What the optimizer reads and makes. [Plans](../plans.md) is the guide.",
        "cedar",
        ("Budget", "Plan", "Profile"),
    ),
    "errors": (
        "Errors",
        "Every error is a `cedar.CedarError`. [Errors and bad rows](../errors.md) is the guide.",
        "cedar",
        ("CedarError", "PipelineError", "PlanError", "ResumeError", "RowError", "SourceError", "WorkerError"),
    ),
    "written": (
        "Written files",
        "What writing returns, and conversions between formats. [Write data sets](../writing.md) is the guide.",
        "cedar",
        ("Written", "convert", "optimize_layout"),
    ),
    "preprocessing": (
        "Learned steps",
        "Steps that learn from one pass over the rows. [Rows and tables](../tables.md) is the guide.",
        "cedar.preprocessing",
        (),
    ),
    "image": ("Image operators", "[Images](../images.md) is the guide.", "cedar.operators.image", ()),
    "audio": ("Audio operators", "[Audio](../audio.md) is the guide.", "cedar.operators.audio", ()),
    "video": ("Video operators", "[Video](../video.md) is the guide.", "cedar.operators.video", ()),
    "text": ("Text operators", "[Text](../text.md) is the guide.", "cedar.operators.text", ()),
    "recsys": (
        "Recommendation operators",
        "[Lists that repeat](../dedup.md) is the guide.",
        "cedar.operators.recsys",
        (),
    ),
    "recommendation": (
        "Recommendation data",
        "Logs, sessions and vocabularies. [Recommendation data](../recommendation.md) is the guide.",
        "cedar.recommendation",
        (),
    ),
    "nn": (
        "Modules",
        "Modules for models of your own. The guides: [recommendation](../dlrm_models.md), [mixtures](../moe.md).",
        "cedar.nn",
        (),
    ),
    "trainers": (
        "Trainers",
        "The resilient trainer as a library. [The resilient trainer](../resilient.md) is the guide.",
        "cedar.trainers",
        (),
    ),
    "testing": (
        "Testing",
        "Checks of pipelines, and faults to try them with. [Testing](../testing.md) is the guide.",
        "cedar.testing",
        (),
    ),
    "reports": ("Reports and services", "Everything else in `cedar`.", "cedar", ()),
    "simulate": ("Simulation", "[The simulator](../simulator.md) is the guide.", "cedar.simulate", ()),
}


def asked() -> dict[str, Any]:
    """What the installed package says of itself."""
    command = [PYTHON, str(Path(__file__).parent / "public.py")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "90"}
    done = subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=subprocess.PIPE, timeout=300)
    return dict(json.loads(done.stdout))


# ---- pages of the code -----------------------------------------------------------------------------------------------


def entry(module: str, name: str, path: str) -> str:
    """One public name: a heading under the name that users write, and the docstring of what it is."""
    shown = f"{module.rpartition('.')[2]}.{name}"
    lines = [f'<span id="{module}.{name}"></span>', "", f"::: {path}", "    options:"]
    lines += [f'      heading: "{shown}"', f'      toc_label: "{name}"']
    if path.endswith((".Pipeline", ".Loader", "Tensor")):
        lines += ["      inherited_members: true", "      summary: true"]
    return "\n".join([*lines, ""])


def belongs(name: str, wanted: tuple[str, ...]) -> bool:
    """Whether a name is one of these, or begins with one that ends in an underscore."""
    return name in wanted or any(each.endswith("_") and name.startswith(each) for each in wanted)


def api(modules: dict[str, dict[str, str]]) -> dict[str, str]:
    """Reference pages: path -> Markdown."""
    made, left = {}, {module: dict(found) for module, found in modules.items()}
    for name in [name for name, path in left["cedar"].items() if path in left["cedar.preprocessing"].values()]:
        left["cedar"].pop(name)  # cedar.fit and cedar.Fitted have their entries there
    overview = ["# API", "", "All public names. Each has a docstring: `help(cedar.read_parquet)` prints the same.", ""]
    for page, (title, first, module, prefixes) in PAGES.items():
        names = [name for name in left[module] if not prefixes or belongs(name, prefixes)]
        chosen = {name: left[module].pop(name) for name in names}
        SHOWN[f"reference/{page}.md"] = {
            path.rpartition(".")[2]: f"{module.rpartition('.')[2]}.{name}"
            for name, path in chosen.items()
            if not path.endswith(f".{name}")
        }
        body = "\n".join(entry(module, name, path) for name, path in chosen.items())
        body += "".join(f"\n::: {path}\n    options:\n      summary: true\n" for path in MORE.get(page, ()))
        made[f"reference/{page}.md"] = f"# {title}\n\n{first}\n\n{body}"
        links = ", ".join(f"[`{name}`]({page}.md#{module}.{name})" for name in chosen)
        overview += [f"**[{title}]({page}.md)** (`{module}`): {links}", ""]
    made["reference/index.md"] = "\n".join(overview)
    return made


def command_line(commands: list[dict[str, str]]) -> str:
    lines = ["# Command line", "", "The help of each command, as `--help` prints it.", ""]
    for one in commands:
        lines += [f"## {one['command']}", "", "```text", one["help"], "```", ""]
    return "\n".join(lines)


# ---- recipes ---------------------------------------------------------------------------------------------------------


def title_of(path: Path) -> str:
    title = path.stem.replace("_", " ").capitalize()
    return re.sub("|".join(PROPER), lambda found: PROPER[found[0]], title)


def recipe(path: Path) -> str:
    """A page of one recipe: what it does, and its code."""
    text = path.read_text()
    said = ast.get_docstring(ast.parse(text)) or ""
    code = text.partition('"""')[2].partition('"""')[2].strip("\n")
    return f"# {title_of(path)}\n\n{said}\n\n```python\n{code}\n```\n\nThe file is `examples/recipes/{path.name}`.\n"


def grouped() -> dict[str, list[Path]]:
    """Group -> recipes, in the order of recipes.json."""
    of = {stem: group for group, stems in GROUPS.items() for stem in stems}
    found: dict[str, list[Path]] = {group: [] for group in GROUPS}
    for path in sorted(RECIPES.glob("*.py")):
        found[of.get(path.stem, OTHER)].append(path)
    return found


def recipe_index() -> str:
    lines = ["# Recipes", "", "Short programs. Each runs as it is, and checks its own result.", ""]
    for group, paths in grouped().items():
        lines += [f"## {group}", ""] * bool(paths)
        for path in paths:
            said = (ast.get_docstring(ast.parse(path.read_text())) or "").split("\n\n")[0].replace("\n", " ")
            lines += [f"- [{title_of(path)}]({path.stem}.md): {said}"]
        lines += [""]
    return "\n".join(lines)


# ---- files of the repository -----------------------------------------------------------------------------------------


def root_page(name: str) -> str:
    """A page in the root of the repository, with links as a page of the site has them."""
    return re.sub(r"\]\(docs/", "](", (ROOT / name).read_text())


# ---- hooks -----------------------------------------------------------------------------------------------------------


def on_files(files: Files, config: MkDocsConfig) -> Files:
    known = asked()
    made = api(known["modules"])
    made["reference/cli.md"] = command_line(known["commands"])
    made["changelog.md"], made["contributing.md"] = root_page("CHANGELOG.md"), root_page("CONTRIBUTING.md")
    made["recipes/index.md"] = recipe_index()
    for path in RECIPES.glob("*.py"):
        made[f"recipes/{path.stem}.md"] = recipe(path)
    for path, text in made.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Recipes join the navigation below the pages of their group; decisions are those that exist."""
    decisions = sorted((ROOT / "docs" / "decisions").glob("*.md"))
    for each in next(each["How it works"] for each in config.nav or [] if "How it works" in each):
        if "Decisions" in each:
            each["Decisions"] = [f"decisions/{path.name}" for path in decisions]
    how_to = next(each["How to"] for each in config.nav or [] if "How to" in each)
    for group in how_to:
        [(name, pages)] = group.items()
        if isinstance(pages, list):
            pages += [{title_of(path): f"recipes/{path.stem}.md"} for path in grouped().get(name, ())]
    return config


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links to files of the repository that are not pages become names of files."""
    return re.sub(r"\[([^\]]+)\]\((?:\.\./)+((?!.*\.md)[\w./-]+|SECURITY\.md)\)", r"`\2`", markdown)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """`docs/storage.md` in a docstring becomes a link; operators show under the names that users write."""

    def link(found: re.Match[str]) -> str:
        file = files.get_file_from_path(f"{found[1]}.md")
        if file is None or file.page is None:
            return found[0]
        return f'<a href="{file.url_relative_to(page.file)}">{file.page.title or found[1]}</a>'

    html = re.sub(r"<th([^>]*)></th>", r"<td\1></td>", html)  # a header without words confuses screen readers
    if not page.file.src_uri.startswith("reference/"):
        return html
    for tail, shown in SHOWN.get(page.file.src_uri, {}).items():
        html = re.sub(rf'<span class="n[cf]?">{tail}</span>', f'<span class="nf">{shown}</span>', html)
    return re.sub(r"(?<![\w/])docs/([\w/]+)\.md", link, html)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """The theme's search is a dialog without a name."""
    return output.replace(
        'data-md-component="search" role="dialog"', 'data-md-component="search" role="dialog" aria-label="Search"'
    )


@event_priority(-100)
def on_post_build(config: MkDocsConfig) -> None:
    Path(config.site_dir, "llms.txt").write_text("\n".join(LLMS) + "\n")


MORE = {  # page -> what methods return, and no public name holds
    "pipeline": ("cedar.watch.describe.Description", "cedar.watch.contact_sheet.Sheet"),
    "loader": ("cedar.watch.report.Report",),
    "plans": ("cedar.plan.data.Decision", "cedar.plan.data.Prediction"),
    "written": ("cedar.lake.convert.Converted",),
}
LLMS: list[str] = []
SHOWN: dict[str, dict[str, str]] = {}  # page -> name of a class -> the name that users write


def on_nav(nav: Navigation, config: MkDocsConfig, files: Files) -> Navigation:
    """llms.txt: each page with its address and first sentence, in the order of the navigation."""
    LLMS[:] = [f"# {config.site_name}", "", f"> {config.site_description}", ""]

    def walk(items: list[Any], depth: int) -> None:
        for item in items:
            if isinstance(item, Section):
                LLMS.extend([f"## {item.title}", ""] * (depth == 0))
                walk(item.children, depth + 1)
                LLMS.extend([""] * (depth == 0))
            elif isinstance(item, Page):
                text = item.file.content_string
                title = item.title or text.partition("\n")[0].lstrip("# ")
                body = re.sub(r"^# .*\n", "", text).strip().split("\n\n")[0]
                said = re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", " ".join(body.split()))
                said = said if not said.startswith(("#", "|", "```", "<", "!")) else ""
                url = f"{config.site_url}{item.file.url.removeprefix('./')}"
                LLMS.append(f"- [{title}]({url})" + f": {said}" * bool(said))

    walk(nav.items, 0)
    return nav
