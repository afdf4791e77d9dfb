"""The command `python -m minigpt.generate`: text on stdout, what it was made with on stderr."""

from __future__ import annotations

import argparse
import io
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from minigpt._cli import CommandError, Parser

if TYPE_CHECKING:  # --help must not wait for torch
    import torch
    from torch import Tensor

    from minigpt.model import MiniGPT, MiniGPTConfig
    from minigpt.tokenizer import CharTokenizer

DEFAULT_CHECKPOINT = Path("checkpoints/mini_gpt_best.safetensors")
DEFAULT_TOKENIZER = Path("tokenizer/char_tokenizer.json")
REPETITION_LENGTH = 8  # characters: about a word and a half; shorter runs come twice in any text
ORDINARY_REPETITION = 0.2  # half of all 500-character pieces of English prose are below 0.1
HEAVY_REPETITION = 0.5
COMPARED_TOKENS = 32  # over which two prompts are compared
IGNORED_NATS = 0.01  # a mean change smaller than this is not worth calling one


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn; temperature 0 takes the most probable one."""

    temperature: float
    top_k: int | None = None
    top_p: float | None = None
    repetition_penalty: float = 1.0

    def __str__(self) -> str:
        return (
            f"temperature {self.temperature:g}, top-k {self.top_k or 'off'}, "
            f"top-p {self.top_p or 'off'}, repetition penalty {self.repetition_penalty:g}"
        )


PRESETS = {
    "balanced": Sampling(temperature=0.8, top_k=20, top_p=0.9, repetition_penalty=1.05),
    "strict": Sampling(temperature=0.6, top_k=10, top_p=0.9),  # for text that is too chaotic
    "greedy": Sampling(temperature=0.0),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Generate, or compare two prompts, as the arguments say; returns the exit code."""
    options = _parse(arguments)
    model, tokenizer, device = _load(options)
    if options.compare_prompts:
        if not all(options.compare_prompts):
            raise CommandError("--compare-prompts wants two prompts, got an empty one")
        short, rich = (_encode(tokenizer, text) for text in options.compare_prompts)
        compared = compare_prompts(
            model, short.to(device), rich.to(device), known_ids=tokenizer.vocab_size
        )
        print(_describe_comparison(*compared))
        return 0
    prompt = _encode(tokenizer, _prompt_text(tokenizer, options.prompt)).to(device)
    sampling = _sampling(options, model.config, tokenizer.vocab_size)
    try:
        ids, seconds = _timed_generate(model, tokenizer, prompt, sampling, options)
    except FloatingPointError as error:  # weights that hold NaN
        raise CommandError(f"the checkpoint cannot generate: {error}") from error
    if isinstance(sys.stdout, io.TextIOWrapper):  # a console may lack some of the characters
        sys.stdout.reconfigure(errors="backslashreplace")
    print(tokenizer.decode(ids))
    sys.stdout.flush()  # text first where both streams go to one file
    new_text = tokenizer.decode(ids[prompt.shape[1] :])
    print(f"settings    {sampling}, seed {options.seed}, {device}", file=sys.stderr)
    if options.slide_by > 1:
        block = model.config.block_size
        print(
            f"window      drops {options.slide_by} of its {block} tokens at once", file=sys.stderr
        )
    print(_describe_speed(options.max_new_tokens, seconds), file=sys.stderr)
    print(_describe_repetition(new_text), file=sys.stderr)
    return 0


def compare_prompts(
    model: MiniGPT, short: Tensor, rich: Tensor, *, known_ids: int | None = None
) -> tuple[float, float, int, int]:
    """Measure whether the model uses its prompt; prompts have shape (1, T).

    Both prompts are followed by the same text, the greedy continuation of the rich one. Returns
    KL(rich || short) in nats between the predictions of its first token, the mean over all of
    its tokens, at how many of them the most probable token differs, and their number.
    """
    import torch

    from minigpt.evaluate import evaluation_mode
    from minigpt.generate import generate

    count = max(1, min(COMPARED_TOKENS, model.config.block_size // 2))
    room = max(1, model.config.block_size - count)
    short, rich = short[:, -room:], rich[:, -room:]
    continuation = generate(model, rich, count, greedy=True, known_ids=known_ids)
    continuation = continuation[:, rich.shape[1] : -1]
    with torch.no_grad(), evaluation_mode(model):
        after_rich, after_short = (
            model(torch.cat([prompt, continuation], dim=1))[0][0, -count:].log_softmax(dim=-1)
            for prompt in (rich, short)
        )  # (count, V) each
    nats = (after_rich.exp() * (after_rich - after_short)).sum(dim=-1)
    changed = int((after_rich.argmax(dim=-1) != after_short.argmax(dim=-1)).sum())
    return float(nats[0]), float(nats.mean()), changed, count


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(
        prog="python -m minigpt.generate",
        description="Continue a prompt with a trained checkpoint. Text goes to stdout; settings, "
        "speed and the measured repetition to stderr.",
    )
    add = parser.add_argument
    add("--checkpoint", type=Path, help=f"default {DEFAULT_CHECKPOINT}, else the .pt beside it")
    add("--tokenizer", type=Path, help=f"only for .pt files; default {DEFAULT_TOKENIZER}")
    add("--prompt", help="text to continue; default a line break")
    add("--max-new-tokens", type=int, default=500, metavar="N", help="default 500")
    add("--preset", choices=PRESETS, default="balanced", help="strict: calmer; default balanced")
    add("--temperature", type=float, metavar="X", help="0 always takes the most probable token")
    add("--top-k", type=int, metavar="K", help="draw from the K most probable tokens")
    add("--top-p", type=float, metavar="P", help="draw from the most probable with mass P")
    add("--repetition-penalty", type=float, metavar="X", help="above 1: fewer repeats")
    add(
        "--slide-by",
        type=int,
        default=1,
        metavar="N",
        help="tokens that the window drops when a block is full; default 1. Long texts come many "
        "times faster with half a block, and each token then sees between half a block and one",
    )
    add(
        "--dtype",
        choices=("float32", "bfloat16"),
        help="of the weights; default as saved. bfloat16 halves the memory; the chip decides "
        "whether it is faster or, where it has to be imitated, much slower",
    )
    add("--seed", type=int, default=42, help="default 42; the same seed gives the same text")
    add("--device", help="cpu, cuda, mps; default the best there is")
    add(
        "--compare-prompts",
        nargs=2,
        metavar=("SHORT", "RICH"),
        help="measure instead whether the model uses its prompt",
    )
    return parser.parse_args(arguments)


def _load(options: argparse.Namespace) -> tuple[MiniGPT, CharTokenizer, torch.device]:
    """Load the checkpoint; every way in which that fails is one line for the user."""
    import torch

    from minigpt.checkpoint import CheckpointError, load_checkpoint
    from minigpt.device import find_device
    from minigpt.tokenizer import CharTokenizer

    path = options.checkpoint or _default_checkpoint()
    if not path.exists():
        raise CommandError(f"no checkpoint at {path}; create one with `python -m minigpt.train`")
    try:
        device = find_device(options.device)
    except ValueError as error:
        raise CommandError(f"--{error}") from error
    try:
        tokenizer_path = options.tokenizer
        if tokenizer_path is None and path.suffix != ".safetensors":
            tokenizer_path = DEFAULT_TOKENIZER
        tokenizer = CharTokenizer.from_file(tokenizer_path) if tokenizer_path else None
        checkpoint = load_checkpoint(path, tokenizer=tokenizer, device=device)
    except (CheckpointError, FileNotFoundError, ValueError, RuntimeError) as error:
        raise CommandError(str(error)) from error
    if checkpoint.tokenizer is None:
        raise CommandError(f"{path} holds no tokenizer; give its file with --tokenizer")
    model = checkpoint.model
    if options.dtype is not None:
        model = model.to(getattr(torch, options.dtype))
    return model, checkpoint.tokenizer, device


def _default_checkpoint() -> Path:
    older = DEFAULT_CHECKPOINT.with_suffix(".pt")
    return older if older.exists() and not DEFAULT_CHECKPOINT.exists() else DEFAULT_CHECKPOINT


def _prompt_text(tokenizer: CharTokenizer, prompt: str | None) -> str:
    if prompt is None:
        chars = tokenizer.chars
        return "\n" if "\n" in chars else chars[0]
    if not prompt:
        raise CommandError("--prompt must hold at least one character, got none")
    return prompt


def _encode(tokenizer: CharTokenizer, text: str) -> Tensor:
    """Return (1, T); a character that the tokenizer does not know ends the command."""
    from minigpt.tokenizer import UnknownCharacterError

    try:
        return tokenizer.encode_tensor(text)[None]
    except UnknownCharacterError as error:
        raise CommandError(f"the prompt holds an {error}") from error


def _sampling(options: argparse.Namespace, config: MiniGPTConfig, vocab_size: int) -> Sampling:
    """Return the preset, changed by the flags that were given, checked."""
    from minigpt.sampling import require_sampling_settings

    sampling = PRESETS[options.preset]
    if sampling.top_k is not None and sampling.top_k > vocab_size:
        sampling = replace(sampling, top_k=None)  # a vocabulary this small has nothing to cut
    names = ("temperature", "top_k", "top_p", "repetition_penalty")
    given = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    sampling = replace(sampling, **given)
    try:
        require_sampling_settings(
            sampling.temperature,
            sampling.top_k,
            sampling.top_p,
            sampling.repetition_penalty,
            vocab_size=vocab_size,
        )
    except ValueError as error:
        raise CommandError(str(error)) from error
    if not 1 <= options.slide_by <= config.block_size:
        raise CommandError(
            f"--slide-by must be in 1..{config.block_size}, the block size, got {options.slide_by}"
        )
    if options.max_new_tokens < 0:
        raise CommandError(f"--max-new-tokens must be >= 0, got {options.max_new_tokens}")
    if not 0 <= options.seed < 2**32:
        raise CommandError(f"--seed must be in 0..2**32 - 1, got {options.seed}")
    return sampling


def _timed_generate(
    model: MiniGPT,
    tokenizer: CharTokenizer,
    prompt: Tensor,
    sampling: Sampling,
    options: argparse.Namespace,
) -> tuple[Tensor, float]:
    """Return the ids (T0 + n,) on the CPU and the seconds that it took."""
    import torch

    from minigpt.generate import generate

    generator = torch.Generator().manual_seed(options.seed)
    start = time.perf_counter()
    ids = generate(
        model,
        prompt,
        options.max_new_tokens,
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        repetition_penalty=sampling.repetition_penalty,
        generator=generator,
        slide_by=options.slide_by,
        known_ids=tokenizer.vocab_size,  # the model may have more, to make a round number
    )[0].cpu()
    return ids, time.perf_counter() - start


def _describe_speed(count: int, seconds: float) -> str:
    return f"speed       {count:,} tokens in {seconds:.2f} s: {count / seconds:,.0f} tokens/s"


def _describe_repetition(text: str) -> str:
    from minigpt.sampling import repetition_rate

    if len(text) <= REPETITION_LENGTH:
        return f"repetition  not measured: it takes more than {REPETITION_LENGTH} characters"
    rate = repetition_rate(text, REPETITION_LENGTH)
    if rate < ORDINARY_REPETITION:
        meaning = "as in ordinary prose"
    elif rate < HEAVY_REPETITION:
        meaning = "more than prose usually has"
    else:
        meaning = "it goes in circles"
        meaning += "\n            raise --temperature or --repetition-penalty, or train longer"
    return f"repetition  {rate:.1%} of its {REPETITION_LENGTH}-character runs repeat: {meaning}"


def _describe_comparison(first: float, mean: float, changed: int, count: int) -> str:
    verdict = "is used"
    if not (mean > IGNORED_NATS or changed):
        verdict = "is ignored: was the model trained, and on blocks as long as the prompt?"
    return (
        f"KL(rich || short): {first:.3f} nats at the first token, mean {mean:.3f} over {count}\n"
        f"most probable token differs at {changed} of {count} places\n"
        f"the prompt {verdict}"
    )
