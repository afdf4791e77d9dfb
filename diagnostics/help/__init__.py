"""Help for a person who asks: symptoms, tracebacks, checklists, and a request to others.

`symptoms` leads from what is seen to the check that separates the suspects, `traceback` reads an
error from the bottom, `checklists` ticks what was measured, and `ask` puts all that others need to
know into one text. None of them imports torch or runs a check.
"""
