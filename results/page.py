"""The report as one HTML page: no script, no request, readable offline, light and dark."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from results.claims import FAILS, HOLDS, NOT_RUN, TESTED, UNDECIDED, Chart
from results.markdown import (
    RECORD_HEAD,
    SCALE_NOTE,
    notes_of,
    numbers_grid,
    other_records,
    record_cells,
    table_name,
)
from results.records import Run
from results.report import Cell, ClaimView, Report, RowView, TableView
from results.schema import Deviation
from results.svg import CHART_STYLE, draw
from results.verdict import DIFFERS, REPRODUCED

# How a verdict looks.
LOOKS = {REPRODUCED: "good", TESTED: "good", HOLDS: "good", DIFFERS: "off", FAILS: "off"}
LOOKS |= {UNDECIDED: "open", NOT_RUN: "none"}

SPACE, HYPHEN = "\N{NO-BREAK SPACE}", "\N{NON-BREAKING HYPHEN}"

STYLE = """
:root { color-scheme: light dark;
  --bg: #fcfcfa; --card: #ffffff; --ink: #22262b; --soft: #5d656e; --rule: #e2e3e0; --link: #0b5cad;
  --good: #00694c; --good-bg: #e0f3ec; --off: #9a3d00; --off-bg: #fcebdf; --open: #6b4b00;
  --open-bg: #fbf1d3; --none: #5d656e; --none-bg: #eeefec; }
@media (prefers-color-scheme: dark) { :root {
  --bg: #15181c; --card: #1c2025; --ink: #e4e6e8; --soft: #a0a8b1; --rule: #30363d; --link: #7db7f0;
  --good: #6fd8b2; --good-bg: #12352b; --off: #ffab7a; --off-bg: #40261a; --open: #f0cf74;
  --open-bg: #3a3016; --none: #a0a8b1; --none-bg: #2a2f36; } }
* { box-sizing: border-box; }
html { scroll-padding-top: 3.5rem; }
body { margin: 0; background: var(--bg); color: var(--ink);
  font: 16px/1.6 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }
main, header, nav ul { max-width: 68rem; margin: 0 auto; padding: 0 1.25rem; }
header { padding-top: 2.5rem; padding-bottom: .5rem; }
h1 { font-size: 1.9rem; line-height: 1.25; margin: 0 0 .5rem; letter-spacing: -.01em; }
h2 { font-size: 1.35rem; margin: 3rem 0 .4rem; }
h3 { font-size: 1.05rem; margin: 0; }
p { margin: .5rem 0; max-width: 46rem; }
a { color: var(--link); text-decoration-thickness: .06em; text-underline-offset: .15em; }
a:has(code) { text-decoration: none; } a:has(code):hover { text-decoration: underline; }
code { font: .88em ui-monospace, SFMono-Regular, Menlo, Consolas, monospace;
  overflow-wrap: anywhere; }
.soft { color: var(--soft); } small, .small { font-size: .86rem; line-height: 1.5; }
nav { position: sticky; top: 0; z-index: 1; background: var(--bg);
  border-bottom: 1px solid var(--rule); }
nav ul { display: flex; gap: 1.1rem; list-style: none; overflow-x: auto; scrollbar-width: none;
  white-space: nowrap;
  padding-top: .6rem; padding-bottom: .6rem; }
nav a { text-decoration: none; font-size: .92rem; }
.tiles { display: grid; gap: .8rem; margin: 1.2rem 0;
  grid-template-columns: repeat(auto-fit, minmax(9rem, 1fr)); }
.tile, .card { background: var(--card); border: 1px solid var(--rule); border-radius: .6rem; }
.tile { padding: .8rem 1rem; }
.tile b { display: block; font-size: 1.9rem; line-height: 1.2; font-weight: 600;
  font-variant-numeric: tabular-nums; }
.tile span { color: var(--soft); font-size: .88rem; }
.tile.good b { color: var(--good); } .tile.off b { color: var(--off); }
.map { display: grid; grid-template-columns: max-content 1fr; gap: .35rem 1rem;
  align-items: center; font-size: .9rem; }
.dots { display: flex; flex-wrap: wrap; gap: .3rem; }
.dot { width: .95rem; height: .95rem; border-radius: .25rem; border: 1.5px solid var(--none); }
.dot.good { background: var(--good); border-color: var(--good); }
.dot.off { background: var(--off); border-color: var(--off); }
.dot.mini { background: linear-gradient(to top, var(--none) 45%, transparent 45%); }
.badge { display: inline-block; padding: .1rem .55rem; border-radius: 1rem; font-size: .84rem;
  line-height: 1.5; color: var(--none); background: var(--none-bg); }
.badge.good { color: var(--good); background: var(--good-bg); }
.badge.off { color: var(--off); background: var(--off-bg); }
.badge.open { color: var(--open); background: var(--open-bg); }
.scroll { overflow-x: auto; border: 1px solid var(--rule); border-radius: .6rem;
  background: var(--card); margin: .9rem 0; }
table { border-collapse: collapse; width: 100%; font-size: .92rem; line-height: 1.45; }
th, td { text-align: left; padding: .5rem .8rem; border-bottom: 1px solid var(--rule);
  vertical-align: top; }
th { color: var(--soft); font-weight: 500; font-size: .84rem; white-space: nowrap; }
tr:last-child td { border-bottom: 0; }
td.num { font-variant-numeric: tabular-nums; white-space: nowrap; }
td.wide { white-space: normal; min-width: 11rem; }
td.row { min-width: min(16rem, 45vw); } td.text { min-width: 14rem; overflow-wrap: anywhere; }
td.about { min-width: 8rem; max-width: 11rem; overflow-wrap: anywhere; }
.card table { width: auto; } .card .scroll { width: fit-content; max-width: 100%; }
.cards { display: grid; gap: .8rem; }
.card { padding: .9rem 1.1rem; min-width: 0; }
.card .top { display: flex; flex-wrap: wrap; gap: .3rem .8rem; align-items: baseline;
  justify-content: space-between; }
.charts { display: grid; gap: 1rem; margin: 1rem 0;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 24rem), 1fr)); }
.chart { margin: 0; padding: .8rem .9rem; background: var(--card); border: 1px solid var(--rule);
  border-radius: .6rem; min-width: 0; }
.card .chart { border: 0; padding: .4rem 0; }
details { margin: .6rem 0; } summary { cursor: pointer; color: var(--soft); font-size: .9rem; }
footer { border-top: 1px solid var(--rule); margin-top: 3rem; padding: 1.2rem 0 2.5rem; }
"""


def render_page(report: Report) -> str:
    """The whole page, self-contained."""
    links = [("summary", "Summary"), ("claims", "Claims")]
    links += [(f"table-{view.table.table}", f"Table {view.table.table}") for view in report.tables]
    links += [("figures", "Figures"), ("deviations", "Deviations")]
    parts = [
        _summary(report),
        '<h2 id="claims">Claims</h2>',
        f'<div class="cards">{"".join(map(_claim, report.claims))}</div>',
        *map(_table, report.tables),
        _figures(report),
        _deviations(report.deviations),
    ]
    body = "\n".join(parts)
    items = "".join(f'<li><a href="#{place}">{name}</a></li>' for place, name in links)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>NovoGrad: the paper and our runs</title>
<link rel="icon" href="data:,">
<style>{STYLE}{CHART_STYLE}</style>
</head>
<body>
<header>
<h1>NovoGrad: the paper and our runs</h1>
<p>What the paper claims, what was run, and how they compare. Ginsburg et al., <i>Training Deep
Networks with Stochastic Gradient Normalized by Layerwise Adaptive Second Moments</i>
(<a href="https://arxiv.org/abs/1905.11286">arXiv 1905.11286</a>).</p>
</header>
<nav aria-label="Sections"><ul>{items}</ul></nav>
<main>
{body}
<footer class="small soft"><p>{escape(other_records(report))}</p>
<p>Written by <code>make report</code> from the files in <code>results/</code>; the same files give
the same page.</p></footer>
</main>
</body>
</html>
"""


def _summary(report: Report) -> str:
    counts = report.row_counts()
    tiles = [
        ("good" if counts[REPRODUCED] else "", counts[REPRODUCED], "rows reproduced"),
        ("off" if counts[DIFFERS] else "", counts[DIFFERS], "rows differ"),
        ("", counts[NOT_RUN], "rows not run at the paper's scale"),
        ("", report.mini_count(), "rows run on small data"),
    ]
    shown = "".join(
        f'<div class="tile {look}"><b>{n}</b><span>{name}</span></div>' for look, n, name in tiles
    )
    claims = " ".join(
        f'<span class="badge {LOOKS[verdict]}">{n} {verdict}</span>'
        for verdict, n in report.claim_counts().items()
    )
    places = "".join(_map_line(view) for view in report.tables)
    return (
        f'<h2 id="summary">Summary</h2><p>{len(report.rows)} rows of the paper\'s '
        f"{len(report.tables)} tables and its text are runs of its own. A row is reproduced when "
        f"the mean of our runs of the same recipe, at the same scale, is within the table's "
        f"tolerance in all its numbers, or better. "
        f'{SCALE_NOTE}</p><div class="tiles">{shown}</div>'
        f"<p>{len(report.claims)} claims: {claims}</p>"
        f'<div class="map">{places}</div><p class="small soft">A square is a row of the paper: '
        f"filled where it was run at the paper's scale, half filled where on small data only.</p>"
    )


def _map_line(view: TableView) -> str:
    number = view.table.table
    dots = []
    for row in (row for row in view.rows if row.is_own):
        small = any(cell and cell.runs for cell in row.mini)
        look = LOOKS.get(row.verdict.kind, "none")
        look = "mini" if look == "none" and small else look
        hint = f"{row.label}: {row.verdict}" + (", run on small data" if small else "")
        dots.append(f'<span class="dot {look}" role="img" {_hint(hint)}></span>')
    return (
        f'<a href="#table-{number}">Table {number}</a><span class="dots">{"".join(dots)}</span>'
        if dots
        else ""
    )


def _hint(text: str) -> str:
    return f'title="{escape(text)}" aria-label="{escape(text)}"'


def _claim(view: ClaimView) -> str:
    claim = view.claim
    tests = ", ".join(
        f'<a href="../{test.partition("::")[0]}"><code>{escape(test)}</code></a>'
        for test in claim.tests
    )
    study = f"Decided by the study <code>{claim.study}</code>." if claim.study else ""
    ways = f"{study} {f'Tested by {tests}.' if tests else ''}"
    badge = _badge(view.verdict, view.verdict)
    parts = [
        f'<div class="top"><h3>{escape(claim.claim)}</h3>{badge}</div>',
        f'<p class="small soft">{escape(claim.where)}. {ways}</p>',
    ]
    if view.study:
        parts.append(f"<p>{escape(view.study.summary)}</p>")
    if view.numbers:
        head, lines = numbers_grid(view.numbers)
        parts.append(_grid(head, [[_num(cell) for cell in line] for line in lines], claim.id))
    if claim.measured and view.numbers:
        file = claim.measured.file
        parts.append(
            f'<p class="small soft">In {escape(claim.measured.unit)}; measured in '
            f'<a href="{file}">{file}</a>.</p>'
        )
    if view.study:
        parts.append(_charts(view.study.curves))
    if view.records:
        runs = "".join(
            f'<li><a href="{escape(file)}">{escape(run)}</a></li>'
            if file
            else f"<li>{escape(run)}: no record</li>"
            for run, file in view.records
        )
        count = len(view.records)
        parts.append(
            f'<details><summary>{count} runs</summary><ul class="small">{runs}</ul></details>'
        )
    return f'<section class="card" id="claim-{claim.id}">{"".join(parts)}</section>'


def _table(view: TableView) -> str:
    table = view.table
    head = ["", "the paper", "ours, the same scale", "verdict"]
    head += [f"ours, mini: {name}" for name in view.small] or ["ours, mini"]
    notes = "".join(f'<p class="small soft">{escape(note)}</p>' for note in notes_of(view))
    tolerance = " and ".join(dict.fromkeys(f"{value:g}" for value in table.tolerance.values()))
    return (
        f'<section id="table-{table.table}"><h2>Table {table.table}</h2>'
        f"<p>{escape(table.caption)} <span class='soft'>Numbers: "
        f"{escape(view.heading)}; tolerance {tolerance}; "
        f'<a href="paper/table{table.table}.yaml">the numbers as data</a>.</span></p>'
        f"{_grid(head, [_row(row) for row in view.rows], f'Table {table.table}')}"
        f"{notes}{_charts(view.charts)}{_records(view.runs)}</section>"
    )


def _row(row: RowView) -> list[str]:
    experiment = row.row.experiment or row.row.rerun
    name = escape(row.label)
    if experiment:
        name = f'<a href="../configs/experiment/{experiment}.yaml">{name}</a>'
    again = f" · as in {table_name(row.row.same_as)}" if row.row.same_as else ""
    items = (row.recipe + again).replace("-", HYPHEN).replace(" ", SPACE)
    recipe = items.replace(f"{SPACE}·{SPACE}", f"{SPACE}· ")
    first = f'<td class="row">{name}<div class="small soft">{escape(recipe)}</div></td>'
    mini = [_ours(cell) for cell in row.mini] or [_ours(Cell((), 0) if row.ours else None)]
    gaps = "".join(f"<div>{escape(str(gap))}</div>" for gap in row.verdict.gaps if not gap.within)
    kind = row.verdict.kind
    verdict = f'<td class="num">{_badge(kind, kind)}<div class="small">{gaps}</div></td>'
    return [first, _num(row.paper), _ours(row.ours), verdict, *mini]


def _ours(cell: Cell | None) -> str:
    if cell is None:
        return _num("–")
    return _values(str(cell)) if cell.runs else f'<td class="soft">{NOT_RUN}</td>'


def _records(runs: Sequence[Run]) -> str:
    if not runs:
        return '<p class="small soft">No records.</p>'
    lines = [
        [
            f'<td class="num"><a href="{escape(run.file)}">{escape(run.run_id)}</a></td>',
            *map(_num, record_cells(run)),
        ]
        for run in runs
    ]
    count = "1 record" if len(runs) == 1 else f"{len(runs)} records"
    return f"<details><summary>{count}</summary>{_grid(RECORD_HEAD, lines, 'Records')}</details>"


def _figures(report: Report) -> str:
    parts = ['<section id="figures"><h2>Figures</h2>']
    for figure, charts in report.figures:
        ours = _charts(charts) or f"<p>Ours: {_badge(NOT_RUN, NOT_RUN)}</p>"
        parts.append(
            f"<h3>Figure {figure.figure}</h3><p>{escape(figure.shows)} "
            f'<span class="soft">{escape(figure.unknown)}</span></p>{ours}'
        )
    return "".join(parts) + "</section>"


def _deviations(deviations: Sequence[Deviation]) -> str:
    lines = []
    for one in deviations:
        others = "".join(
            f'<div><a href="../configs/experiment/{name}.yaml">{name}</a></div>'
            for name in one.variants
        )
        if len(one.variants) > 1:
            others = f"<details><summary>{len(one.variants)} variants</summary>{others}</details>"
        texts = [one.printed, one.used, one.why]
        cells = [f'<td class="text">{escape(text)}</td>' for text in texts[:2]]
        cells.append(f'<td class="text">{escape(texts[2])}<div class="small">{others}</div></td>')
        lines.append(
            [f'<td class="about" id="deviation-{one.id}">{escape(one.about)}</td>', *cells]
        )
    return (
        '<section id="deviations"><h2>Deviations and open choices</h2>'
        "<p>Where the paper is silent, contradicts itself or differs from its public code, and "
        "what is done there. Other readings are experiments of their own.</p>"
        f"{_grid(['about', 'printed', 'used', 'why'], lines, 'Deviations')}</section>"
    )


def _charts(charts: Sequence[Chart]) -> str:
    return f'<div class="charts">{"".join(map(draw, charts))}</div>' if charts else ""


def _badge(kind: str, text: str) -> str:
    return f'<span class="badge {LOOKS.get(kind, "none")}">{escape(text)}</span>'


def _values(text: str) -> str:
    """Numbers of several metrics, between which a line may end."""
    together = text.replace(" ", SPACE).replace(f"{SPACE}/{SPACE}", f"{SPACE}/ ")
    return f'<td class="num wide">{escape(together)}</td>'


def _num(text: str) -> str:
    return f'<td class="num">{escape(text)}</td>'


def _grid(head: Sequence[str], lines: Iterable[Sequence[str]], name: str) -> str:
    """A table that scrolls inside itself; the cells of `lines` are <td> elements."""
    heads = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in head)
    rows = "\n".join(f"<tr>{''.join(line)}</tr>" for line in lines)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(name)}">'
        f"<table><thead><tr>{heads}</tr></thead>\n<tbody>\n{rows}\n</tbody></table></div>"
    )
