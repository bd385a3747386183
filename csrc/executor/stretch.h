// Stretch, a part of a function that is a program of its own.
#pragma once

#include <vector>

#include "executor/lower.h"

namespace torch_xla::executor {

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
Lowered lower(const Stretch& stretch, const Interface& interface, const ops::Target& target);

}  // namespace torch_xla::executor
