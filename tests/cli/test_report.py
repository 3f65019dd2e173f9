"""``registry report``: one HTML file that needs nothing else, holds what the database holds, and destroys nothing."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from registry.cli import app
from registry.cli.main import new_registry_app
from tuning_db import CandidateKey, Environment, Store

from ..report.measured import fill_measured, gemm
from ..report.records import H200, HOSTILE, ROW, SPLIT, TORCH, decision, fill, softmax, trial
from .conftest import Command

DOCS = Path(__file__).parents[2] / "docs"
_VOID = {"meta", "br", "img", "link", "hr", "input"}


class Page(HTMLParser):
    """The page's tags, texts and tables; balanced tags are asserted on the way."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.rows: list[list[str]] = []
        self.texts: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in _VOID:
            self._open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in {"td", "th"}:
            self.rows[-1].append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)
        if {"td", "th"} & set(self._open):
            self.rows[-1][-1] += data

    def row(self, *beginning: str) -> list[str]:
        """The first row that begins so, blanks collapsed."""
        cells = ([" ".join(cell.split()) for cell in row] for row in self.rows)
        return next(row for row in cells if row[: len(beginning)] == list(beginning))


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return fill(tmp_path / "some.db")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("report")
    arguments = ["report", "--db", str(fill(folder / "some.db")), "--out", str(folder / "out.html")]
    assert app.run(new_registry_app(), "registry", arguments) == 0
    return (folder / "out.html").read_text()


def test_the_page_needs_no_network(page: str) -> None:
    tags = Page(page).tags
    assert not {tag for tag, _ in tags} & {"link", "img", "iframe", "object", "embed", "base"}
    for tag, attributes in tags:
        assert "src" not in attributes, tag
        assert (attributes.get("href") or "#").startswith("#")
        assert not any(name.startswith("on") for name in attributes), f"{tag}: a handler in an attribute"
    assert not re.search(r"url\(|@import|https?://|fetch\(|XMLHttp", page)
    policy = next(attributes["content"] for tag, attributes in tags if attributes.get("http-equiv"))
    assert policy is not None
    assert policy.startswith("default-src 'none';")


def test_what_comes_from_a_database_is_text(command: Command, tmp_path: Path) -> None:
    path, out = tmp_path / "hostile.db", tmp_path / "out.html"
    with Store.open(path) as store:
        run = store.start_run(H200, {"note": HOSTILE})
        bad = CandidateKey(HOSTILE, "f", {HOSTILE: HOSTILE})
        store.add_trials(run, [trial(softmax(1), bad, 5.0), trial(softmax(2), bad, None, HOSTILE, message=HOSTILE)])
        store.add_trials(run, [trial(softmax(4), bad, 9.0)])
        store.publish(run, decision(softmax(1), bad, 5.0, verdict=HOSTILE, baselines={HOSTILE + "2": 2.0}))
    assert command("registry", "report", "--db", path, "--out", out).code == 0
    text = out.read_text()
    assert "<script>alert" not in text
    assert HOSTILE in "".join(Page(text).texts)
    assert [tag for tag, _ in Page(text).tags].count("script") == 1


def test_winners_stand_with_floor_and_speedups(page: str) -> None:
    first, second = Page(page).row("1", "4096"), Page(page).row("256", "4096")
    assert first[2:] == ["triton.split", "4.000", "0.50", "1.42", "3.00", "–", "new", "BLOCK=1024 num_warps=8"]
    assert second[2:] == ["triton.split", "16.00", "0.50", "–", "3.00", "–", "tie", "BLOCK=1024 num_warps=8"]
    assert Page(page).row("8", "128256")[2:] == ["no winner: 1 trials, none decided"]


def test_finals_show_intervals_and_ties(page: str) -> None:
    text = "".join(Page(page).texts)
    assert "1.40 (1.36 to 1.44)" in text
    assert "1.00 (0.99 to 1.01)" in text
    cells = [[" ".join(cell.split()) for cell in row] for row in Page(page).rows]
    runners_up = [row[6] for row in cells if len(row) == 8 and " to " in row[4]]
    assert runners_up == ["triton.row +50%", "triton.row ≈"]
    assert [row[7] for row in cells if len(row) == 8 and " to " in row[4]] == ["new", "tie ≈ triton.row +1"]
    assert "triton.row num_warps=4, triton.split BLOCK=2048" in page


def test_the_overview_sums_up(page: str) -> None:
    overview = Page(page).row("softmax", "NVIDIA H200")
    assert overview[2] == "2 / 3"
    assert overview[3] == "triton.split 2"
    assert overview[4:] == ["3.00", "–", "0.50"]


def test_charts_have_a_line_an_implementation_a_floor_and_values_to_hover(page: str) -> None:
    tags = Page(page).tags
    series = [attributes.get("data-series") for tag, attributes in tags if tag == "g" and "data-series" in attributes]
    assert series[:4] == ["floor", "torch.native", "triton.row", "triton.split"]
    readings = [attributes["data-lines"] or "" for _, attributes in tags if "data-lines" in attributes]
    assert "triton.split\t4.000 µs\tBLOCK=1024 num_warps=8\n" in readings[0]
    assert any("90th percentile\t" in reading for reading in readings), "convergence"


def test_failures_are_counted_and_told(page: str) -> None:
    header = Page(page).row("implementation", "trials")
    assert header == ["implementation", "trials", "ok", "ok, given up", "wrong_result"]
    assert Page(page).row("triton.row", "6") == ["triton.row", "6", "2", "2", "2"]
    assert HOSTILE in Page(page).texts


def test_the_environment_is_told(page: str) -> None:
    text = "".join(Page(page).texts)
    for part in ("NVIDIA H200", "2.11.0", "128 GiB", "cuda_event", "60 MiB"):
        assert part in text
    run = next(row for row in Page(page).rows if re.match(r"\d{4}-\d\d-\d\d", row[0]))
    for part in ("worker share 66%", "worker seconds 40.0 s", "noise A/A 12% at 10 µs, 12% at 100 µs", "problems 3"):
        assert part in run[3]
    assert "decided" not in run[3], "what the noise rests on is for the next run"


@pytest.mark.thorough
def test_thousands_of_trials_make_a_page_that_can_be_mailed(command: Command, tmp_path: Path) -> None:
    path, out = tmp_path / "large.db", tmp_path / "out.html"
    with Store.open(path) as store:
        run = store.start_run(H200)
        for rows in (1, 16, 256, 4096):
            trials = [
                trial(softmax(rows), CandidateKey("triton.row", "f", {"n": number}), rows + 10 / (number + 1))
                for number in range(1000)
            ]
            store.add_trials(run, trials)
            store.publish(run, decision(softmax(rows), trials[-1].candidate, rows + 0.01))
    assert command("registry", "report", "--db", path, "--out", out).code == 0
    assert "4,000 trials" in out.read_text()
    assert out.stat().st_size < 1_000_000


def test_the_leaderboard_leads_to_a_page_for_each_kernel(page: str) -> None:
    tags = Page(page).tags
    pages = {attributes["id"] for _, attributes in tags if "kernel" in (attributes.get("class") or "").split()}
    assert pages == {"s0-k0", "s0-k1", "s0-k2"}
    linked = {attributes["href"] for tag, attributes in tags if tag == "a"}
    there = {f"#{attributes['id']}" for _, attributes in tags if "id" in attributes}
    assert {f"#{name}" for name in pages} <= linked <= there
    assert Page(page).row("1", "triton.split") == ["1", "triton.split", "1.00", "2", "2", "1.00", "1.00", "0.50"]
    assert Page(page).row("triton.row", "1", "1", "0")[4:] == [
        "1.23",
        "1.50 rows=1 cols=4096",
        "1.00 rows=256 cols=4096",
    ]


def test_a_page_of_a_kernel_tells_parameters_and_where_its_source_is(page: str) -> None:
    assert Page(page).row("num_warps", "4")[2:] == ["2", "2", "1.00"]
    assert Page(page).row("num_warps", "16")[2:] == ["2", "0", "–"]
    assert "registry report --source" in "".join(Page(page).texts)


def test_registers_spills_and_the_roofline_are_shown_where_a_run_tells_them(command: Command, tmp_path: Path) -> None:
    out = tmp_path / "out.html"
    assert command("registry", "report", "--db", fill_measured(tmp_path / "a.db"), "--out", out).code == 0
    found = Page(out.read_text())
    assert found.row("1", "30.00")[2:] == ["3.00", "255", "64 B", "96 KiB", "BLOCK=256 num_warps=8"]
    assert "peak 4.8 TB/s, 1 PFLOP/s" in found.texts
    assert "Roofline" in found.texts
    assert gemm(1).key not in out.read_text(), "what programs read of a run's details is no text for people"


def test_charts_and_tables_are_reached_by_the_keyboard(page: str) -> None:
    tags = Page(page).tags
    assert next(attributes["href"] for tag, attributes in tags if tag == "a") == "#content"
    scrolled = [attributes for _, attributes in tags if "scroll" in (attributes.get("class") or "").split()]
    assert scrolled
    assert all(one.get("tabindex") == "0" and one.get("aria-label") for one in scrolled)
    charts = [attributes for tag, attributes in tags if tag == "svg" and attributes.get("role") == "group"]
    assert charts
    assert all(one.get("tabindex") == "0" for one in charts)


def test_only_the_ops_that_were_asked_for_are_shown(command: Command, database: Path, tmp_path: Path) -> None:
    with Store.open(database) as store:
        run = store.start_run(H200)
        other = trial(softmax(1), TORCH, 5.0).problem.__class__("gelu", 1, {"n": 64}, ())
        store.add_trials(run, [trial(other, TORCH, 5.0)])
    told = command("registry", "report", "--db", database, "--op", "gelu", "--out", "-")
    assert told.code == 0
    assert "gelu" in told.out
    assert "softmax" not in told.out


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (["--op", "sofmax"], "unknown op 'sofmax'", "did you mean softmax?"),
        (["--op", "gelu"], "no trials of gelu in sqlite:///", "it has softmax"),
        (["--op", ","], "--op names nothing", "leave --op out for all"),
        (["--out", "."], "--out .: a folder", "name the file, e.g. report.html"),
        (["--out", "absent/report.html"], "--out absent/report.html: no such folder", "make absent first"),
        (["--out", "/dev/null"], "--out /dev/null: not a regular file", "--out - for stdout"),
        (["--db", "absent.db"], "there is no database at", "tune"),
    ],
)
def test_slips_are_told_in_a_line(
    command: Command,
    database: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    arguments: list[str],
    message: str,
    hint: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    told = command("registry", "report", "--db", database, *arguments)
    first, _, rest = told.err.rstrip("\n").partition("\n")
    assert (told.code, told.out) == (2, "")
    assert message in first
    assert hint in rest
    assert not (tmp_path / "report.html").exists()


def test_an_empty_database_makes_no_report(command: Command, tmp_path: Path) -> None:
    path, out = tmp_path / "empty.db", tmp_path / "out.html"
    with Store.open(path):
        pass
    for arguments, hint in (([], "run tune first"), (["--op", "softmax"], "run tune first")):
        told = command("registry", "report", "--db", path, "--out", out, *arguments)
        assert told.code == 2
        assert "no trials" in told.err
        assert hint in told.err
    assert not out.exists()


def test_an_undecided_database_is_still_a_report(command: Command, tmp_path: Path) -> None:
    path, out = tmp_path / "undecided.db", tmp_path / "out.html"
    with Store.open(path) as store:
        run = store.start_run(H200)
        store.add_trials(
            run, [trial(softmax(1), ROW, None, "crash", message="signal 11"), trial(softmax(2), SPLIT, 2.0)]
        )
    assert command("registry", "report", "--db", path, "--out", out).code == 0
    text = "".join(Page(out.read_text()).texts)
    assert "none decided" in text
    assert "signal 11" in text
    assert "not ended" in text


@pytest.mark.parametrize(
    "odd", [0.0, 1e300, *(pytest.param(odd, marks=pytest.mark.thorough) for odd in (-1.0, 1e-300))]
)
@pytest.mark.few(1)
def test_numbers_that_no_run_would_store_still_make_a_report(command: Command, tmp_path: Path, odd: float) -> None:
    path, out = tmp_path / "odd.db", tmp_path / "out.html"
    with Store.open(path) as store:
        run = store.start_run(H200)
        for rows in (-4, 0, 1, 2):
            store.add_trials(run, [trial(softmax(rows), ROW, odd)])
            figures = {
                "floor_us": odd,
                "ratio": odd,
                "lo": odd,
                "hi": odd,
                "aa": odd,
                "baselines": {"torch.native": odd},
            }
            store.publish(run, decision(softmax(rows), SPLIT, odd, **figures))
    assert command("registry", "report", "--db", path, "--out", out).code == 0
    Page(out.read_text())


def test_the_pictures_in_the_guide_are_small() -> None:
    pictures = re.findall(r"\]\((images/[^)]+\.png)\)", (DOCS / "report.md").read_text())
    assert len(pictures) >= 3
    for name in pictures:
        data = (DOCS / name).read_bytes()
        assert data.startswith(b"\x89PNG")
        assert len(data) < 300_000, name


@pytest.mark.thorough
def test_an_op_on_two_gpus_is_named_once_in_the_navigation(command: Command, tmp_path: Path) -> None:
    out = tmp_path / "out.html"
    fill_measured(tmp_path / "a.db")
    fill_measured(tmp_path / "a.db", environment=Environment({"type": "cuda", "name": "NVIDIA A100"}, H200.software))
    assert command("registry", "report", "--db", tmp_path / "a.db", "--out", out).code == 0
    text = out.read_text()
    assert re.findall(r'<section class="op" id="(s\d)"', text) == ["s0", "s1"]
    assert text[text.index("<nav") : text.index("</nav>")].count(">linear</a>") == 1
