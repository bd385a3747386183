"""Names that exist for programs of torch_xla 2.9 alone, a module for each area.

The public module of a name attaches it from here.
"""
