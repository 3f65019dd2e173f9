"""The shapes file: what it stands for, and what a slip in it is told."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from registry.contract import Floor, Op, Tolerance
from registry.errors import InvalidArgumentError, InvalidDefinitionError, ShapesFileError, UnknownNameError
from registry.problem import Problem
from registry.tuner.shapes import shapes
from registry.tuner.shapes.shapes import Shapes, load_shapes, read_shapes

CONFIGS = Path(__file__).parents[3] / "configs"


class Ops:
    """Two ops with every kind of dimension: sizes, a dtype, a flag and text."""

    def ops(self) -> dict[str, Op]:
        return {
            op.name: op
            for op in (_op("softmax", "int dim=-1", {"cols"}), _op("gelu", 'str mode="tanh"', {"mode", "flag"}))
        }


def _op(name: str, attribute: str, static: set[str]) -> Op:
    return Op(
        name=name,
        schema=f"{name}(Tensor x, {attribute}) -> Tensor y",
        version=1,
        reference=lambda x, *_: x,
        problem=lambda arguments: Problem(name, {}),
        inputs=lambda problem, kind, generator: (torch.empty(0),),
        floor=lambda problem: Floor(0, 0),
        tolerance=Tolerance({}, {}, lambda problem, y: y),
        static=frozenset({"dtype", *static}),
        dynamic=frozenset({"rows"}),
    )


Load = Callable[..., dict[str, list[Problem]]]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    def loaded(text: str, *ops: str) -> dict[str, list[Problem]]:
        path = tmp_path / "shapes.yaml"
        path.write_text(text)
        return load_shapes(path, Ops(), ops)

    return loaded


def fault_of(load: Load, text: str, *ops: str) -> str:
    """Message and hint, without the folder."""
    with pytest.raises(ShapesFileError) as caught:
        load(text, *ops)
    return re.sub(r"^/.*/(shapes\.yaml)", r"\1", str(caught.value))


def test_an_entry_is_the_product_of_its_lists_in_the_order_of_the_file(load: Load) -> None:
    found = load("softmax:\n  - {rows: [1, 2], cols: [8, 4], dtype: float32}\n")
    shown = [(problem.rows, problem.cols, problem.dtype) for problem in found["softmax"]]
    assert shown == [(1, 8, "float32"), (1, 4, "float32"), (2, 8, "float32"), (2, 4, "float32")]


def test_a_problem_that_stands_twice_is_there_once(load: Load) -> None:
    entry = "  - {rows: [1, 2, 1], cols: 8, dtype: float32}\n"
    assert len(load("softmax:\n" + entry + entry)["softmax"]) == 2


def counted(tmp_path: Path, text: str, *ops: str) -> Shapes:
    path = tmp_path / "shapes.yaml"
    path.write_text(text)
    return read_shapes(path, Ops(), ops)


def test_a_count_holds_for_every_problem_of_its_entry_and_adds_up(tmp_path: Path) -> None:
    text = (
        "softmax:\n"
        "  - {rows: [1, 2], cols: 8, dtype: float32, count: 37}\n"
        "  - {rows: 2, count: 3, cols: 8, dtype: float32}\n"
        "  - {rows: 4, cols: 8, dtype: float32}\n"
        "gelu:\n  - {rows: 1, flag: true, mode: tanh, dtype: float32, count: 1_000}\n"
    )
    found = counted(tmp_path, text)
    by_rows = {problem.rows: count for problem, count in found.counts.items() if problem.op == "softmax"}
    assert by_rows == {1: 37, 2: 40, 4: 1}
    assert [problem.rows for problem in found.problems["softmax"]] == [1, 2, 4]
    assert list(counted(tmp_path, text, "gelu").counts.values()) == [1000]
    assert all("count" not in problem.dims for problem in found.counts)


def test_without_counts_there_are_none(tmp_path: Path) -> None:
    assert counted(tmp_path, "softmax: [{rows: [1, 2], cols: 8, dtype: float32}]").counts == {}


def test_flags_text_underscores_and_aliases_are_read(load: Load) -> None:
    text = "gelu:\n  - {rows: &sizes [32_000], flag: [true, false], mode: none, dtype: float16}\n"
    text += "softmax:\n  - {rows: *sizes, cols: 4, dtype: bfloat16}\n"
    found = load(text)
    assert [problem.flag for problem in found["gelu"]] == [True, False]
    assert found["gelu"][0].mode == "none"
    assert found["softmax"][0].rows == 32000


def test_ops_keeps_only_those(load: Load) -> None:
    text = "softmax: [{rows: 1, cols: 8, dtype: float32}]\ngelu: [{rows: 1, flag: true, mode: tanh, dtype: float32}]"
    assert list(load(text)) == ["softmax", "gelu"]
    assert list(load(text, "gelu")) == ["gelu"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "shapes.yaml, line 1: the file is empty\n  expected an op"),
        ("# nothing\n", "line 1: the file is empty"),
        ("- softmax\n", "line 1: got a list\n  expected a mapping from ops"),
        ("softmax\n", "line 1: got a single value ('softmax')\n  expected a mapping from ops"),
        ("softmaxx: []\n", "line 1, softmaxx: unknown op 'softmaxx'\n  did you mean softmax?"),
        ("softmax:\n", "line 1, softmax: got nothing\n  expected a list of entries"),
        ("softmax: []\n", "line 1, softmax: an empty list\n  expected an entry"),
        ("softmax:\n  rows: 1\n", "line 1, softmax: got a mapping\n  expected a list of entries"),
        ("softmax:\n  - 7\n", "line 2, softmax[0]: got 7\n  expected a mapping of the dimensions cols, dtype, rows"),
        (
            "softmax:\n  - {rows: 1, cols: 8, dtype: float32}\n  - rows: 1\n    colz: 8\n    dtype: float32\n",
            "line 3, softmax[1]: cols is missing\n  softmax has the dimensions cols, dtype, rows",
        ),
        (
            "softmax:\n  - rows: 1\n    cols: 8\n    dtype: float32\n    colz: 8\n",
            "line 5, softmax[0].colz: unknown dimension of softmax 'colz'\n  did you mean cols?",
        ),
        (
            "softmax:\n  - rows: 1\n    dtype: float32\n    cols: 0\n",
            "line 4, softmax[0].cols: got 0\n  expected a positive integer",
        ),
        (
            "softmax:\n  - rows:\n      - 1\n      - -4\n    dtype: float32\n    cols: 8\n",
            "line 4, softmax[0].rows[1]: got -4\n  expected a positive integer",
        ),
        ("softmax: [{rows: many, cols: 8, dtype: float32}]", "softmax[0].rows: got 'many'\n  expected a positive"),
        ("softmax: [{rows: 1.5, cols: 8, dtype: float32}]", "softmax[0].rows: got 1.5\n  expected a positive"),
        ("softmax: [{rows: 1e3, cols: 8, dtype: float32}]", "softmax[0].rows: got '1e3'\n  expected a positive"),
        ("softmax: [{rows: true, cols: 8, dtype: float32}]", "softmax[0].rows: got True\n  expected a positive"),
        ("softmax: [{rows: , cols: 8, dtype: float32}]", "softmax[0].rows: got nothing\n  expected a positive"),
        ("softmax: [{rows: {a: 1}, cols: 8, dtype: float32}]", "softmax[0].rows: got a mapping\n  expected a positive"),
        ("softmax: [{rows: [[1]], cols: 8, dtype: float32}]", "softmax[0].rows[0]: got a list\n  expected a positive"),
        ("softmax: [{rows: [], cols: 8, dtype: float32}]", "softmax[0].rows: an empty list\n  expected at least one"),
        ("softmax: [{rows: 99999999999999999999, cols: 8, dtype: float32}]", "got 99999999999999999999\n  expected"),
        ("softmax: [{rows: 1, cols: 8, dtype: float31}]", "softmax[0].dtype: got 'float31'\n  expected a dtype"),
        ("softmax: [{rows: 1, cols: 8, dtype: int32}]", "softmax[0].dtype: got 'int32'\n  expected a dtype"),
        ("softmax: [{rows: 1, cols: 8, dtype: 16}]", "softmax[0].dtype: got 16\n  expected a dtype"),
        ("gelu: [{rows: 1, mode: 3, flag: true, dtype: float32}]", "gelu[0].mode: got 3\n  expected text"),
        ("gelu: [{rows: 1, mode: tanh, flag: x, dtype: float32}]", "got 'x'\n  expected a positive integer, true"),
        ("softmax: [{rows: 1, cols: 8, dtype: float32, count: 0}]", "softmax[0].count: got 0\n  expected one positive"),
        ("softmax: [{rows: 1, cols: 8, dtype: float32, count: [1]}]", "softmax[0].count: got a list\n  expected one"),
        ("softmax: [{rows: 1, cols: 8, dtype: float32, count: true}]", "softmax[0].count: got True\n  expected one"),
        ("softmax: [{rows: 1, rows: 2}]", "softmax[0]: rows stands here twice, on line 1 and line 1"),
        ("softmax: []\nsoftmax: []\n", "softmax stands here twice, on line 1 and line 2"),
        ("softmax: [{1: 2}]", "softmax[0]: 1 is not a name\n  expected the name of an op or dimension"),
        ("softmax: [{[1, 2]: 3}]", "softmax[0]: a list is not a name\n  expected the name of an op or dimension"),
        ("softmax:\n  - rows: 1\n    cols: 2024-13-45", "line 3, softmax[0].cols: got '2024-13-45': month must be in"),
        ("softmax: [{rows: " + "9" * 5000 + ", cols: 1, dtype: float32}]", "line 1, softmax[0].rows: got '9999"),
        ("softmax: [{rows: 0x" + "f" * 5000 + ", cols: 1, dtype: float32}]", "got a number of 20000 bits\n  expected"),
        ("softmax: [{rows: 1, cols: !!python/name:os.x y}]", "cols: 'y' cannot be read as 'tag:yaml.org,2002:python"),
        ("a: &a {rows: 1}\nsoftmax: [{<<: *a}]", "line 2, softmax[0]: << has no meaning here\n  write the dim"),
        ("softmax: [{rows: !!bool x, cols: 8, dtype: float32}]", "softmax[0].rows: 'x' cannot be read as 'tag:yaml"),
        ("softmax: [{rows: !!int '', cols: 8, dtype: float32}]", "softmax[0].rows: '' cannot be read as 'tag:yaml"),
        ("softmax: [{rows: !!timestamp x, cols: 8, dtype: float32}]", "softmax[0].rows: 'x' cannot be read as 'tag:y"),
        ("softmax: [\n", "line 2: not YAML: while parsing a flow node"),
        ("softmax: !!python/object:os.system {}\n", "line 1, softmax: the tag 'tag:yaml.org,2002:python/"),
        ("softmax: []\n---\ngelu: []\n", "line 2: not YAML: expected a single document"),
        ("softmax: &a [*a]\n", "softmax[0]: an alias refers to what it stands in"),
        ("softmax: \x07\n", "not YAML: unacceptable character"),
        ("softmax: [{rows: " + str(list(range(1, 400))) + ", cols: " + str(list(range(1, 400))) + ", dtype: float32}]",
         "softmax[0]: more than 100000 problems"),
    ],
)  # fmt: skip
def test_a_slip_is_told_with_file_line_key_and_what_was_expected(load: Load, text: str, told: str) -> None:
    assert told in fault_of(load, text)


@pytest.mark.parametrize(
    "text",
    ["[" * 5000, "{a: " * 5000, "- " * 3000, "".join(f"{' ' * depth}a:\n" for depth in range(2000))],
    ids=["lists", "mappings", "items", "indentation"],
)
def test_a_file_nested_thousands_deep_is_one_error_with_its_line(load: Load, text: str) -> None:
    assert re.match(r"shapes\.yaml, line \d+: nested too deeply\n  expected op: ", fault_of(load, text))


@pytest.mark.thorough
def test_aliases_of_aliases_are_written_out_only_so_far(load: Load) -> None:
    laughs = "a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1]\n"
    for before, name in itertools.pairwise("abcdefgh"):
        laughs += f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n"
    assert re.search(r"more than 400000 values, aliases written out\n  list fewer values", fault_of(load, laughs))
    # as a key it is never written out
    assert "softmax: a list is not a name" in fault_of(load, "x: &x [1]\nsoftmax: {? [*x, *x]\n  : 1}\n")


def test_the_same_entry_many_times_over_is_bounded_too(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shapes, "MOST_PROBLEMS", 1000)
    sizes = ", ".join(map(str, range(1, 30)))
    text = f"softmax:\n  - &e {{rows: [{sizes}], cols: [{sizes}], dtype: float32}}\n" + "  - *e\n" * 50
    assert "line 2, softmax[1]: more than 1000 problems" in fault_of(load, text)


@pytest.mark.parametrize(
    ("name", "remedy"),
    [("acme::row_smu", "mean acme::row_sum"), ("acne::row_sum", "the plugin of acne installed")],
)
def test_a_misspelt_op_of_a_vendor_that_is_there_is_no_missing_plugin(tmp_path: Path, name: str, remedy: str) -> None:
    class Vendors:
        def ops(self) -> dict[str, Op]:
            return {"acme::row_sum": _op("acme::row_sum", "int dim=-1", {"cols"})}

    (tmp_path / "shapes.yaml").write_text(f"{name}:\n  - {{rows: 1, cols: 2}}\n")
    with pytest.raises(ShapesFileError, match=rf"unknown op '{name}'\n.*{remedy}"):
        load_shapes(tmp_path / "shapes.yaml", Vendors())


def test_a_file_that_never_ends_is_refused() -> None:
    with pytest.raises(ShapesFileError, match="longer than 16777216 characters"):
        load_shapes("/dev/zero", Ops())


def test_a_slip_is_told_even_when_other_ops_are_wanted(load: Load) -> None:
    text = "gelu: [{rows: 1, flag: true, mode: tanh, dtype: float32}]\nsoftmax: [{rows: 0, cols: 8, dtype: float32}]"
    assert "line 2, softmax[0].rows" in fault_of(load, text, "gelu")


def test_the_first_slip_of_several_is_told(load: Load) -> None:
    text = "softmax:\n  - rows: -1\n    dtype: 7\n    cols: 0\n"
    assert "line 2, softmax[0].rows" in fault_of(load, text)


def test_an_op_that_is_not_in_the_file_is_refused(load: Load) -> None:
    told = fault_of(load, "softmax: [{rows: 1, cols: 8, dtype: float32}]", "gelu")
    assert told == "shapes.yaml: no shapes for gelu\n  the file has: softmax"


def test_an_op_that_nobody_defines_is_refused_with_the_nearest_names(load: Load) -> None:
    with pytest.raises(UnknownNameError, match=r"unknown op 'sofmax'\n  did you mean softmax\?"):
        load("softmax: [{rows: 1, cols: 8, dtype: float32}]", "sofmax")


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    with pytest.raises(ShapesFileError, match="no such file"):
        load_shapes(tmp_path / "absent.yaml", Ops())
    with pytest.raises(ShapesFileError, match="Is a directory"):
        load_shapes(tmp_path, Ops())
    for name in ("\0", "\udcff\0"):
        with pytest.raises(ShapesFileError, match="expected the name of a YAML file"):
            load_shapes(name, Ops())
    with pytest.raises(ShapesFileError, match="File name too long"):
        load_shapes("a" * 5000, Ops())
    (tmp_path / "latin.yaml").write_bytes(b"softmax: \xff\n")
    with pytest.raises(ShapesFileError, match=r"not UTF-8 text \(byte 9\)"):
        load_shapes(tmp_path / "latin.yaml", Ops())


@given(
    tag=st.sampled_from(["int", "float", "bool", "null", "str", "timestamp", "binary", "seq", "map", "set", "omap",
                         "pairs", "merge", "value", "yaml", "python/name:os.system"]),
    value=st.sampled_from(["''", "a", "-", "0x", "1:60", "2001-13-45", "~", "1e400", "=", "<<", "[1]", "{a: 1}"]),
    place=st.sampled_from(["{}", "softmax: {}", "softmax: [{}]", "softmax: [{{rows: {}, cols: 8}}]", "{}: []",
                           "softmax: [{{{}: 1}}]"]),
)  # fmt: skip
def test_a_tag_at_any_place_is_shapes_or_a_shapes_file_error(
    tag: str, value: str, place: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "tags.yaml"
    path.write_text(place.format(f"!!{tag} {value}"))
    with contextlib.suppress(ShapesFileError):
        load_shapes(path, Ops())


@given(text=st.text(max_size=80) | st.text("softmax:[]{}-,rowcldtype01 \n#&*!", max_size=80))
def test_whatever_stands_in_a_file_is_shapes_or_a_shapes_file_error(
    text: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "random.yaml"
    path.write_text(text)
    try:
        load_shapes(path, Ops())
    except ShapesFileError as fault:
        assert "\n" not in fault.message  # noqa: PT017


def test_a_dimension_that_is_an_int_argument_may_be_any_integer_where_it_is_dynamic(
    tmp_path: Path,
) -> None:
    class Rolls:
        def ops(self) -> dict[str, Op]:
            return {"roll": replace(_op("roll", "int shift", set()), dynamic=frozenset({"rows", "shift"}))}

    path, text = tmp_path / "shapes.yaml", "roll:\n  - {{rows: {}, dtype: float32, shift: {}}}\n"
    path.write_text(text.format(3, "[-7, 0, 5]"))
    assert [problem.shift for problem in load_shapes(path, Rolls())["roll"]] == [-7, 0, 5]
    for rows, shift, told in (
        (0, 5, "rows: got 0\n  expected a positive"),
        (3, "true", "shift: got True\n  expected an int"),
    ):
        path.write_text(text.format(rows, shift))
        with pytest.raises(ShapesFileError, match=told):
            load_shapes(path, Rolls())
    with pytest.raises(InvalidArgumentError, match="shift must be an integer, got '5'"):
        Rolls().ops()["roll"].problem_of({"rows": 3, "dtype": "float32", "shift": "5"})


def test_no_op_may_call_a_dimension_as_the_count_is_called() -> None:
    with pytest.raises(InvalidDefinitionError, match="a dimension named 'count'"):
        _op("histogram", "int bins", {"count"})
