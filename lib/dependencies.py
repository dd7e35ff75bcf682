"""The code of `lib` that a function depends on, read from the source without running it.

Stored results may be used again only while this code is the same (`joblib.Memory` alone looks at
the function's own source and misses a changed helper).
"""

from __future__ import annotations

import ast
import hashlib
import importlib.machinery
import importlib.util
import itertools
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import lib
from lib.errors import WorkbookError


@dataclass(frozen=True)
class Code:
    """What a function depends on."""

    modules: Mapping[str, str]  # name of a module of lib -> its relevant syntax tree, as text
    packages: frozenset[str]  # other packages that these modules import

    @property
    def digest(self) -> str:
        """SHA-256 (hexadecimal) of the code in `lib`."""
        return hashlib.sha256(json.dumps(self.modules, sort_keys=True).encode()).hexdigest()


def code_digest(function: Callable) -> str:
    """SHA-256 (hexadecimal) of the code in `lib` that can change what `function` returns."""
    return of(function).digest


def of(function: Callable) -> Code:
    """The code that can change what `function`, defined in a module of `lib`, returns.

    Of the function's own module: the function, what it names there, what that names, and so on,
    and every module-level statement that is not a plain definition. (So a caption can be edited
    beside it and the results stay.) Every other module of `lib` that this code imports, at its top
    or inside a function, counts in full, and so do those it imports. Comments, layout and
    docstrings are left out. Other packages are only listed: their versions are pinned.
    """
    own = function.__module__
    modules: dict[str, str] = {}
    packages: set[str] = set()
    waiting = [own, lib.__name__]
    while waiting:
        name = waiting.pop()
        if name in modules:
            continue
        statements = _statements(_source_file(name))
        if name == own:
            statements = _reachable(statements, function.__name__)
        modules[name] = "\n".join(map(ast.dump, statements))
        for imported in _imported(statements):
            package, _, inside = imported.partition(".")
            if package != lib.__name__:
                packages.add(package)
            elif inside and _source_file(module := f"{package}.{inside.partition('.')[0]}"):
                waiting.append(module)
    return Code(modules, frozenset(packages))


def on_disk() -> str:
    """SHA-256 (hexadecimal) of all source files of `lib` as they are now."""
    digest = hashlib.sha256()
    for file in sorted(Path(lib.__file__).parent.glob("*.py")):
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


_seen: dict[str, tuple[object, int]] = {}


def check_loaded(code: Code) -> None:
    """Refuses code that was edited after this process loaded it.

    Else the digest of the new file would be written on results of the old code. A reload gives a
    module a new `__spec__`, and is fine.
    """
    for name in code.modules:
        file = _source_file(name)
        spec, edited = getattr(sys.modules.get(name), "__spec__", None), file.stat().st_mtime_ns
        seen_spec, seen_edited = _seen.get(name, (spec, edited))
        if edited != seen_edited and spec is not None and (seen_spec is None or seen_spec is spec):
            raise WorkbookError(
                f"{file} was changed after this Python process loaded it: restart the kernel (or"
                " the process) and run again; finished cells are kept"
            )
        _seen[name] = (spec, edited)


def _source_file(module: str) -> Path | None:
    """Source of `lib` itself or of one of its (flat) modules; None if there is no such module."""
    if module == lib.__name__:
        return Path(lib.__file__)
    spec = importlib.machinery.PathFinder.find_spec(module, lib.__path__)
    return None if spec is None or spec.origin is None else Path(spec.origin)


def _statements(file: Path) -> list[ast.stmt]:
    """The module-level statements of a source file, without docstrings, one import each."""
    tree = ast.parse(file.read_bytes())
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(tree):
        if isinstance(node, kinds) and ast.get_docstring(node, clean=False) is not None:
            del node.body[0]
    return list(itertools.chain.from_iterable(map(_single_imports, tree.body)))


def _single_imports(statement: ast.stmt) -> list[ast.stmt]:
    """`import a, b` as `import a` and `import b`; any other statement as it is."""
    match statement:
        case ast.Import(names=names):
            return [ast.Import([name]) for name in names]
        case ast.ImportFrom(module=module, names=names, level=level):
            return [ast.ImportFrom(module, [name], level) for name in names]
    return [statement]


def _imported(statements: Iterable[ast.stmt]) -> Iterator[str]:
    """Dotted names that `statements` import; `from a import b` gives a.b, a module or not."""
    for node in itertools.chain.from_iterable(map(ast.walk, statements)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = importlib.util.resolve_name("." * node.level + (node.module or ""), lib.__name__)
            yield from (f"{base}.{alias.name}" for alias in node.names)


def _reachable(statements: list[ast.stmt], function: str) -> list[ast.stmt]:
    """The module-level statements that can matter to `function`, in their order.

    A plain definition, import or assignment counts if a statement that counts names it; any other
    statement (a class, a decorated function, a call, a condition) always does, as it may act on
    the rest.
    """
    bound = [_bound_names(statement) for statement in statements]
    counting: set[int] = set()
    wanted = {function}
    while True:
        found = {
            index
            for index, names in enumerate(bound)
            if index not in counting and (names is None or names & wanted)
        }
        if not found:
            return [statements[index] for index in sorted(counting)]
        counting |= found
        for index in found:
            nodes = ast.walk(statements[index])
            wanted |= {node.id for node in nodes if isinstance(node, ast.Name)}


def _bound_names(statement: ast.stmt) -> set[str] | None:
    """Names that a plain definition, import or assignment binds; None for other statements."""
    match statement:
        case ast.FunctionDef(decorator_list=[]):
            return {statement.name}
        case ast.Import(names=[alias]) | ast.ImportFrom(names=[alias]) if alias.name != "*":
            return {(alias.asname or alias.name).partition(".")[0]}
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
            return {name}
    return None
