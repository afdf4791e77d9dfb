"""What `python -m minigpt.train` reads: tokenizer and ids that were made together, or an error."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from minigpt._cli import CommandError
from minigpt.encoded import META_NAME, ids_path, load_ids, read_meta
from minigpt.model import MiniGPTConfig
from minigpt.tokenizer import CharTokenizer


@dataclass(frozen=True)
class TrainData:
    """The two splits that training may see (the test split is for one look, at the very end)."""

    tokenizer: CharTokenizer
    train_ids: Tensor  # (N,) int64
    validation_ids: Tensor
    corpus_fingerprint: str | None  # None where the ids have no card

    def require_usable(self, config: MiniGPTConfig) -> None:
        """Raise CommandError when the splits cannot fill a block, or a pair of tokens."""
        if len(self.train_ids) <= config.block_size:
            raise CommandError(
                f"a block of {config.block_size} needs {config.block_size + 1} train ids or more, "
                f"got {len(self.train_ids)}; prepare a longer text or give a smaller --block-size"
            )
        if len(self.validation_ids) < 2:
            raise CommandError(
                f"validation needs 2 ids or more, got {len(self.validation_ids)}; "
                "prepare a longer text"
            )


def load_train_data(folder: Path, tokenizer_path: Path) -> TrainData:
    """Read tokenizer, train and validation ids; raises FileNotFoundError or CommandError.

    Ids that were made with another tokenizer of at least the same size would train without an
    error, on another text. The card beside the ids says which one they were made with.
    """
    try:
        tokenizer = CharTokenizer.from_file(tokenizer_path)
        fingerprint = _require_same_tokenizer(folder, tokenizer_path, tokenizer)
        train_ids, validation_ids = (
            load_ids(ids_path(folder, split), vocab_size=tokenizer.vocab_size)
            for split in ("train", "val")
        )
    except ValueError as error:
        raise CommandError(str(error)) from error
    return TrainData(tokenizer, train_ids, validation_ids, fingerprint)


def _require_same_tokenizer(
    folder: Path, tokenizer_path: Path, tokenizer: CharTokenizer
) -> str | None:
    """Return the corpus fingerprint of the card, after comparing the tokenizer's with it."""
    ids_path(folder, "train")  # a missing card is only worth a word when there are ids
    if not (folder / META_NAME).exists():
        return None
    meta = read_meta(folder)
    if meta.tokenizer_fingerprint != tokenizer.fingerprint:
        raise CommandError(
            f"the ids in {folder} were made with tokenizer {meta.tokenizer_fingerprint[:12]}, "
            f"{tokenizer_path} is {tokenizer.fingerprint[:12]}; "
            "run `python -m minigpt.prepare` again, which writes both"
        )
    return meta.corpus_fingerprint
