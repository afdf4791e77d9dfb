"""The words with which people describe a symptom, by meaning. Read by `_phrases`."""

from __future__ import annotations

# Several words that mean one thing, as a pattern over lower-case text, and the word for it.
SEVERAL_WORDS = (
    (r"\bup and down\b", "swings"),
    (r"\b(?:go|goes|going|went|gone|come|coming|comes)\s+down\b", "falls"),
    (r"\b(?:go|goes|going|went|gone|shoot|shoots|blow|blows|blew)\s+up\b", "rises"),
    (r"\b(?:again and again|over and over|in (?:circles|a loop))\b", "repeats"),
    (r"\bsame (?:words?|tokens?|letters?|characters?|sentences?|phrases?|lines?)\b", "repeats"),
    (r"\bsame (?:text|output|answer|thing)s?\b", "sametext"),
    (r"\bonly (?:one|a single) (?:token|class|letter|word)\b|\bsame class\b", "oneclass"),
    (r"\bspaces only\b|\bonly spaces\b", "oneclass"),
    (r"\b(?:one|a|the|single|same)\s+(?:single\s+)?batch\b(?! size)", "onebatch"),
    (r"\bmini ?batch\b", "batch"),
    (r"\btoo good to be true\b", "toogood"),
    (r"\b(?:ln|log)\s*\(?\s*(?:v|vocab(?:_size)?|[0-9]+)\b\)?|\brandom guess\b", "uniform"),
    (r"\b(?:makes?|making) no sense\b|\bfalls? apart\b", "garbage"),
    (r"\bafter (?:\d+|some|many|a few) (?:tokens|characters|words)\b", "afterblock"),
    (r"\bnothing to do with\b|\bno effect\b", "ignored"),
    (r"\bout of (?:\w+ )?memory\b|\boom\b", "memory exhausted"),
    (r"\bout of (?:range|bounds?)\b", "outofrange"),
    (r"\bdevice side\b", "deviceside"),
    (r"\bsame device\b", "otherdevice"),
    (r"\bover ?fit(?:s|ted|ting)?\b", "overfit"),
    (r"\bunder ?fit(?:s|ted|ting)?\b", "underfit"),
    (r"\bcross ?entropy\b", "loss"),
    (r"\blearning rate\b", "rate"),
    (r"\bstate ?dict\b", "checkpoint"),
    (r"\b(?:block size|context (?:length|window|size))\b", "block"),
    (r"\b(?:at )?(?:step|epoch|iteration) (?:0|zero)\b", "initial"),
    (r"\b(?:each|every) time\b", "differ"),
    (r"\bmulti ?(?:gpu|process)s?\b|\b(?:several|multiple|two|many) (?:gpus|processes)\b", "ranks"),
    (r"\bno longer\b", "stopped"),
    (r"\bat chance\b", "chance"),
    (r"\bscalar type\b", "dtype"),
    (r"\b(?:takes|take) forever\b", "slow"),
    (r"\bgrad(?:ient)? norms?\b", "gradient"),
    (r"\bzig ?zag(?:s|ging)?\b", "swings"),
)

# meaning -> the words for it; endings such as -s and -ing are taken off before comparing
MEANINGS = {
    "loss": "loss losses cost nll perplexity",
    "train": "train training trained",
    "validation": "validation val valid validate dev eval evaluation evaluate test heldout",
    "accuracy": "accuracy acc",
    "fall": "fall falls fell drop drops decrease decline reduce descend shrink sink",
    "rise": "rise rises rose increase grow grows climb raise up",
    "explode": "explode diverge unstable",
    "jump": "jump jumps spike spikes",
    "swing": "swing swings noisy oscillate bounce fluctuate jagged wobble",
    "stuck": "stuck flat constant stay stays stand stands frozen unchanged",
    "stall": "stall stalls plateau stagnate saturate",
    "learn": "learn learns learning converge improve improves memorise memorize memorised",
    "move": "move change update updating budge",
    "nan": "nan nans inf infinite infinity nonfinite",
    "low": "low small tiny zero good great perfect little vanish",
    "high": "high large big huge above higher bigger",
    "below": "below lower less better under smaller",
    "worse": "worse worsen degrade degrades deteriorate",
    "start": "start starts starting initial first begin begins beginning fresh",
    "slow": "slow slowly slower sluggish",
    "fast": "fast faster quick quickly",
    "text": "text sample samples output generation generate generated writes write",
    "repeat": "repeat repeats repetition repetitive repeating loop loops",
    "garbage": "garbage gibberish nonsense rubbish chaos chaotic random junk bad incoherent noise",
    "prompt": "prompt prompts",
    "ignore": "ignore ignores ignored disregard unused sametext",
    "resume": "resume resumed resuming restart restarted continue continued",
    "load": "load loads loaded loading reload restore",
    "checkpoint": "checkpoint checkpoints ckpt saved",
    "after": "after once following",
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
    "run": "run runs result results",
    "batch": "batch batches",
    "pad": "pad pads padding padded",
    "ranks": "ranks rank gpu gpus ddp distributed process processes",
    "hang": "hang hangs hung freeze freezes deadlock",
    "index": "index target indices",
    "outofrange": "outofrange indexerror",
    "assert": "assert deviceside assertion",
    "shape": "shape shapes dimension dimensions multiplied mat1",
    "mismatch": "mismatch match",
    "size": "size sizes",
    "key": "key keys",
    "missing": "missing absent",
    "unexpected": "unexpected",
    "dtype": "dtype dtypes",
    "otherdevice": "otherdevice device devices",
    "character": "character characters letter letters accent accents capital",
    "wrong": "wrong incorrect exchanged swapped broken cipher unknown",
    "end": "end ends stop stops ending stopped",
    "early": "early soon short empty fewer",
    "fail": "fail fails error errors crash crashes cannot cant",
    "block": "block long",
    "overfit": "overfit overfits",
    "underfit": "underfit",
    "onebatch": "onebatch",
    "oneclass": "oneclass",
    "uniform": "uniform",
    "toogood": "toogood suspicious suspiciously",
    "chance": "chance",
    "both": "both",
    "always": "always every each constantly",
    "gap": "gap",
    "predict": "predict predicts prediction",
    "rate": "rate lr",
    "repeatable": "reproducible repeatable deterministic reproduce",
    "finite": "finite",
    "afterblock": "afterblock",
    "matter": "matter matters affect influence",
    "forget": "forget forgets forgot",
}

NEGATIONS = "not never no dont doesnt isnt wont cant cannot didnt arent hardly barely nothing"

# "not" and, within three words, one of these meanings: what it says together
NEGATED = {
    "fall": "stuck",
    "learn": "stuck",
    "move": "stuck",
    "finite": "nan",
    "repeatable": "unrepeatable",
    "load": "loadfails",
    "exhausted": "exhausted",  # "does not fit in memory"
    "end": "endless",
    "low": "garbage",  # "not good"
    "fast": "slow",
    "below": "high",
    "matter": "ignore",
    "overfit": "stuck",
}
# "stop" and one of these: it was there before
STOPPED = {"fall": "stall", "learn": "stall"}

# ordinary words that are spelt nearly like one of the above
ORDINARY = (
    "state model step steps epoch epochs there these those about only then than when with from "
    "have what that this some several place paper while which where were will would should could "
    "more most much many very your mine into like line lines same such word words token tokens "
    "hundred thousand iteration iterations vocabulary vocab just still even also between beyond "
    "does been being their them they here value values number numbers time times code python "
    "look looks looked stick curve work works again why how its it is are the a an of to in on at "
    "by my me i we"
)
