// The interface between a lowering rule and the node it lowers.
// A rule is a pure function: it reads operands and attributes by schema position and receives its
// result types; it never recomputes them.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/ivalue.h>

#include "hlo/ops.h"
#include "lazy/node.h"
#include "ops/dtypes.h"

namespace torch_xla::ops {

// One node being lowered.
class Lowering {
 public:
  Lowering(hlo::Builder& builder, std::string_view platform, const lazy::Signature& signature,
           std::span<const hlo::Value> operands, std::span<const hlo::Value> numbers)
      : b(builder),
        platform_(platform),
        signature_(signature),
        operands_(operands),
        numbers_(numbers) {}

  hlo::Builder& b;

  // Operands, by position in the operator's schema. A Python number that stands in a tensor's place
  // comes as a 0-dim value of its own dtype (f64, i64 or i1).
  hlo::Value in(size_t arg) const;
  bool has(size_t arg) const;                      // an optional tensor or argument that was given
  std::vector<hlo::Value> list(size_t arg) const;  // Tensor[]
  std::vector<std::optional<hlo::Value>> optional_list(size_t arg) const;  // Tensor?[]

  // A `Scalar` argument as a 0-dim value of this type. It may be a runtime input or a constant.
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

  // The result types that PyTorch's Meta kernel gave.
  hlo::Type out(size_t i = 0) const { return to_hlo(*signature_.outputs[i]); }
  at::ScalarType out_dtype(size_t i = 0) const { return signature_.outputs[i]->dtype; }
  size_t num_outputs() const { return signature_.outputs.size(); }

  // Geometry and PyTorch dtype of an operand (strides are of the tensor, values are row-major).
  const lazy::Geometry& geometry(size_t arg) const;
  at::ScalarType in_dtype(size_t arg) const { return geometry(arg).dtype; }
  // The dtype in which PyTorch computes this call on these Tensor/Scalar arguments: its type
  // promotion, with 0-dim tensors and Python numbers weaker.
  at::ScalarType promoted(std::initializer_list<size_t> args) const;
  // Operand `arg` converted to `dtype` and broadcast to `dims`.
  hlo::Value in(size_t arg, hlo::DType dtype, const hlo::Dims& dims) const;

  // A 0-dim ui64: the seed of a random operator, different for every recorded call.
  hlo::Value seed() const;

  // Upper-case PJRT platform: "CPU", "CUDA", "TPU", ...
  std::string_view platform() const { return platform_; }
  const lazy::Signature& signature() const { return signature_; }
  std::span<const hlo::Value> operands() const { return operands_; }
  std::span<const hlo::Value> numbers() const { return numbers_; }

 private:
  const lazy::Argument& argument(size_t arg) const;

  std::string_view platform_;
  const lazy::Signature& signature_;
  std::span<const hlo::Value> operands_;
  std::span<const hlo::Value> numbers_;
};

using RuleFunction = hlo::Values (*)(Lowering&);

// How scalars and dtypes of a call are treated; filled by the registration.
struct Rule {
  RuleFunction lower = nullptr;
  // Schema positions of `Scalar` arguments that are part of the program (default: runtime inputs).
  std::vector<size_t> static_numbers;
  // Schema positions of `Scalar` arguments that are runtime inputs though the result's shape
  // depends on them (arange).
  std::vector<size_t> shape_numbers;
  // Schema positions of `float`/`float?` arguments that are runtime inputs (default: static).
  std::vector<size_t> dynamic_floats;
};

// The one registry: functional overload name -> rule. Filled once by register_<family>().
class Registry {
 public:
  // `name` is "aten::add.Tensor". Registering a name twice for a platform is an error.
  Rule& add(std::string_view name, RuleFunction rule);
  // Overrides the rule on one platform ("CPU").
  void override_on(std::string_view platform, std::string_view name, RuleFunction rule);

  const Rule* find(std::string_view name) const;
  RuleFunction function_for(std::string_view name, std::string_view platform) const;
  std::vector<std::string> names() const;

  static Registry& get();
};

// Each family's file defines its own; registry.cpp lists them.
void register_cast(Registry& r);
void register_elementwise(Registry& r);
void register_activation(Registry& r);
void register_reduce(Registry& r);
void register_scan(Registry& r);
void register_shape(Registry& r);
void register_index(Registry& r);
void register_factory(Registry& r);
void register_matmul(Registry& r);
void register_conv(Registry& r);
void register_pool(Registry& r);
void register_norm(Registry& r);
void register_loss(Registry& r);
void register_attention(Registry& r);
void register_rnn(Registry& r);
void register_resize(Registry& r);
void register_random(Registry& r);
void register_sort(Registry& r);
void register_distance(Registry& r);
void register_compact(Registry& r);
void register_fft(Registry& r);
void register_linalg(Registry& r);
void register_optim(Registry& r);
void register_cpu_kernels(Registry& r);

}  // namespace torch_xla::ops
