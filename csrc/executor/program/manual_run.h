// Runs of calls that give manual values (ops/manual_sharding.h): each device computes one by
// itself.
#pragma once

#include <cstddef>
#include <span>
#include <unordered_map>
#include <vector>

#include "executor/program/stretch.h"
#include "lazy/function.h"
#include "lazy/node.h"
#include "ops/manual_sharding.h"

namespace torch_xla::executor {

// Returns whether each device computes the call by itself: a manual operand makes it so, but for
// boundaries and for what mixes manual values with others.
bool is_manual_call(const lazy::Node& call, const ops::ManualValues& manual);

// Throws a NotImplementedError where the results of a function are manual that must not be.
void expect_no_manual_results(const lazy::Function& function, const ops::ManualValues& manual);

// Calls of a function, one after the other.
struct ManualRun {
  std::span<const lazy::Node* const> calls;
  std::vector<Result> inputs;   // what the calls read that others make
  std::vector<bool> is_manual;  // of the inputs

  // Takes those at the beginning of `calls`, up to the first that is none, and adds them to what is
  // `manual`. Throws a ValueError where one of them says how a value is split.
  ManualRun(std::span<const lazy::Node* const> calls, ops::ManualValues& manual);
};

// Tells how long values are read by the calls of a function, and by its results.
class LastReads {
 public:
  LastReads(std::span<const lazy::Node* const> calls, std::span<const lazy::Value> results);
  // Returns whether a value of `node` is read behind the call in this place.
  bool is_read_after(const lazy::Node* node, size_t place) const;

 private:
  std::unordered_map<const lazy::Node*, size_t> places_;
};

}  // namespace torch_xla::executor
