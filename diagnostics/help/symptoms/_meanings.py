"""The words with which people describe a symptom, by meaning. Read by `_phrases`."""

from __future__ import annotations

# Several words that mean one thing, as a pattern over lower-case text, and the word for it.
SEVERAL_WORDS = (
    # what only looks like a symptom
    (r"\bnot (?:only|just|merely)\b", ""),
    (r"\b(train(?:ing)?|for|inner|outer|generation|sampling|eval\w*|main) loops?\b", r"\1"),
    (
        r"\b(?:small|smaller|tiny|little|big|bigger|large|larger|huge|long|short|simple)\s+"
        r"((?:gpt|model|network|net|dataset|data|corpus|vocab\w*|batch(?:es)?|gpu|context)\b)",
        r"\1",
    ),
    (r"\bhow long\b|\bno matter (?:how|what|which)\b|\ba little\b|\bas long as\b", ""),
    (r"\b(?:refuses?|fails?|failed|failing|unable|struggles?|struggling) to\b", "not"),
    (r"\b(?:learns?|learned|learnt|learning) nothing\b", "not learning"),
    (r"\b(?:not|never|dont|doesnt|wont|cant|didnt) (?:go|get)(?: down)? to\b", "not reach"),
    (r"\b(?:stops?|ends?) before\b", "ends early"),
    # curves
    (r"\b(?:training|learning|loss) curves?\b(?! is the same)", "train loss"),
    (r"\bvalidation curves?\b", "validation loss"),
    (r"\b(?:no|zero|little|any) (?:progress|improvement|learning|change)\b", "stuck unlearnt"),
    (
        r"\b(?:not|never|dont|doesnt|wont|cant|cannot|didnt) (?:go|get|gets|rise|climb|move)s? "
        r"(?:above|over|higher|past|beyond)\b",
        "norise",
    ),
    (r"\s<\s", "below"),
    (r"\s>\s", "above"),
    (r"\bmixed up\b|\bjumbled\b|\bscrambled\b", "wrong"),
    (r"\bup and down\b|\ball over the place\b", "swings"),
    (r"\b(?:go|goes|going|went|gone|come|coming|comes|get|gets|getting)\s+down\b", "falls"),
    (r"\b(?:blow|blows|blew|blown|blowing)\s+up\b", "explodes"),
    (r"\b(?:go|goes|going|went|gone|shoot|shoots|shot|creeps?)\s+up\b", "rises"),
    (
        r"\bsame (?:loss|curve)\b|\b(?:loss|curve)s? (?:is|are|stays?) (?:exactly )?the same\b",
        "samecurve",
    ),
    (r"\b(?:does|do|did|doing) nothing\b", "stuck"),
    (r"\bstopped (?:working|training)\b", "fails"),
    (r"\bno longer\b", "stopped"),
    (r"\btoo good to be true\b", "toogood"),
    (r"\b(?:ln|log)\s*\(?\s*(?:v|vocab(?:_size)?|[0-9]+)\b\)?|\brandom guess\b", "uniform"),
    (r"\bat chance\b", "chance"),
    (r"\bzig ?zag(?:s|ging)?\b", "swings"),
    # text
    (r"\b(?:again and again|over and over|in (?:circles|a loop|an? \w+ loop))\b", "repeats"),
    (r"\bstuck (?:repeating|repeats)\b", "repeats"),
    (r"\bsame (?:words?|tokens?|letters?|characters?|sentences?|phrases?|lines?)\b", "repeats"),
    (r"\bsame (?:text|output|answer|thing)s?\b", "sametext"),
    (
        r"\bonly (?:one|a single) (?:token|class|letter|word)\b|\bsame class\b"
        r"|\b(?:most (?:common|frequent)|majority) (?:class|token|letter|character|word)\b",
        "oneclass",
    ),
    (r"\bspaces only\b|\bonly (?:white)?spaces?\b", "oneclass"),
    (r"\b(?:not|doesnt|dont|didnt) (?:really )?make (?:any |much )?sense\b", "garbage"),
    (r"\b(?:makes?|making) (?:no|little|zero) sense\b|\bfalls? apart\b", "garbage"),
    (
        r"\b(?:after|for|beyond|past) (?:about |around |ca )?~?"
        r"(?:\d+|some|many|a few|two|three|ten) (?:tokens|chars|characters|words|letters)\b",
        "afterblock",
    ),
    (r"\blong(?:er)? (text|prompt|sequence|generation|sample|output)s?\b", r"block \1"),
    (r"\b(?:block size|context (?:length|window|size)|max(?:imum)? length)\b", "block"),
    (r"\bnothing to do with\b|\bno effect\b|\bno influence\b", "ignored"),
    # batches, loss, evaluation
    (r"\bbatch(?: ?size)?(?: of)? (?:1|one)\b(?! epoch)", "batchone"),
    (r"\b(?:one|1|a|the|single|same)\s+(?:single\s+)?(?:mini ?)?batch\b(?! size)", "onebatch"),
    (r"\bmini ?batch\b", "batch"),
    (r"\bfit\s+(?:even\s+)?onebatch\b", "overfit onebatch"),
    (r"\bover ?fit(?:s|ted|ting)?\b", "overfit"),
    (r"\boverfit tests?\b", "overfit"),
    (r"\bunder ?fit(?:s|ted|ting)?\b", "underfit"),
    (r"\bcross ?entropy\b", "loss"),
    (r"\b(?:at )?(?:step|epoch|iteration) (?:0|zero)\b", "initial"),
    (
        r"\b(?:lr|(?:learning )?rate) (?:is |was )?(?:way |much |far )?(?:too )?"
        r"(?:low|small|tiny)\b|\b(?:low|small|tiny) (?:lr|(?:learning )?rate)\b",
        "lowrate",
    ),
    (
        r"\b(?:lr|(?:learning )?rate) (?:is |was )?(?:way |much |far )?(?:too )?"
        r"(?:high|large|big)\b|\b(?:high|large|big) (?:lr|(?:learning )?rate)\b",
        "highrate",
    ),
    (r"\blearning rate\b", "rate"),
    (r"\b(?:each|every) (?:time|run)\b|\beverytime\b|\ball the time\b", "always"),
    (r"\b(?:two|both|identical|repeated) runs\b", "identical runs"),
    # gradients, running
    (r"\bgrad(?:ient)? norms?\b", "gradient"),
    (
        r"\b(?:(?:no|without|dont|doesnt|does not|do not|never|didnt)"
        r" (?:(?:get|have|receive)s? )?(?:any |an? )?)grad(?:ient)?s?\b",
        "gradient none",
    ),
    (r"\bout of (?:\w+ )?(?:memory|vram|ram)\b|\boom\b", "memory exhausted"),
    (r"\bout of (?:range|bounds?)\b|\bindex ?error\b", "index outofrange"),
    (r"\bdevice side\b", "deviceside"),
    (r"\bsame device\b|\b(?:two|different|multiple) devices\b", "otherdevice"),
    (r"\bstate ?dict\b", "checkpoint"),
    (
        r"\bmulti(?:ple)? ?(?:gpu|process)(?:es|s)?\b"
        r"|\b(?:several|multiple|two|four|many|all|\d+) (?:gpus|processes|nodes)\b",
        "ranks",
    ),
    (r"\bscalar type\b", "dtype"),
    (r"\b(?:takes|take|taking) (?:forever|ages|hours|too long|so long|very long)\b", "slow"),
    (r"\b(?:tok(?:en)?s?|it(?:eration)?s?|steps?|samples?) (?:s|sec|per second)\b", "speed"),
    (r"\bsame speed\b|\bno speed ?up\b", "slow"),
)

# meaning -> the words for it; endings such as -s and -ing are taken off before comparing
MEANINGS = {
    "loss": "loss losses cost nll perplexity",
    "train": "train training trained",
    "validation": "validation val valid validate dev eval evaluation evaluate test heldout",
    "accuracy": "accuracy acc",
    "fall": "fall falls fell drop drops decrease decline reduce descend shrink sink "
    "minimise minimize",
    "rise": "rise rises rose increase grow grows climb raise",
    "explode": "explode explosion skyrocket soar diverge divergence unstable",
    "stable": "stable",
    "jump": "jump jumps spike spikes",
    "swing": "swing swings noisy oscillate bounce fluctuate jagged wobble wiggly erratic",
    "stuck": "stuck flat flatline flatlines constant stay stays hover hovers remain remains stand "
    "stands frozen unchanged sits",
    "norise": "norise",
    "stall": "stall stalls plateau stagnate saturate",
    "learn": "learn learns learning learnt converge improve improves improvement progress memorise "
    "memorize memorised",
    "move": "move moves moving change update updating budge",
    "nan": "nan nans inf infinite infinity nonfinite",
    "low": "low small tiny zero perfect perfectly vanish",
    "good": "good great nice well okay",
    "high": "high large larger largest big huge above higher bigger",
    "below": "below lower less better under smaller",
    "worse": "worse worst worsen degrade degrades deteriorate collapse",
    "start": "start starts starting initial initially initialized initialised init untrained first "
    "begin begins began beginning fresh",
    "slow": "slow slower sluggish",
    "slowly": "slowly",
    "speed": "speed throughput tps",
    "fast": "fast faster quick quickly",
    "text": "text spit spits produce produces sample samples output generation generate generated "
    "generates writes write",
    "repeat": "repeat repeats repetition repetitive repeating",
    "loop": "loop loops looping",
    "garbage": "garbage gibberish nonsense rubbish chaos chaotic random junk bad incoherent noise "
    "terrible awful horrible unreadable illegible meaningless senseless mashing sucks break breaks",
    "prompt": "prompt prompts",
    "ignore": "ignore ignores ignored disregard unused sametext",
    "resume": "resume resumed resuming restart restarted continue continued",
    "load": "load loads loaded loading reload restore",
    "checkpoint": "checkpoint checkpoints ckpt saved",
    "after": "after afterwards once following beyond past",
    "memory": "memory vram ram",
    "exhausted": "exhausted leak killed fit",
    "gradient": "gradient gradients grad grads",
    "none": "none null",
    "require": "require requires",
    "clip": "clip clips clipped clipping",
    "weight": "weight weights parameter parameters param params",
    "seed": "seed seeds seeded",
    "differ": "differ differs different differently varies vary other",
    "unrepeatable": "nondeterministic irreproducible unreproducible nonreproducible",
    "run": "run runs running",
    "result": "result results answer answers number numbers",
    "batch": "batch batches",
    "pad": "pad pads padding padded",
    "ranks": "ranks rank ddp fsdp distributed processes gpus torchrun",
    "samecurve": "samecurve",
    "hang": "hang hangs hung freeze freezes deadlock",
    "index": "index target targets indices",
    "outofrange": "outofrange",
    "assert": "assert deviceside assertion",
    "shape": "shape shapes dimension dimensions multiplied mat1",
    "mismatch": "mismatch match",
    "size": "size sizes",
    "key": "key keys",
    "missing": "missing absent",
    "unexpected": "unexpected",
    "expected": "expected expect",
    "dtype": "dtype dtypes",
    "otherdevice": "otherdevice device devices",
    "character": "character characters char chars letter letters accent accents accented "
    "umlaut capital",
    "wrong": "wrong incorrect exchanged swapped broken broke cipher unknown",
    "end": "end ends stop stops ending stopped finish finishes terminate terminates",
    "early": "early soon",
    "empty": "empty",
    "short": "short shorter",
    "fewer": "fewer",
    "asked": "asked requested",
    "fail": "fail fails failure error errors crash crashes cannot cant",
    "work": "work works working",
    "block": "block",
    "overfit": "overfit overfits",
    "underfit": "underfit",
    "onebatch": "onebatch",
    "batchone": "batchone",
    "oneclass": "oneclass",
    "uniform": "uniform",
    "toogood": "toogood suspicious suspiciously",
    "chance": "chance",
    "both": "both",
    "allright": "allright",
    "entropy": "entropy",
    "dropout": "dropout",
    "space": "space spaces whitespace",
    "generalize": "generalize generalise generalizes generalises generalization generalisation",
    "always": "always every each constantly",
    "gap": "gap",
    "predict": "predict predicts prediction",
    "rate": "rate lr",
    "lowrate": "lowrate",
    "highrate": "highrate",
    "repeatable": "reproducible repeatable deterministic reproduce",
    "finite": "finite",
    "afterblock": "afterblock",
    "matter": "matter matters affect influence depend depends care cares use uses",
    "reach": "reach reaches reached",
    "help": "help helps",
    "optimizer": "optimizer optimiser",
    "identical": "identical",
    "forget": "forget forgets forgot",
}

NEGATIONS = (
    "not never no non dont doesnt isnt wont cant cannot didnt arent hardly barely nothing without "
    "wasnt havent hasnt couldnt wouldnt neither nor aint dosnt dosent"
)

# "not" and, within three words, one of these meanings: what it says together, one or two meanings
NEGATED = {
    "fall": "stuck",
    "rise": "norise",
    "learn": "stuck unlearnt",
    "move": "stuck",
    "finite": "nan",
    "repeatable": "unrepeatable",
    "load": "loadfails",
    "exhausted": "exhausted",  # "does not fit in memory"
    "end": "endless",
    "good": "garbage",
    "fast": "slow",
    "below": "high stall",
    "reach": "stuck unreached",
    "help": "high stall",
    "matter": "ignore",
    "overfit": "stuck",
    "stable": "explode",
    "generalize": "gap",
    "work": "fail",
    "low": "high",
}
# Meanings of what is seen: denied, they say nothing. "It is not NaN, but ..."
DENIABLE = (
    "nan stuck explode jump swing stall repeat garbage slow worse high hang toogood wrong "
    "uniform loop fail ignore clip mismatch unrepeatable gap"
)
# "stop" and one of these: it was there before
STOPPED = {"fall": "stall", "learn": "stall"}
