"""The style of a report in a browser: light and dark pages, phones and paper."""

from __future__ import annotations

__all__ = ["STYLE"]

STYLE = """
:root {
  color-scheme: light dark;
  --page: #ffffff; --raised: #f6f7f9; --text: #1d2126; --quiet: #5c6570; --line: #e3e6ea; --accent: #0072b2;
  --second: #d55e00;
}
@media screen and (prefers-color-scheme: dark) {
  :root {
    --page: #15181c; --raised: #1d2126; --text: #e8eaed; --quiet: #9aa4af; --line: #2c3238; --accent: #4fa8e0;
    --second: #ff8a4c;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; text-size-adjust: 100%; }
body {
  margin: 0; background: var(--page); color: var(--text);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
}
main { max-width: 64rem; margin: 0 auto; padding: 2rem 1rem 4rem; }
h1 { font-size: 1.75rem; line-height: 1.2; margin: 0 0 1rem; letter-spacing: -0.01em; overflow-wrap: anywhere; }
h2 { font-size: 1.3rem; line-height: 1.25; margin: 3rem 0 0.75rem; }
h2 { padding-top: 1rem; border-top: 1px solid var(--line); }
h3 { font-size: 1.05rem; line-height: 1.3; margin: 2rem 0 0.5rem; }
p, ul { margin: 0.5rem 0 1rem; max-width: 46rem; overflow-wrap: anywhere; }
ul { padding-left: 1.2rem; }
li { margin: 0.3rem 0; }
code { font: 0.88em ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; overflow-wrap: anywhere; }
.caption { margin: 1.5rem 0 0.4rem; color: var(--quiet); font-size: 0.9rem; }
.scroll { overflow-x: auto; border: 1px solid var(--line); border-radius: 8px; }
.scroll:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
table { border-collapse: separate; border-spacing: 0; width: 100%; font-size: 0.875rem; line-height: 1.35; }
th, td { padding: 0.45rem 0.75rem; text-align: left; vertical-align: top; border-bottom: 1px solid var(--line); }
tbody tr:last-child > * { border-bottom: 0; }
thead th { color: var(--quiet); font-weight: 600; vertical-align: bottom; background: var(--raised); }
tbody th { font-weight: 500; position: sticky; left: 0; background: var(--page); min-width: 8rem; max-width: 16rem; }
thead th:first-child { position: sticky; left: 0; }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
thead .number { white-space: normal; }
tbody td:not(.number) { min-width: 7rem; }
.interval { color: var(--quiet); font-size: 0.92em; }
.figures { display: grid; gap: 1rem; margin: 1rem 0; }
.figures { grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); }
figure { margin: 0; max-width: 34rem; }
figure img, figure svg, figure video { display: block; width: 100%; height: auto; }
figure video { max-width: 24rem; border-radius: 6px; }
figcaption { margin-top: 0.3rem; color: var(--quiet); font-size: 0.85rem; line-height: 1.4; }
.chart text { fill: var(--quiet); font-size: 12px; }
.chart .name { fill: var(--text); font-size: 14px; font-weight: 600; }
.chart .grid { stroke: var(--line); }
.chart .line { fill: none; stroke: var(--accent); stroke-width: 2; stroke-linejoin: round; }
.chart .second { stroke: var(--second); }
.chart .band { fill: var(--accent); fill-opacity: 0.18; }
pre { overflow-x: auto; padding: 0.75rem 1rem; background: var(--raised); }
pre { border: 1px solid var(--line); border-radius: 8px; }
pre { font: 0.8rem/1.5 ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; }
@media (max-width: 40rem) {
  main { padding: 1.25rem 1rem 3rem; }
  h1 { font-size: 1.45rem; }
  th, td { padding: 0.4rem 0.6rem; }
  tbody th { max-width: 9.5rem; overflow-wrap: anywhere; }
}
@media print {
  .scroll { overflow: visible; border: 0; }
  figure, tr { break-inside: avoid; }
}
"""
