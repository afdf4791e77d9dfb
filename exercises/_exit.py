"""Exit codes of every command here."""

CAUGHT = 0  # every bug was caught for the right reason
NOT_CAUGHT = 1
USAGE = 2
BROKEN = 3  # the exercise itself does not work
INTERRUPTED = 130
