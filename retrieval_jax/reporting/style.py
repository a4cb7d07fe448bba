"""The look of the page: system fonts, light and dark by what the reader's system says, and a form for paper."""

from typing import Final

# Of the series of a figure, in both themes; drawing.py puts the names into the figures.
SERIES: Final = 6

STYLE: Final = """
:root {
  color-scheme: light dark;
  --page: #ffffff; --card: #f6f7f9; --ink: #1c2430; --soft: #596475; --line: #d5dae2; --accent: #1f5fbf; --right: #1d7a3d;
  --s1: #1f5fbf; --s2: #c2500a; --s3: #1d7a3d; --s4: #8a3ab9; --s5: #b3261e; --s6: #6b7280;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #12161c; --card: #1b2129; --ink: #e4e8ee; --soft: #9aa6b6; --line: #38424f; --accent: #7db0ff; --right: #6fcf8e;
    --s1: #7db0ff; --s2: #ffa45c; --s3: #6fcf8e; --s4: #d09bff; --s5: #ff8a80; --s6: #a3adba;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body {
  margin: 0 auto; padding: 1rem; max-width: 84rem; background: var(--page); color: var(--ink);
  font: 1rem/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", sans-serif;
}
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 .25rem; overflow-wrap: anywhere; }
h2 { font-size: 1.25rem; margin: 2.25rem 0 .5rem; padding-top: .5rem; border-top: 1px solid var(--line); }
h3 { font-size: 1.05rem; margin: 1.5rem 0 .35rem; overflow-wrap: anywhere; }
p { margin: .4rem 0; max-width: 60rem; }
a { color: var(--accent); }
nav ul { list-style: none; display: flex; flex-wrap: wrap; gap: .25rem 1rem; padding: 0; margin: .75rem 0 0; }
.note, figcaption small { color: var(--soft); }
.note { font-size: .92rem; }
code, pre, .id { font-family: ui-monospace, "SF Mono", Menlo, Consolas, "Liberation Mono", monospace; font-size: .86em; }
code, .id { overflow-wrap: anywhere; }
pre { background: var(--card); padding: .75rem; border-radius: .4rem; overflow-x: auto; }
pre.command { white-space: pre-wrap; overflow-wrap: anywhere; }
.scroll { overflow-x: auto; margin: .5rem 0; }
table { border-collapse: collapse; font-size: .92rem; }
th, td { text-align: left; padding: .3rem .7rem .3rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
th { color: var(--soft); font-weight: 600; }
td:first-child code, td:last-child code { white-space: nowrap; }
td + td:not(.number):not(:last-child) { min-width: 9rem; }
th.number, td.number { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; padding: .3rem 0 .3rem .9rem; }
td small { color: var(--soft); }
details { margin: .5rem 0; }
summary { cursor: pointer; color: var(--accent); }
.figures { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 19.5rem), 1fr)); gap: 1rem; margin: .75rem 0; }
figure { margin: 0; padding: .75rem; background: var(--card); border-radius: .5rem; }
figcaption { font-size: .95rem; margin-bottom: .35rem; }
figcaption small { display: block; font-size: .85rem; }
figure svg { display: block; width: 100%; height: auto; color: var(--ink); }
figure svg * { stroke-linejoin: round; stroke-linecap: butt; }
figure svg text { font-family: system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", sans-serif !important; }
.worst { background: var(--card); border-radius: .5rem; padding: .75rem 1rem; margin: .75rem 0; }
.worst h4 { margin: 0; font-size: 1rem; overflow-wrap: anywhere; }
.columns { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 22rem), 1fr)); gap: .25rem 2rem; }
.columns h5 { margin: .6rem 0 .2rem; font-size: .85rem; color: var(--soft); }
.columns ul { list-style: none; margin: 0; padding: 0; }
.columns li { margin: 0 0 .5rem; font-size: .9rem; overflow-wrap: anywhere; }
.rank { font-variant-numeric: tabular-nums; color: var(--soft); }
.good { color: var(--right); font-weight: 600; }
@media (max-width: 40rem) {
  td:first-child code { white-space: normal; overflow-wrap: anywhere; display: inline-block; min-width: 8rem; }
}
@media print {
  :root {
    color-scheme: light;
    --page: #ffffff; --card: #ffffff; --ink: #000000; --soft: #444444; --line: #bbbbbb; --accent: #000000; --right: #1d7a3d;
    --s1: #1f5fbf; --s2: #c2500a; --s3: #1d7a3d; --s4: #8a3ab9; --s5: #b3261e; --s6: #6b7280;
  }
  body { max-width: none; padding: 0; font-size: 10pt; }
  nav { display: none; }
  .scroll { overflow: visible; }
  table { font-size: 8pt; }
  th.number, td.number { white-space: normal; padding: .2rem 0 .2rem .45rem; }
  pre { white-space: pre-wrap; overflow-wrap: anywhere; }
  figure, .worst, tr { break-inside: avoid; }
  figure, .worst { border: 1px solid var(--line); }
  h2, h3 { break-after: avoid; }
}
"""
