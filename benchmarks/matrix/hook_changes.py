"""What changed between two wheels of SGLang in what paceline hooks, and in what they need.

Nothing is installed. A body has changed when its code has, whatever its comments say.
"""

import ast
import difflib
from collections.abc import Iterator
from email import message_from_string
from zipfile import ZipFile

from ...serving.hook_targets import TARGETS

Function = ast.FunctionDef | ast.AsyncFunctionDef


def function(wheel: ZipFile, target: str) -> Function | None:
    """The definition of a dotted name in a wheel; None where its module or class does not define it."""
    parts = target.split(".")
    names = set(wheel.namelist())
    for at in range(len(parts) - 1, 0, -1):
        path = "/".join(parts[:at])
        file = next((file for file in (f"{path}.py", f"{path}/__init__.py") if file in names), None)
        if file is not None:
            return _inside(ast.parse(wheel.read(file)), parts[at:])
    return None


def _inside(node: ast.AST, names: list[str]) -> Function | None:
    for name in names:
        inner = ast.iter_child_nodes(node)  # and no deeper: another class may have a method of that name
        found = next((each for each in inner if isinstance(each, ast.ClassDef | Function) and each.name == name), None)
        if found is None:
            return None
        node = found
    return node if isinstance(node, Function) else None


def signature(found: Function) -> str:
    """Arguments as written, without their types, which hooks do not read."""
    bare = ast.parse(f"def f({ast.unparse(found.args)}): ...").body[0]
    assert isinstance(bare, Function)
    for argument in ast.walk(bare.args):
        if isinstance(argument, ast.arg):
            argument.annotation = None
    return f"({ast.unparse(bare.args)})"


def change(old: Function | None, new: Function | None) -> list[str]:
    """Lines that say what became of a target; none where its code is the same."""
    if new is None:
        return ["gone" if old is not None else "in neither"]
    if old is None:
        return [f"new: {signature(new)}"]
    before, after = (ast.unparse(ast.Module(each.body, [])).splitlines() for each in (old, new))
    moved = [line for line in difflib.ndiff(before, after) if line[0] in "+-"]
    said = [] if signature(old) == signature(new) else [f"was {signature(old)}", f"is  {signature(new)}"]
    return said + ([f"body: {len(moved)} lines differ"] if moved else [])


def needs(wheel: ZipFile) -> set[str]:
    """What a wheel requires without an extra."""
    file = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    required = message_from_string(wheel.read(file).decode()).get_all("Requires-Dist") or []
    return {each for each in required if "extra ==" not in each}


def report(old: ZipFile, new: ZipFile) -> Iterator[str]:
    """Everything that changed, target by target, then the requirements."""
    same = 0
    for target in TARGETS:
        said = change(function(old, target), function(new, target))
        same += not said
        yield from (f"{target}: {line}" for line in said)
    yield f"{same} of {len(TARGETS)} hook targets are the same"
    yield from (f"needs no longer: {each}" for each in sorted(needs(old) - needs(new)))
    yield from (f"needs: {each}" for each in sorted(needs(new) - needs(old)))
