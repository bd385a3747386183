"""The page that `torch_xla.debug.report` writes."""
