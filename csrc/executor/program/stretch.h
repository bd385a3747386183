// Stretch, some calls of a function as a function of their own.
#pragma once

#include <cstdint>
#include <vector>

#include "lazy/function.h"

namespace torch_xla::executor {

// An array whose rows are values of a function. Its index is one that no value of the function has.
struct Pack {
  uint32_t array;
  std::vector<lazy::Ref> rows;
};

struct Stretch {
  std::vector<lazy::Ref> inputs;
  std::vector<uint32_t> calls;  // in Function::calls; operands before users
  std::vector<lazy::Ref> outputs;
  // Of the arrays among its inputs it takes the rows; the others it makes of values.
  std::vector<Pack> packs = {};
};

}  // namespace torch_xla::executor
