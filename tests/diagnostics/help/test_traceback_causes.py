"""What torch, a GPU and other libraries print leads to its cause."""

# ruff: noqa: E501  # rows of tables: a message stands in one line, as it is printed
from __future__ import annotations

import pytest

from diagnostics.help.traceback import read_traceback
from tests.diagnostics.help.tracebacks import (
    EMBEDDING,
    SITE,
    TRAIN,
    asserted,
    prefixed,
    python,
    told_of,
)

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
    ("RuntimeError: [enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 68719476736 bytes. Error code 12 (Cannot allocate memory)", "memory.budget", "64 GiB were asked for at once"),
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
    ("torch.distributed.DistNetworkError: The server socket has failed to bind. port: 29500, error: EADDRINUSE", "process.port", "another process"),
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
    ("AttributeError: 'GPT' object has no attribute 'haed'. Did you mean: 'head'?", "python.attribute", "the interpreter knows a `head`"),
    ("ValueError: Default process group has not been initialized, please make sure to call init_process_group.", "process.no_group", "before init_process_group has run"),
    ("ValueError: loaded state dict has a different number of parameter groups", "state.optimizer_groups", "other parameter groups"),
    ("RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the 'spawn' start method", "cuda.forked", "forked after CUDA"),
    ("RuntimeError: CUDA error: an illegal memory access was encountered", "cuda.launch", "names no cause"),
    ("RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`", "cuda.launch", "names no cause"),
    ("NotImplementedError: Could not run 'aten::empty.memory_format' with arguments from the 'MPS' backend. This could be", "device.backend", "cannot run aten::empty.memory_format on MPS"),
    ("torch.AcceleratorError: CUDA error: no kernel image is available for execution on the device", "device.no_kernel", "no code for this GPU's generation"),
    ("RuntimeError: No CUDA GPUs are available", "device.none_visible", "sees no GPU"),
    ("NotImplementedError: The operator 'aten::_linalg_svd' is not currently implemented for the MPS device.", "device.operator", "aten::_linalg_svd does not exist"),
    ("PermissionError: [Errno 13] Permission denied: '/data/a.pt'", "file.permission", "read or write /data/a.pt"),
    ("OSError: [Errno 24] Too many open files: 'a.npy'", "file.too_many", "as many files open"),
    ("ImportError: cannot import name 'GPT' from partially initialized module 'model' (most likely due to a circular import) (/srv/me/model.py)", "import.circular", "model was used before"),
    ("torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ", "process.echo", "its own error is not in this text"),
    ("RuntimeError: [../third_party/gloo/pair.cc:553] Connection closed by peer [127.0.0.1]:8327", "process.echo", "its own error is not in this text"),
    ("torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/ProcessGroupNCCL.cpp:2006, invalid usage", "process.nccl", "does not say why"),
    ("ValueError: Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 50", "process.one_gpu", "two processes use one GPU"),
    ("minigpt._lock.FolderBusyError: checkpoints is in use by process 12", "run.folder_busy", "another run writes"),
    ("minigpt._training_state.SaveError: checkpoints/a could not be written", "run.not_saved", "could not write its checkpoint"),
    ("minigpt._checkpoint_errors.CheckpointError: a.safetensors holds no optimizer state", "checkpoint.other", "cannot be used for this"),
    ("OSError: We couldn't connect to 'https://huggingface.co' to load the files, and couldn't find them in the cached files.", "transformers.files", "not on this machine"),
    ("ValueError: Input length of input_ids is 10, but `max_length` is set to 5.", "transformers.max_length", "the prompt has 10 tokens, and max_length=5"),
    ("ValueError: Unrecognized model in gpt/. Should have a `model_type` key in its config.json.", "transformers.no_model_type", "gpt/ holds no config.json that names a model_type"),
    ("RuntimeError: expected scalar type Float but found Half", "type.scalar", "Float and Half"),
]  # fmt: skip


@pytest.mark.parametrize(("last", "name", "cause"), WRITTEN, ids=[row[0][:60] for row in WRITTEN])
def test_what_others_print_is_explained(last: str, name: str, cause: str) -> None:
    found, told, _ = told_of(read_traceback(python(last)))
    assert found == name
    assert cause in told
    assert told_of(read_traceback(last + "\n"))[0] == name  # the last line alone


def test_memory_gives_the_budget_in_its_order() -> None:
    told = read_traceback(python("RuntimeError: CUDA error: out of memory")).explanation
    assert told is not None
    assert [part.split()[0] for part in told.others] == [
        "measure", "a", "a", "bfloat16", "activation", "then",
    ]  # fmt: skip
    assert told.next_step == "print(torch.cuda.memory_summary()) on the line before the one above"
    ours = ("/srv/me/minigpt/train/__main__.py", 9, "<module>", "main()")
    *_, step = told_of(read_traceback(python("RuntimeError: CUDA error: out of memory", ours)))
    assert step == "python -m minigpt.memory --measure"


def test_memory_says_when_it_came() -> None:
    line = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 MiB."
    adam = (f"{SITE}/torch/optim/adamw.py", 9, "_init_group", "state['exp_avg'] = zeros_like(p)")
    backward = (f"{SITE}/torch/_tensor.py", 9, "backward", "torch.autograd.backward(self)")
    assert "the optimizer's step" in told_of(read_traceback(python(line, TRAIN, adam)))[1]
    assert "the backward pass" in told_of(read_traceback(python(line, TRAIN, backward)))[1]


def test_killed_is_the_last_word_of_the_shell() -> None:
    reading = read_traceback("step 3 loss 2.1\nKilled\n")
    assert (reading.kind, told_of(reading)[0]) == ("Killed", "memory.killed")


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
        ("probability tensor contains either inf, nan or element < 0", "cuda.sampling", "NaN"),
        ("something_else < 3", "cuda.assert", "something_else < 3"),
    ],
)
def test_what_the_gpu_printed_before_is_the_evidence(condition: str, name: str, words: str) -> None:
    reading = read_traceback(asserted(condition, times=3) + python(DEVICE_ASSERT))
    found, cause, step = told_of(reading)
    assert (found, step) == (name, 'CUDA_VISIBLE_DEVICES="" python train.py')
    assert words in cause
    assert reading.explanation is not None
    assert "3 times" in reading.explanation.evidence
    assert any("may be later than the fault" in note for note in reading.notes)


def test_without_the_gpus_lines_a_device_assert_has_no_cause() -> None:
    found, cause, step = told_of(read_traceback(python(DEVICE_ASSERT)))
    assert (found, step) == ("cuda.assert", 'CUDA_VISIBLE_DEVICES="" python train.py')
    assert "holds no line that says which one" in cause


def test_the_gpus_lines_alone_are_read() -> None:
    found, _, _ = told_of(read_traceback(asserted("t >= 0 && t < n_classes", file="Loss.cu")))
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
    assert told_of(read_traceback(text + python(DEVICE_ASSERT)))[2].startswith(step)


def test_the_rerun_in_a_notebook_and_on_windows() -> None:
    notebook = (
        "RuntimeError                              Traceback (most recent call last)\n"
        "Cell In[2], line 1\n----> 1 train()\n\nRuntimeError: CUDA error: device-side assert triggered\n"
    )
    assert told_of(read_traceback(notebook))[2].startswith("restart the kernel")
    windows = python(DEVICE_ASSERT, (r"C:\course\train.py", 3, "<module>", "step()"))
    assert (
        told_of(read_traceback(windows))[2]
        == '$env:CUDA_VISIBLE_DEVICES="-1"; python "C:/course/train.py"'
    )


def test_positions_made_on_the_cpu_are_seen_in_the_line() -> None:
    last = (
        "RuntimeError: Expected all tensors to be on the same device, but found at least two "
        "devices, cuda:0 and cpu!"
    )
    line = ("model.py", 9, "forward", "x = self.wpe(torch.arange(T))")
    found, cause, step = told_of(read_traceback(python(last, TRAIN, line, EMBEDDING)))
    assert found == "device.created"
    assert "torch.arange without a device" in cause
    assert step == "give that torch.arange the device of the token ids: device=ids.device"


def test_a_file_named_as_a_library_is_found() -> None:
    last = (
        "AttributeError: partially initialized module 'torch' has no attribute 'Tensor' (most "
        "likely due to a circular import)"
    )
    own = ("/srv/me/torch.py", 1, "<module>", "import torch")
    found, _, step = told_of(read_traceback(python(last, own)))
    assert (found, step) == (
        "import.shadowed",
        "rename torch.py and delete the __pycache__ beside it",
    )
    # torch is innocent here: it imports json, and finds the user's
    library = (f"{SITE}/torch/_utils.py", 3, "<module>", "import json")
    shadow = ("/srv/me/json.py", 2, "<module>", "from torch import nn")
    assert "json.py" in told_of(read_traceback(python(last, TRAIN, library, shadow)))[2]


def test_python_3_13_names_the_file_itself() -> None:
    last = (
        "AttributeError: module 'random' has no attribute 'randint' (consider renaming "
        "'/srv/me/random.py' since it has the same name as the standard library module named "
        "'random' and prevents importing that standard library module)"
    )
    assert told_of(read_traceback(python(last)))[::2] == (
        "import.shadowed",
        "rename random.py and delete the __pycache__ beside it",
    )


def test_a_timeout_of_the_watchdog_names_operation_and_seconds() -> None:
    line = (
        "[E621 06:24:44.903881913 ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog caught collective "
        "operation timeout: WorkNCCL(SeqNum=808, OpType=ALLREDUCE, NumelIn=98, NumelOut=98, "
        "Timeout(ms)=600000) ran for 600020 milliseconds before timing out."
    )
    reading = read_traceback(prefixed(line, "[rank1]:"))
    found, cause, step = told_of(reading)
    assert (found, step) == ("process.timeout", "python -m diagnostics --only distributed")
    assert "waited 600 seconds for the others in allreduce" in cause
    assert reading.rank == 1


def test_the_root_explains_where_the_last_says_nothing() -> None:
    killed = python("RuntimeError: DataLoader worker (pid 12) is killed by signal: Killed. ")
    joint = "The above exception was the direct cause of the following exception:"
    reading = read_traceback(
        f"{killed}\n{joint}\n\n{python('RuntimeError: DataLoader worker (pid(s) 12) exited unexpectedly')}"
    )
    assert told_of(reading)[0] == "loader.killed"
    assert reading.told_by.startswith("RuntimeError: DataLoader worker (pid 12)")


def test_sizes_that_transformers_prints_before_it_raises() -> None:
    table = "wte.weight | MISMATCH | ckpt: torch.Size([20, 8]) vs model:torch.Size([25, 8])\n"
    last = "RuntimeError: You set `ignore_mismatched_sizes` to `False`, thus raising an error."
    found, cause, _ = told_of(read_traceback(table + python(last)))
    assert found == "state.vocabulary"
    assert "a vocabulary of 20, the model has one of 25" in cause


def test_our_own_last_line_names_its_command() -> None:
    reading = read_traceback(
        "error: wanted a checkpoint at checkpoints/a.pt, there is none; `python -m minigpt.train` writes one\n"
    )
    assert told_of(reading)[::2] == ("command.says", "python -m minigpt.train")


def test_a_killed_process_of_a_group_is_seen_in_torchruns_list() -> None:
    last = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: "
    text = python(last) + "  exitcode  : -9 (pid: 19797)\n"
    found, cause, _ = told_of(read_traceback(text))
    assert found == "process.killed"
    assert "signal 9" in cause


def test_a_process_that_is_started_anew_cannot_take_a_lambda() -> None:
    last = (
        "_pickle.PicklingError: Can't pickle <function <lambda> at 0x7f>: attribute lookup failed"
    )
    spawn = ("/usr/lib/python3.11/multiprocessing/popen_spawn_posix.py", 9, "_launch", "dump(x)")
    found, cause, _ = told_of(read_traceback(python(last, TRAIN, spawn)))
    assert found == "loader.pickle"
    assert "started anew" in cause
