"""What a module that Inductor wrote does: its kernels, the tensors it allocates, and the launches in order."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import RegistryError

_IGNORED = ("assert_size_stride", "assert_size_stride_grouped", "assert_alignment", "get_raw_stream", "clear")


@dataclass(frozen=True)
class WrittenLaunch:
    """One launch: the kernel's name, and its arguments, names of tensors or numbers."""

    kernel: str
    arguments: tuple[str | int, ...]


@dataclass(frozen=True)
class WrittenTensor:
    """A tensor that the module allocates: shape, strides and dtype (``"float32"``)."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str


@dataclass
class WrittenModule:
    """The kernels by name (each a function of Triton's language), and what ``call`` does with them."""

    kernels: dict[str, ast.FunctionDef] = field(default_factory=dict)
    inputs: tuple[str, ...] = ()
    tensors: dict[str, WrittenTensor] = field(default_factory=dict)
    launches: list[WrittenLaunch] = field(default_factory=list)
    outputs: tuple[str, ...] = ()


def read_module(source: str) -> WrittenModule:
    """Read what Inductor wrote. Raises RegistryError for a module that does more than launch Triton's kernels."""
    tree, found = ast.parse(source), WrittenModule()
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and _called(node.value) == "triton":
            name, text = (ast.literal_eval(each) for each in node.value.args[:2])
            functions = [each for each in ast.parse(text).body if isinstance(each, ast.FunctionDef)]
            found.kernels[name] = next(each for each in functions if each.name == name)
    body = next((node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == "call"), None)
    if body is None:
        raise RegistryError("what torch.compile wrote has no function `call`")
    aliases: dict[str, str] = {}
    for statement in _statements(body.body):
        _read_statement(found, statement, aliases)
    if not found.launches:
        raise RegistryError("torch.compile wrote no Triton kernel for it", hint="there is nothing to begin with")
    return found


def _statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a body, also those in ``with`` blocks."""
    for statement in body:
        if isinstance(statement, ast.With):
            yield from _statements(statement.body)
        else:
            yield statement


def _read_statement(found: WrittenModule, statement: ast.stmt, aliases: dict[str, str]) -> None:
    match statement:
        case ast.Delete() | ast.Pass():
            return
        case ast.Return(value=ast.Tuple(elts=returned)):
            found.outputs = tuple(_tensor(each, aliases) for each in returned)
        case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Name(id="args")):
            found.inputs = tuple(ast.unparse(name) for name in names)
        case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call() as call):
            _read_call(found, name, call, aliases)
        case ast.Assign(targets=[ast.Name(id=name)], value=ast.Name(id=other)):
            aliases[name] = aliases.get(other, other)
        case ast.Expr(value=ast.Call() as call):
            _read_call(found, "", call, aliases)
        case _:
            raise _beyond(statement)


def _read_call(found: WrittenModule, name: str, call: ast.Call, aliases: dict[str, str]) -> None:
    called = _called(call)
    if called.startswith("empty_strided"):
        shape, strides = (tuple(ast.literal_eval(each)) for each in call.args[:2])
        found.tensors[name] = WrittenTensor(shape, strides, ast.unparse(call.args[2]).removeprefix("torch."))
    elif called == "reinterpret_tensor":
        aliases[name] = _tensor(call, aliases)
    elif called == "run" and isinstance(call.func, ast.Attribute):
        kernel = ast.unparse(call.func.value)
        found.launches.append(WrittenLaunch(kernel, tuple(_argument(each, aliases) for each in call.args)))
    elif called not in _IGNORED:
        raise _beyond(call)


def _argument(node: ast.expr, aliases: Mapping[str, str]) -> str | int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    return _tensor(node, aliases)


def _tensor(node: ast.expr, aliases: Mapping[str, str]) -> str:
    """The name of the tensor that an expression is; a view that begins where the tensor does is the tensor."""
    match node:
        case ast.Name(id=name):
            return aliases.get(name, name)
        case ast.Call(args=[ast.Name(id=name), _, _, ast.Constant(value=0)]) if _called(node) == "reinterpret_tensor":
            return aliases.get(name, name)
    raise _beyond(node)


def _called(call: Any) -> str:
    """The last name of what is called."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else ast.unparse(call.func)


def _beyond(node: ast.AST) -> RegistryError:
    return RegistryError(
        f"torch.compile does not compute it by Triton kernels alone: it wrote {ast.unparse(node)[:100]}",
        hint="a product of matrices goes to a library; scaffold what comes before or after it",
    )
