// The interface between a lowering rule and the node it lowers.
// A rule is a pure function: it reads operands and attributes by schema position and receives its
// result types; it never recomputes them.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/ivalue.h>

#include "hlo/ops.h"
#include "lazy/node.h"
#include "ops/dtypes.h"
#include "ops/target.h"
#include "ops/traits.h"

namespace torch_xla::ops {

// One node being lowered.
class Lowering {
 public:
  Lowering(hlo::Builder& builder, const Target& target, const lazy::Signature& signature,
           std::span<const hlo::Value> operands, std::span<const hlo::Value> numbers)
      : b(builder),
        target_(target),
        signature_(signature),
        operands_(operands),
        numbers_(numbers) {}

  hlo::Builder& b;

  // Return operands by position in the operator's schema. A Python number in a tensor's place comes
  // as a 0-dim value of its own dtype (f64, i64 or i1).
  hlo::Value in(size_t arg) const;
  bool has(size_t arg) const;                      // an optional tensor or argument that was given
  std::vector<hlo::Value> list(size_t arg) const;  // Tensor[]
  std::vector<std::optional<hlo::Value>> optional_list(size_t arg) const;  // Tensor?[]

  // Returns a `Scalar` argument as a 0-dim value of this type: a runtime input or a constant.
  hlo::Value number(size_t arg, hlo::DType as) const;

  // Static arguments.
  const c10::IValue& attr(size_t arg) const { return signature_.arguments[arg].value; }
  int64_t integer(size_t arg) const;
  double floating(size_t arg) const;
  bool flag(size_t arg) const;
  std::string text(size_t arg) const;
  std::vector<int64_t> ints(size_t arg) const;
  std::vector<int64_t> ints_or_empty(size_t arg) const;  // `int[]?`
  std::vector<double> floats(size_t arg) const;

  // Return the result types that PyTorch's Meta kernel gave.
  hlo::Type out(size_t i = 0) const { return to_hlo(*signature_.outputs[i]); }
  at::ScalarType out_dtype(size_t i = 0) const { return signature_.outputs[i]->dtype; }
  size_t num_outputs() const { return signature_.outputs.size(); }

  // Return an operand's geometry and PyTorch dtype (strides are of the tensor, values are
  // row-major).
  const lazy::Geometry& geometry(size_t arg) const;
  at::ScalarType in_dtype(size_t arg) const { return geometry(arg).dtype; }
  // Returns the dtype in which PyTorch computes this call on these Tensor/Scalar arguments: its
  // type promotion, with 0-dim tensors and Python numbers weaker.
  at::ScalarType promoted(std::initializer_list<size_t> args) const;
  // Returns operand `arg` converted to `dtype` and broadcast to `dims`.
  hlo::Value in(size_t arg, hlo::DType dtype, const hlo::Dims& dims) const;

  // Returns a 0-dim ui64: the seed of a random operator, different for every recorded call.
  hlo::Value seed() const;

  const Target& target() const { return target_; }
  const lazy::Signature& signature() const { return signature_; }
  std::span<const hlo::Value> operands() const { return operands_; }
  std::span<const hlo::Value> numbers() const { return numbers_; }

 private:
  const lazy::Argument& argument(size_t arg) const;

  const Target& target_;
  const lazy::Signature& signature_;
  std::span<const hlo::Value> operands_;
  std::span<const hlo::Value> numbers_;
};

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

  RuleFunction on(const Target& target) const {
    return target.host_kernels && on_cpu != nullptr ? on_cpu : lower;
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
  std::vector<std::pair<std::string, const Traits*>> all_traits() const;

  // Runs every file's Rules first.
  static Registry& get();
};

// Registers a file's rules and traits before the first look at the registry:
//   const Rules registered([](Registry& r) { r.add("aten::relu", relu); });
class Rules {
 public:
  // Functions of stage Later may look at what those of stage First have registered.
  enum class Stage : uint8_t { First, Later };
  explicit Rules(std::function<void(Registry&)> fill, Stage stage = Stage::First);
};

}  // namespace torch_xla::ops
