"""All rules, and what a program may be made of."""

from tests.fuzz import (  # noqa: F401  they register themselves
    rules_autograd,
    rules_compiled,
    rules_data,
    rules_ops,
)

# Steps of a program. Compilation dominates, and it grows with the steps.
LENGTH = (8, 22)

# Kinds of steps that a thread of a program may take.
IN_THREADS = {"factory", "view", "write", "index write", "copy", "op", "read", "sync", "backward"}
