"""The library's reference, from its docstrings: a page a room, as Markdown, and a page a file of source, as HTML.

Files are parsed and never imported, so the site can be built where torch is not installed.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

STYLE = "body { margin: 1rem auto; max-width: 60rem; padding: 0 1rem; font-family: sans-serif } "
STYLE += ".highlight { overflow-x: auto; padding: 0.5rem } :target { background: #fff3bf }"
ENTRY = re.compile(r"^(?P<name>\S(?:\S| (?! ))*) {2,}(?P<text>\S.*)$")
"""A line of a docstring that says what one argument is: its name, two blanks or more, and words."""
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True)
class Module:
    """A file of the library, as text and as a tree."""

    name: str
    text: str
    tree: ast.Module
    is_room: bool

    @property
    def doc(self) -> str:
        return ast.get_docstring(self.tree) or ""

    def defined(self) -> dict[str, ast.stmt]:
        """What the file itself gives a name, at its outermost level."""
        found: dict[str, ast.stmt] = {}
        for statement in self.tree.body:
            if isinstance(statement, Definition):
                found[statement.name] = statement
            elif isinstance(statement, ast.Assign | ast.AnnAssign):
                targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
                names = [name for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]
                found |= {name.id: statement for name in names}
        return found

    def imported(self) -> dict[str, tuple[str, str]]:
        """Names that the file takes from others, with where they are from."""
        return {
            alias.asname or alias.name: (statement.module, alias.name)
            for statement in ast.walk(self.tree)
            if isinstance(statement, ast.ImportFrom) and statement.module
            for alias in statement.names
        }

    def public(self) -> list[str]:
        """What `__all__` names, or what the file imports for type checkers (`zerolab/lazy.py`)."""
        stated = self.defined().get("__all__")
        if isinstance(stated, ast.Assign):
            return list(ast.literal_eval(stated.value))
        blocks = [one.body for one in self.tree.body if isinstance(one, ast.If) and "TYPE_CHECKING" in ast.dump(one)]
        imports = [node for body in blocks for node in body if isinstance(node, ast.ImportFrom)]
        return [alias.name for node in imports for alias in node.names] if self.is_room else []


def read_library(root: Path) -> dict[str, Module]:
    """Every file of the library below `root`/zerolab by its dotted name; the course is no part of it."""
    modules = {}
    for file in sorted((root / "zerolab").rglob("*.py")):
        parts = file.relative_to(root).with_suffix("").parts
        if parts[1] == "course":
            continue
        is_room = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_room else parts)
        text = file.read_text()
        modules[name] = Module(name, text, ast.parse(text), is_room)
    return modules


def write_reference(modules: dict[str, Module], target: Path) -> None:
    """Write api/ROOM.md and their index, and _extra/source/MODULE.html, into the folder `target`."""
    for folder in ("api", "_extra/source"):
        (target / folder).mkdir(parents=True)
    rooms = [module for module in modules.values() if module.is_room and module.public()]
    for room in rooms:
        (target / "api" / f"{room.name}.md").write_text("\n".join(room_page(room, modules)))
    for module in modules.values():
        (target / "_extra" / "source" / f"{module.name}.html").write_text(source_page(module))
    about = "What each room offers to those outside it. Every name leads to its source."
    (target / "api" / "index.md").write_text(index("Reference", about, [room.name for room in rooms], modules))


def index(title: str, about: str, names: list[str], modules: dict[str, Module]) -> str:
    """A page that lists others, each with the first line of what it says of itself."""
    rows = [f"- [`{name}`]({name}.md): {first_line(modules[name].doc)}" for name in names]
    tree = ["```{toctree}", ":hidden:", "", *names, "```"]
    return "\n".join([f"# {title}", "", about, "", *rows, "", *tree, ""])


def room_page(room: Module, modules: dict[str, Module]) -> Iterator[str]:
    """A room's public names with what they take and say, in the order of its `__all__`."""
    yield from (f"# {room.name}", "", *prose(room.doc), "")
    for name in room.public():
        module, original = find(room, name, modules)
        if module is None:
            raise LookupError(f"{room.name} offers {name} in its __all__, and no file of the library defines it")
        node = module.defined()[original]
        yield from (f'<a id="{name}"></a>', "", f"## {name}", "", signature(node), "")
        yield from (f'<a href="{address(module, original)}">source</a>', "")
        yield from documented(node, module)
        if isinstance(node, ast.ClassDef):
            for member in node.body:
                if isinstance(member, ast.FunctionDef) and not member.name.startswith("_"):
                    yield from ("", f"### {name}.{member.name}", "", signature(member), "")
                    yield from prose(ast.get_docstring(member) or "")
        yield ""


def find(room: Module, name: str, modules: dict[str, Module]) -> tuple[Module | None, str]:
    """The file that defines what a room calls `name`, and what it is called there."""
    module: Module | None = room
    while module is not None and name not in module.defined():
        source, name = module.imported().get(name, ("", name))
        module = modules.get(source)
    return module, name


def address(module: Module, name: str) -> str:
    """Where the site shows the source of `name`, from a page one folder deep."""
    return f"../source/{module.name}.html#{name}"


def signature(node: ast.stmt) -> str:
    """How it is called, or the value that it has, as code."""
    if isinstance(node, ast.ClassDef):
        bases = ", ".join(map(ast.unparse, node.bases))
        fields = [
            f"    {ast.unparse(line)}"
            for line in node.body
            if isinstance(line, ast.AnnAssign) and not ast.unparse(line.target).startswith("_")
        ]
        made = [line for line in node.body if isinstance(line, ast.FunctionDef) and line.name == "__init__"]
        inside = fields or [f"    {opening(made[0])}" if made else "    ..."]
        code = "\n".join([f"class {node.name}({bases}):" if bases else f"class {node.name}:", *inside])
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        code = opening(node)
    else:
        code = ast.unparse(node)
    if len(code) > 1500:
        code = code[:1500] + " ..."
    return f"```python\n{code}\n```"


def opening(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """A function's first line; an argument a line where it is long."""
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    whole = f"def {node.name}({ast.unparse(node.args)}){returns}"
    if len(whole) <= 100:
        return whole
    broken = re.sub(r", (?=\*{0,2}\w+(?::|=|,|$))", ",\n        ", ast.unparse(node.args))
    return f"def {node.name}(\n        {broken}\n    ){returns}"


def documented(node: ast.stmt, module: Module) -> Iterator[str]:
    """A definition's docstring, or the string below a constant."""
    if isinstance(node, Definition):
        yield from prose(ast.get_docstring(node) or "")
        return
    below = module.tree.body[module.tree.body.index(node) + 1 :][:1]
    if below and isinstance(below[0], ast.Expr) and isinstance(below[0].value, ast.Constant):
        yield from prose(str(below[0].value.value))


def prose(doc: str) -> Iterator[str]:
    """A docstring as Markdown: paragraphs as they are, lists of arguments as lists."""
    entries: list[str] = []
    for block in doc.split("\n\n"):
        lines = block.split("\n")
        found = [ENTRY.match(line) for line in lines]
        if is_code(block):
            yield from ("```python", block, "```", "")
            continue
        if not found[0] or lines[0].startswith(" "):
            yield from (*[line if block.startswith("    ") else plain(line) for line in lines], "")
            continue
        for line, entry in zip(lines, found, strict=True):
            if entry and not line.startswith(" "):
                entries.append(f"- `{entry['name']}`: {plain(entry['text'])}")
            elif entries:
                entries[-1] += " " + plain(line.strip())
        yield from (*entries, "")
        entries = []


def is_code(block: str) -> bool:
    """Whether a paragraph is lines of Python, rather than words."""
    if not re.search(r"[=(]", block):
        return False
    try:
        ast.parse(block)
    except SyntaxError:
        return False
    return True


def plain(text: str) -> str:
    """Words of a docstring in which no sign is meant for Markdown but backticks."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else re.sub(r"([*_<$\[\]#])", r"\\\1", part) for part in parts)


def source_page(module: Module) -> str:
    """A file's source as a page of its own; its definitions are named, and each line is L and its number."""
    style = HtmlFormatter(linenos="inline", lineanchors="L", anchorlinenos=True, style="friendly")
    shown = highlight(module.text, PythonLexer(), style)
    for name, node in module.defined().items():
        line = f'id="L-{node.lineno}"'
        shown = shown.replace(f"<a {line}", f'<a id="{name}"></a><a {line}', 1)
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{module.name}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{style.get_style_defs('.highlight')}\n{STYLE}</style></head>"
        f'<body><main><p><a href="../api/index.html">zerolab</a></p><h1>{module.name}</h1>\n{shown}</main></body>'
        "</html>\n"
    )


def first_line(doc: str) -> str:
    return plain(doc.split("\n\n", 1)[0].replace("\n", " "))
