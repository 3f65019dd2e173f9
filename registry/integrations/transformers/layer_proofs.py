"""Proofs of how a decoder layer, and the model around its layers, hand on hidden states: by runs of their own code.

Their modules are replaced by recorders for the run, which keep what they get, and return tensors of random numbers.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from ...contracts.checks import WIDE

_COLS, _TOKENS = 8, 2
_NO_FORM = (
    "residual sums: its layer is none of the form x + attention(norm(x)), then x + mlp(norm(x)),"
    " with norms of what is added or without"
)


class ResidualForm(NamedTuple):
    """The parts of a layer by name, for ``h = x + after(attention(before(x)))`` and then ``h + then(h)``.

    ``before``, ``after`` and ``then`` are modules of which each gets what the one before returns: Llama's have a norm
    before attention, none after it, and then a norm and the MLP; Gemma 2's have norms before and after both; OLMo 2's
    have them only after both. ``keyword`` is the parameter of attention that takes the hidden states, "" for its first
    one; ``defaults`` are names and values of the layer's other parameters, which attention gets by the same names;
    ``tuples``: attention returns a tuple. ``dropouts`` drop nothing while the layer is evaluated.
    """

    before: tuple[str, ...]
    attention: str
    after: tuple[str, ...]
    then: tuple[str, ...]
    keyword: str
    defaults: tuple[tuple[str, Any], ...]
    tuples: bool
    dropouts: tuple[str, ...]


class _Call(NamedTuple):
    """A call of a module by its name."""

    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class _Recorder(torch.nn.Module):
    """A stand-in for a module, which notes its name and arguments, and returns what it was made with."""

    def __init__(self, name: str, result: Any, calls: list[_Call], real: Any) -> None:
        super().__init__()
        self._name, self._result, self._calls = name, result, calls
        object.__setattr__(self, "_real", real)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self._calls.append(_Call(self._name, args, kwargs))
        return self._result

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name.startswith("_"):
                raise
            return getattr(self.__dict__["_real"], name)


def residual_form(layer: torch.nn.Module) -> ResidualForm | str:
    """The form of a decoder layer, or why it has none that is known.

    The layer's own forward runs, and each sum must be to the bit that of what two modules have returned.
    """
    if "forward" in vars(layer):
        return "residual sums: another program has replaced a layer's forward"
    # one that is multiplied by is 1 until the weights are loaded
    if any(True for _ in (*layer.parameters(recurse=False), *layer.buffers(recurse=False))):
        return "residual sums: its layer has tensors of its own beside its modules'"
    named = [one for one in inspect.signature(type(layer).forward).parameters.values() if one.name != "self"][1:]
    # one more argument, which layers hand to attention as they do those of attention's kernels
    more = ("registry_probe",) if any(one.kind is one.VAR_KEYWORD for one in named) else ()
    defaults = {one.name: one.default for one in named if one.kind is one.POSITIONAL_OR_KEYWORD}
    if not all(default is None or isinstance(default, bool | int | float | str) for default in defaults.values()):
        return _NO_FORM
    run = _LayerRun(layer, defaults, more)
    try:
        if run.succeeds(""):
            return run.form("")
        # what was called last has returned a tensor, and a tuple was expected
        attention = run.calls[-1].name
        return run.form(attention) if run.succeeds(attention) else _NO_FORM
    except (LookupError, ValueError):
        return _NO_FORM


class _LayerRun:
    """A run of a layer's own forward with recorders in the place of its modules, and objects as its other arguments."""

    def __init__(self, layer: torch.nn.Module, defaults: Mapping[str, Any], more: Sequence[str]) -> None:
        self.calls: list[_Call] = []
        self._layer, self._defaults = layer, defaults
        self._given = {name: object() for name in (*defaults, *more)}
        drawn = torch.randn(
            1 + len(layer._modules), 1, _TOKENS, _COLS, generator=torch.Generator().manual_seed(0), device="cpu"
        )
        # of a layer's own dtype, from which some convert the residual stream
        dtype = next((one.dtype for one in layer.parameters() if one.dtype in WIDE), torch.float32)
        self._x, *results = drawn.to(dtype).unbind()
        self._results = dict(zip(layer._modules, results, strict=True))
        # one for all of them, which are parts of one tensor
        self._version = self._x._version
        self._y: object = None

    def succeeds(self, attention: str) -> bool:
        """Whether the forward runs, if the module ``attention`` returns a tuple."""
        self.calls.clear()
        children: dict[str, torch.nn.Module] = {}
        for name, child in self._layer._modules.items():
            result = self._results[name]
            recorder = _Recorder(name, (result, None) if name == attention else result, self.calls, child)
            children[name] = torch.nn.Identity() if isinstance(child, torch.nn.Dropout) else recorder
        try:
            with torch.no_grad():
                self._y = type(self._layer).forward(shell_of(self._layer, children), self._x, **self._given)
        except Exception:  # a layer's code may raise anything for modules that it does not have
            return False
        return True

    def form(self, attention: str) -> ResidualForm:
        """The form of the run that has succeeded, with the module ``attention`` if it returns a tuple.

        Raises ValueError or LookupError for another form.
        """
        if self._x._version != self._version:
            raise ValueError("what a module returns is written to")
        # of the modules attention alone gets more than hidden states
        at = next((place for place, call in enumerate(self.calls) if call.kwargs or len(call.args) != 1), 0)
        attends = self.calls[at]
        before, x = self._chain(self.calls[:at], self._x)
        keyword = next((name for name, one in attends.kwargs.items() if one is x), "")
        args, given = ((), {**self._given, keyword: x}) if keyword else ((x,), self._given)
        after, attended = self._chain(self.calls[at + 1 :], self._results[attends.name])
        h = self._x + attended
        rest = self.calls[at + 1 + len(after) :]
        then, last = self._chain(rest, rest[0].args[0])
        names = [call.name for call in self.calls]
        if not (
            (not attention or attention == attends.name)
            and len(before) == at
            and _same(args, attends.args)
            and attends.kwargs.keys() == given.keys()
            and all(one is given[name] for name, one in attends.kwargs.items())
            and _equal((h,), rest[0].args)
            and len(then) == len(rest)
            and _equal((h + last,), (self._y,))
            and len({*names}) == len(names)
        ):
            raise ValueError(attends.name)
        dropouts = [name for name, child in self._layer.named_children() if isinstance(child, torch.nn.Dropout)]
        defaults = tuple(self._defaults.items())
        return ResidualForm(before, attends.name, after, then, keyword, defaults, bool(attention), tuple(dropouts))

    def _chain(self, calls: Sequence[_Call], x: torch.Tensor) -> tuple[tuple[str, ...], torch.Tensor]:
        """The names of the first of ``calls`` that get ``x`` and then each other's results; the last one's result."""
        names: list[str] = []
        for call in calls:
            if call.kwargs or not _same((x,), call.args):
                break
            names.append(call.name)
            x = self._results[call.name]
        return tuple(names), x


def _same(expected: Sequence[object], found: Sequence[object]) -> bool:
    return len(expected) == len(found) and all(one is other for one, other in zip(expected, found, strict=True))


def _equal(expected: Sequence[torch.Tensor], found: Sequence[object]) -> bool:
    return len(expected) == len(found) and all(
        isinstance(other, torch.Tensor) and one.dtype is other.dtype and torch.equal(one, other)
        for one, other in zip(expected, found, strict=True)
    )


def hands_on(model: torch.nn.Module, layers: str, norm: str) -> bool:
    """Whether a model's own forward hands what each of its ``layers`` returns to the next, and the last to ``norm``."""
    calls: list[_Call] = []
    real: Any = model._modules[layers]
    weight: Any = model.get_submodule(norm).weight
    given = torch.zeros(1, _TOKENS, len(weight), dtype=weight.dtype, device=weight.device)
    results = [torch.zeros_like(given) for _ in range(len(real) + 1)]
    stubs = [_Recorder(f"{at}", results[at], calls, layer) for at, layer in enumerate(real)]
    last = _Recorder("norm", results[-1], calls, model._modules[norm])
    try:
        with torch.no_grad():
            shell = shell_of(model, {layers: torch.nn.ModuleList(stubs), norm: last})
            type(model).forward(shell, inputs_embeds=given, use_cache=False)
    except Exception:  # a model's code may raise anything for modules that it does not have
        return False
    if [call.name for call in calls] != [*(f"{at}" for at in range(len(real))), "norm"]:
        return False
    handed = [call.args[:1] for call in calls[1:]]
    same = all(_same((one,), args) for one, args in zip(results, handed, strict=False))
    return same and not any(one._version for one in results)


def shell_of(module: Any, children: Mapping[str, torch.nn.Module]) -> Any:
    """A module in evaluation of the same class and attributes, with some other children."""
    shell = copy.copy(module)
    shell.__dict__.update(_modules={**module._modules, **children}, training=False)
    return shell
