"""The look of what only the page of a run has: its state, its tiles, its samples."""

RUN_STYLE = """
.accent { color: var(--accent); }
.now { margin: 1.25rem 0 1rem; }
.now > p { margin: 0 0 .5rem; }
.now > :last-child { margin-bottom: 0; }
.now .state { font-size: 1.1rem; white-space: normal; }
.now progress { display: block; width: 100%; height: .75rem; margin: 0 0 .75rem; }
.now progress { accent-color: var(--accent); }
.tiles {
  display: grid; grid-template-columns: repeat(auto-fill, minmax(9rem, 1fr)); gap: .75rem;
}
.tiles > div {
  background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: .75rem 1rem;
}
.tiles dt { color: var(--quiet); font-size: .9rem; }
.tiles dd { margin: 0; font-size: 1.35rem; line-height: 1.35; font-variant-numeric: tabular-nums; }
.tiles dd > span { display: block; color: var(--quiet); font-size: .85rem; line-height: 1.4; }
.readings { list-style: none; padding: 0; }
.readings > li {
  display: grid; grid-template-columns: 6.5rem 1fr; gap: 0 1rem; padding: .6rem 0;
  border-bottom: 1px solid var(--line);
}
.readings p { margin: 0; }
@media (max-width: 40rem) { .readings > li { grid-template-columns: 1fr; } }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 24rem), 1fr)); }
.charts { gap: 1.5rem 2.5rem; align-items: start; }
.charts > .chart { margin: 0; min-width: 0; }
.samples { list-style: none; padding: 0; display: grid; gap: 1.25rem 2.5rem; align-items: start; }
.samples { grid-template-columns: repeat(auto-fill, minmax(min(100%, 24rem), 1fr)); }
.samples > li { min-width: 0; }
.samples h3 { margin: 0 0 .5rem; font-size: 1rem; }
.sample { margin: 0; }
.sample {
  background: var(--card); border: 1px solid var(--line); border-radius: 6px; padding: .7rem .9rem;
  white-space: pre-wrap; font-size: .9rem; line-height: 1.5; overflow: hidden;
}
.prompt { text-decoration: underline; text-underline-offset: .2em; color: var(--quiet); }
"""
