"""The explanation of a run: its cost, its waits, its faults and its memory."""
