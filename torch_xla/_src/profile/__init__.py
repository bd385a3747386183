"""Profiles, as TensorBoard and xprof read them."""
