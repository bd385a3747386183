"""Random programs of views, writes, reads, gradients and syncs, on the CPU and on xla."""
