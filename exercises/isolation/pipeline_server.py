"""A student's pipeline, answering questions: the side that computes and never judges.

It runs in the student's process. `exercises.isolation.remote_pipeline` asks from the other one,
which examines the answers. Each question brings along what has changed over there (weights, modes,
random states), each answer what has changed here, so that both sides hold the same models.

While the student's code runs, events tell the other side what it wants to watch: calls of modules,
gradients as they are written, steps of optimizers. It may change what it is shown.
"""

from __future__ import annotations

import itertools
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from diagnostics import Pipeline
from diagnostics._clone import clone
from diagnostics._trace import DeviceWatch
from exercises.isolation._blueprint import draw, signature_of
from exercises.isolation._graphs import Graph
from exercises.isolation._parcel import NOTHING, Opener, Packer, sendable
from exercises.isolation._random_states import RandomStates
from exercises.isolation._served_events import Events
from exercises.isolation._served_watch import Watchers
from exercises.isolation._told_errors import describe_error
from exercises.isolation._twin import Names, OptimizerTwin, Twin, settings_of, state_of
from exercises.isolation.channel import Channel, answer

GRAPHS_MAX = 64  # graphs that are kept for a backward pass; the oldest goes first
FILE_BYTES_MAX = 64 * 1024 * 1024
CARD = "meta.json"  # lies beside encoded ids and says which tokenizer made them
PARTS = (
    "forward", "tokenizer", "get_batch", "batch", "make_model", "make_optimizer", "train_step",
    "accumulate", "learning_rate", "evaluate", "generate", "next_token_probabilities", "save",
    "load", "save_state", "load_state", "batches_from",
)  # fmt: skip
CONSTANTS = (
    "vocab_size", "block_size", "labels", "ignore_index", "pad_id", "max_steps", "micro_batches",
    "causal", "fresh", "train_ids", "val_ids", "train_text",
)  # fmt: skip


def answers(
    build: Callable[[], Pipeline | nn.Module], channel: Channel
) -> Mapping[str, Callable[..., Any]]:
    """Return what `channel.serve(channel, ...)` answers with, for what `build` gives.

    The pipeline is built at the first question, so that an error in it becomes an answer.
    """
    served = _Served(build, channel)
    names = (
        "describe", "part", "call", "vjp", "meta", "clone", "train", "step", "tokenizer_get",
        "tokenizer_call", "next", "files",
    )  # fmt: skip
    return {name: served.answering(getattr(served, name)) for name in names}


class _Served:
    def __init__(self, build: Callable[[], Pipeline | nn.Module], channel: Channel) -> None:
        self.build, self.channel = build, channel
        self._pipeline: Pipeline | None = None
        self.random = RandomStates()
        self.twins: dict[int, Twin] = {}
        self.roots: dict[int, nn.Module] = {}
        self.optimizers: dict[int, OptimizerTwin] = {}
        self.iterators: dict[int, Iterator[Any]] = {}
        self.graphs: dict[int, Graph] = {}
        self.strangers: list[Tensor] = []
        self.names = Names()
        self.numbers = itertools.count(1)
        self.answers: dict[str, Callable[..., Any]] = {}
        self.alive: list[tuple[int, weakref.ref[Any]]] = []
        self.folder = Path(tempfile.mkdtemp(prefix="pipeline-"))
        self._tidy = weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)

    # ---- questions and answers -----------------------------------------------------------------

    def answering(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a method: take over the state, run it, give back the state with its result."""

        def answer(state: dict[str, Any], *arguments: Any) -> dict[str, Any]:
            reply: dict[str, Any] = {}
            grads = torch.is_grad_enabled()
            watchers = Watchers(state.get("watchers", []))
            touched = list(state.get("touched", []))
            try:
                with ExitStack() as stack:
                    self._take_over(state, stack)
                    with Events(self, state.get("events")) as self.events, watchers:
                        reply["value"] = method(*arguments)
                        reply["written"] = self.events.written()
                    reply["grad"] = torch.is_grad_enabled()
            except BaseException as error:  # also SystemExit: the verdict is not the student's
                reply["error"] = describe_error(error)
            finally:
                torch.set_grad_enabled(grads)
            reply["watchers"] = watchers.findings()
            return reply | self.changes(touched, gradients=bool(state.get("deep")))

        self.answers[method.__name__] = answer
        return answer

    def _take_over(self, state: dict[str, Any], stack: ExitStack) -> None:
        for kind, number in state.get("released", ()):
            if kind == "graph":
                self.graphs.pop(number, None)
            elif kind == "model":
                self.twins.pop(number, None)
                self.roots.pop(number, None)
            elif kind == "optimizer":
                self.optimizers.pop(number, None)
            elif kind == "iterator":
                self.iterators.pop(number, None)
        self.apply(state)
        for removed in state.get("hooks_off", ()):
            stack.enter_context(self._without_hooks(*removed))
        for device, dtype in state.get("autocast", ()):
            stack.enter_context(torch.autocast(device, dtype=Opener(_nothing).open(dtype)))
        torch.set_grad_enabled(bool(state.get("grad", True)))

    def apply(self, state: dict[str, Any]) -> None:
        """Take over weights, gradients, settings and random states."""
        for changed in state.get("twins", ()):
            if changed["handle"] in self.twins:
                self.twins[changed["handle"]].apply(changed)
        for changed in state.get("optimizers", ()):
            if changed["number"] in self.optimizers:
                self.optimizers[changed["number"]].apply(changed)
        self.random.apply(state.get("random", {}))

    def changes(self, touched: list[int], *, gradients: bool) -> dict[str, Any]:
        """Return what the other side does not know yet."""
        twins = [
            changed
            for handle, twin in list(self.twins.items())
            if (
                changed := twin.changes(
                    fully=handle in touched, gradients=gradients and handle in touched
                )
            )
        ]
        for changed in twins:
            changed.pop("attributes", None)
        optimizers = []
        if gradients:
            optimizers = [c for o in list(self.optimizers.values()) if (c := o.changes())]
        return {
            "twins": twins,
            "optimizers": optimizers,
            "random": self.random.changes(),
            "alive": [n for n, ref in self.alive if ref() is not None] if self.alive else [],
        }

    def wait(self) -> Any:
        """Wait for the reply to an event, and answer the questions that come before it."""
        while True:
            message = self.channel.receive()
            if isinstance(message, tuple) and message[:1] == ("reply",):
                return message[1]
            events = self.events
            answer(self.channel, self.answers, message)
            self.events = events

    # ---- parcels -------------------------------------------------------------------------------

    def pack(self, value: Any) -> dict[str, Any]:
        """Pack what the student's code gave, with a graph where it has one."""
        packer = Packer(self._special)
        packed = packer.pack(value)
        if not packer.graphs:
            return {"value": packed}
        number = next(self.numbers)
        graph = Graph(packer.graphs)
        self.graphs[number] = graph
        while len(self.graphs) > GRAPHS_MAX:
            del self.graphs[next(iter(self.graphs))]
        leaves = self._named_leaves(graph)
        values = [sendable(tensor) for tensor in packer.graphs]
        return {"value": packed, "graph": number, "tensors": values, "leaves": leaves}

    def _named_leaves(self, graph: Graph) -> list[Any]:
        given = {id(tensor): ("given", number) for tensor, number in self.events.given}
        named: list[Any] = []
        for leaf in graph.leaves:
            name = given.get(id(leaf)) or self.weight_name(leaf)
            if name[0] == "stranger":
                name = (*name, isinstance(leaf, nn.Parameter), sendable(leaf))
            named.append(name)
        return named

    def open(self, packed: Any) -> Any:
        """Open what the other side sent."""
        return Opener(self._known).open(packed)

    def _run(self, function: Callable[..., Any], arguments: Any, named: Any) -> Any:
        """Call a function of the student's, and remember what it was given as it was."""

        def special(packed: Any) -> Any:
            found = self._known(packed)
            if packed[0] in ("tensor", "numpy"):  # an array of NumPy lies over its tensor
                self.events.lent.append((packed[1], packed[1].clone()))
            return found

        opener = Opener(special)
        return self.pack(function(*opener.open(arguments), **opener.open(named)))

    def _special(self, value: Any) -> Any:
        if isinstance(value, nn.Module):
            return self.reference(value)
        if isinstance(value, Optimizer) or (
            hasattr(value, "param_groups") and hasattr(value, "step")
        ):
            return self.optimizer_reference(value)
        if isinstance(value, Iterator):
            number = next(self.numbers)
            self.iterators[number] = value
            return ("iterator", number)
        return NOTHING

    def _known(self, packed: Any) -> Any:
        match packed:
            case ("model", handle):
                return self.roots[handle]
            case ("optimizer", number):
                return self.optimizers[number].optimizer
            case ("path", str() as parent, str() as name):
                folder = self.folder / parent
                folder.mkdir(exist_ok=True)
                return folder / name
            case ("given", number, value):
                tensor = value.clone().requires_grad_()
                self.events.given.append((tensor, number))
                return tensor
        return NOTHING

    def reference(self, model: nn.Module) -> Any:
        """Return ("model", handle), with a blueprint where the other side has none yet."""
        for handle, root in self.roots.items():
            if root is model:
                return ("model", handle, None)
        blueprint, drawing = draw(model)
        handle = next(self.numbers)
        twin = Twin(handle, drawing.modules, drawing.places, drawing.objects)
        twin.agree(attributes=False)
        self.twins[handle], self.roots[handle] = twin, model
        return ("model", handle, blueprint)

    def optimizer_reference(self, optimizer: Any) -> Any:
        """Return ("optimizer", number), with a description where the other side has none."""
        for number, twin in self.optimizers.items():
            if twin.optimizer is optimizer:
                return ("optimizer", number, None)
        number = next(self.numbers)
        twin = OptimizerTwin(number, optimizer, self.weight_name, self.weight)
        groups = [
            ([self.weight_name(p) for p in group["params"]], settings_of(group))
            for group in optimizer.param_groups
        ]
        described = {
            "kind": type(optimizer).__name__,
            "is_torch": isinstance(optimizer, Optimizer),
            "base": _base_of(optimizer),
            "groups": groups,
            "foreign": [
                (n, sendable(self.strangers[n]))
                for n in sorted({r[1] for refs, _ in groups for r in refs if r[0] == "stranger"})
            ],
            "state": [(r, list(f.items())) for r, f in state_of(optimizer, self.weight_name)],
            "signature": signature_of(optimizer.step),
        }
        twin.agree()
        self.optimizers[number] = twin
        return ("optimizer", number, described)

    def weight_name(self, tensor: Tensor) -> Any:
        """Return ("weight", handle, number) of a parameter, or ("stranger", number)."""
        return self.names.name_of(tensor, self.twins) or self._stranger_name(tensor)

    def _stranger_name(self, tensor: Tensor) -> Any:
        for number, stranger in enumerate(self.strangers):
            if stranger is tensor:
                return ("stranger", number)
        self.strangers.append(tensor)
        return ("stranger", len(self.strangers) - 1)

    def weight(self, name: Any) -> Tensor:
        """Return the tensor of such a name."""
        if name[0] == "stranger":
            return self.strangers[name[1]]
        return self.twins[name[1]].tensor(name[2])

    @contextmanager
    def _without_hooks(self, handle: int, module: int, table: str, key: int) -> Iterator[None]:
        hooks = getattr(self.twins[handle].modules[module], table)
        saved = dict(hooks)
        hooks.pop(key, None)
        try:
            yield
        finally:
            hooks.clear()
            hooks.update(saved)

    # ---- the questions -------------------------------------------------------------------------

    @property
    def pipeline(self) -> Pipeline:
        """The student's pipeline, built when it is first needed."""
        if self._pipeline is None:
            built = self.build()
            if isinstance(built, nn.Module):
                built = Pipeline(built)
            if not isinstance(built, Pipeline):
                raise TypeError(
                    f"build_pipeline must return a diagnostics.Pipeline or a torch.nn.Module, "
                    f"got {type(built).__name__}"
                )
            self._pipeline = built
        return self._pipeline

    def describe(self) -> Any:
        """Say which parts there are, and the constants."""
        pipeline = self.pipeline
        parts = {
            name: signature_of(part)
            for name in PARTS
            if callable(part := getattr(pipeline, name)) and name != "tokenizer"
        }
        tokenizer = pipeline.tokenizer
        return {
            "model": self.pack(pipeline.model),
            "parts": parts,
            "tokenizer": None if tokenizer is None else _drawn_tokenizer(tokenizer),
            "batch": None if callable(pipeline.batch) else self.pack(pipeline.batch),
            "constants": self.pack({name: getattr(pipeline, name) for name in CONSTANTS}),
            "entry": {
                "grad": torch.is_grad_enabled(),
                "inference": torch.is_inference_mode_enabled(),
                "anomaly": torch.is_anomaly_enabled(),
                "autocast": torch.is_autocast_enabled("cpu"),
                "default_dtype": str(torch.get_default_dtype()).removeprefix("torch."),
            },
        }

    def files(self) -> Any:
        """Return (folder, name, content, time of its last change, is listed) of each file."""
        listed = [Path(path) for path in self.pipeline.files]
        cards = {path.with_name(CARD) for path in listed} - {*listed}
        folders = sorted({path.parent for path in listed})
        found, left = [], FILE_BYTES_MAX
        for path in [*listed, *sorted(card for card in cards if card.is_file())]:
            content = bytearray(path.read_bytes()) if path.is_file() else None
            left -= len(content or b"")
            if left < 0:
                raise ValueError(f"the files take more than {FILE_BYTES_MAX} bytes")
            value = None if content is None else torch.empty(0, dtype=torch.uint8)
            if content:
                value = torch.frombuffer(content, dtype=torch.uint8)
            changed_at = 0.0 if content is None else path.stat().st_mtime
            folder = folders.index(path.parent)
            found.append((folder, path.name, value, changed_at, path not in cards))
        return found

    def part(self, name: str, arguments: Any, named: Any) -> Any:
        """Call a part of the pipeline."""
        return self._run(getattr(self.pipeline, name), arguments, named)

    def call(self, handle: int, module: int, arguments: Any, named: Any) -> Any:
        """Call a module of a model."""
        return self._run(self.twins[handle].modules[module], arguments, named)

    def vjp(self, number: int, gradients: list[Tensor | None], wanted: list[bool]) -> Any:
        """Return the product of gradients with the Jacobian of a call: one for each leaf."""
        graph = self.graphs.get(number)
        if graph is None:
            raise RuntimeError("the graph of this call has been freed: it was too long ago")
        return graph.vjp(gradients, wanted)

    def meta(self, handle: int, module: int, arguments: Any, named: Any) -> Any:
        """Call a copy on the meta device, and return what it gives."""
        copied = clone(self.roots[handle]).to("meta")
        numbered = list(copied.modules())[module] if module else copied
        args = [a.to("meta") if isinstance(a, Tensor) else a for a in self.open(arguments)]
        with DeviceWatch():
            given = numbered(*args, **self.open(named))
        return [list(t.shape) for t in _tensors_of(given)]

    def clone(self, handle: int) -> Any:
        """Copy a model as the checks do, and return the handle of the copy."""
        copied = clone(self.roots[handle])
        _, drawing = draw(copied)
        new = next(self.numbers)
        twin = Twin(new, drawing.modules, drawing.places, drawing.objects)
        old = self.twins[handle]
        if twin.places != old.places or len(twin.modules) != len(old.modules):
            raise RuntimeError("a copy of the model is made of other parts than the model")
        twin.agree(attributes=False)
        self.twins[new], self.roots[new] = twin, copied
        return new

    def train(self, handle: int, module: int, mode: bool) -> None:
        """Switch a module by the method `train` of its own class."""
        self.twins[handle].modules[module].train(mode)

    def step(self, number: int, with_closure: bool) -> Any:
        """Step an optimizer that the other side holds too."""
        optimizer = self.optimizers[number].optimizer
        if not with_closure:
            return self.pack(optimizer.step())
        return self.pack(optimizer.step(self.events.closure))

    def tokenizer_get(self, name: str) -> Any:
        """Return an attribute of the tokenizer, or the signature of a method."""
        value = getattr(self.pipeline.tokenizer, name)
        if callable(value):
            return ("method", signature_of(value))
        return ("value", self.pack(value))

    def tokenizer_call(self, name: str, arguments: Any, named: Any) -> Any:
        """Call a method of the tokenizer."""
        return self._run(getattr(self.pipeline.tokenizer, name), arguments, named)

    def next(self, number: int) -> Any:
        """Return the next thing of an iterator; StopIteration goes over as an error."""
        return self.pack(next(self.iterators[number]))


def _tensors_of(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    parts = value.values() if isinstance(value, Mapping) else value
    return (
        [t for part in parts for t in _tensors_of(part)]
        if isinstance(value, (Mapping, tuple, list))
        else []
    )


def _base_of(optimizer: Any) -> str | None:
    for kind in type(optimizer).__mro__:
        if kind is not Optimizer and getattr(torch.optim, kind.__name__, None) is kind:
            return str(kind.__name__)
    return None


def _drawn_tokenizer(tokenizer: Any) -> dict[str, Any]:
    return {"kind": type(tokenizer).__name__, "has_length": hasattr(tokenizer, "__len__")}


def _nothing(value: Any) -> Any:
    return NOTHING
