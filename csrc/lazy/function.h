// Function, a recorded computation over parameters. Everything that is compiled is a Function: the
// calls of a sync, the decomposition of an operator. The numbers and random seeds of its calls are
// parameters too, unless its user makes them constants.
#pragma once

#include <vector>

#include "lazy/node.h"

namespace torch_xla::lazy {

// Borrows its nodes.
struct Function {
  std::vector<const Node*> parameters;  // leaves
  std::vector<const Node*> calls;       // operands before users
  std::vector<Value> results;           // undefined where the function gives none
};

// Keeps its nodes: parameters are placeholders without data, and results keep the calls.
struct KeptFunction : Function {
  std::vector<Value> placeholders;  // of the parameters
};

}  // namespace torch_xla::lazy
