"""Steps that are saved, and what a recording of one must leave as it was."""
