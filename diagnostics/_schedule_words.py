"""The words of the schedule check: each fault, with its cause and remedy."""

from __future__ import annotations

from diagnostics._fault import Fault
from diagnostics._result import Status

WARN = Status.WARN
_PRINT = "print [learning_rate(s) for s in range(0, max_steps, max_steps // 20)]"

NOT_FINITE = Fault(
    "schedule.not_finite",
    "the schedule gives a rate that is not a finite number",
    "finite rates at every step of the run",
    _PRINT,
    ("a division by a warm-up or decay of 0 steps",),
)
NOT_REPEATABLE = Fault(
    "schedule.not_repeatable",
    "the rate of step {step} depends on what was asked before",
    "a function of the step alone, so that a resumed run sees the same rates",
    "compute the rate from the step, without a counter inside",
    ("the schedule counts its calls, or reads a scheduler that moves on",),
)
NEGATIVE = Fault(
    "schedule.negative",
    "the rate is negative at step {step}: from there on steps go uphill",
    "0 or more at every step, also after the end",
    "bound the progress by 1: progress = min(1.0, step / max_steps)",
    ("a linear decay goes on below 0 when steps go beyond its end",),
)
ALWAYS_ZERO = Fault(
    "schedule.always_zero",
    "the rate is 0 at every step",
    "a positive peak",
    _PRINT,
    ("integer division, such as step // warmup, or a peak of 0",),
)
PEAK_NEVER_REACHED = Fault(
    "schedule.peak_never_reached",
    "the rate still rises when the run of {steps:step|steps} ends: its peak is never reached",
    "a warm-up that ends in the first tenth of the run",
    "set the warm-up in steps of this run",
    ("the warm-up is counted in other units, or was set for a longer run",),
)
PER_MICRO_BATCH = Fault(
    "schedule.per_micro_batch",
    "the schedule moves {micro} places per step: it is over at step {end} of {steps}, with {share} "
    "of the run to come",
    "one place per optimizer step",
    "step the scheduler after optimizer.step(), outside the loop over micro-batches",
    ("scheduler.step() stands inside the accumulation loop",),
)
PER_MICRO_BATCH_SEEN = Fault(
    PER_MICRO_BATCH.reason,
    "the schedule moves {micro} places per optimizer step, one for each micro-batch",
    PER_MICRO_BATCH.expected,
    PER_MICRO_BATCH.next_step,
    PER_MICRO_BATCH.causes,
)
ENDS_AT_ZERO_EARLY = Fault(
    "schedule.ends_at_zero_early",
    "the rate is 0 from step {end} of {steps} on: {share} of the run learns nothing",
    "a floor that is reached at the end of the run",
    "decay over max_steps",
    ("the decay is counted in other units, or was set for a shorter run",),
)
ENDS_EARLY = Fault(
    "schedule.ends_early",
    "the rate reaches its floor at step {end} of {steps}, with {share} of the run to come",
    "a floor that is reached at the end of the run, unless a tail is intended",
    "decay over max_steps",
    ("the decay is counted in other units, or a long tail is intended",),
    status=WARN,
)
ENDS_LATE = Fault(
    "schedule.ends_late",
    "the decay goes on long after the run of {steps:step|steps} has ended",
    "a floor that is reached at the end of the run",
    "decay over max_steps",
    ("the decay was set for a longer run",),
    status=WARN,
)
RISES_AFTER_END = Fault(
    "schedule.rises_after_end",
    "after the end of the run the rate rises again",
    "the floor, for runs that are prolonged",
    "bound the progress by 1: progress = min(1.0, step / max_steps)",
    ("a cosine goes on beyond half a period",),
    status=WARN,
)
RISES_AGAIN = Fault(
    "schedule.rises_again",
    "the decay is over at step {turn} of {steps}, and the rate rises again until the end",
    "the lowest rate of the decay at the last step",
    "bound the progress by 1, and decay over max_steps",
    ("the decay was set for {turn} steps, and its curve, such as a cosine, turns beyond them",),
)
RISES_AGAIN_WARMUP = Fault(
    RISES_AGAIN.reason,
    RISES_AGAIN.claim,
    RISES_AGAIN.expected,
    "let progress be (step - warmup) / (max_steps - warmup)",
    (
        "the progress of the decay is step / (max_steps - warmup): the warm-up of "
        "{warm:step|steps} is not subtracted from the step",
    ),
)
RISES_AGAIN_MAYBE = Fault(
    RISES_AGAIN.reason,
    RISES_AGAIN.claim,
    RISES_AGAIN.expected,
    "nothing to mend if a second rise is intended; otherwise print learning_rate from there on",
    ("a decay that was set for fewer steps, or cycles that are intended",),
    status=WARN,
)
ZERO_AT_FIRST_STEP = Fault(
    "schedule.zero_at_first_step",
    "the rate of the first step is 0: that step is wasted",
    "peak / warm-up steps at step 0",
    "use (step + 1) / warmup",
    ("the warm-up is step / warmup, with steps from 0",),
    status=WARN,  # some recipes accept it
)
ZERO_INSIDE = Fault(
    "schedule.zero_inside",
    "the rate is 0 at step {step}, in the middle of the run",
    "a positive rate until the end",
    _PRINT,
    ("a restart begins at 0, or two parts of the schedule do not meet",),
    status=WARN,
)
RESTART = Fault(
    "schedule.restart",
    "the rate jumps up at step {step}, after it had fallen",
    "a smooth curve, unless warm restarts are intended",
    "nothing to mend if restarts are intended; otherwise print learning_rate around there",
    ("a schedule with periods, or a step counter that starts again",),
    status=WARN,
)
JUMP = Fault(
    "schedule.jump",
    "the rate jumps up at step {step} by more than a fifth of its peak",
    "a warm-up that meets the peak",
    "print learning_rate around the end of the warm-up",
    ("warm-up and decay have different peaks or counters",),
    status=WARN,
)
DROP_AFTER_WARMUP = Fault(
    "schedule.drop_after_warmup",
    "the rate drops at step {step}, right after the warm-up",
    "a decay that begins at the peak",
    "count the progress of the decay from the end of the warm-up",
    ("warm-up and decay have different peaks or counters",),
    status=WARN,
)
NOT_APPLIED = Fault(
    "schedule.not_applied",
    "the step asks for the learning rate, and no group of the optimizer ever gets it",
    "group['lr'] as the schedule has it",
    "for group in optimizer.param_groups: group['lr'] = learning_rate(step)",
    ("the rate is computed and not assigned",),
)
ONLY_SOME_GROUPS = Fault(
    "schedule.only_some_groups",
    "the rate of {count_still} of {total:parameter group|parameter groups} stands still while "
    "the others follow",
    "all groups follow the schedule, each with a factor of its own if need be",
    "for group in optimizer.param_groups: group['lr'] = learning_rate(step)",
    ("the rate is assigned to param_groups[0] alone",),
)
OTHER_RATES = Fault(
    "schedule.other_rates",
    "the rates that steps use follow another curve than the schedule",
    "learning_rate(step), up to one factor per group, one place per step",
    "log optimizer.param_groups[0]['lr'] beside learning_rate(step)",
    ("two schedules work at once, or one is stepped several times per step",),
)
SKIPPED_COUNTED = Fault(
    "schedule.skipped_counted",
    "the schedule moves on when the gradient overflows and the optimizer skips its step",
    "one place per update that is made",
    "step the scheduler only where the optimizer has stepped: compare scaler.get_scale()",
    ("scheduler.step() is called whether or not the scaler has skipped the update",),
    status=WARN,  # right for a schedule that counts the tokens that were read
)
