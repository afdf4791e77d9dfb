"""The faults that `distributed` can name, in words."""

from __future__ import annotations

from diagnostics._fault import Fault
from diagnostics._result import Status

WARN = Status.WARN
ONE_PROCESS = (
    "the gradient of one process on the batches of all ranks together: a mean, with weights of 1"
)

WEIGHTS = Fault(
    "distributed.weights",
    "once replicate has run, rank {rank} holds other weights than rank 0: every rank trains a "
    "model of its own",
    "equal weights on all ranks, whatever each of them began with",
    "wrap the model in DistributedDataParallel, or broadcast each parameter from rank 0",
    (
        "nothing broadcasts the weights of rank 0",
        "the seed differs from rank to rank when the model is made",
    ),
)
NO_BROADCAST = Fault(
    "distributed.no_broadcast",
    "replicate leaves the weights of each rank as they are: they are equal only if every rank "
    "makes its model from one seed",
    "equal weights on all ranks, whatever each of them began with",
    "broadcast from rank 0 in replicate, or give Pipeline a make_model that sets the seed",
    ("nothing broadcasts the weights of rank 0",),
    status=WARN,
)
WEIGHTS_PARTLY = Fault(
    "distributed.weights_partly",
    "once replicate has run, rank {rank} holds other values than rank 0 in {count} of "
    "{total:parameter|parameters}; the others are equal",
    "every parameter equal on all ranks",
    "broadcast every parameter: loop over model.parameters() without a condition",
    ("the loop that broadcasts leaves some parameters out",),
)
SAME_SAMPLES = Fault(
    "distributed.same_samples",
    "ranks {first} and {second} learn from the same rows: {size} processes do the work of one",
    "other rows on every rank",
    "make the sampler depend on the rank: DistributedSampler, or a generator seeded seed + rank",
    (
        "the loader shuffles with one seed on every rank and is not told which rank it serves",
        "rank_batches leaves its argument rank unused",
    ),
)
SEEDED_ALIKE = Fault(
    "distributed.seeded_alike",
    "ranks {first} and {second} learn from the same rows if they start from one random state; "
    "nothing in rank_batches tells them apart",
    "other rows on every rank",
    "draw with a generator of its own, seeded seed + rank, inside rank_batches",
    ("rows are drawn with the global random state, which is the same on every rank at the start",),
    status=WARN,
)
OVERLAP = Fault(
    "distributed.overlap",
    "{shared} of {rows:row|rows} of rank {second} are also given to rank {first}",
    "rows that two ranks share by chance only, here about {chance}",
    "give each rank its own share: indices[rank::processes], or DistributedSampler",
    (
        "every rank goes through all data, in an order of its own",
        "the shares of the ranks overlap",
    ),
)
UNEVEN = Fault(
    "distributed.uneven",
    "rank {short} has {fewest:batch|batches} and rank {long} has {most}: the ranks with more wait "
    "for ever",
    "as many batches on every rank",
    "use drop_last=True, or pad the shorter shares as DistributedSampler does",
    (
        "the data are cut into shares without looking at the remainder",
        "shares of equal numbers of documents hold unequal numbers of batches",
    ),
)
SHAPES = Fault(
    "distributed.shapes",
    "batch {batch} has shape {a} on rank {first} and {b} on rank {second}: a mean over ranks "
    "gives the rows of the smaller one more weight",
    "equal shapes on all ranks",
    "give every rank the same number of rows, or weigh its loss by its share of the tokens",
    ("the last batch of a share is smaller",),
    status=WARN,
)
SAME_EPOCH = Fault(
    "distributed.same_epoch",
    "after {count} batches every rank goes through the same shuffled order again",
    "another order in each epoch",
    "call sampler.set_epoch(epoch) before each epoch",
    ("DistributedSampler seeds its shuffle with seed + epoch, and nobody tells it the epoch",),
    status=WARN,
)
LOCAL_GRADIENT = Fault(
    "distributed.local_gradient",
    "{who} steps with the gradient of its own data alone: nothing of the other ranks reaches it",
    ONE_PROCESS,
    "call the model that replicate returns, or all_reduce each p.grad before optimizer.step()",
    (
        "the step calls model.module, or the model from before it was wrapped, and so goes around "
        "the wrapper",
        "no_sync() is around every backward() of the step",
        "gradients are reduced before backward(), or into a copy that is not used",
    ),
)
AVERAGED_WEIGHTS = Fault(
    "distributed.averaged_weights",
    "each rank steps with the gradient of its own data, and the weights of all ranks are equal "
    "again after {call:call|calls}: weights are brought together in place of gradients",
    ONE_PROCESS,
    "if it is not local SGD on purpose, all_reduce each p.grad before optimizer.step()",
    ("weights are averaged after the step, while each rank's optimizer keeps a state of its own",),
    status=WARN,
)
STEPS = Fault(
    "distributed.steps",
    "in a call of {part} the optimizer steps {low:time|times} on rank {low_rank} and "
    "{high:time|times} on rank {high_rank}",
    "as many steps on every rank",
    "let every rank call optimizer.step(); only files are for rank 0 alone",
    ("optimizer.step() stands inside `if rank == 0`",),
)
NOT_FINITE = Fault(
    "distributed.not_finite",
    "the gradient with which rank {rank} steps is not finite: it holds NaN or infinity",
    ONE_PROCESS,
    "look at training_step first: it says whether one process alone has finite gradients",
)
ONE_RANK = Fault(
    "distributed.one_rank",
    "the gradient of {kept} alone is used on every rank: the data of the others are never learnt",
    ONE_PROCESS,
    "use all_reduce, not broadcast, for gradients",
    ("gradients are broadcast instead of added up",),
)
GRADIENT_SCALE = Fault(
    "distributed.gradient_scale",
    "with {size} processes the gradient is {factor} times that of one process on all their data",
    "the mean over the ranks: a factor of 1",
    "divide once by the number of processes",
    ("all_reduce adds up and nothing divides by the number of processes",),
)
DIVIDED_TWICE = Fault(
    "distributed.divided_twice",
    "with {size} processes the gradient is {factor} times that of one process on all their data: "
    "it is divided by the number of processes twice",
    "the mean over the ranks: a factor of 1",
    "leave out one of the two divisions; DistributedDataParallel divides by itself",
    ("the loss is divided by the number of processes, and the reduction averages as well",),
)
RANK_SCALE = Fault(
    "distributed.rank_scale",
    "rank {rank} steps with {factor} times the gradient of rank 0: the ranks drift apart, unless "
    "the optimizer normalises",
    "one gradient on all ranks",
    "print the norm of the gradient on each rank right before optimizer.step()",
    ("each rank divides by a number of its own, such as its own count of tokens",),
)
PARTIAL = Fault(
    "distributed.partial",
    "{count} of {total:parameter|parameters} step with the gradient of their own rank; the others "
    "with the mean over all ranks",
    ONE_PROCESS,
    "reduce every parameter that has a gradient, and reduce after the last backward()",
    (
        "the loop that reduces leaves some parameters out",
        "parameters are used around the wrapper, or were frozen when the model was wrapped",
    ),
)
PARTLY_SYNCHRONISED = Fault(
    "distributed.partly_synchronised",
    "of {parts:micro-batch|micro-batches} of the other ranks, {count:does|do} not reach rank "
    "{rank}: number {missing}",
    "the gradient of one process on the micro-batches of all ranks together",
    "put no_sync() around forward and backward of all micro-batches but the last",
    (
        "no_sync() is around the wrong micro-batches: a reduction takes along only what was "
        "accumulated before it",
    ),
)
CLIPPED_APART = Fault(
    "distributed.clipped_apart",
    "each rank cuts its gradient to a norm of {limit} before the reduction: a rank with a large "
    "gradient counts less",
    "the gradient of one process on the batches of all ranks together, cut once",
    "reduce first, then clip, then step",
    ("clip_grad_norm_ is called on gradients that are not reduced yet",),
)
RANK_WEIGHTS = Fault(
    "distributed.rank_weights",
    "a token of rank {low_rank} counts {low} and one of rank {high_rank} counts {high} in the step",
    "equal weight per token, or equal weight per rank",
    "print what each rank's gradient is multiplied with before the reduction",
)
UNEQUAL_COUNTS = Fault(
    "distributed.unequal_counts",
    "ranks count alike whatever they score, and yours score {low} and {high} tokens in one step",
    "equal weight per token: " + ONE_PROCESS,
    "scale each rank's summed loss by processes / all scored tokens of the step",
    ("the mean over ranks is a mean of means; with nearly equal counts a usual approximation",),
    status=WARN,
)
OTHER_GRADIENT = Fault(
    "distributed.other_gradient",
    "the gradient at the step is no mixture of the ranks' own gradients: {misfit:%} of it is "
    "something else",
    ONE_PROCESS,
    "look at training_step first: it names what one process does to its gradient",
    status=WARN,
)
NO_STEP = Fault(
    "distributed.no_step",
    "no optimizer step was seen in a call of {part}, so no gradient could be compared",
    "one step in each call",
    "look at training_step first: it says when your step steps",
    status=WARN,
)
DRIFT = Fault(
    "distributed.drift",
    "after {call:step|steps} rank {rank} holds other weights than rank 0, by {share:%} of what the "
    "steps changed",
    "equal weights on all ranks after every step",
    "print the learning rate and the state of the optimizer on each rank",
    (
        "the learning rate or another setting of the optimizer depends on the rank",
        "the state of the optimizer was loaded on one rank only",
        "something is added to gradients or weights after the reduction",
        "dist.reduce gives the sum to one rank only",
    ),
)
BUFFERS = Fault(
    "distributed.buffers",
    "{count} of {total:buffer|buffers} differ from rank to rank when the model is called: each "
    "rank keeps statistics of its own data",
    "equal buffers on all ranks",
    "use SyncBatchNorm, or broadcast_buffers=True, which DistributedDataParallel has by default",
    ("running statistics are updated on each rank and never brought together",),
    status=WARN,
)
EVALUATION = Fault(
    "distributed.evaluation",
    "evaluate gives {low} on rank {low_rank} and {high} on rank {high_rank} for the same weights "
    "and ids",
    "one value on all ranks, or a value on rank 0 and None elsewhere",
    "add up losses and counts over the ranks with all_reduce, then divide",
    (
        "each rank evaluates its share of the data and nothing brings the shares together; ranks "
        "then stop early, or keep a best checkpoint, at different steps",
    ),
    status=WARN,
)
UNUSED = Fault(
    "distributed.unused_parameters",
    "the wrapper waits for the gradients of {count:parameter|parameters} that the loss does not "
    "use, and raises at the second step",
    "a gradient for every parameter that the wrapper reduces",
    "remove or freeze the unused parameters, or wrap with find_unused_parameters=True",
    ("a module that forward() never calls, or calls only now and then",),
)
HANG = Fault(
    "distributed.hang",
    "the ranks wait for one another for ever: they do not make the same collective calls",
    "the same collective calls in the same order on every rank",
    "look for a collective call, or a call of the wrapped model, that only some ranks reach",
    (
        "a collective call stands inside `if rank == 0`, or in a branch that depends on the data",
        "one rank makes fewer backward() calls than the others",
    ),
)
