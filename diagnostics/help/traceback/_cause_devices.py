"""Causes of tensors on different devices, and of devices that are not there."""

from __future__ import annotations

import re

from diagnostics._text import say
from diagnostics.help.traceback._rules import Clues, Explanation, Rule, quoted, rule

_PLACE = r"(?:cuda(?::\d+)?|cpu|mps(?::\d+)?|xpu(?::\d+)?|meta)"
_MIXED = (
    rf"Expected all tensors to be on the same device, but found at least two devices, ({_PLACE})"
    rf" and ({_PLACE})",
    rf"Expected all tensors to be on the same device, but got \S+ is on ({_PLACE}), "
    rf"different from other tensors on ({_PLACE})",
    rf"Tensor on device ({_PLACE}) is not on the expected device ({_PLACE})",
    r"Expected object of (?:device type|backend) (\w+) but got \w+(?: type)? (\w+)",
    rf"not at the same device, found \w+ tensor at ({_PLACE}) and \w+ tensor at ({_PLACE})",
    r"Tensor for (?:argument )?(?:#\d+ )?'?\w+'? is on (\w+),? but expected (?:it to be )?on (\w+)",
    rf"input\(device='?({_PLACE})'?\) and weight\(device=?'?({_PLACE})'?\)\s+must be on the same",
    rf"indices should be either on (cpu) or on the same device as the indexed tensor \(({_PLACE})",
    r"(Placeholder storage) has not been allocated on (MPS) device",
    r"Passed (CPU) tensor to (MPS) op",
)
_TYPES = re.compile(
    r"Input type \((?:torch\.)?((?:cuda|mps)\.)?(\w+)Tensor\) and weight type "
    r"\((?:torch\.)?((?:cuda|mps)\.)?(\w+)Tensor\) should be the same"
)
_ARGUMENT = re.compile(r"when checking argument for argument (\w+) in method (?:wrapper_*)?(\w+)")
_CREATION = re.compile(r"\btorch\.(arange|zeros|ones|full|tensor|tril|triu|eye|empty|rand\w*)\(")


def _mixed(clues: Clues) -> Explanation | None:
    match = next((m for p in _MIXED if (m := re.search(p, clues.message))), None)
    if match is None:
        return None
    first, second = match[1], match[2]
    if first == "Placeholder storage":  # MPS says neither what the other tensor is nor where
        first, second = "cpu", "mps"
    argument = _ARGUMENT.search(clues.message)
    return _explain(clues, match.group(), first, second, argument)


def _types(clues: Clues) -> Explanation | None:
    """The form that names tensor types: the device differs only where `cuda.` stands once."""
    match = _TYPES.search(clues.message)
    if match is None or match[1] == match[3]:
        return None
    first, second = ((part or "cpu").rstrip(".") for part in (match[1], match[3]))
    return _explain(clues, match.group(), first, second, None)


def _explain(
    clues: Clues, said: str, first: str, second: str, argument: re.Match[str] | None
) -> Explanation:
    cause = say("one operation got tensors on {first} and on {second}", first=first, second=second)
    if "meta" in {first, second}:
        return Explanation(
            name="device.meta",
            cause=say("{cause}: a part of the model has shapes without numbers", cause=cause),
            evidence=quoted(said),
            next_step=say(
                "load the weights with assign=True: model.load_state_dict(state, assign=True)"
            ),
        )
    created = _created(clues, said, cause)
    if created is not None:
        return created
    evidence = quoted(said)
    if argument is not None:
        cause = say(
            "{cause}; torch was checking the argument `{name}` of {method}",
            cause=cause,
            name=argument[1],
            method=argument[2],
        )
        evidence = f"{evidence}, {quoted(argument.group())}"
    return Explanation(
        name="device.mixed",
        cause=cause,
        others=(
            say("the batch was not moved to the model's device"),
            say("a tensor was made before the model was moved: a mask, an optimizer's state"),
        ),
        others_are=say("either of these is usual, and the text cannot tell which it is"),
        evidence=evidence,
        next_step=say("move the batch to the model: ids = ids.to(next(model.parameters()).device)"),
    )


def _created(clues: Clues, said: str, cause: str) -> Explanation | None:
    """The line itself makes a tensor and names no device: positions, a mask."""
    code = (clues.own.marked or clues.own.code) if clues.own else ""
    made = _CREATION.search(code)
    if made is None or "device" in code or ".to(" in code:
        return None
    return Explanation(
        name="device.created",
        cause=say(
            "{cause}, and the line makes a tensor with torch.{name} without a device, which is on "
            "the CPU",
            cause=cause,
            name=made[1],
        ),
        evidence=f"{quoted(said)} and {quoted(code)}",
        next_step=say(
            "give that torch.{name} the device of the token ids: device=ids.device", name=made[1]
        ),
    )


RULES: tuple[Rule, ...] = (
    _mixed,
    _types,
    rule(
        "device.numpy",
        "TypeError",
        r"can't convert (?P<device>[\w:]+) device type tensor to numpy",
        "the tensor is on {device}, and NumPy reads the CPU's memory only",
        "copy it first: tensor.detach().cpu().numpy()",
    ),
    rule(
        "device.meta",
        "NotImplementedError",
        r"Cannot copy out of meta tensor; no data!",
        "the model was built on the meta device and has shapes without numbers",
        "call model.to_empty(device=...) and then load the weights, instead of model.to(...)",
    ),
    rule(
        "device.not_compiled",
        "AssertionError RuntimeError",
        r"Torch not compiled with CUDA enabled|Cannot get CUDA generator without ATen_cuda",
        "this torch is a build for CPUs, and the code asks for cuda",
        "choose the device by what is there: device = 'cuda' if "
        "torch.cuda.is_available() else 'cpu'",
    ),
    rule(
        "device.none_visible",
        "RuntimeError",
        r"No CUDA GPUs are available|Found no NVIDIA driver on your system",
        "the code asks for cuda, and this process sees no GPU: there is none, its "
        "driver is missing, or CUDA_VISIBLE_DEVICES hides it",
        "python -m diagnostics --env",
    ),
    rule(
        "device.old_driver",
        "RuntimeError",
        r"CUDA driver version is insufficient for CUDA runtime version|The NVIDIA "
        r"driver on your system is too old(?: \(found version (?P<found>\d+)\))?",
        "the NVIDIA driver is older than the CUDA version that this torch was built for",
        "install the torch that is built for the driver's CUDA version, which nvidia-smi shows",
    ),
    rule(
        "device.no_kernel",
        "RuntimeError AcceleratorError",
        r"no kernel image is available for execution on the device",
        "this torch build holds no code for this GPU's generation",
        'python -c "import torch; print(torch.cuda.get_device_capability(), '
        'torch.cuda.get_arch_list())"',
    ),
    rule(
        "device.stored_on_cuda",
        "RuntimeError",
        r"Attempting to deserialize object on (?:a )?CUDA device",
        "the file's tensors were saved from a GPU that is not here",
        'load them onto the CPU: torch.load(path, map_location="cpu")',
    ),
    rule(
        "device.operator",
        "NotImplementedError",
        r"The operator '(?P<operator>[\w:.]+)' is not currently (?:implemented"
        r"|supported)[^.]* for the MPS device",
        "the operation {operator} does not exist for Apple's GPU in this version of torch",
        "run with PYTORCH_ENABLE_MPS_FALLBACK=1 set, which computes this operation on the CPU",
    ),
    rule(
        "device.backend",
        "NotImplementedError",
        r"Could not run '(?P<operator>[\w:.]+)' with arguments from the "
        r"'(?P<backend>\w+)' backend",
        "this build of torch cannot run {operator} on {backend}: it was built "
        "without it, or the device is not there",
        "python -m diagnostics --env",
    ),
)
