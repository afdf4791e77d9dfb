"""Causes of shapes that do not meet: matrix products, views, broadcasts, joins."""

from __future__ import annotations

import re

from diagnostics._text import say
from diagnostics.help.traceback._rules import Clues, Explanation, Rule, numbers, quoted, rule

_PRINT = "print the shapes of the operands on the line before the one above"


def _product(clues: Clues) -> Explanation | None:
    match = re.search(
        r"mat1 and mat2 shapes cannot be multiplied \((\d+)x(\d+) and (\d+)x(\d+)\)", clues.message
    )
    if match is None:
        return None
    _, width, features, outputs = (int(digits[:12]) for digits in match.groups())
    is_layer = clues.has_call("linear") or clues.has_file("torch/nn/modules/linear.py")
    if is_layer:
        cause = say(
            "a linear layer with {features:input|inputs} and {outputs:output|outputs} got "
            "vectors of {width:number|numbers}",
            features=features,
            outputs=outputs,
            width=width,
        )
    else:
        cause = say(
            "the first matrix has {width:column|columns}, the second {features:row|rows}",
            width=width,
            features=features,
        )
    if width == outputs and is_layer:
        cause = say("{cause}; with inputs and outputs exchanged it would fit", cause=cause)
    elif width == outputs:
        cause = say("{cause}; the other way round it would fit: transpose the second", cause=cause)
    return Explanation(
        name="shape.product", cause=cause, evidence=quoted(match.group()), next_step=say(_PRINT)
    )


def _view_size(clues: Clues) -> Explanation | None:
    match = re.search(
        r"shape '(\[[-\d, ]+\])' is invalid for input of size (\d{1,15})", clues.message
    )
    if match is None:
        return None
    sizes, count = numbers(match[1]), int(match[2])
    product = 1
    for size in sizes:
        product *= size if size != -1 else 1
    if -1 in sizes:
        cause = say(
            "{count} numbers do not fill {shape} evenly: {product} does not divide {count}",
            count=count,
            shape=match[1],
            product=product,
        )
    else:
        cause = say(
            "{shape} is {product} numbers, the tensor has {count}",
            shape=match[1],
            product=product,
            count=count,
        )
    return Explanation(
        name="shape.view_size", cause=cause, evidence=quoted(match.group()), next_step=say(_PRINT)
    )


RULES: tuple[Rule, ...] = (
    _product,
    _view_size,
    rule(
        "shape.view_stride",
        "RuntimeError",
        r"view size is not compatible with input tensor's size and stride",
        "the tensor was transposed or sliced, so that its numbers do not lie in "
        "the order that .view needs",
        "write .reshape(...) in the place of .view(...)",
    ),
    rule(
        "shape.broadcast",
        "RuntimeError",
        r"The size of tensor a \((?P<a>\d+)\) must match the size of tensor b "
        r"\((?P<b>\d+)\) at non-singleton dimension (?P<at>\d+)",
        "two tensors that are combined entry by entry have {a} and {b} entries in "
        "dimension {at}, and neither is 1",
        _PRINT,
    ),
    rule(
        "shape.expand",
        "RuntimeError",
        r"The expanded size of the tensor \((?P<a>\d+)\) must match the existing "
        r"size \((?P<b>\d+)\) at non-singleton dimension (?P<at>\d+)",
        "a tensor with {b} entries in dimension {at} was to be spread over {a}, "
        "and only 1 entry can be spread",
        _PRINT,
    ),
    rule(
        "shape.batched_product",
        "RuntimeError",
        r"Expected size for first two dimensions of batch2 tensor to be: "
        r"\[(?P<want>[\d, ]+)\] but got: \[(?P<got>[\d, ]+)\]",
        "in a batched product the second tensor must begin with [{want}] (batch, "
        "columns of the first), and begins with [{got}]; a missing transpose(-2, "
        "-1) looks like this",
        _PRINT,
    ),
    rule(
        "shape.same_dimension",
        "RuntimeError",
        r"a and b must have same reduction dim, but got (?P<a>\[[\d, ]+\]) X (?P<b>\[[\d, ]+\])",
        "a product of {a} and {b}: the columns of the first are not as many as the "
        "rows of the second",
        _PRINT,
    ),
    rule(
        "shape.concatenated",
        "RuntimeError",
        r"Sizes of tensors must match except in dimension (?P<at>\d+)\. Expected "
        r"size (?P<want>\d+) but got size (?P<got>\d+) for tensor number "
        r"(?P<which>\d+)",
        "tensors are joined along dimension {at}, and tensor number {which} "
        "(counted from 0) has {got} in another dimension where the first has {want}",
        _PRINT,
    ),
    rule(
        "shape.joined_dimensions",
        "RuntimeError",
        r"Tensors must have same number of dimensions: got (?P<a>\d+) and (?P<b>\d+)",
        "tensors are joined, and one has {a} dimensions, another {b}",
        "give the smaller one the missing dimension: tensor.unsqueeze(dim)",
    ),
    rule(
        "shape.layer_norm",
        "RuntimeError",
        r"Given normalized_shape=\[(?P<want>[\d, ]+)\], expected input with shape "
        r"\[[^\]]*\], but got input of size ?\[(?P<got>[\d, ]+)\]",
        "a layer norm of width {want} got a tensor of shape [{got}], whose last "
        "dimension is another",
        _PRINT,
    ),
    rule(
        "shape.heads",
        "AssertionError ValueError",
        r"embed_dim must be divisible by num_heads|embedding_dim must be a multiple "
        r"of num_heads, got (?P<dim>\d+) and (?P<heads>\d+)",
        "the embedding is shared out evenly among the heads, and its dimension is "
        "no multiple of their number",
        "choose an embedding dimension that is a multiple of the number of heads",
    ),
    rule(
        "shape.asserted_block",
        "AssertionError ValueError",
        r"Cannot forward sequence of length (?P<got>\d+), block size is only (?P<block>\d+)",
        "{got} tokens were given to a model whose block has {block} positions",
        "crop the row before the call: ids = ids[:, -{block}:]",
    ),
    rule(
        "shape.minigpt_block",
        "ValueError",
        r"at most block_size = (?P<block>\d+) tokens fit, got (?P<got>\d+)",
        "{got} tokens were given to a model whose block has {block} positions",
        "crop the row before the call: ids = ids[:, -{block}:]",
    ),
)
