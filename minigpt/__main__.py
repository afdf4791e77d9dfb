"""`python -m minigpt` lists the commands."""

COMMANDS = """\
python -m minigpt.prepare    text -> tokenizer and ids of three splits
python -m minigpt.train      train a Mini-GPT on them, with checkpoints and a log
python -m minigpt.generate   write text with a trained checkpoint
python -m minigpt.memory     what a run needs, whether it fits, what to turn
python -m diagnostics        check the checkpoint, the tokenizer and the ids
python -m exercises          break it on purpose, and see which check notices

Each one explains itself with --help."""

if __name__ == "__main__":
    print(COMMANDS)
