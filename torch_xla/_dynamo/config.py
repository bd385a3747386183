"""Settings of `torch.compile(backend="openxla")`."""

# True if an argument that waits to be computed is an error. By default the program of the graph
# computes it.
skip_input_data_check = False
