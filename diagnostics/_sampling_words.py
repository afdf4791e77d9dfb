"""What each mistake of a sampling filter means, in words."""

from __future__ import annotations

_DIVIDE = "softmax(logits / temperature), before any filter"
_FILL = "logits.masked_fill(~kept, -inf), then softmax"
_NUCLEUS = "drop a token where the mass before it, cumsum - p, has reached top_p"

# reason: (claim, cause, next step)
MISTAKES = {
    "sampling.plain": ("with all filters off the result is not softmax(logits)", "", _DIVIDE),
    "sampling.logits": (
        "the logits come back, not probabilities",
        "softmax is missing",
        "return logits.softmax(dim=-1)",
    ),
    "sampling.log_probabilities": (
        "log-probabilities come back, not probabilities",
        "log_softmax in place of softmax",
        "return logits.softmax(dim=-1)",
    ),
    "sampling.unnormalised": (
        "the result does not sum to 1",
        "exp without the division by its sum",
        "return logits.softmax(dim=-1)",
    ),
    "sampling.argmax_only": (
        "everything lies on the most probable token where more should be kept",
        "a filter is always on, or argmax is taken whatever the settings say",
        "print the settings inside the function: which filter is on when it should be off",
    ),
    "sampling.softmax_twice": (
        "softmax is applied twice: the distribution is nearly flat",
        "probabilities are passed on as if they were logits",
        "apply softmax once, at the end",
    ),
    "sampling.logits_rescaled": (
        "logits are divided by their sum: that is no softmax",
        "torch.multinomial's own rescaling was imitated on raw logits",
        "return logits.softmax(dim=-1)",
    ),
    "sampling.negated": (
        "the least probable token comes first",
        "the sign of the logits is turned",
        _DIVIDE,
    ),
    "sampling.uniform": ("every token is equally probable", "the logits are not used", _DIVIDE),
    "sampling.temperature": (
        "a temperature does not give softmax(logits / temperature)",
        "",
        _DIVIDE,
    ),
    "sampling.temperature_ignored": (
        "the temperature has no effect",
        "the scaled tensor is not the one that is used",
        _DIVIDE,
    ),
    "sampling.temperature_inverted": (
        "a higher temperature sharpens the distribution",
        "logits are multiplied by the temperature",
        _DIVIDE,
    ),
    "sampling.temperature_twice": (
        "the temperature is applied twice",
        "the caller and the function both divide, or the logits are divided in place",
        _DIVIDE,
    ),
    "sampling.temperature_rooted": ("the square root of the temperature is applied", "", _DIVIDE),
    "sampling.temperature_after_softmax": (
        "probabilities are divided by the temperature, not logits",
        "softmax comes before the division",
        _DIVIDE,
    ),
    "sampling.top_k": ("top_k does not keep the k largest logits", "", _FILL),
    "sampling.top_k_ignored": (
        "top_k has no effect: every token can still be drawn",
        "the filtered tensor is not the one that is used",
        _FILL,
    ),
    "sampling.top_k_off_by_one": (
        "top_k keeps one token more or fewer than k",
        "> in place of >=, or an index that is off by one",
        "compare with the k-th largest: kept = logits >= logits.topk(k).values[-1]",
    ),
    "sampling.top_k_fill": (
        "tokens outside the top k keep a share: they are filled with a finite number",
        "-1e-10 or -10 in place of -inf: it lies among the logits, or above them",
        _FILL,
    ),
    "sampling.top_k_not_rescaled": (
        "what top_k keeps does not sum to 1",
        "probabilities are cut after the softmax and not divided by their sum",
        _FILL,
    ),
    "sampling.top_k_keeps_worst": (
        "top_k keeps the least probable tokens",
        "topk(largest=False), or a sort in ascending order",
        _FILL,
    ),
    "sampling.top_k_unsorted": (
        "the top-k mask is laid on the wrong tokens",
        "a mask over sorted tokens is applied to unsorted ones",
        "scatter the mask back: torch.zeros_like(mask).scatter(-1, order, mask)",
    ),
    "sampling.top_k_gathered": (
        "the top-k mask is laid on the wrong tokens: their mask is sorted once more",
        "gather, or mask[order], in place of scatter brings the mask back",
        "scatter the mask back: torch.zeros_like(mask).scatter(-1, order, mask)",
    ),
    "sampling.top_k_uniform": (
        "the k tokens that are kept are equally probable",
        "their logits are lost, only the mask is used",
        _FILL,
    ),
    "sampling.top_k_above_v": (
        "a top_k above the vocabulary size changes the distribution",
        "an index past the end wraps round or is cut to something else",
        "k = min(top_k, logits.shape[-1])",
    ),
    "sampling.ties": (
        "equal logits are filtered to fewer tokens than asked for, or do not sum to 1",
        "a strict comparison with the k-th value drops all that equal it",
        "keep with >= the k-th largest value, or by the indices of topk",
    ),
    "sampling.top_p": (
        "the nucleus is not the smallest set whose mass reaches top_p",
        "",
        _NUCLEUS,
    ),
    "sampling.top_p_ignored": (
        "top_p has no effect: every token can still be drawn",
        "the filtered tensor is not the one that is used",
        _NUCLEUS,
    ),
    "sampling.top_p_drops_crossing": (
        "the token that crosses top_p is dropped: the nucleus is too small",
        "cumsum <= top_p keeps only what lies fully below",
        _NUCLEUS,
    ),
    "sampling.top_p_keeps_one_more": (
        "the nucleus holds one token too many",
        "the mask is shifted by one, although the crossing token was kept already",
        _NUCLEUS,
    ),
    "sampling.top_p_not_rescaled": (
        "what the nucleus keeps does not sum to 1",
        "probabilities are cut and not divided by their sum",
        "divide by kept.sum()",
    ),
    "sampling.top_p_from_least": (
        "the nucleus is gathered from the least probable token upwards",
        "sort without descending=True",
        _NUCLEUS,
    ),
    "sampling.top_p_unsorted": (
        "the nucleus is laid on the wrong tokens",
        "a mask over sorted tokens is applied to unsorted ones",
        "scatter the mask back: torch.zeros_like(mask).scatter(-1, order, mask)",
    ),
    "sampling.top_p_gathered": (
        "the nucleus is laid on the wrong tokens: their mask is sorted once more",
        "gather, or mask[order], in place of scatter brings the mask back",
        "scatter the mask back: torch.zeros_like(mask).scatter(-1, order, mask)",
    ),
    "sampling.top_p_of_each": (
        "top_p is compared with single probabilities, not with their running sum",
        "the cumsum is missing",
        _NUCLEUS,
    ),
    "sampling.top_p_of_best": (
        "top_p is a share of the largest probability here, not a mass",
        "that is the rule of min-p",
        _NUCLEUS,
    ),
    "sampling.top_p_complement": (
        "the nucleus holds the mass 1 - top_p",
        "the comparison is turned round",
        _NUCLEUS,
    ),
    "sampling.top_p_empty": (
        "a small top_p leaves no token, or not the most probable one alone",
        "the first token, which crosses top_p at once, is dropped like any other",
        "keep the first of the sorted tokens whatever top_p is",
    ),
    "sampling.together": (
        "top_k and top_p together keep other tokens than either order of them",
        "one filter overwrites what the other has removed",
        "give the second filter the logits that the first one returns",
    ),
    "sampling.closed_tokens": (
        "a token with logit -inf gets a share, or spoils the others with NaN",
        "-inf is replaced, multiplied by 0, or subtracted from itself",
        _FILL,
    ),
    "sampling.overflow": (
        "large logits give NaN or another distribution",
        "exp() is taken of the logits themselves: it overflows above 88 in float32",
        "use softmax, which subtracts the maximum first",
    ),
    "sampling.half": (
        "half precision logits give NaN or another distribution",
        "a constant such as -1e9 does not fit in float16, or sums lose what is small",
        "compute in float32: logits = logits.float()",
    ),
    "sampling.remembers": (
        "the same call gives another distribution the second time",
        "settings or logits are kept from one call to the next",
        "keep nothing outside the function; divide into a new tensor",
    ),
}
