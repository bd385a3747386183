"""Settings of `torch.compile(backend="openxla")`."""

# Accepted. Arguments that wait to be computed are a part of the program; none is checked for that.
skip_input_data_check = False
