"""Graphs of torch.compile, and what torch._dynamo asks about `xla`."""
