"""Break it on purpose: one exercise per check, each with known bugs that the check must catch.

python -m exercises                 run them all
python -m exercises.break_shift     one of them, with everything to look at
"""

import signal
import sys


def _let_interrupts_end_the_start() -> None:
    """End at once, without a traceback, on Ctrl-C while torch is loading.

    An exercise is a module that imports torch before its first line runs. Only for the commands
    above: a program that imports this package decides about its signals itself.
    """
    while_searching = sys.argv[:1] == ["-m"]  # what Python puts there until the module is found
    if while_searching and any(word.split(".")[0] == __name__ for word in sys.orig_argv):
        signal.signal(signal.SIGINT, signal.SIG_DFL)


_let_interrupts_end_the_start()
