// The registry of lowering rules and traits, which each family fills from its own file.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "hlo/builder.h"
#include "ops/target.h"
#include "ops/traits.h"

namespace torch_xla::ops {

class Lowering;

// The mark that a call, which gives its operand back, makes in a program for other compilers.
enum class Mark : uint8_t { None, Composite, Location };

using RuleFunction = hlo::Values (*)(Lowering&);

// Holds the functions that lower an operator and the treatment of a call's scalars; the
// registration fills it.
struct Rule {
  RuleFunction lower = nullptr;
  // Replaces `lower` where the target takes PyTorch's kernels, which is the CPU.
  RuleFunction on_cpu = nullptr;
  // Schema positions of `Scalar` arguments that are part of the program (default: runtime inputs).
  std::vector<size_t> static_numbers;
  // Schema positions of `Scalar` arguments that are runtime inputs though the result's shape
  // depends on them (arange).
  std::vector<size_t> shape_numbers;
  // Schema positions of `float`/`float?` arguments that are runtime inputs (default: static).
  std::vector<size_t> dynamic_floats;
  Mark mark = Mark::None;
  bool constant = false;  // results are what numbers say: calls are recorded without operands

  RuleFunction on(const Target& target) const {
    const bool on_host = lower == nullptr ? target.host_kernels : target.prefers_host_kernels();
    return on_host && on_cpu != nullptr ? on_cpu : lower;
  }
};

// Holds the rules and traits of all operators. Registering one twice is an error.
class Registry {
 public:
  // Adds the rule of a functional overload: "aten::add.Tensor".
  Rule& add(std::string_view overload, RuleFunction rule);
  // Give the traits that all overloads of a name have ("aten::add"), and those that one has
  // instead.
  Traits& all(std::string_view name);
  Traits& one(std::string_view overload);

  const Rule* find(std::string_view overload) const;
  const Traits& traits(const c10::OperatorName& op) const;
  std::vector<std::string> names() const;  // of overloads with a rule

  // Runs every file's Rules first.
  static Registry& get();
};

// Returns whether the operator has a rule that says `constant`.
bool is_constant(const lazy::Operator& op);

// Registers a file's rules and traits before the first look at the registry:
//   const Rules relu_rules([](Registry& r) { r.add("aten::relu", relu); });
class Rules {
 public:
  // Functions of stage Later may look at what those of stage First have registered.
  enum class Stage : uint8_t { First, Later };
  explicit Rules(std::function<void(Registry&)> fill, Stage stage = Stage::First);
};

}  // namespace torch_xla::ops
