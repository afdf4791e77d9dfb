"""Help for a person who asks: from a symptom to a check, and checklists to tick."""
