// Lowers a function to a program's text.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "executor/program/interface.h"
#include "executor/program/stretch.h"
#include "lazy/function.h"
#include "ops/target.h"
#include "spmd/sharding.h"
#include "util/flags.h"

namespace torch_xla::executor {

struct Lowered {
  std::string text;             // StableHLO
  bool reuses_buffers = false;  // those that parameters name
  bool can_fail = false;        // once it runs; such a program reuses none
};

Lowered lower(const lazy::Function& function, const Interface& interface,
              const ops::Target& target);
Lowered lower(const lazy::Function& function, const Stretch& stretch, const Interface& interface,
              const ops::Target& target);

// Returns the text of a program for `num_devices` devices in which nothing is split, for those who
// choose how values are: after each call stands a line `"torch_xla.results"(results) {call = N}`, N
// being Function::Call::ordinal. No compiler takes it.
std::string describe(const lazy::Function& function, const ops::Target& target, size_t num_devices);

// Facts that the program of a call alone tells.
struct CallFacts {
  bool can_fail = false;        // once it runs
  std::optional<int64_t> work;  // of its fusion, where the compiler may fuse it into its readers
};
CallFacts facts_of(const lazy::Signature& signature, const ops::Target& target);

// The seeds that the calls of a function draw: of `count` draws in a row, those in these places.
struct SeedPlaces {
  size_t count = 0;
  std::vector<size_t> used;  // in the order of the calls
};

// Lowers a function for every compiler: the text holds its numbers and seeds, and calls nothing of
// this process. The last parameters have the values `constants`, CPU tensors, which the text holds
// too; the others are arguments. Throws where a call has no such lowering, and names its line.
struct PortableOptions {
  bool with_locations = util::flag::XLA_HLO_DEBUG();
  bool dynamic_sizes = false;  // the text is one of those for hlo::dynamic_program
  // For each argument the result that takes over its buffer, or -1. Empty: none does.
  std::vector<int32_t> reused_by = {};
  // Seeds are drawn from a last argument, RandomState::as_seed(), whose new value is the last
  // result and takes over its buffer.
  std::optional<SeedPlaces> seeds = {};
  // The text is for this platform alone, by its rules.
  std::string_view platform = ops::kPortable;
  // The mesh and the shardings of arguments and results, where the program is
  // partitioned. An argument without one is whole; a result, split as the compiler chooses.
  const spmd::Mesh* mesh = nullptr;
  std::vector<const spmd::Sharding*> arguments = {}, results = {};
  std::shared_ptr<const ValueSplits> values = {};  // null: the compiler chooses for all
};
std::string lower_portable(const lazy::Function& function,
                           std::span<const at::Tensor> constants = {},
                           const PortableOptions& options = {});

// Adds `mesh` to a module, and gives what says of an argument or result how it is split.
void add_mesh(hlo::Builder& b, const spmd::Mesh* mesh);
hlo::Attribute sharding_attribute(const hlo::Builder& b, const spmd::Sharding* sharding,
                                  size_t rank);

// Lowers one call alone, so that what its rule throws is thrown when the call is recorded. Returns
// whether the program calls a kernel of PyTorch's.
bool try_lowering(const lazy::Signature& signature, const ops::Target& target);

// Returns the types of what the rule of a call gives, where the rule finds them itself. The call
// has no numbers.
std::vector<hlo::Type> types_by_rule(const lazy::Signature& signature);

}  // namespace torch_xla::executor
