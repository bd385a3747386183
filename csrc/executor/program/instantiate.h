// Records the calls of a recipe anew.
#pragma once

#include <span>
#include <vector>

#include "executor/program/recipe.h"
#include "lazy/function.h"

namespace torch_xla::executor {

struct Instance {
  std::vector<c10::intrusive_ptr<lazy::Node>> calls;
  std::vector<lazy::Value> results;
};

// Makes the calls of a recipe over values that stand for its parameters, each call with its
// `numbers`. A call takes the node of its `places` where there is one, data so far, so that whoever
// refers to that has the call.
Instance instantiate(const Recipe& recipe, std::span<const lazy::Value> parameters,
                     std::span<const lazy::Numbers> numbers, int device,
                     std::span<const c10::intrusive_ptr<lazy::Node>> places = {});

// Returns the numbers of each call of a function, for its recipe.
std::vector<lazy::Numbers> numbers_of(const lazy::Function& function);

}  // namespace torch_xla::executor
