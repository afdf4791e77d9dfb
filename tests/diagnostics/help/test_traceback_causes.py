"""Each message leads to its cause, with the numbers that it holds; live ones come from torch."""

# ruff: noqa: E501  # rows of tables: a message stands in one line, as it is printed
from __future__ import annotations

from pathlib import Path

import pytest

from diagnostics.help.traceback import TracebackReading, read_traceback
from tests.diagnostics.help.tracebacks import (
    CALL,
    EMBEDDING,
    SITE,
    STEP,
    TRAIN,
    asserted,
    prefixed,
    python,
    run,
)


def _told(reading: TracebackReading) -> tuple[str, str, str]:
    told = reading.explanation
    assert told is not None, f"nothing explains {reading.kind}: {reading.message}"
    assert told.evidence, told.name
    assert told.next_step, told.name
    return told.name, told.cause, told.next_step


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
    ("F.cross_entropy(torch.zeros(7, 65), torch.zeros(9).long())", "shape.loss_rows", "7 rows of logits and 9 targets", "print the shapes"),
    ("F.cross_entropy(torch.zeros(8, 32, 65), torch.zeros(8, 32).long())", "shape.loss_classes", "(B, T, V) = (8, 32, 65)", "cross_entropy(logits.flatten(0, 1)"),
    ("F.cross_entropy(torch.zeros(8, 65, 32), torch.zeros(8, 33).long())", "shape.loss_length", "differ by one position (32 and 33)", "python -m diagnostics --only shift shapes"),
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
    ("nn.Linear(4, 4).half()(torch.zeros(2, 4))", "type.mixed", "input is Float and the layer's weight Half", "convert the input"),
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
    ("loss = None\nloss.backward()", "python.none", "the loss is None", "give it targets"),
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
]  # fmt: skip


@pytest.mark.parametrize(("code", "name", "cause", "step"), LIVE, ids=[row[0][:48] for row in LIVE])
def test_what_torch_says_today_is_explained(
    tmp_path: Path, code: str, name: str, cause: str, step: str
) -> None:
    found, told, next_step = _told(read_traceback(run(tmp_path, MODEL + code + "\n")))
    assert found == name
    assert cause in told
    assert next_step.startswith(step)


# what this machine cannot produce, or only in seconds: last line, rule, words of the cause
WRITTEN = [
    ("RuntimeError: Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu! (when checking argument for argument mat1 in method wrapper_CUDA_addmm)", "device.mixed", "on cuda:0 and on cpu; torch was checking the argument `mat1` of CUDA_addmm"),
    ("RuntimeError: Expected all tensors to be on the same device, but got index is on cpu, different from other tensors on cuda:0 (when checking argument in method wrapper_CUDA__index_select)", "device.mixed", "on cpu and on cuda:0"),
    ("RuntimeError: Placeholder storage has not been allocated on MPS device!", "device.mixed", "on cpu and on mps"),
    ("RuntimeError: Input type (torch.FloatTensor) and weight type (torch.cuda.FloatTensor) should be the same", "device.mixed", "on cpu and on cuda"),
    ("RuntimeError: Input type (torch.cuda.HalfTensor) and weight type (torch.cuda.FloatTensor) should be the same", "type.input_weight", "torch.cuda.HalfTensor and the layer torch.cuda.FloatTensor"),
    ("RuntimeError: indices should be either on cpu or on the same device as the indexed tensor (cuda:0)", "device.mixed", "on cpu and on cuda:0"),
    ("RuntimeError: Expected object of device type cuda but got device type cpu for argument #2 'mat2' in call to _th_mm", "device.mixed", "on cuda and on cpu"),
    ("RuntimeError: Tensor on device meta is not on the expected device cpu!", "device.meta", "shapes without numbers"),
    ("TypeError: can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory first.", "device.numpy", "on cuda:0"),
    ("AssertionError: Torch not compiled with CUDA enabled", "device.not_compiled", "build for CPUs"),
    ("RuntimeError: The NVIDIA driver on your system is too old (found version 11040).", "device.old_driver", "older than the CUDA version"),
    ("RuntimeError: CUDA error: CUDA driver version is insufficient for CUDA runtime version", "device.old_driver", "older than the CUDA version"),
    ("RuntimeError: Attempting to deserialize object on a CUDA device but torch.cuda.is_available() is False.", "device.stored_on_cuda", "saved from a GPU"),
    ("torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 8.00 GiB of which 512.00 MiB is free. Including non-PyTorch memory, this process has 7.00 GiB memory in use.", "memory.budget", "2 GiB more were asked for, and 512 MiB of 8 GiB were free"),
    ("RuntimeError: CUDA out of memory. Tried to allocate 2.26 GiB (GPU 0; 6.00 GiB total capacity; 5.00 GiB already allocated; 1.00 GiB free; 5.24 GiB reserved in total by PyTorch)", "memory.budget", "2.26 GiB more were asked for, and 1 GiB of 6 GiB were free"),
    ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 8.00 GiB of which 7.00 GiB is free.", "memory.budget", "one tensor of 20 GiB is larger than the whole device (8 GiB)"),
    ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 8.00 GiB of which 10.00 MiB is free. Including non-PyTorch memory, this process has 1.00 GiB memory in use.", "memory.others", "other processes hold about 6.99 GiB of the device's 8 GiB, this one 1 GiB"),
    ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 200.00 MiB. Of the allocated memory 2.93 GiB is allocated by PyTorch, and 2.30 GiB is reserved by PyTorch but unallocated.", "memory.fragmented", "torch holds 2.3 GiB that it does not use"),
    ("RuntimeError: MPS backend out of memory (MPS allocated: 5.56 GB, other allocations: 1.10 GB, max allowed: 6.80 GB). Tried to allocate 768.00 MB on private pool.", "memory.budget", "768 MiB more were asked for, 6.8 GiB are there in all"),
    ("RuntimeError: [enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 68719476736 bytes. Error code 12 (Cannot allocate memory)", "memory.budget", "64 GiB more were asked for"),
    ("ValueError: Classification metrics can't handle a mix of binary and continuous-multioutput targets", "metric.logits", "scores (continuous-multioutput)"),
    ("ValueError: Classification metrics can't handle a mix of multilabel-indicator and binary targets", "metric.logits", "a column for each class"),
    ("ValueError: Found input variables with inconsistent numbers of samples: [256, 8]", "metric.lengths", "256 and 8 entries"),
    ("ValueError: Asking to pad but the tokenizer does not have a padding token. Please select one.", "batch.pad_token", "no token is set"),
    ("ValueError: Unable to create tensor, you should probably activate truncation and/or padding with 'padding=True'. Perhaps your features (`labels` in this case) have excessive nesting.", "batch.ragged_features", "rows of `labels` have different lengths"),
    ("ValueError: Unrecognized configuration class <class 'transformers.models.vit.ViTConfig'> for this kind of AutoModel: AutoModelForCausalLM.\nModel type should be one of BertConfig, GPT2Config, OPTConfig.", "transformers.configuration", "ViTConfig has no model of the kind AutoModelForCausalLM; 3 classes would fit, such as BertConfig, GPT2Config, OPTConfig"),
    ("ValueError: The checkpoint you are trying to load has model type `mygpt` but Transformers does not recognize this architecture.", "transformers.model_type", "the model type mygpt"),
    ("TypeError: GPT2Config.__init__() got an unexpected keyword argument 'n_layers'. Did you mean 'n_layer'?", "python.keyword", "no field `n_layers`"),
    ("RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one. This error\nParameter indices which did not receive grad for rank 0: 2 3\n In addition", "process.unused_parameters", "in model.parameters(): 2 3"),
    ("torch.distributed.DistStoreError: Timed out after 4 seconds waiting for clients. 1/2 clients joined.", "process.timeout", "1 of 2 processes came to the start"),
    ("torch.distributed.DistNetworkError: The server socket has failed to bind. port: 29500, error: EADDRINUSE", "process.port", "another run"),
    ("RuntimeError: DataLoader worker (pid 46794) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory.", "loader.killed", "shared memory"),
    ("RuntimeError: DataLoader worker (pid 46794) is killed by signal: Killed. ", "loader.killed", "memory is full"),
    ("RuntimeError: DataLoader worker (pid(s) 12, 13) exited unexpectedly", "loader.exited", "without saying why"),
    ("RuntimeError: \n        An attempt has been made to start a new process before the\n        current process has finished its bootstrapping phase.", "loader.bootstrap", "main guard"),
    ("_pickle.UnpicklingError: Weights only load failed.\n\tWeightsUnpickler error: Unsupported global: GLOBAL argparse.Namespace was not an allowed global by default.", "file.weights_only", "an object of argparse.Namespace"),
    ("_pickle.UnpicklingError: invalid load key, 'v'.", "file.foreign", "Git LFS"),
    ("_pickle.UnpicklingError: invalid load key, '<'.", "file.foreign", "web page"),
    ("RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory", "file.damaged_zip", "cut off or damaged"),
    ("safetensors_rust.SafetensorError: Error while deserializing header: HeaderTooLarge", "file.safetensors", "(HeaderTooLarge)"),
    ("safetensors._safetensors_rust.SafetensorError: Error while deserializing header: incomplete metadata, file not fully covered", "file.safetensors_cut", "shorter or longer"),
    ("UnicodeDecodeError: 'utf-8' codec can't decode byte 0xff in position 0: invalid start byte", "file.encoding", "UTF-16"),
    ("UnicodeDecodeError: 'charmap' codec can't decode byte 0x9d in position 12: character maps to <undefined>", "file.encoding", "this system's own encoding"),
    ("OSError: [Errno 28] No space left on device", "file.full_disk", "the disk is full"),
    ("RuntimeError: Function 'LogBackward0' returned nan values in its 0th output.", "gradient.nan", "LogBackward0 became NaN"),
    ("minigpt._training_state.NonFiniteError: update 12 got loss nan and gradient norm nan, at learning rate 0.1; it was not made.", "number.update", "no update was made with it"),
    ("minigpt._checkpoint_errors.CheckpointConfigError: a.safetensors: the weights do not fit the model", "checkpoint.configuration", "another architecture"),
    ("ValueError: at most block_size = 32 tokens fit, got 40 after 0 cached; crop the context", "shape.minigpt_block", "40 tokens were given to a model whose block has 32"),
    ("BrokenPipeError: [Errno 32] Broken pipe", "python.pipe", "nobody reads the output"),
    ("ModuleNotFoundError: No module named 'sklearn'", "import.missing", "sklearn is not installed"),
]  # fmt: skip


@pytest.mark.parametrize(("last", "name", "cause"), WRITTEN, ids=[row[0][:60] for row in WRITTEN])
def test_what_others_print_is_explained(last: str, name: str, cause: str) -> None:
    found, told, _ = _told(read_traceback(python(last)))
    assert found == name
    assert cause in told
    assert _told(read_traceback(last + "\n"))[0] == name  # the last line alone


def test_memory_gives_the_budget_in_its_order() -> None:
    told = read_traceback(python("RuntimeError: CUDA error: out of memory")).explanation
    assert told is not None
    assert [part.split()[0] for part in told.others] == [
        "measure", "a", "a", "bfloat16", "activation", "then",
    ]  # fmt: skip
    assert told.next_step == "python -m minigpt.memory --measure"


def test_memory_says_when_it_came() -> None:
    line = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 MiB."
    adam = (f"{SITE}/torch/optim/adamw.py", 9, "_init_group", "state['exp_avg'] = zeros_like(p)")
    backward = (f"{SITE}/torch/_tensor.py", 9, "backward", "torch.autograd.backward(self)")
    assert "the optimizer's step" in _told(read_traceback(python(line, TRAIN, adam)))[1]
    assert "the backward pass" in _told(read_traceback(python(line, TRAIN, backward)))[1]


def test_killed_is_the_last_word_of_the_shell() -> None:
    reading = read_traceback("step 3 loss 2.1\nKilled\n")
    assert (reading.kind, _told(reading)[0]) == ("Killed", "memory.killed")


DEVICE_ASSERT = (
    "RuntimeError: CUDA error: device-side assert triggered\nCUDA kernel errors might be "
    "asynchronously reported at some other API call, so the stacktrace below might be incorrect.\n"
    "For debugging consider passing CUDA_LAUNCH_BLOCKING=1"
)


@pytest.mark.parametrize(
    ("condition", "name", "words"),
    [
        ("srcIndex < srcSelectDimSize", "cuda.index", "a token id that is not below"),
        ('-sizes[i] <= index && index < sizes[i] && "index out of bounds"', "cuda.index", "table"),
        ("t >= 0 && t < n_classes", "cuda.label", "not below the number of classes"),
        ("input_val >= zero && input_val <= one", "cuda.probability", "outside 0 to 1"),
        ("something_else < 3", "cuda.assert", "something_else < 3"),
    ],
)
def test_what_the_gpu_printed_before_is_the_evidence(condition: str, name: str, words: str) -> None:
    reading = read_traceback(asserted(condition, times=3) + python(DEVICE_ASSERT))
    found, cause, step = _told(reading)
    assert (found, step) == (name, 'CUDA_VISIBLE_DEVICES="" python train.py')
    assert words in cause
    assert reading.explanation is not None
    assert "3 times" in reading.explanation.evidence
    assert any("may be later than the fault" in note for note in reading.notes)


def test_without_the_gpus_lines_a_device_assert_has_no_cause() -> None:
    found, cause, step = _told(read_traceback(python(DEVICE_ASSERT)))
    assert (found, step) == ("cuda.assert", 'CUDA_VISIBLE_DEVICES="" python train.py')
    assert "holds no line that says which one" in cause


def test_the_gpus_lines_alone_are_read() -> None:
    found, _, _ = _told(read_traceback(asserted("t >= 0 && t < n_classes", file="Loss.cu")))
    assert found == "cuda.label"


@pytest.mark.parametrize(
    ("text", "step"),
    [
        ("$ python train.py --steps 9\n", 'CUDA_VISIBLE_DEVICES="" python train.py --steps 9'),
        ("(gpt) me@box:~/a$ python -m run\n", 'CUDA_VISIBLE_DEVICES="" python -m run'),
        (
            "$ python -m minigpt.train --preset cpu\n",
            "python -m minigpt.train --preset cpu --device cpu",
        ),
        ("$ python train.py; rm -rf x\n", "run the same command on the CPU"),  # not to be copied
    ],
)
def test_the_rerun_is_the_command_of_the_log(text: str, step: str) -> None:
    assert _told(read_traceback(text + python(DEVICE_ASSERT)))[2].startswith(step)


def test_the_rerun_in_a_notebook_and_on_windows() -> None:
    notebook = (
        "RuntimeError                              Traceback (most recent call last)\n"
        "Cell In[2], line 1\n----> 1 train()\n\nRuntimeError: CUDA error: device-side assert triggered\n"
    )
    assert _told(read_traceback(notebook))[2].startswith("restart the kernel")
    windows = python(DEVICE_ASSERT, (r"C:\work\train.py", 3, "<module>", "step()"))
    assert (
        _told(read_traceback(windows))[2]
        == '$env:CUDA_VISIBLE_DEVICES="-1"; python "C:/work/train.py"'
    )


def test_positions_made_on_the_cpu_are_seen_in_the_line() -> None:
    last = (
        "RuntimeError: Expected all tensors to be on the same device, but found at least two "
        "devices, cuda:0 and cpu!"
    )
    line = ("model.py", 9, "forward", "x = self.wpe(torch.arange(T))")
    found, cause, step = _told(read_traceback(python(last, TRAIN, line, EMBEDDING)))
    assert found == "device.created"
    assert "torch.arange without a device" in cause
    assert step == "give that torch.arange the device of the token ids: device=ids.device"


def test_a_file_named_as_a_library_is_found() -> None:
    last = (
        "AttributeError: partially initialized module 'torch' has no attribute 'Tensor' (most "
        "likely due to a circular import)"
    )
    own = ("/home/me/torch.py", 1, "<module>", "import torch")
    found, _, step = _told(read_traceback(python(last, own)))
    assert (found, step) == (
        "import.shadowed",
        "rename torch.py and delete the __pycache__ beside it",
    )
    # torch is innocent here: it imports json, and finds the user's
    library = (f"{SITE}/torch/_utils.py", 3, "<module>", "import json")
    shadow = ("/home/me/json.py", 2, "<module>", "from torch import nn")
    assert "json.py" in _told(read_traceback(python(last, TRAIN, library, shadow)))[2]


def test_a_timeout_of_the_watchdog_names_operation_and_seconds() -> None:
    line = (
        "[E621 06:24:44.903881913 ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog caught collective "
        "operation timeout: WorkNCCL(SeqNum=808, OpType=ALLREDUCE, NumelIn=98, NumelOut=98, "
        "Timeout(ms)=600000) ran for 600020 milliseconds before timing out."
    )
    reading = read_traceback(prefixed(line, "[rank1]:"))
    found, cause, step = _told(reading)
    assert (found, step) == ("process.timeout", "python -m diagnostics --only distributed")
    assert "waited 600 seconds for the others in allreduce" in cause
    assert reading.rank == 1


def test_the_root_explains_where_the_last_says_nothing() -> None:
    killed = python("RuntimeError: DataLoader worker (pid 12) is killed by signal: Killed. ")
    joint = "The above exception was the direct cause of the following exception:"
    reading = read_traceback(
        f"{killed}\n{joint}\n\n{python('RuntimeError: DataLoader worker (pid(s) 12) exited unexpectedly')}"
    )
    assert _told(reading)[0] == "loader.killed"
    assert reading.told_by.startswith("RuntimeError: DataLoader worker (pid 12)")


def test_sizes_that_transformers_prints_before_it_raises() -> None:
    table = "wte.weight | MISMATCH | ckpt: torch.Size([20, 8]) vs model:torch.Size([25, 8])\n"
    last = "RuntimeError: You set `ignore_mismatched_sizes` to `False`, thus raising an error."
    found, cause, _ = _told(read_traceback(table + python(last)))
    assert found == "state.vocabulary"
    assert "a vocabulary of 20, the model has one of 25" in cause


def test_our_own_last_line_names_its_command() -> None:
    reading = read_traceback(
        "error: wanted a checkpoint at checkpoints/a.pt, there is none; `python -m minigpt.train` writes one\n"
    )
    assert _told(reading)[::2] == ("command.says", "python -m minigpt.train")


# false alarms cost trust: near misses, and what a rule must not say of them
SILENT = [
    ("KeyError: 'x'", ("rows.py", 3, "encode_row", "return row['x']")),  # a field, no character
    ("KeyError: 'learning_rate'", ("run.py", 3, "encode", "return stoi[name]")),
    ("KeyError: 3", ("run.py", 3, "encode", "return stoi[name]")),
    ("AttributeError: 'tuple' object has no attribute 'append'", STEP),
    ("AttributeError: 'tuple' object has no attribute 'shape'", ("a.py", 1, "f", "pair.shape")),
    ("AttributeError: module 'config' has no attribute 'block'", ("config.py", 1, "<module>", "import config")),
    ("ImportError: cannot import name 'GPT' from 'model' (/home/me/model.py)", STEP),
    ("ValueError: embedding out of range", STEP),
    ("AssertionError: loss is nan", STEP),
    ("RuntimeError: my own words: out of memory of the story", STEP),
    ("RecursionError: maximum recursion depth exceeded", STEP),  # one own frame is no recursion
    ("TypeError: cannot pickle '_thread.lock' object", ("a.py", 1, "f", "copy.deepcopy(model)")),
    ("EOFError: Ran out of input", ("a.py", 1, "f", "read_row(file)")),
    ("EOFError", ("a.py", 1, "ask", "answer = input()")),
    ("ValueError: Classification metrics can't handle a mix of continuous and binary targets", STEP),
    ("ValueError: nothing to do with torch", STEP),
    ("CheckFailedError: somebody else's", STEP),
]  # fmt: skip


@pytest.mark.parametrize(("last", "row"), SILENT, ids=[row[0][:60] for row in SILENT])
def test_near_misses_have_no_cause(last: str, row: tuple[str, int, str, str]) -> None:
    reading = read_traceback(python(last, TRAIN, row))
    assert reading.found
    assert reading.explanation is None


def test_index_out_of_range_of_another_lookup_is_no_embedding() -> None:
    """index_select says the same words; without an embedding's frame nothing is claimed."""
    select = (f"{SITE}/torch/_ops.py", 5, "__call__", "return self._op(*args)")
    assert (
        read_traceback(python("IndexError: index out of range in self", STEP, select)).explanation
        is None
    )
    both = ("model.py", 4, "forward", "x = self.wte(ids) + self.wpe(at)")
    found, _, step = _told(
        read_traceback(python("IndexError: index out of range in self", both, CALL, EMBEDDING))
    )
    assert found == "index.embedding"  # the line calls two tables, so both are named
    assert step.startswith("print(ids.min()")


SIZES = [
    ("blocks.0.mlp.0.weight", [256, 64], [128, 64]),  # another expansion factor, not the width
    ("blocks.0.sa.heads.0.key.weight", [16, 64], [32, 64]),  # another head size, no vocabulary
    ("encoder.conv.weight", [8, 8, 3], [8, 8, 5]),
]


@pytest.mark.parametrize(("name", "stored", "wanted"), SIZES)
def test_sizes_that_point_nowhere_get_no_name(
    name: str, stored: list[int], wanted: list[int]
) -> None:
    last = (
        "RuntimeError: Error(s) in loading state_dict for GPT:\n\tsize mismatch for "
        f"{name}: copying a param with shape torch.Size({stored}) from checkpoint, the shape in "
        f"current model is torch.Size({wanted})."
    )
    found, cause, _ = _told(read_traceback(python(last)))
    assert found == "state.size"
    assert cause == "the weights are of a model with other sizes than this one"


def test_a_last_layer_of_another_size_is_no_vocabulary() -> None:
    last = (
        "RuntimeError: Error(s) in loading state_dict for Net:\n\tsize mismatch for head.weight: "
        "copying a param with shape torch.Size([10, 64]) from checkpoint, the shape in current "
        "model is torch.Size([2, 64])."
    )
    assert _told(read_traceback(python(last)))[0] == "state.outputs"
