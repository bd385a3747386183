"""Helpers of training scripts: lines that report their progress."""
