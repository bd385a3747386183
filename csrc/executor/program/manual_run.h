// Runs of calls that give manual values (ops/manual_sharding.h): each device computes one by
// itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lazy/function.h"
#include "ops/manual_sharding.h"

namespace torch_xla::executor {

// Returns whether each device computes the call by itself: a manual operand makes it so, but for
// boundaries and for what mixes manual values with others.
bool is_manual_call(const lazy::Function::Call& call, const ops::ManualValues& manual);

// Throws a NotImplementedError where results of the function are manual, which must not be.
void expect_no_manual_results(const ops::ManualValues& manual);

// Calls of a function, one after the other.
struct ManualRun {
  std::span<const uint32_t> calls;
  std::vector<lazy::Ref> inputs;  // what the calls read that others make
  std::vector<bool> is_manual;    // of the inputs

  // Takes those at the beginning of `calls`, up to the first that is none, and adds them to what is
  // `manual`. Throws a ValueError where one of them says how a value is split.
  ManualRun(std::span<const uint32_t> calls, ops::ManualValues& manual);
};

// Tells how long values are read by some calls of a function, and by its results.
class LastReads {
 public:
  LastReads(const lazy::Function& function, std::span<const uint32_t> calls);
  // Returns whether what a call gives is read behind the one in this place among the calls.
  bool is_read_after(uint32_t call, size_t place) const;

 private:
  const lazy::Function& function_;
  std::vector<size_t> places_;  // of the last reads, from 1 on, by Ref::index
};

}  // namespace torch_xla::executor
