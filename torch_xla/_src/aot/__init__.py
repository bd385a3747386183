"""Programs for chips that are not there: what `torch_xla.aot` is made of."""
