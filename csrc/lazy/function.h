// Function, a recorded computation over parameters. Everything that is compiled is a Function: the
// calls of a sync, the decomposition of an operator. The numbers and random seeds of its calls are
// parameters too, unless its user makes them constants.
#pragma once

#include <cstdint>
#include <vector>

#include <c10/util/FunctionRef.h>

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

  // Adds a parameter for this leaf.
  void add_parameter(Value leaf);

  // Puts another leaf in the place of parameter `i`, also as an operand of the calls.
  void replace_parameter(size_t i, Value leaf);

  // What a node that the results need is to the function.
  enum class Part : uint8_t { Call, Parameter, Foreign };
  // Fills `calls` with what the results need, down to the parameters and to further leaves that
  // `part_of` makes parameters. Returns false at the first node that is foreign.
  bool collect(c10::function_ref<Part(const Node&)> part_of);
};

}  // namespace torch_xla::lazy
