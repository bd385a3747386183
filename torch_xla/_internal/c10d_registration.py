"""2.9 registers a broadcast for `torch.distributed._functional_collectives` here."""

# It is a kernel of the extension.
broadcast_xla = None
