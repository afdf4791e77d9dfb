"""Running code that nobody vouches for: in a process of its own, with limits, over a plain wire."""
