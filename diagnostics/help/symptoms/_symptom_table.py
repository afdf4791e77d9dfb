"""The table of symptoms: everything a person can ask about, and every suspect behind it."""

from __future__ import annotations

from diagnostics.help.symptoms._suspects_data import DATA_SUSPECTS
from diagnostics.help.symptoms._suspects_loss import LOSS_SUSPECTS
from diagnostics.help.symptoms._suspects_model import MODEL_SUSPECTS
from diagnostics.help.symptoms._suspects_run import RUN_SUSPECTS
from diagnostics.help.symptoms._suspects_step import STEP_SUSPECTS
from diagnostics.help.symptoms._suspects_use import USE_SUSPECTS
from diagnostics.help.symptoms._symptom import Suspect, Symptom
from diagnostics.help.symptoms._symptoms_curve import CURVE_SYMPTOMS
from diagnostics.help.symptoms._symptoms_loss import LOSS_SYMPTOMS
from diagnostics.help.symptoms._symptoms_run import RUN_SYMPTOMS
from diagnostics.help.symptoms._symptoms_text import TEXT_SYMPTOMS
from diagnostics.help.symptoms._symptoms_validation import VALIDATION_SYMPTOMS

TOPICS: dict[str, tuple[Symptom, ...]] = {
    "the training loss": LOSS_SYMPTOMS,
    "one batch, gradients, updates": CURVE_SYMPTOMS,
    "validation": VALIDATION_SYMPTOMS,
    "text": TEXT_SYMPTOMS,
    "the run": RUN_SYMPTOMS,
}
SYMPTOMS: dict[str, Symptom] = {
    symptom.name: symptom for topic in TOPICS.values() for symptom in topic
}
SUSPECTS: dict[str, Suspect] = {
    suspect.name: suspect
    for suspect in (
        *DATA_SUSPECTS,
        *MODEL_SUSPECTS,
        *LOSS_SUSPECTS,
        *STEP_SUSPECTS,
        *USE_SUSPECTS,
        *RUN_SUSPECTS,
    )
}
