"""A kernel that Inductor wrote, in Triton's language alone and with names to read."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Mapping, Set
from dataclasses import dataclass

from ..errors import RegistryError

HELPERS = {
    "larger": """
@triton.jit
def larger(a, b):
    \"\"\"The larger of two numbers; NaN if one of them is.\"\"\"
    return tl.where((a > b) | (a != a), a, b)
""",
    "smaller": """
@triton.jit
def smaller(a, b):
    \"\"\"The smaller of two numbers; NaN if one of them is.\"\"\"
    return tl.where((a < b) | (a != a), a, b)
""",
    "tanh": """
@triton.jit
def tanh(x):
    \"\"\"The hyperbolic tangent, by an exponential that does not overflow.\"\"\"
    e = tl.exp(-2 * tl.abs(x))
    size = (1 - e) / (1 + e)
    return tl.where(x < 0, -size, size)
""",
}
"""Functions for what torch's private helpers do, by name."""

_SAME = frozenset({"exp", "exp2", "log", "log2", "sqrt", "rsqrt", "abs", "sin", "cos", "erf", "floor", "ceil", "fma"})
"""Functions of libdevice that Triton's language has by the same name; ``fabs`` is ``abs``."""

_REDUCTIONS = {"max2": "larger", "min2": "smaller"}
_PAIRS = {"maximum": "maximum", "minimum": "minimum"}

_ONE = ("[1]", "[1, 1]")
"""Shapes of one number, which needs none."""

_NAMES = {
    "xnumel": "rows", "r0_numel": "cols", "xindex": "row", "r0_index": "col", "xmask": "in_rows", "r0_mask": "in_cols",
    "xoffset": "first_row", "XBLOCK": "ROWS", "R0_BLOCK": "COLS", "r0_offset": "first_col", "r0_base": "within",
}  # fmt: skip
_POINTWISE = {"xnumel": "size", "xindex": "index", "xmask": "inside", "xoffset": "first", "XBLOCK": "BLOCK"}


@dataclass(frozen=True)
class ReadableKernel:
    """A kernel as text: its tunable constants, the ``HELPERS`` that it calls, and its last arguments, numbers."""

    name: str
    text: str
    blocks: tuple[str, ...]
    helpers: frozenset[str]
    numbers: tuple[str, ...]


def readable(
    kernel: ast.FunctionDef, name: str, pointers: Mapping[str, str], numbers: Mapping[float, str]
) -> ReadableKernel:
    """The kernel under another name, whose pointers have the names in ``pointers``. Raises RegistryError.

    Numbers in it that are in ``numbers`` become arguments of these names, behind all others.
    """
    is_rows = any(argument.arg == "r0_numel" for argument in kernel.args.args)
    rewriting = _Rewriting()
    body = [ast.parse(ast.unparse(rewriting.visit(statement))).body[0] for statement in kernel.body]
    body = _without_unused(_inlined(body))
    naming = _Numbers(numbers)
    body = [naming.visit(statement) for statement in body]
    names = {**(_NAMES if is_rows else _POINTWISE), **pointers}
    names |= _temporaries(body, pointers, set(names.values()))
    arguments = [argument.arg for argument in kernel.args.args]
    constant = {argument.arg for argument in kernel.args.args if argument.annotation is not None}
    text = "\n".join(f"    {line}" for each in body for line in ast.unparse(_renamed(each, names)).splitlines())
    plain = [names.get(each, each) for each in arguments if each not in constant] + sorted(naming.found)
    blocks = [names.get(each, each) for each in arguments if each in constant]
    told = ", ".join([*plain, *(f"{each}: tl.constexpr" for each in blocks)])
    return ReadableKernel(
        name,
        f"@triton.jit\ndef {name}({told}):\n{text}\n",
        tuple(blocks),
        frozenset(rewriting.helpers),
        tuple(sorted(naming.found)),
    )


class _Numbers(ast.NodeTransformer):
    """Replaces numbers by names; ``found`` are the names that it has used."""

    def __init__(self, numbers: Mapping[float, str]) -> None:
        self._numbers = numbers
        self.found: set[str] = set()

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        if type(node.value) is not float or node.value not in self._numbers:
            return node
        self.found.add(self._numbers[node.value])
        return ast.Name(self._numbers[node.value], ast.Load())


class _Rewriting(ast.NodeTransformer):
    """Replaces torch's private helpers by Triton's language, and leaves out hints of where to cache."""

    def __init__(self) -> None:
        self.helpers: set[str] = set()

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        node.keywords = [each for each in node.keywords if each.arg != "eviction_policy"]
        if not isinstance(node.func, ast.Attribute):
            return node
        module, called = ast.unparse(node.func.value), node.func.attr
        given = [ast.unparse(each) for each in node.args]
        if module == "triton_helpers":
            return self._helper(called, given)
        if module in {"libdevice", "tl_math"}:
            return self._function(called, given)
        if module == "tl" and called == "full" and given[0] in _ONE and given[-1:] == ["tl.float32"]:
            return _expression(given[1])
        return node

    def _helper(self, called: str, given: list[str]) -> ast.expr:
        if called == "promote_to_tensor":
            return _expression(given[0])
        if called in _REDUCTIONS:
            self.helpers.add(_REDUCTIONS[called])
            return _expression(f"tl.reduce({given[0]}, {given[1]}, {_REDUCTIONS[called]})")
        if called in _PAIRS:
            return _expression(f"tl.{_PAIRS[called]}({', '.join(given)}, propagate_nan=tl.PropagateNan.ALL)")
        raise _private(f"triton_helpers.{called}")

    def _function(self, called: str, given: list[str]) -> ast.expr:
        name = {"fabs": "abs"}.get(called, called)
        if name == "isnan":
            return _expression(f"({given[0]} != {given[0]})")
        if name == "isinf":
            return _expression(f"(tl.abs({given[0]}) == float('inf'))")
        if name == "tanh":
            self.helpers.add("tanh")
            return _expression(f"tanh({given[0]})")
        if name not in _SAME:
            raise _private(f"libdevice.{called}")
        return _expression(f"tl.{name}({', '.join(given)})")


def _private(name: str) -> RegistryError:
    return RegistryError(
        f"the kernel that torch.compile wrote uses {name}, for which Triton's language has no function",
        hint="begin with `registry new plugin --backend triton`",
    )


def _expression(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def _target(statement: ast.stmt) -> str:
    """The name that a statement assigns; "" for another statement."""
    match statement:
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
            return name
    return ""


def _inlined(body: list[ast.stmt]) -> list[ast.stmt]:
    """The statements with names and numbers in place of the names that stand for them."""
    assigned = Counter(
        _target(each) for statement in body for each in ast.walk(statement) if isinstance(each, ast.stmt)
    )
    return _inlined_within(body, {}, {name for name, count in assigned.items() if count == 1})


def _inlined_within(body: list[ast.stmt], known: dict[str, ast.expr], once: Set[str]) -> list[ast.stmt]:
    """The statements of one block; ``once`` are the names that are assigned in one place."""
    kept: list[ast.stmt] = []
    for statement in body:
        if isinstance(statement, ast.For):
            statement.iter = _Inlining(known).visit(statement.iter)
            statement.body = _inlined_within(statement.body, known, once)
            kept.append(statement)
            continue
        changed = _Inlining(known).visit(statement)
        if (name := _target(changed)) and isinstance(changed, ast.Assign):
            value = changed.value
            # the extents in the body are the arguments, which a reader would change
            if _is_plain(value) and name in once and not name.endswith("numel"):
                known[name] = value
                continue
            if name.endswith("numel") and isinstance(value, ast.Constant):
                continue
        kept.append(changed)
    return kept


def _is_plain(value: ast.expr) -> bool:
    """True for a name or a number, also a negative one or ``float('-inf')``."""
    return (
        isinstance(value, ast.Name | ast.Constant)
        or re.fullmatch(r"-[\d.e+-]+|float\('-?\w+'\)", ast.unparse(value)) is not None
    )


class _Inlining(ast.NodeTransformer):
    def __init__(self, known: Mapping[str, ast.expr]) -> None:
        self._known = known

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self._known.get(node.id, node) if isinstance(node.ctx, ast.Load) else node


def _without_unused(body: list[ast.stmt]) -> list[ast.stmt]:
    """The statements whose results are used, or that store."""
    while True:
        used = {
            node.id
            for statement in body
            for node in ast.walk(statement)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
        }
        kept = _used_within(body, used)
        if sum(1 for each in kept for _ in ast.walk(each)) == sum(1 for each in body for _ in ast.walk(each)):
            return kept
        body = kept


def _used_within(body: list[ast.stmt], used: Set[str]) -> list[ast.stmt]:
    kept: list[ast.stmt] = []
    for statement in body:
        if isinstance(statement, ast.For):
            inner = _used_within(statement.body, used)
            kept.append(ast.For(statement.target, statement.iter, inner, [], lineno=statement.lineno))
        elif not _target(statement) or _target(statement) in used:
            kept.append(statement)
    return kept


_WORDS = (
    (r"tl\.load\((\w+)", "{0}_value"), (r"tl\.sum", "total"), (r"larger\b", "largest"), (r"smaller\b", "least"),
    (r"tl\.exp\b", "exponential"), (r"tanh", "tangent"), (r"tl\.where", "masked"), (r"tl\.broadcast_to", "block"),
    (r"tl\.rsqrt", "inverse"), (r" / ", "quotient"), (r" \* ", "product"), (r" - ", "difference"), (r" \+ ", "added"),
)  # fmt: skip


def _temporaries(body: list[ast.stmt], pointers: Mapping[str, str], taken: set[str]) -> dict[str, str]:
    """A name for each temporary, by what it is computed with."""
    found: dict[str, str] = {}
    for statement in (each for node in body for each in ast.walk(node) if isinstance(each, ast.stmt)):
        name = _target(statement)
        if not re.fullmatch(r"_?tmp\d+(_\w+)?|x\d+|r0_\d+", name) or name in found:
            continue
        text = ast.unparse(statement.value) if isinstance(statement, ast.Assign) else ""
        word = _word(text, pointers) or ("index" if name[0] in "xr" else "value")
        number, wanted = 2, word
        while wanted in taken:
            wanted, number = f"{word}_{number}", number + 1
        taken.add(wanted)
        found[name] = wanted
    return found


def _word(text: str, pointers: Mapping[str, str]) -> str:
    """The word for what an expression computes; "" where there is none."""
    for pattern, form in _WORDS:
        if match := re.search(pattern, text):
            return form.format(*(pointers.get(each, each) for each in match.groups()))
    return ""


def _renamed(statement: ast.stmt, names: Mapping[str, str]) -> ast.stmt:
    for node in ast.walk(statement):
        if isinstance(node, ast.Name):
            node.id = names.get(node.id, node.id)
    return statement
