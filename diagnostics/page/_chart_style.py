"""The look of the charts: strokes and fills of the SVG classes, in the colours of the page.

Text is 13 units of a canvas that is 320 wide, for phones; where the picture grows beyond that, the
text shrinks in units and so keeps its size on the screen.
"""

from __future__ import annotations

CHART_STYLE = """
.chart { margin: 1.5rem 0; padding: 0; max-width: 34rem; break-inside: avoid; }
.chart-narrow { max-width: 26rem; }
.chart-wide { max-width: none; }
.chart-finding { font-weight: 600; margin: 0 0 .5rem; overflow-wrap: anywhere; text-wrap: pretty; }
.chart-frame { container-type: inline-size; }
.chart-svg { display: block; width: 100%; height: auto; overflow: visible;
  font-size: 13px; font-variant-numeric: tabular-nums; }
.chart-svg text { fill: var(--ink); direction: ltr; unicode-bidi: isolate; }
@container (max-width: 275px) { .chart-svg { font-size: 14px; } }
@container (min-width: 400px) { .chart-svg { font-size: 10.8px; } }
@container (min-width: 460px) { .chart-svg { font-size: 9.4px; } }
@container (min-width: 520px) { .chart-svg { font-size: 8.4px; } }
.chart-svg .chart-tick, .chart-svg .chart-axis { fill: var(--quiet); }
.chart-svg .chart-layer { font-weight: 600; fill: var(--quiet); }
.chart-svg .chart-value { font-weight: 600; }
.chart-svg .chart-flag { font-weight: 700; fill: var(--fail); }
.chart-grid { stroke: var(--grid); stroke-width: 1; fill: none; }
.chart-base { stroke: var(--quiet); stroke-width: 1; fill: none; }
.chart-leader { stroke: var(--quiet); stroke-width: .8; fill: none; }
.chart-level { stroke: var(--ink); stroke-width: 1; stroke-dasharray: 1.5 3; fill: none;
  stroke-linecap: round; }
.chart-level-here { stroke: var(--ink); stroke-width: 1.5; fill: none; }
.chart-series { stroke-width: 2; fill: none; stroke-linejoin: round; stroke-linecap: round; }
.chart-dense { stroke-width: 1.2; }
.chart-series-1 { stroke: var(--series-1); }
.chart-series-2 { stroke: var(--series-2); }
.chart-series-3 { stroke: var(--series-3); }
.chart-mark { stroke-width: 1.5; fill: var(--card); }
.chart-mark-0.chart-series-1 { fill: var(--series-1); }
.chart-name { font-weight: 600; }
.chart-svg .chart-name-0 { font-weight: 400; }
.chart-svg .chart-name-1 { fill: var(--series-1); }
.chart-svg .chart-name-2 { fill: var(--series-2); }
.chart-svg .chart-name-3 { fill: var(--series-3); }
.chart-cross { stroke: var(--fail); stroke-width: 2; fill: none; }
.chart-bar { fill: var(--series-1); stroke: var(--series-1); stroke-width: .6; }
.chart-bar-flagged { fill: var(--card); stroke: var(--fail); stroke-width: 2; }
.chart-column { stroke: var(--series-1); fill: none; }
.chart-column-flagged { stroke: var(--fail); }
.chart-triangle { fill: var(--fail); }
.chart-heat-frame { fill: none; stroke: var(--line); stroke-width: 1;
  vector-effect: non-scaling-stroke; }
.chart-heat-1, .chart-heat-2, .chart-heat-3, .chart-heat-4, .chart-heat-5 {
  fill: var(--series-1); shape-rendering: crispEdges; }
.chart-heat-1 { fill-opacity: .14; }
.chart-heat-2 { fill-opacity: .3; }
.chart-heat-3 { fill-opacity: .5; }
.chart-heat-4 { fill-opacity: .74; }
.chart-heat-flagged { fill: var(--heat); }
.chart-hatch { stroke: var(--quiet); stroke-width: 1; fill: none;
  vector-effect: non-scaling-stroke; }
.chart-outline { stroke: var(--ink); stroke-width: 1.3; fill: none;
  vector-effect: non-scaling-stroke; stroke-linecap: square; }
g > .chart-cross { vector-effect: non-scaling-stroke; stroke-width: 1.5; }
.chart-key { list-style: none; display: flex; flex-wrap: wrap; gap: .25rem 1rem; margin: .5rem 0;
  padding: 0; font-size: .875rem; }
.chart-key svg { vertical-align: -.1em; overflow: visible; }
.chart-note { color: var(--quiet); font-size: .875rem; margin: .5rem 0; max-width: 60ch;
  overflow-wrap: anywhere; }
.chart-numbers { font-size: .875rem; margin: .5rem 0; }
.chart-numbers summary { cursor: pointer; padding: .25rem 0; }
.chart-scroll { overflow-x: auto; }
.chart-numbers table { border-collapse: collapse; }
.chart-numbers th, .chart-numbers td { text-align: right; font-weight: 400;
  padding: .15rem .75rem .15rem 0; border-bottom: 1px solid var(--line);
  font-variant-numeric: tabular-nums; vertical-align: top; }
.chart-numbers th:first-child { text-align: left; overflow-wrap: anywhere;
  white-space: normal; min-width: 4.5rem; }
.chart-numbers thead th { font-weight: 600; }
.pair-row { display: flex; gap: 0 .5rem; margin: 0 0 1rem; }
.pair-heads, .pairs li { display: flex; flex-direction: column; }
.pair-heads { color: var(--quiet); font-size: .8rem; flex: 0 0 auto; }
.pair-heads span, .pairs span { display: block; line-height: 1.5rem; height: 1.5rem; }
.pairs { list-style: none; display: flex; flex-wrap: wrap; gap: .6rem 0; margin: 0; padding: 0;
  flex: 1 1 0; min-width: 10rem; }
.pairs li { min-width: 1.55rem; text-align: center; box-sizing: border-box; margin: 0;
  border-right: 1px solid var(--grid); padding: 0 .1rem; }
.pairs span { font-family: ui-monospace, "Cascadia Mono", Menlo, Consolas, "DejaVu Sans Mono",
  monospace; white-space: pre; max-width: 9rem; overflow: hidden; text-overflow: ellipsis; }
.pair-position { color: var(--quiet); font-size: .7rem; }
.pair-mark { color: var(--quiet); }
.pair-target { background: var(--grid); }
.pair-wrong .pair-mark, .pair-wrong .pair-target { color: var(--fail); font-weight: 700; }
.pair-wrong .pair-target { box-shadow: inset 0 0 0 1.5px var(--fail); }
@media print {
  .chart { max-width: 11cm; }
  .chart-narrow { max-width: 9cm; }
  .chart-numbers { display: none; }
  .chart-wide { max-width: none; }
  .chart-svg { -webkit-print-color-adjust: exact; print-color-adjust: exact; }
}
"""
