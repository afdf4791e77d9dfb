"""Generation against the model itself: step-by-step full forwards are the truth."""

import random
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import Tensor

from minigpt.generate import generate
from minigpt.model import MiniGPT, MiniGPTConfig

V = 11
BLOCK = 8


@pytest.fixture
def model() -> MiniGPT:
    """A fresh model with weights x10: at the usual scale all tokens are nearly equal."""
    torch.manual_seed(0)
    config = MiniGPTConfig(
        vocab_size=V, block_size=BLOCK, embedding_dim=16, num_heads=2, num_layers=2, dropout=0.5
    )
    model = MiniGPT(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(10)
    return model


def make_prompt(length: int, rows: int = 3) -> Tensor:
    """Return (rows, length) random ids, the same for the same length."""
    return torch.randint(V, (rows, length), generator=torch.Generator().manual_seed(length))


@torch.no_grad()
def greedy_by_hand(model: MiniGPT, ids: Tensor, count: int) -> Tensor:
    """Return what greedy generation must give: argmax over full forwards on the last block."""
    model.eval()
    for _ in range(count):
        logits, _ = model(ids[:, -BLOCK:])
        ids = torch.cat([ids, logits[:, -1].argmax(dim=-1, keepdim=True)], dim=1)
    return ids


class TestGreedy:
    @pytest.mark.parametrize("use_cache", [True, False])
    @pytest.mark.parametrize("length", [1, 2, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK])
    def test_equals_full_forwards_across_the_block_limit(
        self, model: MiniGPT, length: int, use_cache: bool
    ) -> None:
        """20 tokens, most of them beyond the block: the same as argmax over full forwards."""
        ids = make_prompt(length)
        expected = greedy_by_hand(model, ids, 20)
        assert torch.equal(generate(model, ids, 20, greedy=True, use_cache=use_cache), expected)
        assert torch.equal(generate(model, ids, 20, temperature=0, use_cache=use_cache), expected)
        assert len(expected[:, length:].unique()) > 1  # a constant would prove little

    def test_every_cached_logit_is_exact(self, model: MiniGPT) -> None:
        """The cache gives the logits of the full forward at every position, in float64."""
        from minigpt.model import KeyValueCache

        model.double().eval()
        ids = make_prompt(BLOCK)
        cache = KeyValueCache(model.config, 3, device=ids.device, dtype=torch.float64)
        steps = [model(ids[:, t : t + 1], cache=cache)[0] for t in range(BLOCK)]
        torch.testing.assert_close(torch.cat(steps, dim=1), model(ids)[0], atol=1e-12, rtol=0)

    def test_rows_do_not_mix(self, model: MiniGPT) -> None:
        """Each row alone gives what it gave in the batch."""
        ids = make_prompt(3)
        together = generate(model, ids, 12, greedy=True)
        alone = torch.cat([generate(model, row[None], 12, greedy=True) for row in ids])
        assert torch.equal(together, alone)

    def test_a_second_call_starts_afresh(self, model: MiniGPT) -> None:
        """Nothing of an earlier prompt is left in the model."""
        first = generate(model, make_prompt(3), 6, greedy=True)
        generate(model, make_prompt(5), 6, greedy=True)
        assert torch.equal(generate(model, make_prompt(3), 6, greedy=True), first)

    def test_the_repetition_penalty_sees_the_whole_row(self, model: MiniGPT) -> None:
        """A huge penalty makes each token new as long as positive scores are left to punish."""
        with torch.no_grad():  # all logits positive and equal but for their rank
            for parameter in model.parameters():
                parameter.zero_()
            model.final_norm.bias.fill_(1.0)
            model.head.weight.copy_(torch.arange(1.0, V + 1)[:, None].expand(V, 16) / 16)
        ids = torch.tensor([[V - 1]])
        out = generate(model, ids, V - 1, greedy=True, repetition_penalty=1e6)
        assert out.tolist() == [list(range(V - 1, -1, -1))]


@torch.no_grad()
def greedy_by_hand_sliding(model: MiniGPT, ids: Tensor, count: int, slide_by: int) -> Tensor:
    """Greedy over full forwards on a window that drops `slide_by` tokens when it is full."""
    model.eval()
    window = ids[:, -BLOCK:]
    for _ in range(count):
        if window.shape[1] > BLOCK:
            window = window[:, slide_by:]
        token = model(window)[0][:, -1].argmax(dim=-1, keepdim=True)
        window, ids = torch.cat([window, token], dim=1), torch.cat([ids, token], dim=1)
    return ids


class TestSliding:
    @pytest.mark.parametrize("use_cache", [True, False])
    @pytest.mark.parametrize("length", [1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK])
    @pytest.mark.parametrize("slide_by", [1, 2, 3, BLOCK // 2, BLOCK - 1, BLOCK])
    def test_equals_full_forwards_over_the_same_contexts(
        self, model: MiniGPT, slide_by: int, length: int, use_cache: bool
    ) -> None:
        """30 tokens over several slides, in float64, where near ties cannot round apart."""
        model.double()
        ids = make_prompt(length)
        expected = greedy_by_hand_sliding(model, ids, 30, slide_by)
        found = generate(model, ids, 30, greedy=True, slide_by=slide_by, use_cache=use_cache)
        assert torch.equal(found, expected)

    def test_by_one_is_the_default_and_the_last_block(self, model: MiniGPT) -> None:
        """The default is what everybody does; sliding further gives another text."""
        ids = make_prompt(2)
        by_one = generate(model, ids, 40, greedy=True, slide_by=1)
        assert torch.equal(by_one, greedy_by_hand(model, ids, 40))
        assert torch.equal(by_one, generate(model, ids, 40, greedy=True))
        assert not torch.equal(by_one, generate(model, ids, 40, greedy=True, slide_by=BLOCK // 2))

    def test_contexts_are_as_long_as_promised(self, model: MiniGPT) -> None:
        """Sliding by 3 of 8: contexts of 1 to 8, then 6, 7, 8 again and again, each token once."""
        read: list[int] = []
        model.token_embedding.register_forward_hook(
            lambda _module, arguments, _output: read.append(arguments[0].shape[1])
        )
        generate(model, make_prompt(1), 17, greedy=True, slide_by=3)
        assert read == [1] * 8 + [6, 1, 1] * 3
        read.clear()
        generate(model, make_prompt(1), 11, greedy=True)
        assert read == [1] * 8 + [8] * 3

    @pytest.mark.parametrize("slide_by", [0, -1, BLOCK + 1])
    def test_out_of_range(self, model: MiniGPT, slide_by: int) -> None:
        """No slide would read beyond the block for ever, a longer one would leave nothing."""
        with pytest.raises(ValueError, match=rf"slide_by must be in 1\.\.8.*got {slide_by}"):
            generate(model, make_prompt(2), 3, slide_by=slide_by)


class TestShapes:
    def test_the_prompt_comes_back_whole(self, model: MiniGPT) -> None:
        """(B, T0 + n): the prompt unchanged in front, also when it is longer than the block."""
        ids = make_prompt(20)
        out = generate(model, ids, 5)
        assert out.shape == (3, 25)
        assert out.dtype == torch.int64
        assert torch.equal(out[:, :20], ids)
        assert 0 <= int(out.min()) <= int(out.max()) < V

    def test_no_new_tokens(self, model: MiniGPT) -> None:
        """With n = 0 a copy of the prompt comes back."""
        ids = make_prompt(4)
        out = generate(model, ids, 0)
        assert torch.equal(out, ids)
        assert out.data_ptr() != ids.data_ptr()

    @pytest.mark.parametrize(
        ("ids", "count", "settings", "message"),
        [
            (torch.zeros(4, dtype=torch.int64), 1, {}, r"shape \(B, T0\).*got \(4,\)"),
            (torch.zeros(1, 0, dtype=torch.int64), 1, {}, r"T0 >= 1, got \(1, 0\)"),
            (torch.zeros(1, 2), 1, {}, "whole numbers, got torch.float32"),
            (torch.tensor([[0, V]]), 1, {}, r"lie in 0..10, got 0..11"),
            (torch.tensor([[-1, 3]]), 1, {}, r"lie in 0..10, got -1..3"),
            (torch.tensor([[1]]), -1, {}, "max_new_tokens must be >= 0, got -1"),
            (torch.tensor([[1]]), 1, {"temperature": -1.0}, "temperature"),
            (torch.tensor([[1]]), 1, {"temperature": float("nan")}, "temperature"),
            (torch.tensor([[1]]), 1, {"top_k": V + 1}, r"top_k must be in 1..11.*got 12"),
            (torch.tensor([[1]]), 1, {"top_p": 0.0}, "top_p"),
            (torch.tensor([[1]]), 1, {"repetition_penalty": 0.0}, "repetition_penalty"),
        ],
    )
    def test_input_out_of_range(
        self,
        model: MiniGPT,
        ids: Tensor,
        count: int,
        settings: dict[str, float],
        message: str,
    ) -> None:
        """What does not fit is refused before anything runs, by name and with its value."""
        with pytest.raises(ValueError, match=message):
            generate(model, ids, count, **settings)  # type: ignore[arg-type]

    def test_nan_weights_are_refused(self, model: MiniGPT) -> None:
        """Argmax would take NaN for the best token; generation stops instead."""
        with torch.no_grad():
            model.head.weight[3, 0] = float("nan")
        with pytest.raises(FloatingPointError, match="finite maximum"):
            generate(model, make_prompt(2), 3, greedy=True)


class TestSampling:
    def test_the_same_seed_gives_the_same_text(self, model: MiniGPT) -> None:
        """A generator decides everything: same seed same tokens, another seed other tokens."""
        first, again, other = (
            generate(model, make_prompt(2), 20, generator=torch.Generator().manual_seed(seed))
            for seed in (1, 1, 2)
        )
        assert torch.equal(first, again)
        assert not torch.equal(first, other)

    def test_top_k_1_is_greedy(self, model: MiniGPT) -> None:
        """With one candidate left, drawing is argmax."""
        assert torch.equal(
            generate(model, make_prompt(3), 12, top_k=1),
            generate(model, make_prompt(3), 12, greedy=True),
        )

    def test_draws_follow_the_model(self, model: MiniGPT) -> None:
        """Among 20,000 draws of one token, shares are within 0.02 of the model's softmax."""
        ids = make_prompt(1, rows=1).expand(20_000, 1)
        out = generate(model, ids, 1, generator=torch.Generator().manual_seed(3))
        shares = out[:, 1].bincount(minlength=V) / len(ids)
        model.eval()
        expected = model(ids[:1])[0][0, -1].softmax(dim=-1)
        torch.testing.assert_close(shares, expected, atol=0.02, rtol=0)


class TestNothingIsLeftBehind:
    def test_each_submodule_keeps_its_mode(self, model: MiniGPT) -> None:
        """A block frozen in eval mode inside a training model is so afterwards, errors or not."""
        model.train()
        model.blocks[1].eval()
        before = [module.training for module in model.modules()]
        generate(model, make_prompt(2), 3)
        assert [module.training for module in model.modules()] == before
        hook = model.final_norm.register_forward_hook(lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            generate(model, make_prompt(2), 3)
        hook.remove()
        assert [module.training for module in model.modules()] == before

    @pytest.mark.parametrize("greedy", [True, False])
    def test_global_random_states_are_untouched(self, model: MiniGPT, greedy: bool) -> None:
        """Greedy, or with a generator, no global generator moves."""
        generator = None if greedy else torch.Generator().manual_seed(0)
        before = (torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist())
        generate(model, make_prompt(2), 12, greedy=greedy, generator=generator)
        assert torch.equal(torch.get_rng_state(), before[0])
        assert (random.getstate(), np.random.get_state()[1].tolist()) == before[1:]

    def test_weights_and_gradients_are_untouched(self, model: MiniGPT) -> None:
        """No gradient appears and the result carries none."""
        before = [p.detach().clone() for p in model.parameters()]
        out = generate(model, make_prompt(2), 4)
        assert not out.requires_grad
        assert all(p.grad is None for p in model.parameters())
        assert all(torch.equal(a, b) for a, b in zip(model.parameters(), before, strict=True))


IMPORT_ORDERS = [
    "import minigpt.generate; call = minigpt.generate",
    "from minigpt import generate as call",
    "from minigpt.generate import generate as call",
    "from minigpt import generate; import minigpt.generate; call = minigpt.generate",
    "import minigpt.generate; from minigpt import generate as call",
    "from minigpt import generate; import minigpt.generate as module; call = module.generate",
    "import minigpt.generate as module; call = module.generate",
]


def test_module_and_function_share_a_name() -> None:
    """Whichever import came first, `minigpt.generate` can be called and has `generate` in it."""
    program = f"""
import sys, torch
for statement in {IMPORT_ORDERS}:
    for name in [name for name in sys.modules if name.partition(".")[0] == "minigpt"]:
        del sys.modules[name]
    exec(statement)
    import minigpt
    from minigpt import MiniGPT, MiniGPTConfig
    model = MiniGPT(MiniGPTConfig(3, 4, 4, 1, 1))
    ids = torch.zeros(1, 1, dtype=torch.int64)
    assert call(model, ids, 2, greedy=True).shape == (1, 3), statement
    assert minigpt.generate(model, ids, 2).shape == (1, 3), statement
    assert minigpt.generate.generate(model, ids, 2).shape == (1, 3), statement
print("all")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "all", done.stderr
