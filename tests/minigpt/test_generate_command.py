"""The flags of `python -m minigpt.generate` that change how the text is computed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from minigpt._cli import CommandError
from minigpt._generate_command import main
from minigpt.checkpoint import save_checkpoint
from minigpt.generate import generate
from minigpt.model import MiniGPT, MiniGPTConfig
from minigpt.tokenizer import CharTokenizer

TOKENIZER = CharTokenizer("abcdefgh\n")


@pytest.fixture
def checkpoint(tmp_path: Path) -> tuple[str, MiniGPT]:
    """A file of a model whose greedy text depends on its whole context, and that model."""
    torch.manual_seed(0)
    model = MiniGPT(MiniGPTConfig(9, 8, 16, 2, 2))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(10)
    save_checkpoint(tmp_path / "a.safetensors", model, TOKENIZER)
    return str(tmp_path / "a.safetensors"), model


def run(path: str, *flags: str) -> int:
    """Run the command, greedily, for 30 tokens after "ab"."""
    fixed = ["--preset", "greedy", "--max-new-tokens", "30", "--device", "cpu"]
    return main(["--checkpoint", path, "--prompt", "ab", *fixed, *flags])


@pytest.mark.parametrize("slide_by", [1, 4, 8])
def test_slide_by_reaches_the_text(
    checkpoint: tuple[str, MiniGPT], capsys: pytest.CaptureFixture[str], slide_by: int
) -> None:
    """The text is that of `generate` with the same window; one line tells where it is unusual."""
    path, model = checkpoint
    ids = generate(model, TOKENIZER.encode_tensor("ab")[None], 30, greedy=True, slide_by=slide_by)
    assert run(path, "--slide-by", str(slide_by)) == 0
    out, err = capsys.readouterr()
    assert out == TOKENIZER.decode(ids[0]) + "\n"
    line = f"window      drops {slide_by} of its 8 tokens at once"
    assert (line in err.splitlines()) == (slide_by > 1)


@pytest.mark.parametrize("slide_by", ["0", "9", "-3"])
def test_slide_by_out_of_range(checkpoint: tuple[str, MiniGPT], slide_by: str) -> None:
    """One line with the block size and the value."""
    wanted = rf"--slide-by must be in 1\.\.8, the block size, got {slide_by}$"
    with pytest.raises(CommandError, match=wanted):
        run(checkpoint[0], "--slide-by", slide_by)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ([], torch.float32),
        (["--dtype", "float32"], torch.float32),
        (["--dtype", "bfloat16"], torch.bfloat16),
    ],
)
def test_dtype_is_that_of_every_matrix_product(
    checkpoint: tuple[str, MiniGPT],
    monkeypatch: pytest.MonkeyPatch,
    flags: list[str],
    expected: torch.dtype,
) -> None:
    """Every linear layer reads and writes that dtype."""
    seen: set[torch.dtype] = set()
    forward: Callable[[nn.Linear, Tensor], Tensor] = nn.Linear.forward

    def watch(self: nn.Linear, x: Tensor) -> Tensor:
        result = forward(self, x)
        seen.update({x.dtype, result.dtype})
        return result

    monkeypatch.setattr(nn.Linear, "forward", watch)
    assert run(checkpoint[0], *flags) == 0
    assert seen == {expected}


def test_the_dtype_of_the_file_is_the_default(
    tmp_path: Path, checkpoint: tuple[str, MiniGPT], capsys: pytest.CaptureFixture[str]
) -> None:
    """A model that was saved in bfloat16 writes the same text with the flag and without."""
    path = str(tmp_path / "half.safetensors")
    save_checkpoint(path, checkpoint[1].to(torch.bfloat16), TOKENIZER)
    run(path)
    without = capsys.readouterr().out
    run(path, "--dtype", "bfloat16")
    assert capsys.readouterr().out == without


@pytest.mark.parametrize("flags", [[], ["--preset", "balanced"], ["--temperature", "5"]])
def test_ids_beyond_the_tokenizer_are_never_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str]
) -> None:
    """A vocabulary of 9, padded to 64 with ids that the model likes best: all text is of the 9."""
    model = MiniGPT(MiniGPTConfig(64, 8, 16, 2, 2))
    with torch.no_grad():
        model.head.weight[:9] = 0
        model.head.weight[9:] = 1
        model.final_norm.weight.fill_(0)
        model.final_norm.bias.fill_(1)  # logits: 16 for each id from 9 on, 0 for the others
    path = tmp_path / "padded.safetensors"
    save_checkpoint(path, model, TOKENIZER)
    assert int(generate(model, torch.zeros(1, 1, dtype=torch.int64), 1, greedy=True)[0, 1]) >= 9
    assert run(str(path), *flags) == 0
    text = capsys.readouterr().out[:-1]
    assert len(text) == 32
    assert set(text) <= set("abcdefgh\n")
    flags = ["--checkpoint", str(path), "--device", "cpu"]
    assert main([*flags, "--compare-prompts", "a", "bcd"]) == 0
    with pytest.raises(CommandError, match=r"in 1\.\.9, the vocabulary size, got 10$"):
        run(str(path), "--top-k", "10")


def test_known_ids_out_of_range(checkpoint: tuple[str, MiniGPT]) -> None:
    """The message has the range and the value; None draws from the whole vocabulary."""
    prompt = torch.zeros(1, 1, dtype=torch.int64)
    for wrong in (0, 10):
        with pytest.raises(ValueError, match=rf"known_ids must be in 1\.\.9, got {wrong}$"):
            generate(checkpoint[1], prompt, 1, known_ids=wrong)
    assert generate(checkpoint[1], prompt, 5, known_ids=1)[0].tolist() == [0] * 6
