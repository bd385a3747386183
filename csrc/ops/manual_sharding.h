// Manual values (spmd/sharding.h) in programs: of each, an array has an entry for every device. The
// operators at the boundaries of manual code are
//   torch_xla::full_to_shard(self, sharding): each device has its part of a value;
//   torch_xla::mark_manual(self, sharding): each device has all of it, and goes on by itself;
//   torch_xla::shard_to_full(self, sharding, sum): a value of which these are the parts. Of devices
//     that have the same part one may be taken, or the sum of what they have.
// Within it devices exchange what they have by ops/collectives.h.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <unordered_map>
#include <vector>

#include "hlo/builder.h"
#include "lazy/function.h"
#include "ops/registry.h"
#include "spmd/sharding.h"

namespace torch_xla::ops {

enum class Boundary : uint8_t { None, Enters, Marks, Leaves };
Boundary boundary_of(const lazy::Signature& signature);
// Returns the sharding that a boundary, or a sharding_constraint, has as its argument.
const spmd::Sharding& sharding_named_by(const lazy::Signature& signature);

// The values of a function that are manual, as far as its calls were added.
class ManualValues {
 public:
  explicit ManualValues(const lazy::Function& function) : function_(&function) {}

  const lazy::Function& function() const { return *function_; }
  bool empty() const { return results_.empty(); }
  bool contains(const lazy::Ref& value) const;
  bool has_among_operands(const lazy::Function::Call& call) const;
  // Returns whether some of the results of a call may be manual and others not, as what it expands
  // to tells: there are boundaries in it, or only some of its operands are manual.
  bool mixes(const lazy::Function::Call& call) const;
  void add_parameter(size_t i) { results_[static_cast<uint32_t>(i)] = {true}; }
  // Adds those of a call's results that are, in the order of the calls.
  void add_results_of(size_t call);
  void add_results();  // of all calls
  // Returns those of the parameters of what a call expands to.
  ManualValues parameters_of_expansion(const lazy::Function::Call& call) const;

 private:
  const lazy::Function* function_;
  std::unordered_map<uint32_t, std::vector<bool>> results_;  // by Ref::index
};

// Returns manual results of a call that each device computes by itself: `body` gets the values of
// one device. Of `operands`, those that are manual come as arrays with an entry for every device,
// as the results do. Undefined operands stay so.
hlo::Values on_each_device(hlo::Builder& b, std::span<const hlo::Value> operands,
                           const std::vector<bool>& is_manual,
                           const std::function<hlo::Values(const hlo::Values&)>& body);

namespace rules {
extern const RuleFunction full_to_shard, mark_manual, shard_to_full;
}  // namespace rules

}  // namespace torch_xla::ops
