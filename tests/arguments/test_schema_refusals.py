"""What is no schema of an op is refused with the reason, and with what to write instead."""

from __future__ import annotations

import pytest

from registry import InvalidDefinitionError
from registry.arguments.schema import Schema

REFUSED = {
    "f(Dict d) -> Tensor y": ("Dict is not possible: pass each of its values by a name of its own", "an argument is a"),
    "f(Dict(str, int) d) -> Tensor y": ("Dict is not possible", "an argument is a Tensor"),
    "f(Tensor x) -> int": ("an output is of type int, but the host allocates", "every output is a Tensor"),
    "f(Tensor x) -> (Tensor y, int n)": ("the output n is of type int", "every output is a Tensor"),
    "f(Tensor x) -> Tensor": ("an output has no name", "write '-> Tensor y'"),
    "f(Foo x) -> Tensor y": ("a type that torch does not know at 'Foo x) -> Tensor y'", "an argument is a Tensor"),
    "f(Tensor x -> Tensor y": ("expected ) but found 'arrow' at '-> Tensor y'", "expected e.g. 'softmax(Tensor x"),
    "f(Tensor(a!) x, Tensor(a!) z) -> ()": ("x and z have one letter, a,", "Tensor(a!) x, Tensor(b!) z"),
    "f(Tensor(b) x, Tensor(b!) z) -> ()": ("x and z have one letter, b,", "a letter of its own"),
    "f(Tensor x) -> (Tensor y, Tensor y)": ("two outputs are named y", "a name of its own"),
    "f(Tensor x, int x) -> Tensor y": ("two arguments are named x", "a name of its own"),
    "f(Tensor x) -> Tensor x": ("an argument and an output are named x", "write Tensor(a!) x and leave it out"),
    "f.over(Tensor x) -> Tensor y": ("f.over names an overload, and an op has none", "write f(...)"),
    "f(Tensor x, float eps=1e400) -> Tensor y": ("a default does not fit in 64 bits", "an int64 or a float64"),
    "f(Tensor x, int n=99999999999999999999) -> Tensor y": ("a default does not fit in 64 bits", "without a default"),
    "f(Tensor x, bool t=true) -> Tensor y": ("t has the default true, which torch does not know", "True, False, None"),
    "f(Tensor x, str s=abc, int n=1) -> Tensor y": ("s has the default abc, which torch", "or a text in quotes"),
    "f(Tensor x=None) -> Tensor y": ("x has the default None, which no Tensor is", "write Tensor? x=None where"),
    "f(Tensor x, int n=None) -> Tensor y": ("n has the default None, which no int is", "write int? n=None where"),
    "f(Tensor x) -> Dict d": ("at 'd'", "expected e.g."),
    "f(Tensor?[] xs) -> Tensor y": ("xs is of type Tensor?[]: pass the tensors that are there", "all but a list may"),
    "f(Tensor x, int[]? n=None) -> Tensor y": ("n is of type int[]?: an empty list takes", "all but a list may"),
    "f(Tensor x, Tensor[]? w=None) -> Tensor y": ("w is of type Tensor[]?: an empty list takes", "all but a list may"),
    "f(Tensor x, Device? d=None) -> Tensor y": ("d is of type Device: the arguments' device", "an argument is a"),
    "f(Tensor x, complex c) -> Tensor y": ("c is of type complex", "an argument is a Tensor"),
}


ALLOWED = [
    "f(Tensor(a!) x, Tensor(b!) z) -> ()",
    "f(Tensor(a) x, Tensor(a) z) -> Tensor y",
]


@pytest.mark.parametrize("text", ALLOWED)
def test_letters_of_their_own_and_of_what_is_only_read_are_allowed(text: str) -> None:
    assert Schema.parse(text).names == ("x", "z")


@pytest.mark.parametrize("text", REFUSED)
def test_a_schema_is_refused_with_the_reason_and_the_remedy(text: str) -> None:
    with pytest.raises(InvalidDefinitionError) as raised:
        Schema.parse(text)
    reason, remedy = REFUSED[text]
    assert raised.value.message.startswith(f"schema {text!r}: ")
    assert reason in raised.value.message
    assert remedy in raised.value.hint
    assert "HERE" not in str(raised.value)


def test_defaults_that_torch_knows_are_allowed() -> None:
    parsed = Schema.parse("f(Tensor x, Tensor? z=None, int? n=None, bool t=True, str s='abc') -> Tensor y")
    assert [one.default for one in parsed.parameters[1:]] == [None, None, True, "abc"]


def test_kinds_are_named_as_a_schema_writes_them() -> None:
    parsed = Schema.parse("f(Tensor[] xs, int[] n, Scalar s, Scalar? t, float? e) -> Tensor y")
    kinds = [(one.kind, one.optional) for one in parsed.parameters]
    assert kinds == [("Tensor[]", False), ("int[]", False), ("Scalar", False), ("Scalar", True), ("float", True)]
