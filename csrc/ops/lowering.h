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
#include "ops/registry.h"
#include "ops/target.h"

namespace torch_xla::ops {

// One node being lowered.
class Lowering {
 public:
  // Lowers a function of these arguments and seeds (0-dim i64, which its calls take in order).
  using LowerFunction = std::function<hlo::Values(
      const lazy::Function&, const hlo::Values& arguments, std::span<const hlo::Value> seeds)>;

  Lowering(hlo::Builder& builder, const Target& target, const lazy::Signature& signature,
           std::span<const hlo::Value> operands, std::span<const hlo::Value> numbers,
           const LowerFunction& lower_function)
      : b(builder),
        target_(target),
        signature_(signature),
        operands_(operands),
        numbers_(numbers),
        lower_function_(lower_function) {}
  // Another call in the place of `l`.
  Lowering(const Lowering& l, const lazy::Signature& signature,
           std::span<const hlo::Value> operands, std::span<const hlo::Value> numbers)
      : Lowering(l.b, l.target_, signature, operands, numbers, l.lower_function_) {}

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

  // Return the result types that PyTorch's Meta kernel gave.
  hlo::Type out(size_t i = 0) const { return to_hlo(*signature_.outputs[i]); }
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
  // Returns all seeds of the call, as 0-dim i64.
  std::span<const hlo::Value> seeds() const { return numbers_.last(signature_.num_seeds); }

  // Returns the results of the signature's region `i`.
  hlo::Values region(size_t i, const hlo::Values& arguments,
                     std::span<const hlo::Value> seeds) const {
    return lower_function_(*signature_.regions.at(i), arguments, seeds);
  }

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
  const LowerFunction& lower_function_;
};

}  // namespace torch_xla::ops
