"""A YAML file as plain data with the line of every value, read with limits on time and memory."""

from __future__ import annotations

import io
from collections.abc import Hashable
from pathlib import Path

import yaml
from yaml.composer import Composer
from yaml.constructor import SafeConstructor
from yaml.resolver import Resolver

from ..errors import ShapesFileError
from .file_kinds import opened

NodePlace = tuple[Hashable, ...]
"""Path of a value in a document, keys and indices from the top: ``("softmax", 0, "rows")``."""

MOST_CHARACTERS = 2**24
MOST_VALUES = 400_000
"""The most values of a file with its aliases written out: a few nested aliases may stand for billions."""
DEEPEST = 8

_PLAIN_TAGS = ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")
_MERGE_TAG = "tag:yaml.org,2002:merge"
_PARSER_TOO_DEEP = "exceeded maximum nesting depth"
_SHAPE = "expected op: [{dimension: [value, ...]}, ...]"


def text_of(path: Path) -> str:
    """The text of a file. Raises ShapesFileError if it cannot be read, is not UTF-8 or is too long."""
    try:
        return bounded_text(path)
    except FileNotFoundError:
        raise ShapesFileError(f"{path}: no such file", hint="expected a YAML file of shapes") from None
    except UnicodeDecodeError as fault:
        raise ShapesFileError(f"{path}: not UTF-8 text (byte {fault.start})", hint="expected YAML") from None
    except OSError as fault:
        raise ShapesFileError(f"{path}: {fault.strerror}", hint="expected a readable YAML file") from None
    except ValueError as fault:  # a NUL or a lone surrogate in the path
        raise ShapesFileError(f"{str(path)!r:.200}: {fault}", hint="expected the name of a YAML file") from None


def bounded_text(path: Path) -> str:
    """The text of a file. Raises OSError, ValueError if it is not UTF-8, and ShapesFileError if it is too long."""
    with io.TextIOWrapper(opened(path), encoding="utf-8") as file:
        text = file.read(MOST_CHARACTERS + 1)
    if len(text) > MOST_CHARACTERS:
        raise ShapesFileError(f"{path}: longer than {MOST_CHARACTERS} characters", hint="list fewer values")
    return text


class Document:
    """A parsed YAML text: ``data`` is its content, None if it is empty. ``name`` is its name in messages.

    Raises ShapesFileError for text that is no YAML, or that exceeds the limits of a shapes file.
    """

    def __init__(self, name: str | Path, text: str) -> None:
        self._name = name
        self._lines: dict[NodePlace, int] = {}
        self._values = 0
        self.data = self._read(text)

    def line(self, place: NodePlace) -> int:
        """The line of a value; if it has none, that of the innermost value around it."""
        return self._lines.get(self._written(place), 1)

    def fault(self, place: NodePlace, message: str, hint: str) -> ShapesFileError:
        """The error ``FILE, line N, KEY: MESSAGE`` with a hint."""
        parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in self._written(place))
        key = "".join(parts).removeprefix(".")
        where = f"{self._name}, line {self.line(place)}" + (f", {key}" if key else "")
        return ShapesFileError(f"{where}: {message}", hint=hint)

    def _written(self, place: NodePlace) -> NodePlace:
        """The longest start of ``place`` that has a line in the file: a single value has no index in it."""
        while place and place not in self._lines:
            place = place[:-1]
        return place

    def _read(self, text: str) -> object:
        try:
            loader = _Loader(text)
            node = loader.get_single_node()
        except UnicodeEncodeError:  # an argument of a command line that is no UTF-8
            raise ShapesFileError(f"{self._name}: not UTF-8 text", hint="expected YAML") from None
        except _TooDeepError as fault:
            raise ShapesFileError(f"{self._name}, line {fault.line}: nested too deeply", hint=_SHAPE) from None
        except yaml.YAMLError as fault:
            raise self._no_yaml(fault) from None
        return None if node is None else self._plain(loader, node, (), ())

    def _no_yaml(self, fault: yaml.YAMLError) -> ShapesFileError:
        """The parser's fault in one line; for its own limit of depth (PyYAML 6.0.4) the message of this package's."""
        where, problem = "", str(fault).splitlines()[0]
        if isinstance(fault, yaml.MarkedYAMLError):
            where = f", line {fault.problem_mark.line + 1 if fault.problem_mark else 1}"
            if fault.problem == _PARSER_TOO_DEEP:
                return ShapesFileError(f"{self._name}{where}: nested too deeply", hint=_SHAPE)
            problem = " ".join(part for part in (fault.context, fault.problem) if part)
        return ShapesFileError(f"{self._name}{where}: not YAML: {problem}", hint="see docs/shapes.md")

    def _plain(self, loader: _Loader, node: yaml.Node, place: NodePlace, above: tuple[yaml.Node, ...]) -> object:
        """The node's value; remembers its line, refuses repeated keys and aliases of a node within itself."""
        self._lines.setdefault(place, node.start_mark.line + 1)
        self._values += 1
        if self._values > MOST_VALUES:
            raise self.fault(place, f"more than {MOST_VALUES} values, aliases written out", "list fewer values")
        if any(node is other for other in above):
            raise self.fault(place, "an alias refers to what it stands in", "write the values out")
        if len(above) > DEEPEST:
            raise self.fault(place, "nested too deeply", _SHAPE)
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(loader, node, place)
        if node.tag not in _PLAIN_TAGS:
            raise self.fault(place, f"the tag {node.tag!r} has no meaning here", "write the values without it")
        above = (*above, node)
        if isinstance(node, yaml.SequenceNode):
            return [self._plain(loader, item, (*place, n), above) for n, item in enumerate(node.value)]
        found: dict[object, object] = {}
        for key_node, value_node in node.value:
            key = self._key(loader, key_node, place)
            inner = (*place, key)
            if key in found:
                raise self.fault(
                    place,
                    f"{key} stands here twice, on line {self._lines[inner]} and line {key_node.start_mark.line + 1}",
                    "join the two lists",
                )
            self._lines[inner] = key_node.start_mark.line + 1
            found[key] = self._plain(loader, value_node, inner, above)
        return found

    def _key(self, loader: _Loader, node: yaml.Node, place: NodePlace) -> str:
        if node.tag == _MERGE_TAG:
            raise self.fault(place, "<< has no meaning here", "write the dimensions out")
        # a list or mapping is not shown: an alias in it may stand for billions of values
        shown = "a list" if isinstance(node, yaml.SequenceNode) else "a mapping"
        if isinstance(node, yaml.ScalarNode):
            key, shown = self._scalar(loader, node, place), f"{node.value:.40}"
            if isinstance(key, str):
                return key
        raise self.fault(place, f"{shown} is not a name", "expected the name of an op or dimension")

    def _scalar(self, loader: _Loader, node: yaml.ScalarNode, place: NodePlace) -> object:
        try:
            return loader.construct_object(node)
        except (ValueError, ArithmeticError) as fault:
            # PyYAML reads dates, binary data and numbers to base 60, and raises for text that only looks like one
            reason = str(fault).partition(";")[0].partition(":")[0]
            raise self.fault(place, f"got {node.value!r:.40}: {reason}", "expected a number or a name") from None
        except (yaml.MarkedYAMLError, LookupError, AttributeError):
            # a tag that is written out (!!bool, !!int, !!timestamp) promises a text that PyYAML takes for granted
            raise self.fault(
                place, f"{node.value!r:.40} cannot be read as {node.tag!r}", "write the value without a tag"
            ) from None


class _TooDeepError(Exception):
    def __init__(self, line: int) -> None:
        super().__init__(line)
        self.line = line


class _Loader(Composer, SafeConstructor, Resolver):
    """A parser by libyaml, if available, in a third of the time; it makes nodes itself, to limit their depth.

    Both libyaml and PyYAML make nodes until the stack overflows, libyaml without an exception.
    """

    def __init__(self, text: str) -> None:
        for part in (Composer, SafeConstructor, Resolver):
            part.__init__(self)
        events = getattr(yaml, "CSafeLoader", yaml.SafeLoader)(text)
        self.check_event, self.peek_event, self.get_event = events.check_event, events.peek_event, events.get_event
        self._depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self._depth > DEEPEST:
            raise _TooDeepError(self.peek_event().start_mark.line + 1)
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node
