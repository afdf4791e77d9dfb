"""Causes of files that are missing, damaged or of another kind, and of a full disk."""

from __future__ import annotations

import re

from diagnostics._text import say
from diagnostics.help.traceback._rules import Clues, Explanation, Rule, quoted, rule, short

_OWN_FILES = (  # what our commands write, by a part of the path
    (re.compile(r"tokenizer[/\\]char_tokenizer\.json"), "python -m minigpt.prepare"),
    (re.compile(r"data[/\\]encoded[/\\](?:train|val|test)_ids\."), "python -m minigpt.prepare"),
    (re.compile(r"mini_gpt_\w+\.(?:safetensors|pt)"), "python -m minigpt.train"),
)
_REMEDY = re.compile(r"`(python -m (?:minigpt|exercises|diagnostics)[\w.]*)`")


def _missing(clues: Clues) -> Explanation | None:
    if clues.kind != "FileNotFoundError":
        return None
    first = clues.message.partition("\n")[0]
    path = re.search(
        r"No such file or directory: (?:[bru]*(['\"])(.+?)\1|(\S+))|^no .*? at (\S+?);", first
    )
    name = next((group for group in path.groups()[1:] if group), "") if path else ""
    remedy = _REMEDY.search(first)
    command = remedy[1] if remedy else next((c for p, c in _OWN_FILES if p.search(name)), None)
    if command:
        return Explanation(
            name="file.not_made",
            cause=say(
                "the file has not been made yet, or the command runs in another folder "
                "than the one it was made in"
            ),
            evidence=quoted(first),
            next_step=command,
        )
    relative = name and not re.match(r"[/\\~]|[A-Za-z]:", name)
    cause = (
        say(
            "there is no file {name} in the folder where the command runs: a relative "
            "path starts there, not beside the script",
            name=short(name, 60),
        )
        if relative
        else say("there is no such file")
    )
    step = (
        say('python -c "import os; print(os.getcwd())"')
        if relative
        else say("check the path's spelling: ls -l on its folder")
    )
    return Explanation(name="file.missing", cause=cause, evidence=quoted(first), next_step=step)


def _pickled(clues: Clues) -> Explanation | None:
    """torch.load and pickle on something that is no checkpoint: the first byte tells which."""
    message = clues.message
    byte = re.search(r"Unsupported operand (\d+)", message)
    key = re.search(r"invalid load key, '(.{1,4})'", message)
    if "UnpicklingError" not in clues.kinds or not (byte or key):
        return None
    first = chr(int(byte[1][:3])) if byte else key[1] if key else ""
    evidence = quoted((byte or key)[0])  # type: ignore[index]
    if first == "v":
        cause = say(
            "the file is no checkpoint; it begins with `v`, as the small text does "
            "that Git LFS leaves in the place of a large file"
        )
        step = say("git lfs pull")
    elif first == "<":
        cause = say(
            "the file is no checkpoint; it begins with `<`, as a web page does that "
            "was saved in its place"
        )
        step = say("download the file itself, and compare its size")
    else:
        cause = say("the file is no checkpoint of torch.save, or is damaged")
        step = say("print its first bytes: open(path, 'rb').read(16)")
    return Explanation(name="file.foreign", cause=cause, evidence=evidence, next_step=step)


def _weights_only(clues: Clues) -> Explanation | None:
    if "UnpicklingError" not in clues.kinds or "Weights only load failed" not in clues.message:
        return None
    name = re.search(r"(?:GLOBAL|global) ([\w.]+) was not an allowed global", clues.message)
    if name is None:
        return None
    return Explanation(
        name="file.weights_only",
        cause=say(
            "the file holds an object of {name} beside tensors; torch.load refuses "
            "that, because loading it could run code",
            name=name[1],
        ),
        evidence=quoted(name.group()),
        next_step=say(
            "save plain values only (numbers, strings, dictionaries, tensors), and "
            "load again with weights_only=True"
        ),
    )


def _end_of_file(clues: Clues) -> Explanation | None:
    in_load = clues.has_file("torch/serialization.py", "/pickle.py")
    code = clues.own.code if clues.own else ""
    if clues.kind != "EOFError" or not (in_load or "load(" in code):
        return None
    return Explanation(
        name="file.empty",
        cause=say(
            "the file is empty or ends too early, or is read from its end on, without seek(0)"
        ),
        evidence=quoted(clues.kind + (f": {clues.message}" if clues.message else "")),
        next_step=say("ls -l FILE, and save or download it again where it is too short"),
    )


def _decoding(clues: Clues) -> Explanation | None:
    match = re.search(
        r"'([\w-]+)' codec can't (?:decode byte (0x[0-9a-f]{2}) in position (\d+)"
        r"|encode character)",
        clues.message,
    )
    if match is None:
        return None
    codec, byte, position = match[1], match[2], match[3]
    if byte in {"0xff", "0xfe"} and position == "0":
        cause, step = (
            say(
                "the file begins with {byte}, as UTF-16 text does (PowerShell's `>` writes "
                "it), and was read as {codec}",
                byte=byte,
                codec=codec,
            ),
            say('open(path, encoding="utf-16")'),
        )
    elif codec not in {"utf-8", "utf-16"}:
        cause, step = (
            say("the text was treated as {codec}, this system's own encoding", codec=codec),
            say('open(path, encoding="utf-8")'),
        )
    else:
        cause, step = (
            say("the file is no {codec} text: another encoding, or no text at all", codec=codec),
            say("print its first bytes: open(path, 'rb').read(16)"),
        )
    return Explanation(
        name="file.encoding", cause=cause, evidence=quoted(match.group()), next_step=step
    )


RULES: tuple[Rule, ...] = (
    _missing,
    _weights_only,
    _pickled,
    _end_of_file,
    _decoding,
    rule(
        "file.damaged_zip",
        "RuntimeError",
        r"PytorchStreamReader failed (?:reading zip archive: [^.]*|locating file [^:]*)",
        "the file is cut off or damaged, or is a zip archive that torch.save did not write",
        "ls -l FILE, and save or download it again where it is too short",
    ),
    rule(
        "file.safetensors",
        "SafetensorError",
        r"(?:Error while deserializing header: )?(?P<what>header too large|header "
        r"too small|HeaderTooLarge|HeaderTooSmall|InvalidHeader\w*|invalid UTF-8 in "
        r"header[^\n]*|invalid JSON in header[^\n]*)",
        "the file does not begin as a .safetensors file does ({what}): it is of "
        "another kind (a .pt file renamed, a page or a pointer of Git LFS), or is "
        "damaged",
        "print its first bytes: open(path, 'rb').read(16)",
    ),
    rule(
        "file.safetensors_cut",
        "SafetensorError",
        r"incomplete metadata, file not fully covered|MetadataIncompleteBuffer"
        r"|(?:invalid|Invalid)\s?Offset",
        "the .safetensors file is shorter or longer than its header says, as "
        "after a download or a save that was interrupted",
        "ls -l FILE, and save or download it again where it is too short",
    ),
    rule(
        "file.shared_tensors",
        "RuntimeError",
        r"Some tensors share memory, this will lead to duplicate memory on "
        r"disk[^\[]*(?P<names>\[[^\]]{1,300}\])",
        "two names hold one tensor ({names}): tied weights, which save_file refuses",
        "safetensors.torch.save_model(model, path)",
    ),
    rule(
        "file.full_disk",
        "OSError RuntimeError",
        r"No space left on device|PytorchStreamWriter failed writing file",
        "the disk is full, or its quota is used up",
        "df -h .",
    ),
    rule(
        "file.too_many",
        "OSError RuntimeError",
        r"Too many open files|received 0 items of ancdata",
        "the process has as many files open as it may; loader processes share "
        "tensors through files",
        "torch.multiprocessing.set_sharing_strategy('file_system') at the start of the script",
    ),
    rule(
        "file.permission",
        "PermissionError",
        r"Permission denied: '?(?P<path>[^'\n]+)",
        "this user may not read or write {path}; on Windows another program may have it open",
        "check its permissions: ls -l",
    ),
    rule(
        "file.permission",
        "PermissionError",
        r"Permission denied|(?:Access is|not) (?:denied|permitted)",
        "this user may not read or write here; on Windows another program may have the file open",
        "check the permissions: ls -l",
    ),
    rule(
        "file.no_folder",
        "RuntimeError",
        r"Parent directory (?P<folder>[\w./-]{1,80}) does not exist",
        "the folder {folder} does not exist, and torch.save makes none",
        'os.makedirs("{folder}", exist_ok=True) before the save',
    ),
)
