"""The executed table: every known silent bug, and the check and reason that catch it."""
