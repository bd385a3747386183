// Stretch, a part of a function that is a program of its own.
#pragma once

#include <compare>
#include <cstdint>
#include <vector>

#include "lazy/node.h"

namespace torch_xla::executor {

// Result `index` of a call, or a leaf.
struct Result {
  const lazy::Node* node;
  uint32_t index;

  friend auto operator<=>(const Result&, const Result&) = default;
};

// An array whose rows are values. A leaf stands for it.
struct Pack {
  const lazy::Node* array;
  std::vector<Result> rows;
};

struct Stretch {
  std::vector<Result> inputs;
  std::vector<const lazy::Node*> calls;  // operands before users
  std::vector<Result> outputs;
  // Of the arrays among its inputs it takes the rows; the others it makes of values.
  std::vector<Pack> packs;
};

}  // namespace torch_xla::executor
