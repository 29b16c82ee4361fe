"""The rules of the house that a machine can check."""

from __future__ import annotations

import ast
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from documents import ROOT

import frazil

LINES_MAX = 500
FUNCTION_LINES_MAX = 60
MODULES_MAX = 20
DRAWERS = {"utils", "util", "common", "helpers", "misc"}
EXCEPT = {"LICENSE", "tests/tidy/test_tidy.py"}
"""Not our words, and the one file that must name what it looks for."""
LOCKS = "requirements*.lock"
PYICEBERG_PRIVATE = ROOT / "src/frazil/lake/pyiceberg_private.py"
NOT_PYICEBERGS = {"_pre_ping"}
"""A private attribute of SQLAlchemy's, and the one that the lake may read elsewhere."""

ASYNCIO_FACES = {"src/frazil/aio.py", "src/frazil/client/aio.py"}
"""Their classes have the names of the classes whose asyncio face they are."""

_UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX)\b")
_HOME = re.compile(r"(?<![\w.])/(?:home|Users)/\w|(?<![\w.])/root/|(?<![\w.])~/\w")
_REGISTRY = re.compile(
    r"pypi\.org|pythonhosted|artifactory|pkg\.dev|--(?:extra-)?index-url|--find-links|https?://[^\s)]*/simple"
)


def _tracked() -> list[Path]:
    """What is, or is about to be, in the repository."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout.decode()
    except (OSError, subprocess.CalledProcessError):  # a copy without its repository, or a machine without git
        return [path for folder in ("src", "tests", "docs", "bench", "scripts") for path in _files(ROOT / folder)]
    return [ROOT / name for name in listed.split("\0") if name and (ROOT / name).is_file()]


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts]


def _texts() -> list[tuple[str, str]]:
    texts = []
    for path in _tracked():
        try:
            texts.append((str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")))
        except (UnicodeDecodeError, FileNotFoundError):
            continue  # not a text, or gone since it was listed
    assert len(texts) > 50
    return texts


def _hits(pattern: re.Pattern[str]) -> list[str]:
    return [
        f"{name}:{number}: {line.strip()[:100]}"
        for name, text in _texts()
        if name not in EXCEPT
        for number, line in enumerate(text.splitlines(), 1)
        if pattern.search(line)
    ]


def _modules() -> list[Path]:
    found = [path for folder in ("src", "tests", "bench", "scripts") for path in (ROOT / folder).rglob("*.py")]
    assert len(found) > 500
    return found


def test_files_are_split_before_they_grow_long() -> None:
    long = {str(path.relative_to(ROOT)): count for path in _modules() if (count := _count(path)) >= LINES_MAX}
    assert not long


def test_functions_are_split_before_they_grow_long() -> None:
    long = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {node.name}"
        for path in _modules()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or 0) - node.lineno >= FUNCTION_LINES_MAX
    ]
    assert not long


def test_a_folder_is_split_before_it_has_many_modules() -> None:
    folders = {path.parent for path in (ROOT / "src").rglob("*.py")}
    counts = {str(folder.relative_to(ROOT)): len(list(folder.glob("*.py"))) for folder in folders}
    assert len(counts) > 50
    assert not {folder: count for folder, count in counts.items() if count > MODULES_MAX}


def _count(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def test_no_two_modules_of_tests_have_one_name() -> None:
    """pytest imports each by its name alone, and leaves out the second."""
    names = Counter(path.name for path in (ROOT / "tests").rglob("*.py") if path.name != "conftest.py")
    assert len(names) > 300
    assert not [name for name, count in names.items() if count > 1]


def test_there_are_no_drawers() -> None:
    assert not [path for path in (ROOT / "src").rglob("*") if path.stem in DRAWERS]


def test_every_module_says_what_it_is_for() -> None:
    silent = [
        str(path.relative_to(ROOT))
        for path in (ROOT / "src").rglob("*.py")
        if not path.read_text(encoding="utf-8").lstrip().startswith('"""')
    ]
    assert not silent


def test_child_processes_are_started_in_one_module() -> None:
    """PySpark starts its own JVM, and raises the error of `subprocess` when that does not end."""
    found = {
        str(path.relative_to(ROOT / "src/frazil"))
        for path in (ROOT / "src").rglob("*.py")
        if re.search(
            r"^\s*(import|from) (subprocess|multiprocessing)\b|create_subprocess", path.read_text("utf-8"), re.M
        )
    }
    assert found == {"core/process/child.py", "pipeline/spark/session.py"}


def test_no_two_classes_have_one_name() -> None:
    found: dict[str, list[str]] = {}
    for path in sorted((ROOT / "src").rglob("*.py")):
        if (name := str(path.relative_to(ROOT))) not in ASYNCIO_FACES:
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef):
                    found.setdefault(node.name, []).append(f"{name}:{node.lineno}")
    assert len(found) > 300
    assert not {name: places for name, places in found.items() if len(places) > 1}


def test_what_is_private_to_pyiceberg_is_used_in_one_module() -> None:
    lake = sorted(set((ROOT / "src/frazil/lake").rglob("*.py")) - {PYICEBERG_PRIVATE})
    assert lake
    found = [
        f"{path.relative_to(ROOT)}:{line}: {what}"
        for path in lake
        for line, what in _private_uses(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert not found
    known = list(_private_uses(ast.parse(PYICEBERG_PRIVATE.read_text(encoding="utf-8"))))
    assert len(known) > 10  # else this would look for the wrong things


def _private_uses(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Private names imported from PyIceberg, private attributes of anything but `self`, and names of it replaced."""
    of_pyiceberg: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "pyiceberg":
            of_pyiceberg |= {each.asname or each.name for each in node.names}
            yield from ((node.lineno, each.name) for each in node.names if each.name.startswith("_"))
        elif isinstance(node, ast.Import) and any(each.name.split(".")[0] == "pyiceberg" for each in node.names):
            of_pyiceberg |= {each.asname or "pyiceberg" for each in node.names}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute):
            continue
        owner = ast.unparse(node.value)
        if isinstance(node.ctx, ast.Store) and owner.split(".")[0] in of_pyiceberg:
            yield node.lineno, f"{owner}.{node.attr} is replaced"
        elif (
            re.match("_[a-z]", node.attr)
            and owner not in ("self", "cls", "super()")
            and node.attr not in NOT_PYICEBERGS
        ):
            yield node.lineno, f"{owner}.{node.attr}"


def test_nothing_is_left_unfinished() -> None:
    assert not _hits(_UNFINISHED)


def test_no_file_knows_a_machine() -> None:
    assert not _hits(_HOME)


def test_no_file_names_a_registry() -> None:
    assert not _hits(_REGISTRY)


def test_there_is_no_uv_lock() -> None:
    assert not [path for path in _tracked() if path.name == "uv.lock"]


@pytest.mark.parametrize("lock", sorted(ROOT.glob(LOCKS)), ids=lambda path: path.name)
def test_a_lock_pins_every_package_by_version_and_hash(lock: Path) -> None:
    logical = lock.read_text(encoding="utf-8").replace("\\\n", " ").splitlines()
    pins = [line for line in logical if line.strip() and not line.lstrip().startswith("#")]
    assert pins
    for pin in pins:
        assert re.match(r"[a-z0-9][a-z0-9._-]*(\[[a-z,]+\])?==\S+( ;[^-]*)?\s+--hash=sha256:[0-9a-f]{64}", pin), pin
        assert "://" not in pin


def test_the_build_backend_is_locked_as_the_build_wants_it() -> None:
    wanted = re.search(r'requires = \["(hatchling==[^"]+)"\]', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert wanted
    assert f"\n{wanted[1]} \\\n" in (ROOT / "requirements-dev.lock").read_text(encoding="utf-8")


def test_the_version_is_the_same_everywhere() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert f'\nversion = "{frazil.__version__}"\n' in project


@pytest.mark.parametrize("script", [".ci/run", "scripts/parts.sh", "scripts/setup.sh"])
def test_scripts_can_be_run(script: str) -> None:
    assert (ROOT / script).stat().st_mode & 0o111
