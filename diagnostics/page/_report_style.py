"""The look of a report: the card with the verdict, the path of stages, and the checks."""

from __future__ import annotations

_HEADLINE = """
.headline { padding: 1.75rem 2rem 2rem; border-left-width: 5px; }
.pass-edge { border-left-color: var(--ok); }
.warn-edge { border-left-color: var(--warn); }
.fail-edge { border-left-color: var(--fail); }
.error-edge { border-left-color: var(--error); }
.skip-edge { border-left-color: var(--skip); }
.eyebrow { margin: 0 0 .35rem; color: var(--quiet); font-size: .9rem; }
.headline h3 { font-size: 1.5rem; font-weight: 700; margin: 0; }
.headline h1 a { color: inherit; text-decoration-thickness: 2px; }
.headline .lead { font-size: 1.15rem; margin: .9rem 0 1.25rem; }
.headline > :last-child { margin-bottom: 0; }
.list-title { font-weight: 600; margin: 1.75rem 0 .35rem; }
.plain { list-style: none; padding: 0; margin: 0 0 1.25rem; }
.plain li { margin: .3rem 0; }
.counts {
  list-style: none; padding: 0; margin: 1.25rem 0 0; display: flex; flex-wrap: wrap;
  gap: .35rem 1.75rem;
}
.counts .empty, .counts .empty .state { color: var(--quiet); font-weight: 400; }
.counts .empty b { font-weight: 400; }
.counts + .path { margin-top: 2rem; }
@media screen and (max-width: 40rem) { .headline { padding: 1.25rem; } }
"""

# Two rows of seven nodes, each joined to the one before; on a phone one line from top to bottom.
_PATH = """
.path {
  list-style: none; padding: 0; margin: 0 0 1.5rem; display: grid; gap: 1.75rem 0;
  grid-template-columns: repeat(7, minmax(0, 1fr));
}
.path li {
  position: relative; display: flex; flex-direction: column; align-items: center;
  padding: 0 .2rem; text-align: center; font-size: .85rem; line-height: 1.4;
}
.path li::before {
  content: ""; position: absolute; top: 1.05rem; right: calc(50% + 1.35rem);
  width: calc(100% - 2.7rem); border-top: 2px solid var(--quiet);
}
.path li:nth-child(7n + 1)::before { width: calc(50% - 1.35rem); }
.path li:first-child::before { content: none; }
.path li.downstream::before { border-top-style: dashed; }
.path a {
  display: flex; flex-direction: column; align-items: center; gap: .4rem; color: inherit;
  text-decoration: none;
}
.dot {
  display: grid; place-items: center; width: 2.2rem; height: 2.2rem; font-weight: 700;
  font-size: 1rem; border: 2px solid currentColor; border-radius: 50%; background: var(--card);
}
.path .none .dot { border-style: dotted; }
.path .first .dot { outline: 2px solid currentColor; outline-offset: 3px; }
.stage-name { color: var(--ink); font-weight: 600; }
a > .stage-name { text-decoration: underline; text-decoration-color: var(--quiet); }
.path .none .stage-name { color: var(--quiet); font-weight: 400; }
.path .mark { color: var(--quiet); }
.path .first .mark { color: inherit; font-weight: 700; }
@media screen and (max-width: 48rem) {
  .path { display: block; }
  .path li {
    flex-direction: row; flex-wrap: wrap; align-items: center; gap: 0 .6rem; text-align: left;
    font-size: .95rem; padding: .45rem 0 .45rem 3.1rem; min-height: 3.2rem;
  }
  .path li:nth-child(n)::before {
    left: 1.05rem; right: auto; top: -.5rem; width: 0; height: 1rem; border-top: 0;
    border-left: 2px solid var(--quiet);
  }
  .path li.downstream::before { border-left-style: dashed; }
  .path a { display: contents; }
  .dot { position: absolute; left: 0; top: .5rem; }
}
"""

_CHECKS = """
.gallery { columns: 20rem; column-gap: 3rem; }
.gallery .source { margin: 0 0 .35rem; font-size: .9rem; break-after: avoid; }
.gallery .chart { margin-top: 0; }
.gallery > div { break-inside: avoid; padding-bottom: 2.5rem; }
.stage { display: grid; grid-template-columns: 9rem minmax(0, 1fr); margin: 0 0 1.25rem; }
.stage > h3 { margin: .75rem 0 0; }
.rows { padding: 0; }
.rows + p { margin: 1rem 0 0; }
.check + .check, .unasked { border-top: 1px solid var(--line); }
.check > summary {
  display: grid; grid-template-columns: 1.1rem 5.5rem minmax(0, 1fr); gap: 0 .25rem;
  align-items: baseline; padding: .7rem 1.1rem;
}
.check > summary > .state { grid-column: 2; }
.check > summary > h4, .check > summary > b { grid-column: 3; }
.check > summary > .claim { grid-column: 3; color: var(--quiet); }
.check[open] > summary > .claim { color: inherit; }
.inside { padding: .25rem 1.1rem 1.25rem 8rem; }
.check ol { padding-left: 1.2rem; }
.check:target > summary { outline: 3px solid var(--accent); outline-offset: -3px; }
.passed > summary { display: block; }
.passed > .check { border-top: 1px solid var(--line); }
.more { margin: .75rem 0 0; }
.more > summary { color: var(--quiet); font-size: .95rem; margin-bottom: .5rem; }
.more > :last-child { margin-bottom: .5rem; }
.words { display: block; white-space: normal; min-width: 11rem; max-width: 24rem; }
.pair {
  display: grid; gap: 1rem 3rem;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr));
}
.unasked {
  margin: 0; max-width: none; padding: .7rem 1.1rem; color: var(--quiet); font-size: .9rem;
}
@media screen and (max-width: 48rem) {
  .stage { display: block; }
  .stage > h3 { margin: 1.75rem 0 .5rem; }
  .inside { padding-left: 1.1rem; }
  .check > summary {
    grid-template-columns: 1.1rem auto minmax(0, 1fr); gap: 0 .6rem; padding: .7rem .9rem;
  }
  .check > summary > .claim { grid-column: 2 / -1; }
}
.paper-only { display: none; }
@media print {
  .paper-only { display: block; break-after: avoid; }
  :is(.pass-check, .skip-check, .consequence) .more:not([open]) { display: none; }
  .stage { display: block; }
  .stage > h3 { margin: 1.5rem 0 .25rem; font-size: 1.25rem; break-after: avoid-page; }
  .check > summary, .inside > .facts { break-inside: avoid; }
  .inside > :first-child, .check:first-child { break-before: avoid; }
  .headline { border-width: 0 0 0 3px; border-radius: 0; padding: 0 0 0 1rem; }
  .rows { border: 0; }
  .check > summary { padding: .6rem 0 .3rem; grid-template-columns: 0 5.5rem minmax(0, 1fr); }
  .inside { padding: 0 0 .5rem 6rem; }
  .check > summary > .claim { color: inherit; }
  .more > summary { font-weight: 600; }
  .about::details-content { columns: 2; column-gap: 2rem; font-size: .9em; }
  .about p { break-inside: auto; }
}
"""

REPORT_STYLE = _HEADLINE + _PATH + _CHECKS
