// The registry of lowering rules and traits, which each family fills from its own file.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hlo/builder.h"
#include "ops/target.h"
#include "ops/traits.h"

namespace torch_xla::ops {

class Lowering;

using RuleFunction = hlo::Values (*)(Lowering&);

// How an operator is lowered, and how scalars of a call are treated; filled by the registration.
struct Rule {
  RuleFunction lower = nullptr;
  // In place of `lower` where the target takes PyTorch's kernels, which is the CPU.
  RuleFunction on_cpu = nullptr;
  // Schema positions of `Scalar` arguments that are part of the program (default: runtime inputs).
  std::vector<size_t> static_numbers;
  // Schema positions of `Scalar` arguments that are runtime inputs though the result's shape
  // depends on them (arange).
  std::vector<size_t> shape_numbers;
  // Schema positions of `float`/`float?` arguments that are runtime inputs (default: static).
  std::vector<size_t> dynamic_floats;

  RuleFunction on(const Target& target) const {
    return target.host_kernels && on_cpu != nullptr ? on_cpu : lower;
  }
};

// The one registry of what is known of operators. Registering a thing twice is an error.
class Registry {
 public:
  // The rule of a functional overload: "aten::add.Tensor".
  Rule& add(std::string_view overload, RuleFunction rule);
  // What all overloads have in common, by their name: "aten::add"; and what one has instead.
  Traits& all(std::string_view name);
  Traits& one(std::string_view overload);

  const Rule* find(std::string_view overload) const;
  const Traits& traits(const c10::OperatorName& op) const;
  std::vector<std::string> names() const;  // of overloads with a rule
  std::vector<std::pair<std::string, const Traits*>> all_traits() const;

  // Runs every file's Rules first.
  static Registry& get();
};

// A file's rules and traits, registered before the first look at the registry:
//   const Rules registered([](Registry& r) { r.add("aten::relu", relu); });
class Rules {
 public:
  // Those of the stage Later look at others.
  enum class Stage : uint8_t { First, Later };
  explicit Rules(std::function<void(Registry&)> fill, Stage stage = Stage::First);
};

}  // namespace torch_xla::ops
