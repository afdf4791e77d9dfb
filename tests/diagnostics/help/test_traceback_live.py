"""What torch raises today leads to its cause, with the numbers of the message."""

# ruff: noqa: E501  # rows of tables: a message stands in one line, as it is printed
from __future__ import annotations

from pathlib import Path

import pytest

from diagnostics.help.traceback import read_traceback
from tests.diagnostics.help.tracebacks import (
    run,
    told_of,
)

MODEL = """\
import torch
from torch import nn
from torch.nn import functional as F
class GPT(nn.Module):
    def __init__(self, v=65, d=8, t=4, layers=1):
        super().__init__()
        self.token_embedding = nn.Embedding(v, d)
        self.position_embedding = nn.Embedding(t, d)
        self.blocks = nn.ModuleList(nn.Linear(d, d) for _ in range(layers))
        self.head = nn.Linear(d, v)
    def forward(self, ids):
        at = torch.arange(ids.shape[1])
        return self.head(self.token_embedding(ids) + self.position_embedding(at))
"""

# code, the rule, words of the cause, the next step or its beginning
LIVE = [
    ("GPT()(torch.full((1, 4), 70))", "index.token_id", "a token id is not below", "python -m diagnostics --only range"),
    ("GPT()(torch.zeros(1, 9, dtype=torch.long))", "index.position", "longer than the block", "crop the row"),
    ("F.cross_entropy(torch.zeros(8, 65), torch.full((8,), 67))", "index.label", "label 67 needs logits that are at least 68 wide", "python -m diagnostics --only range"),
    ("F.cross_entropy(torch.zeros(8, 65), torch.full((8,), -1))", "index.label", "label -1 is negative", "pass ignore_index=-1"),
    ("torch.zeros(3)[5]", "index.beyond_dimension", "has 3 entries, so that its last index is 2; 5 was", "print the shape"),
    ("[1, 2][5]", "index.list", "a Python sequence is shorter", "print the length"),
    ("torch.zeros(3)[:, 1]", "index.too_many", "fewer dimensions (1)", "print the shape"),
    ("torch.topk(torch.zeros(5), 10)", "index.top_k", "must not exceed the vocabulary", "limit it"),
    ("F.cross_entropy(torch.zeros(8, 65), torch.zeros(256).long())", "shape.loss_rows", "8 rows of logits and 256 targets, 32 times as many", "cross_entropy(logits.flatten(0, 1)"),
    ("F.cross_entropy(torch.zeros(256, 65), torch.zeros(8).long())", "shape.loss_rows", "one for each 32 rows", "cross_entropy(logits.flatten(0, 1)"),
    ("F.cross_entropy(torch.zeros(248, 65), torch.zeros(256).long())", "shape.loss_rows", "8 rows of 31 against 8 rows of 32", "shift both"),
    ("F.cross_entropy(torch.zeros(7, 65), torch.zeros(9).long())", "shape.loss_rows", "7 rows of logits and 9 targets", "print(logits.shape"),
    ("F.cross_entropy(torch.zeros(8, 32, 65), torch.zeros(8, 32).long())", "shape.loss_classes", "(B, T, V) = (8, 32, 65)", "cross_entropy(logits.flatten(0, 1)"),
    ("F.cross_entropy(torch.zeros(8, 65, 32), torch.zeros(8, 33).long())", "shape.loss_length", "differ by one (32 and 33)", "print(logits.shape, targets.shape)"),
    ("F.cross_entropy(torch.zeros(8, 65), torch.zeros(8, 2).long())", "shape.loss_targets", "more than one dimension", "cross_entropy(logits.flatten(0, 1)"),
    ("nn.Linear(64, 10)(torch.zeros(8, 128))", "shape.product", "64 inputs and 10 outputs got vectors of 128", "print the shapes"),
    ("torch.zeros(8, 3) @ torch.zeros(5, 3)", "shape.product", "first matrix has 3 columns, the second 5 rows; the other way round it would fit", "print the shapes"),
    ("torch.zeros(2, 3, 4) @ torch.zeros(2, 5, 6)", "shape.batched_product", "must begin with [2, 4]", "print the shapes"),
    ("torch.zeros(8, 32, 4) + torch.zeros(8, 4)", "shape.broadcast", "32 and 8 entries in dimension 1", "print the shapes"),
    ("torch.zeros(4, 4).t().view(16)", "shape.view_stride", "transposed or sliced", "write .reshape"),
    ("torch.zeros(8, 32, 64).view(8, 32, 4, 17)", "shape.view_size", "is 17408 numbers, the tensor has 16384", "print the shapes"),
    ("torch.zeros(7).view(2, -1)", "shape.view_size", "2 does not divide 7", "print the shapes"),
    ("nn.LayerNorm(64)(torch.zeros(2, 32))", "shape.layer_norm", "width 64 got a tensor of shape [2, 32]", "print the shapes"),
    ("nn.MultiheadAttention(65, 4)", "shape.heads", "no multiple", "choose an embedding dimension"),
    ("torch.cat([torch.zeros(2, 3), torch.zeros(4, 5)], 1)", "shape.concatenated", "tensor number 1 (counted from 0) has 4", "print the shapes"),
    ("torch.stack([torch.zeros(5), torch.zeros(7)])", "batch.ragged", "row 0 has shape [5] and row 1 [7]", "cut or pad"),
    ("torch.tensor([[1, 2], [1, 2, 3]])", "batch.ragged_list", "one row has 2 entries and another 3", "cut or pad"),
    ("data = torch.zeros(3)\nblock = 8\ntorch.randint(len(data) - block, (4,))", "batch.short_data", "0 to -5: the data is not longer than the block", "python -m diagnostics --only split batches"),
    ("F.cross_entropy(torch.zeros(8, 65), torch.zeros(8))", "type.targets", "these are Float", "targets = targets.long()"),
    ("nn.Embedding(5, 2)(torch.zeros(2))", "type.ids", "came as torch.FloatTensor", "ids = ids.long()"),
    ("nn.Linear(4, 4).half()(torch.zeros(2, 4))", "type.mixed", "a product of Float by Half numbers", "convert the input"),
    ("torch.zeros(2, 2).masked_fill(torch.zeros(2, 2), 1)", "type.mask", "mask is float", "compare it first"),
    ("F.binary_cross_entropy_with_logits(torch.zeros(3), torch.zeros(3).long())", "type.cast", "labels are Long", "targets = targets.float()"),
    ("torch.zeros(3).sum().backward()", "gradient.none", "the text does not say which", "python -m diagnostics --only gradients"),
    ("w = torch.ones(3, requires_grad=True)\n(w * 2).detach().sum().backward()", "gradient.detached", "uses .detach()", "call backward() on the loss"),
    ("w = torch.ones(3, requires_grad=True)\nloss = (w * w).sum()\nloss.backward()\nloss.backward()", "gradient.twice", "called twice", "detach what is carried"),
    ("w = torch.ones(3, requires_grad=True)\na = w.exp()\na.add_(1)\na.sum().backward()", "gradient.in_place", "output of Exp was changed in place", "run once under"),
    ("w = torch.ones(3, requires_grad=True)\nw.add_(1)", "gradient.leaf", "changed in place", "put the change under"),
    ("w = torch.ones(3, requires_grad=True)\n(w * 2).backward()", "gradient.not_scalar", "several numbers", "call loss.mean()"),
    ("torch.multinomial(torch.tensor([float('nan'), 1.0]), 1)", "number.probabilities", "not numbers, infinite or negative", "python -m diagnostics --only forward_hooks"),
    ("torch.optim.AdamW([])", "python.empty_optimizer", "no parameters", "python -m diagnostics --only gradients optimizer"),
    ("torch.empty(2 ** 50)", "memory.wrong_size", "4 PiB were asked for at once", "print the sizes"),
    ("GPT().load_state_dict({'module.' + k: v for k, v in GPT().state_dict().items()})", "state.prefix.module", "DistributedDataParallel", 'model.load_state_dict({name.removeprefix("module.")'),
    ("GPT().load_state_dict({'_orig_mod.' + k: v for k, v in GPT().state_dict().items()})", "state.prefix._orig_mod", "torch.compile", 'model.load_state_dict({name.removeprefix("_orig_mod.")'),
    ("nn.DataParallel(GPT()).load_state_dict(GPT().state_dict())", "state.prefix.module", "the file's names are without it", "model.module.load_state_dict(state)"),
    ("GPT().load_state_dict({'gpt.' + k: v for k, v in GPT().state_dict().items()})", "state.prefix.other", "saved from a module that held this one", "model.load_state_dict({name.removeprefix"),
    ("GPT().load_state_dict({'model_state_dict': {}, 'step': 3})", "state.whole_checkpoint", "the whole checkpoint", 'model.load_state_dict(checkpoint["model_state_dict"])'),
    ("GPT().load_state_dict(GPT() and {**GPT().state_dict(), 'head.lora_A.weight': torch.zeros(1)})", "state.adapter", "LoRA", "wrap the model"),
    ("GPT(layers=2).load_state_dict(GPT(layers=4).state_dict())", "state.layers", "a model with 4 layers, this model has 2", "build the model from"),
    ("GPT(layers=4).load_state_dict(GPT(layers=2).state_dict())", "state.layers", "a model with 2 layers, this model has 4", "build the model from"),
    ("GPT(65).load_state_dict(GPT(61).state_dict())", "state.vocabulary", "a vocabulary of 61, the model has one of 65", "python -m diagnostics --only fingerprint"),
    ("GPT(d=8).load_state_dict(GPT(d=16).state_dict())", "state.width", "an embedding dimension of 16, the model has one of 8", "build the model from"),
    ("GPT(t=4).load_state_dict(GPT(t=32).state_dict())", "state.block", "a block of 32 positions, the model has one of 4", "build the model from"),
    ("GPT(65, 8).load_state_dict(GPT(61, 16).state_dict())", "state.size", "other sizes", "build the model from"),
    ("nn.Linear(2, 2).load_state_dict({'a': torch.zeros(1)})", "state.other_model", "2 names are missing, 1 unexpected", "print(list(state)"),
    ("GPT().load_state_dict(GPT())", "state.not_a_dict", "got a", "pass its weights"),
    ("class M(nn.Module):\n    def forward(self, x): return x\nM()(torch.zeros(1), labels=3)", "python.keyword", "forward has no parameter `labels`", "print the parameters"),
    ("class M(nn.Module):\n    def __init__(self): self.head = nn.Linear(2, 2)\nM()", "python.no_init", "before super().__init__()", "make super()"),
    ("loss = None\nloss.backward()", "python.none", "the loss is None", "print what the call"),
    ("model = lambda ids: (ids, None)\nlogits = model(torch.zeros(1))\nlogits.argmax(-1)", "output.tuple", "(logits, loss)", "take it apart"),
    ("stoi = {'a': 0}\ndef encode(text): return [stoi[c] for c in text]\nencode('az')", "tokenizer.unknown", "the character 'z'", "python -m diagnostics --only roundtrip"),
    ("open('tokenizer/char_tokenizer.json')", "file.not_made", "has not been made yet", "python -m minigpt.prepare"),
    ("open('nowhere/rows.txt')", "file.missing", "a relative path starts there", "python -c"),
    ("import torrch", "import.missing", "finds no torrch", "python -c"),
    ("raise KeyboardInterrupt", "python.interrupted", "no error", "run the same command again"),
    ("from minigpt import CharTokenizer\nCharTokenizer('ab').encode('abz')", "tokenizer.unknown", "holds 'z' (U+007A) at position 2", "python -m diagnostics --only roundtrip"),
    ("from minigpt import load_checkpoint\nload_checkpoint('none.safetensors')", "file.not_made", "has not been made yet", "python -m minigpt.train"),
    ("from diagnostics import check_range\ncheck_range(torch.tensor([1, 70]), 65).require()", "check.range", "outside 0 to 64", "compare the tokenizer's size"),
    ("from diagnostics import assert_finite_tensor\nassert_finite_tensor(torch.tensor([float('inf')]), 'loss')", "number.not_finite", "loss holds NaN or infinity", "python -m diagnostics --only forward_hooks"),
    ("import numpy\nnumpy.array([[1, 2], [1, 2, 3]])", "batch.ragged_array", "different lengths", "cut or pad"),
    ("import numpy\nlogits = numpy.zeros((8, 5))\nlabels = numpy.zeros(8)\nlogits - labels", "metric.logits", "a last dimension of 5 classes", "give the metric class numbers"),
    ("import numpy\nnumpy.zeros((8, 5)) - numpy.zeros(8)", "shape.numpy", "shapes (8, 5) and (8,)", "print the shapes"),
    ("import io\ntorch.load(io.BytesIO())", "file.empty", "empty or ends too early", "ls -l"),
    ("import json\njson.loads('')", "file.json", "is empty, or is no JSON", "print(repr"),
    ("from safetensors.torch import save_file\na = torch.zeros(3)\nsave_file({'a': a, 'b': a}, 'x.safetensors')", "file.shared_tensors", "tied weights", "safetensors.torch.save_model"),
    ("with torch.inference_mode():\n    x = torch.zeros(2)\n(torch.ones(2, requires_grad=True) * x).sum().backward()", "gradient.inference", "inference_mode()", "make it under"),
    ("torch.ones(3, requires_grad=True).numpy()", "gradient.numpy", "cannot follow gradients", "detach it first"),
    ("torch.zeros(3).sum(2)", "index.dimension", "dimension 2 was named, and the tensor's last one is 0", "print the tensor's shape"),
    ("torch.zeros(3)[torch.zeros(3)]", "index.dtype", "floating point", "index with int64"),
    ("import io\ntorch.save(lambda x: x, io.BytesIO())", "loader.pickle", "what is saved holds", "save weights and plain values"),
    ("from torch.utils.data import DataLoader\nDataLoader([], shuffle=True)", "loader.sample", "the data set is empty", "print(len(dataset))"),
    ("raise MemoryError", "memory.python", "more memory than the system gives", "print the sizes"),
    ("torch.multinomial(torch.zeros(2), 1)", "number.all_zero", "has probability 0", "python -m diagnostics --only sampling"),
    ("bool(torch.ones(3))", "number.ambiguous", "several numbers", "say which is meant"),
    ("torch.ones(3).item()", "number.item", "a tensor with 3", "reduce it first"),
    ("GPT()()", "python.missing_argument", "forward was called without 'ids'", "call the model with 'ids'"),
    ("GTP()", "python.name", "nothing is called `GTP`", "define or import GTP"),
    ("torch.zeros(3, 4).expand(5, 4)", "shape.expand", "3 entries in dimension 0 was to be spread over 5", "print the shapes"),
    ("torch.zeros(3, dtype=torch.long, requires_grad=True)", "type.float_gradient", "whole numbers", "ask for gradients"),
    ("torch.zeros(3).index_add_(0, torch.arange(3), torch.zeros(3).double())", "type.same", "Float numbers were to take in Double", "convert what is written"),
    ("a = torch.zeros(3).long()\na += 0.5", "type.cast", "result is Float and was to be stored in a tensor of Long", "write a = a + b"),
    ("from minigpt import load_checkpoint\nopen('x.safetensors', 'wb').write(b'hello')\nload_checkpoint('x.safetensors')", "checkpoint.damaged", "truncated, damaged or of another kind", "python -m diagnostics --only files"),
    ("from minigpt import CharTokenizer, MiniGPT, MiniGPTConfig, load_checkpoint, save_checkpoint\nsave_checkpoint('y.safetensors', MiniGPT(MiniGPTConfig.debug(3)), CharTokenizer('abc'))\nload_checkpoint('y.safetensors', tokenizer=CharTokenizer('abd'))", "checkpoint.tokenizer", "not the one", "python -m diagnostics --only fingerprint"),
    ("V, T = 65, 64\nF.cross_entropy(torch.zeros(8, T, V), torch.zeros(8, T).long())", "shape.loss_length", "differ by one (65 and 64)", "print(logits.shape, targets.shape)"),
    ("F.cross_entropy(torch.zeros(8, 64, 65).transpose(1, 2), torch.zeros(8, 32).long())", "shape.loss_length", "logits of 64 positions meet 32 targets a row", "print(logits.shape"),
    ("F.cross_entropy(torch.zeros(8, 4, 65).view(-1, 130), torch.zeros(8, 4).long().view(-1))", "shape.loss_rows", "a .view names another number of classes", "print(logits.shape"),
    ("F.cross_entropy(torch.zeros(8, dtype=torch.long), torch.zeros(8))", "type.kernel", "Long numbers came into an operation that works on floating point", "print the .dtype"),
    ("nn.Embedding(5, 2)(torch.zeros(2, dtype=torch.short))", "type.ids", "takes int64 and int32", "ids = ids.long()"),
    ("import numpy\nnn.Embedding(5, 2)(numpy.zeros(2))", "type.not_tensor", "as its indices, and got a numpy.ndarray", "make a tensor of it: torch.from_numpy"),
    ("nn.Linear(4, 2)(nn.LSTM(4, 4)(torch.zeros(2, 1, 4)))", "type.not_tensor", "nn.LSTM", "take it apart where it is made"),
    ("torch.zeros(3)[torch.zeros(1, dtype=torch.short)]", "index.dtype", "int16", "index with int64"),
    ("torch.zeros(3).index_select(0, torch.zeros(1))", "index.dtype", "floating point", "index with int64"),
    ("torch.zeros(2, 3).gather(1, torch.zeros(2, 1))", "index.dtype", "floating point", "index with int64"),
    ("torch.zeros(2, 3).gather(1, torch.full((2, 1), -100))", "index.beyond_dimension", "-100 was asked for", "print the shape"),
    ("torch.bmm(torch.zeros(1, 2, 2).long(), torch.zeros(1, 2, 2))", "type.scalar", "Long and Float", "print the .dtype"),
    ("q = torch.zeros(1, 1, 2, 4)\nF.scaled_dot_product_attention(q, q.half(), q)", "type.attention", "are float, c10::Half and float", "convert two of them"),
    ("torch.cat([torch.zeros(2, 3), torch.zeros(3)])", "shape.joined_dimensions", "one has 2 dimensions, another 1", "give the smaller one"),
    ("out = nn.MultiheadAttention(4, 2)(*[torch.zeros(2, 1, 4)] * 3)\nout.view(2, 4)", "output.tuple", "nn.MultiheadAttention", "take it apart where it is made"),
    ("w = torch.ones(3, requires_grad=True)\ny = (w * w).sum()\nwith torch.no_grad(): w -= 1\ny.backward()", "gradient.in_place_leaf", "a parameter, a buffer or an input", "move that change after backward()"),
    ("loss = torch.zeros(1).item()\nloss.backward()", "gradient.number", "a plain number (float)", "call backward() on the loss tensor"),
    ("w = torch.ones(1, requires_grad=True)\nw.grad = torch.tensor([float('nan')])\nnn.utils.clip_grad_norm_([w], 1.0, error_if_nonfinite=True)", "gradient.not_finite", "at least one gradient", "python -m diagnostics --only forward_hooks gradients"),
    ("model = GPT()\nsum(p.grad.norm() for p in model.parameters())", "python.none", "the .grad is None", "read .grad between"),
    ("batch = [torch.zeros(1)]\nbatch.to('cpu')", "batch.parts", "a list has no .to()", "move its parts: batch = [part"),
    ("batch = {'ids': torch.zeros(1)}\nbatch.to('cpu')", "batch.parts", "a dict has no .to()", "move its parts: batch = {name: part"),
    ("from torch.utils.data import DataLoader\nnext(iter(DataLoader([None, None])))", "batch.none", "is None, or holds None", "print(dataset[0])"),
    ("data = torch.arange(9)\ntorch.stack([data[i:i + 4] for i in [0, 7]])", "batch.ragged", "a slice near the end", "draw the starts below"),
    ("vocab = []\ntorch.randint(0, len(vocab), (4,))", "batch.short_data", "from an empty range, 0 to 0", "print the bounds"),
    ("torch.optim.AdamW(GPT())", "type.parameters", "given a GPT", "give it the parameters"),
    ("torch.optim.AdamW(GPT().parameters)", "type.parameters", "() is missing", "give it the parameters"),
    ("nn.Linear(8 / 4, 2)", "type.float_size", "a size or a count", "divide with //"),
    ("range(8 / 4)", "type.float_size", "a size or a count", "divide with //"),
    ("a = torch.ones(2, requires_grad=True)\no = torch.optim.AdamW([a])\na.sum().backward(); o.step()\nb = torch.ones(3, requires_grad=True)\np = torch.optim.AdamW([b])\np.load_state_dict(o.state_dict())\nb.sum().backward(); p.step()", "state.optimizer_sizes", "(2 and 3)", "build the model from"),
    ("params = GPT().parameters()\nsum(p.numel() for p in params)\ntorch.optim.AdamW(params)", "python.empty_optimizer", "used up before", "python -m diagnostics --only gradients optimizer"),
    ("import io\nfile = io.BytesIO()\ntorch.save({}, file)\ntorch.load(file)", "file.empty", "without seek(0)", "ls -l"),
    ("nn.Linear(5, 4)(torch.zeros(1, 4))", "shape.product", "with inputs and outputs exchanged it would fit", "print the shapes"),
    ("torch.Generator(device='cuda')", "device.not_compiled", "a build for CPUs", "choose the device"),
    ("torch.save({}, 'nowhere/a.pt')", "file.no_folder", "the folder nowhere", 'os.makedirs("nowhere"'),
    ("import json\njson.loads('{\"a\": 1}\\n{\"a\": 2}')", "file.json_lines", "begins at line 2, column 1", "rows = [json.loads"),
    ("import json\njson.loads('{\"a\": 1,}')", "file.json_place", "line 1, column 9", "python -m json.tool"),
    ("import os\nos.environ['LOCAL_RANK']", "process.environment", "only a launcher sets", "torchrun --standalone"),
    ("for i in []: loss = i\ndef last():\n    for i in []: loss = i\n    return loss\nlast()", "python.unbound", "`loss` has no value yet", "give loss a value"),
    ("t, block = 9, 8\nassert t <= block, f'Cannot forward sequence of length {t}, block size is only {block}'", "shape.asserted_block", "9 tokens were given", "crop the row"),
    ("def configure_optimizers(): pass\nconfigure_optimizers(lr=1)", "python.keyword", "configure_optimizers has no parameter `lr`", "print the parameters"),
]  # fmt: skip


@pytest.mark.parametrize(("code", "name", "cause", "step"), LIVE, ids=[row[0][:48] for row in LIVE])
def test_what_torch_says_today_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, name: str, cause: str, step: str
) -> None:
    monkeypatch.chdir(tmp_path)
    found, told, next_step = told_of(read_traceback(run(tmp_path, MODEL + code + "\n")))
    assert found == name
    assert cause in told
    assert next_step.startswith(step)


def test_a_step_that_checks_names_the_target_where_the_model_is_no_mini_gpt(tmp_path: Path) -> None:
    own = told_of(read_traceback(run(tmp_path, MODEL + "GPT()(torch.full((1, 4), 70))\n")))
    assert own[2] == "python -m diagnostics --only range --target YOUR_FILE.py:build"
    ours = "from minigpt import MiniGPT, MiniGPTConfig\nimport torch\n"
    ours += "MiniGPT(MiniGPTConfig.debug(65))(torch.full((1, 4), 70))\n"
    assert told_of(read_traceback(run(tmp_path, ours)))[2] == "python -m diagnostics --only range"


def test_a_check_that_was_required_points_at_the_line_that_asked(tmp_path: Path) -> None:
    """An editable install lies in no library folder, and is not the reader's own code."""
    code = "import torch\nfrom diagnostics import check_shift\n"
    code += "x = torch.arange(8).view(2, 4)\ncheck_shift(x, x).require()\n"
    reading = read_traceback(run(tmp_path, code))
    assert reading.where is not None
    assert reading.where.line == 4
    assert "shift" in str(reading)
