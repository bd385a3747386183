// Programs as data for Python.
#pragma once

#include <string>

#include <pybind11/pybind11.h>

namespace torch_xla::python {

// Returns the parts of a module in MLIR's generic form, as Builder writes it: `mesh`, which is
// (names, sizes, devices) or None, and `functions` by name, each a tuple (arguments, operations).
// An operation is (name, operands, results, attributes, regions). Operands are numbers of values,
// arguments and results (number, dims, dtype), and regions like functions. Attributes are integers,
// tuples and texts by name; the entries of a structure such as dot_dimension_numbers stand among
// them.
pybind11::dict read_program(const std::string& text);

}  // namespace torch_xla::python
