"""Rules of the house that no tool checks: sizes, names, imports inside functions, tests that assert nothing."""

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MOST_LINES_A_MODULE = 500
MOST_LINES_A_FUNCTION = 70
VAGUE = {"utils", "helpers", "common", "misc", "manager", "base"}
OWN = {"ledger", "ledger_client"}


def files(*endings: str) -> list[str]:
    """The files of the project, committed or about to be."""
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in listed.stdout.splitlines() if name.endswith(endings) and (ROOT / name).is_file()]


def modules(*folders: str) -> Iterator[tuple[str, ast.Module]]:
    """The Python modules under those folders, parsed."""
    for name in files(".py"):
        if name.startswith(folders):
            yield name, ast.parse((ROOT / name).read_text())


PRODUCT = ("ledger/", "client/src/", "migrations/env.py")


def functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """All functions of a module, at any depth."""
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def is_own_import(node: ast.AST) -> bool:
    """Whether a statement imports from this project."""
    if isinstance(node, ast.Import):
        return any(alias.name.split(".")[0] in OWN for alias in node.names)
    return isinstance(node, ast.ImportFrom) and (node.level > 0 or (node.module or "").split(".")[0] in OWN)


def asserts(test: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a test can fail by what it says."""
    for node in ast.walk(test):
        if isinstance(node, ast.Assert) or (isinstance(node, ast.Attribute) and node.attr in {"raises", "warns", "fail"}):
            return True
        if isinstance(node, ast.Call) and re.search(r"assert", ast.unparse(node.func)):
            return True
    return False


def test_modules_and_functions_stay_small() -> None:
    long = [f"{name}: {text.count(chr(10))} lines" for name in files(".py") if name.startswith(PRODUCT)
            if (text := (ROOT / name).read_text()).count("\n") > MOST_LINES_A_MODULE]  # fmt: skip
    long += [
        f"{name}:{node.lineno} {node.name}"
        for name, tree in modules(*PRODUCT)
        for node in functions(tree)
        if (node.end_lineno or 0) - node.lineno + 1 > MOST_LINES_A_FUNCTION
    ]
    assert long == []


def test_names_say_something() -> None:
    assert [name for name in files(".py") if VAGUE & set(Path(name).with_suffix("").parts)] == []
    classes = [node.name for _, tree in modules(*PRODUCT) for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    assert [name for name in classes if re.search(r"(Service|Manager|Helper)$", name)] == []


def test_own_modules_are_imported_at_the_top() -> None:
    inner = [f"{name}:{node.lineno}" for name, tree in modules(*PRODUCT) for function in functions(tree)
             for node in ast.walk(function) if is_own_import(node)]  # fmt: skip
    assert inner == []


def test_every_test_asserts() -> None:
    idle = [f"{name}:{node.name}" for name, tree in modules("tests/", "client/tests/", "client/trainers/") for node in functions(tree)
            if node.name.startswith("test_") and not asserts(node)]  # fmt: skip
    assert idle == []


def test_nothing_is_left_for_later() -> None:
    marks = re.compile(r"#\s*(TODO|FIXME|XXX|HACK)\b")
    assert [name for name in files(".py") if marks.search((ROOT / name).read_text())] == []


def test_public_names_are_documented() -> None:
    bare = []
    for name, tree in modules(*PRODUCT):
        for node in [tree, *tree.body]:
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and not getattr(node, "name", "").startswith("_"):
                document = ast.get_docstring(node)
                if not document and not (isinstance(node, ast.Module) and not node.body):
                    bare.append(f"{name}:{getattr(node, 'name', 'module')}")
    assert bare == []


@pytest.mark.parametrize("pattern", [r"files\.pythonhosted", r"registry\.npmjs", r"deb\.debian", r"/work/(main|shared)", r"\.\./shared"])
def test_committed_files_name_no_machine_and_no_registry(pattern: str) -> None:
    looked = [name for name in files("") if not re.search(r"\.(png|ico|woff2?|gz)$", name)]
    assert [name for name in looked if re.search(pattern, (ROOT / name).read_text(errors="ignore"))] == []
