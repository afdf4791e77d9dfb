"""Causal language models of the `transformers` library, tiny and with random weights, offline.

Shapes: B batch, T time, N ids.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor, nn

from diagnostics import Pipeline
from minigpt.corpus import data_path, read_text

transformers.utils.logging.disable_progress_bar()

VOCAB_SIZE, DIM, LAYERS, HEADS, BLOCK = 101, 32, 2, 4, 48
BATCH_SIZE = 8
TEXT_LENGTH = 8_000  # characters of the built-in guide

_COMMON: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": DIM,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": None,
}
_LLAMA: dict[str, Any] = _COMMON | {
    "intermediate_size": 2 * DIM,
    "num_key_value_heads": 2,
    "head_dim": DIM // HEADS,
    "max_position_embeddings": BLOCK,
}

# Names of the configuration class, and what it is made with; dropout stays as it is by default.
ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": (
        "GPT2Config",
        {
            "vocab_size": VOCAB_SIZE,
            "n_embd": DIM,
            "n_layer": LAYERS,
            "n_head": HEADS,
            "n_positions": BLOCK,
            "bos_token_id": 0,
            "eos_token_id": 0,
        },
    ),
    "gpt-neox": (
        "GPTNeoXConfig",
        _COMMON | {"intermediate_size": 2 * DIM, "max_position_embeddings": BLOCK},
    ),
    "llama": ("LlamaConfig", _LLAMA),
    "mistral": ("MistralConfig", _LLAMA | {"sliding_window": 8}),
    "qwen2": ("Qwen2Config", _LLAMA),
    "qwen3": ("Qwen3Config", _LLAMA),
    "gemma": ("GemmaConfig", _LLAMA),
    "gemma2": ("Gemma2Config", _LLAMA | {"sliding_window": 8, "query_pre_attn_scalar": 8}),
    "opt": (
        "OPTConfig",
        _COMMON
        | {
            "ffn_dim": 2 * DIM,
            "max_position_embeddings": BLOCK,
            "word_embed_proj_dim": DIM,
            "pad_token_id": 1,
        },
    ),
    "bloom": (
        "BloomConfig",
        {
            "vocab_size": VOCAB_SIZE,
            "hidden_size": DIM,
            "n_layer": LAYERS,
            "n_head": HEADS,
            "bos_token_id": 0,
            "eos_token_id": 0,
        },
    ),
    "falcon": ("FalconConfig", _COMMON | {"max_position_embeddings": BLOCK}),
    "mixtral": ("MixtralConfig", _LLAMA | {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "mamba": (
        "MambaConfig",
        {
            "vocab_size": VOCAB_SIZE,
            "hidden_size": DIM,
            "num_hidden_layers": LAYERS,
            "state_size": 8,
            "bos_token_id": 0,
            "eos_token_id": 0,
            "pad_token_id": 0,
        },
    ),
}


def make_model(name: str, **changes: Any) -> Any:
    """Build a model with random weights, as `from_config` does."""
    class_name, arguments = ARCHITECTURES[name]
    config = getattr(transformers, class_name)(**(arguments | changes))
    return transformers.AutoModelForCausalLM.from_config(config)


# ---- the pipeline around it, as a user of the library writes it -----------------------------


@cache
def guide() -> str:
    """The first characters of the built-in guide."""
    return read_text(data_path("guide.txt"))[:TEXT_LENGTH]


@cache
def character_tokenizer() -> transformers.PreTrainedTokenizerFast:
    """One id for each character, trained on the guide; made without a network."""
    characters = {"<|endoftext|>": 0, "<pad>": 1, "<unk>": 2}
    for character in sorted(set(guide())):
        characters[character] = len(characters)
    raw = Tokenizer(models.WordLevel(characters, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    raw.decoder = decoders.Fuse()
    return _fast(raw)


@cache
def byte_tokenizer() -> transformers.PreTrainedTokenizerFast:
    """Byte-level BPE with 64 merges on top of the 256 bytes."""
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=322,
        special_tokens=["<|endoftext|>", "<pad>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    raw.train_from_iterator([guide()], trainer)
    return _fast(raw)


def _fast(raw: Tokenizer) -> transformers.PreTrainedTokenizerFast:
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=raw,
        bos_token="<|endoftext|>",
        eos_token="<|endoftext|>",
        pad_token="<pad>",
        unk_token="<unk>" if "<unk>" in raw.get_vocab() else None,
    )


def full_pipeline(
    name: str, tokenizer: transformers.PreTrainedTokenizerFast, **parts: Any
) -> Pipeline:
    """Describe training, evaluation, generation and files of one architecture."""

    def fresh() -> nn.Module:
        model = make_model(name, vocab_size=len(tokenizer))
        model.generation_config.eos_token_id = None  # n tokens are asked for
        return model

    ids = torch.tensor(tokenizer.encode(guide(), add_special_tokens=False))  # (N,)
    cut = len(ids) * 9 // 10
    train_ids, val_ids = ids[:cut], ids[cut:]
    documents = {"train": train_ids.split(37), "val": val_ids.split(29)}
    collate = transformers.DataCollatorForLanguageModeling(tokenizer, mlm=False)

    def batch(split: str) -> dict[str, Tensor]:
        """Some documents of different lengths, padded on the right."""
        chosen = torch.randint(len(documents[split]) - 1, (BATCH_SIZE,)).tolist()
        lengths = torch.randint(20, 30, (BATCH_SIZE,)).tolist()
        rows = [documents[split][i][:n].tolist() for i, n in zip(chosen, lengths, strict=True)]
        return dict(collate([{"input_ids": row} for row in rows]))

    healthy: dict[str, Any] = {
        "make_model": fresh,
        "labels": "same",
        "tokenizer": tokenizer,
        "pad_id": tokenizer.pad_token_id,
        "train_text": tokenizer.decode(train_ids),
        "train_ids": train_ids,
        "val_ids": val_ids,
        "get_batch": windows,
        "batch": batch,
        "make_optimizer": lambda model: torch.optim.AdamW(model.parameters(), lr=1e-3),
        "train_step": train_step,
        "learning_rate": learning_rate,
        "max_steps": 300,
        "evaluate": evaluate,
        "generate": generate,
        "save": lambda model, path: model.save_pretrained(path),
        "load": transformers.AutoModelForCausalLM.from_pretrained,
        "save_state": save_state,
        "load_state": load_state,
        "fresh": True,
    }
    torch.manual_seed(0)
    return Pipeline(fresh(), **(healthy | parts))


def windows(data: Tensor) -> dict[str, Tensor]:
    """Draw random windows (B, T); the labels are the ids, for the model shifts inside."""
    starts = torch.randint(len(data) - BLOCK + 1, (BATCH_SIZE, 1))
    rows = data[starts + torch.arange(BLOCK)]
    return {"input_ids": rows, "labels": rows.clone(), "attention_mask": torch.ones_like(rows)}


def train_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, inputs: Tensor, targets: Tensor
) -> Tensor:
    """One step as `Trainer` makes it: clipped to norm 1."""
    model.train()
    loss = model(input_ids=inputs, labels=targets).loss
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


def learning_rate(step: int) -> float:
    """Linear warm-up over 30 steps, then linearly to zero, as the default scheduler has it."""
    return 1e-3 * max(0.0, min((step + 1) / 30, (300 - step) / 270))


@torch.no_grad()
def evaluate(model: nn.Module, ids: Tensor) -> float:
    """Mean nats per token over windows that overlap by one token, so that none is lost."""
    was_training = model.training
    model.eval()
    total, count = 0.0, 0
    whole = ids.unfold(0, BLOCK, BLOCK - 1)  # (windows, BLOCK)
    rest = ids[None, len(whole) * (BLOCK - 1) :]
    for rows in (whole, rest):
        if rows.shape[1] > 1:
            scored = rows[:, 1:].numel()
            total += float(model(input_ids=rows, labels=rows).loss) * scored
            count += scored
    model.train(was_training)
    return total / count


def generate(model: Any, prompt: Tensor, count: int) -> Tensor:
    """Continue (1, T0) greedily with the library's own `generate` and its cache."""
    mode = model.training
    model.eval()
    text = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=count,
        do_sample=False,
        pad_token_id=1,
    )
    model.train(mode)
    return text


def save_state(model: Any, optimizer: torch.optim.Optimizer, step: int, path: Path) -> None:
    """Write a folder with the model, and beside it what a run needs to go on."""
    folder = path.with_suffix("")
    model.save_pretrained(folder)
    state = {"optimizer": optimizer.state_dict(), "step": step, "random": torch.get_rng_state()}
    torch.save(state, folder / "training.pt")


def load_state(path: Path) -> tuple[nn.Module, torch.optim.Optimizer, int]:
    """Read what `save_state` wrote."""
    folder = path.with_suffix("")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    model.train()
    state = torch.load(folder / "training.pt")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    optimizer.load_state_dict(state["optimizer"])
    torch.set_rng_state(state["random"])
    return model, optimizer, state["step"]
