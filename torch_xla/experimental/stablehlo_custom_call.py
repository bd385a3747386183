"""Calls of what a compiler, or what reads an exported program, has under a name."""

from __future__ import annotations


def stablehlo_custom_call(*a):
    pass


def extract_custom_call_outputs_shape_dtype(n):
    pass
