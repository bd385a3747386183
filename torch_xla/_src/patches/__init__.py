"""Changes of PyTorch's own functions, one module for each subject; `setup` installs them."""
