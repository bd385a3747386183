"""Tools to see what a program does on its devices. Start with `torch_xla.debug.metrics`."""
