"""The look of a page: three palettes with the same names, and the parts that every page uses.

Colours are custom properties, so that charts follow the reader's light or dark theme and paper.
Texts stand on --page or --card; tests hold every pair to a contrast of 4.5 : 1 (WCAG 2.2, 1.4.3).
A status has a word and a symbol too: colour alone tells nothing to one reader in twelve.
"""

from __future__ import annotations

from collections.abc import Mapping

LIGHT: Mapping[str, str] = {
    "page": "#f7f6f3",
    "card": "#ffffff",
    "ink": "#1c2126",
    "quiet": "#59626b",
    "line": "#dcdad4",
    "grid": "#e6e5e0",
    "accent": "#1f5ba8",
    "ok": "#1b6b42",
    "warn": "#855300",
    "fail": "#b3261e",
    "error": "#86287f",
    "skip": "#56616c",
    "series-1": "#1f5ba8",
    "series-2": "#b04a12",
    "series-3": "#1b6b42",
    "heat": "#b3261e",
}
DARK: Mapping[str, str] = {
    "page": "#15181b",
    "card": "#1d2125",
    "ink": "#e7e9eb",
    "quiet": "#a5aeb7",
    "line": "#363c42",
    "grid": "#2b3035",
    "accent": "#8ab8f5",
    "ok": "#6cc795",
    "warn": "#e3b15e",
    "fail": "#ff8f85",
    "error": "#e09be2",
    "skip": "#a9b2bb",
    "series-1": "#8ab8f5",
    "series-2": "#f0a56c",
    "series-3": "#6cc795",
    "heat": "#ff8f85",
}
PAPER: Mapping[str, str] = {
    "page": "#ffffff",
    "card": "#ffffff",
    "ink": "#000000",
    "quiet": "#3d3d3d",
    "line": "#b5b5b5",
    "grid": "#dddddd",
    "accent": "#000000",
    "ok": "#0d4f2e",
    "warn": "#664000",
    "fail": "#8f1a13",
    "error": "#651c60",
    "skip": "#3d3d3d",
    "series-1": "#17467f",
    "series-2": "#8f3a0c",
    "series-3": "#0d4f2e",
    "heat": "#8f1a13",
}

_ROOT = """
  margin: 0; background: var(--page); color: var(--ink);
  font: 1rem/1.6 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif;
  overflow-wrap: anywhere; -webkit-text-size-adjust: 100%; text-size-adjust: 100%;
"""

# What a whole page has and a fragment inside somebody else's page has not.
_PAGE = """
html { color-scheme: light dark; scroll-behavior: smooth; scroll-padding-top: 1rem; }
main, body > footer {
  width: calc(100% - 3rem); max-width: 59rem; margin: 0 auto; padding: 2.5rem 0;
}
body > footer { border-top: 1px solid var(--line); font-size: .9rem; }
.skip-link { position: absolute; left: -100vw; padding: .5rem 1rem; background: var(--card); }
.skip-link:focus { left: 1rem; top: 1rem; z-index: 1; }
@media screen and (max-width: 40rem) {
  main, body > footer { width: calc(100% - 2rem); padding: 1.25rem 0; }
}
@page { margin: 15mm; }
@media print {
  html { font-size: 10pt; }
  @supports not selector(::details-content) {
    body > footer::after { content: "This browser prints only the parts that were open."; }
  }
}
@media (prefers-reduced-motion: reduce) { html { scroll-behavior: auto; } }
"""

_PARTS = """
*, *::before, *::after { box-sizing: border-box; }
h1, h2, h3, h4, h5, h6 { line-height: 1.3; margin: 0; text-wrap: balance; color: inherit; }
h1 { font-size: clamp(1.5rem, 1.1rem + 2vw, 2.1rem); letter-spacing: -.01em; }
h2 { font-size: 1.35rem; margin: 3.5rem 0 1rem; }
h3 { font-size: 1.1rem; margin: 2rem 0 .75rem; }
h4 { font-size: 1rem; }
h5, h6 { font-size: .95rem; margin: 1.25rem 0 .35rem; }
p, ul, ol, dl, pre, figure, table { margin: 0 0 1rem; }
p { max-width: 44rem; }
a { color: var(--accent); text-underline-offset: .15em; }
:focus-visible { outline: 3px solid var(--accent); outline-offset: 2px; border-radius: 3px; }
code, pre { font-family: ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; }
code { font-size: .9em; }
.quiet { color: var(--quiet); }
.small { font-size: .9rem; }
.state { white-space: nowrap; font-weight: 600; font-size: .9rem; }
.pass { color: var(--ok); } .warn { color: var(--warn); } .fail { color: var(--fail); }
.error { color: var(--error); } .skip, .none { color: var(--skip); }
.card {
  background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 1.25rem;
}
details > summary { cursor: pointer; list-style: none; }
details > summary::-webkit-details-marker { display: none; }
details > summary::before {
  content: "\\25B8"; display: inline-block; width: 1.1em; color: var(--quiet);
}
details[open] > summary::before { content: "\\25BE"; }
.copy {
  background: var(--page); border: 1px solid var(--line); border-radius: 6px; padding: .7rem .9rem;
  white-space: pre-wrap; user-select: all; -webkit-user-select: all; font-size: .9rem;
}
.scroll { overflow-x: auto; margin: 0 0 1rem; }
.scroll > table { margin: 0; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; color: var(--quiet); padding: 0 0 .5rem; }
th, td {
  text-align: left; vertical-align: top; padding: .4rem 1.25rem .4rem 0;
  border-bottom: 1px solid var(--line); overflow-wrap: normal;
}
thead th { font-weight: 600; }
tbody th { font-weight: 400; }
@media screen and (min-width: 48rem) { th[scope=row] { white-space: nowrap; } }
.facts { display: grid; grid-template-columns: minmax(5.5rem, auto) 1fr; gap: .5rem 1.25rem; }
.facts dt { color: var(--quiet); font-size: .9rem; }
.facts dd { margin: 0; min-width: 0; }
.facts dd > :last-child { margin-bottom: 0; }
@media screen and (max-width: 40rem) {
  .facts { grid-template-columns: 1fr; gap: 0; }
  .facts dd { margin: 0 0 .75rem; }
}
"""

# Closed details are opened through their content box, which is all that CSS can reach.
_PRINT = """
@media print {
  main, body > footer { width: auto; max-width: none; padding: 0; }
  h2 { margin-top: 2rem; }
  p, li, dd { line-height: 1.45; }
  th, td { padding: .15rem 1.25rem .15rem 0; }
  a { text-decoration: none; }
  .card, .copy { border-color: #999; }
  .screen-only { display: none; }
  details > summary::before, details[open] > summary::before { content: none; }
  details::details-content { content-visibility: visible; display: block; height: auto; }
  h1, h2, h3, h4, h5, h6, summary, caption, thead, dt { break-after: avoid; }
  figure, svg, tr, pre, dd { break-inside: avoid; }
  p, li { orphans: 3; widows: 3; }
  .scroll { overflow: visible; }
}
"""


def _palettes(selector: str) -> str:
    """Return the three palettes for an element, the one for paper last, for it must win."""

    def rule(palette: Mapping[str, str]) -> str:
        return f"{selector} {{ {' '.join(f'--{name}: {palette[name]};' for name in palette)} }}"

    return (
        f"{rule(LIGHT)}\n@media (prefers-color-scheme: dark) {{ {rule(DARK)} }}\n"
        f"@media print {{ {rule(PAPER)} }}\n"
    )


STYLE = _palettes(":root") + f"body {{{_ROOT}}}" + _PAGE + _PARTS + _PRINT


def fragment_style(name: str, extra: str = "") -> str:
    """Return the style for the insides of elements of class `name`, and of nothing else.

    extra: further rules to keep inside. Nested rules need a browser of 2024 or later; an older one
    drops them and shows plain headings and lists.
    """
    own = f".{name}.{name}"  # twice, to weigh more than what a notebook says of its own lists
    return f"{_palettes(own)}{own} {{{_ROOT}  padding: 1.25rem;\n{_PARTS}{extra}{_PRINT}}}"
