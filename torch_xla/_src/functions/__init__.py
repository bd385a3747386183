"""Functions of the user as graphs: regions, steps, loops and their gradients."""
