"""Settings of `torch.compile(backend="openxla")`."""

# Whether an argument that waits to be computed is an error. By default the program of the graph
# computes it.
skip_input_data_check = False
