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

  size_t num_seeds() const;  // that the calls draw
  // Over all that decides what is computed from parameters and seeds.
  util::Hash128 hash() const;
};

// The calls that compute values, and the leaves that they read.
Function function_of(std::vector<Value> results);

// A leaf without data: it stands for what a function will be given.
Value placeholder(const Geometry& geometry, int device);

// A node of the same call with other operands; its line is that of `call`.
c10::intrusive_ptr<Node> copy_of(const Node& call, Operands&& operands);

// Keeps its nodes: parameters are placeholders, and results keep the calls. It shares none of them.
struct KeptFunction : Function {
  std::vector<Value> placeholders;  // of the parameters

  void add_parameter(Value leaf);

  // Fills `calls` with copies of the calls that the results need, as far as they `belong` to the
  // function. Every other value on the way becomes a parameter after the present ones; returns
  // those values.
  std::vector<Value> collect(c10::function_ref<bool(const Node&)> belongs);
};

// Copies of the calls of a function, with those of large expansions in place of the call that they
// expand. Its parameters are the function's.
struct OpenedFunction : Function {
  std::vector<c10::intrusive_ptr<Node>> nodes;     // keeps the calls
  std::vector<std::vector<const Node*>> standing;  // for each call of the function
};
OpenedFunction open(const Function& function, c10::function_ref<bool(const Signature&)> is_large);

}  // namespace torch_xla::lazy
