// Facts about an operator beside its lowering: where PyTorch's Meta kernel differs from its CPU
// kernel, which values the CPU kernel refuses, how autocast treats it. Each operator's are given
// once, where its rule is registered.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/stack.h>
#include <c10/core/MemoryFormat.h>
#include <c10/util/FunctionRef.h>

#include "lazy/node.h"

namespace torch_xla::ops {

// The arguments of a call of PyTorch's operator, in the order of its schema. Outputs come last.
class Arguments {
 public:
  Arguments(const torch::jit::Stack& stack, size_t base) : stack_(stack), base_(base) {}

  size_t size() const { return stack_.size() - base_; }
  const c10::IValue& operator[](size_t i) const { return stack_[base_ + i]; }
  const c10::IValue& back() const { return stack_.back(); }
  const at::Tensor& tensor(size_t i) const { return (*this)[i].toTensor(); }
  bool has(size_t i) const { return !(*this)[i].isNone(); }

 private:
  const torch::jit::Stack& stack_;
  size_t base_;
};

// The same, where values can be asked for.
class KnownArguments : public Arguments {
 public:
  // Gives a tensor of the CPU with the values of a tensor of ours, where those are known without
  // waiting.
  using Reader = std::optional<at::Tensor> (*)(const at::Tensor& tensor);
  KnownArguments(const torch::jit::Stack& stack, size_t base, Reader reader)
      : Arguments(stack, base), reader_(reader) {}

  std::optional<at::Tensor> known(const at::Tensor& tensor) const { return reader_(tensor); }

 private:
  Reader reader_;
};

// A call on tensors without memory. Its results take the place of its arguments.
class MetaCall {
 public:
  MetaCall(torch::jit::Stack& stack, size_t base, c10::function_ref<void()> pytorch)
      : stack_(stack), base_(base), pytorch_(pytorch) {}

  size_t size() const { return stack_.size() - base_; }
  c10::IValue& operator[](size_t i) { return stack_[base_ + i]; }
  const at::Tensor& tensor(size_t i) const { return stack_[base_ + i].toTensor(); }
  // Returns whether an optional tensor is given.
  bool has(size_t i) const { return stack_[base_ + i].isTensor() && tensor(i).defined(); }
  // Runs PyTorch's Meta kernel.
  void pytorch() { pytorch_(); }
  void results(std::initializer_list<c10::IValue> values) {
    torch::jit::drop(stack_, size());
    stack_.insert(stack_.end(), values);
  }

 private:
  torch::jit::Stack& stack_;
  size_t base_;
  c10::function_ref<void()> pytorch_;
};

// Autocast's way with an operator that PyTorch's lists for all devices do not name: it runs in
// the narrow dtype, in float32, or in the widest dtype of its operands.
enum class Autocast : uint8_t { Unnamed, Narrow, Float32, Widest };

// The way in which PyTorch's CPU kernel converts runtime numbers to narrow floats: by way of
// float32; to the dtype itself, which must hold them; or by rounding.
enum class NarrowFloats : uint8_t { AsFloat, Exact, Rounded };

// Throws PyTorch's message for a call that PyTorch refuses.
using Check = void (*)(const Arguments&);

// A write through a view, to be applied to the view's base.
struct Inversion {
  const lazy::Signature& step;  // the view's call
  const lazy::Value& parent;    // the present value of its base
  const lazy::Value& value;     // the new value of the view
  bool whole;                   // the view itself was written, not a part of it
  int device;

  const lazy::Geometry* parent_geometry() const { return parent.geometry().row_major(); }
  const c10::IValue& attr(size_t i) const { return step.arguments[i].value; }
};

// Shape and Order: two such views in a row are one view of the same kind. Conjugated and Negated:
// elements differ from those in memory.
enum class ViewKind : uint8_t { Other, Shape, Order, Conjugated, Negated };

struct ViewTraits {
  ViewKind kind = ViewKind::Other;
  // Returns the new value of the base.
  lazy::Value (*inverse)(const Inversion&) = nullptr;
  bool repeats = false;  // may show an element several times
  // For the kind Order: the dimension of its input that each dimension of the view is.
  std::vector<int64_t> (*order)(const lazy::Signature& step) = nullptr;
};

struct Traits {
  // --- Shapes ---
  // Stands in place of PyTorch's Meta kernel, or calls it with other arguments.
  void (*meta)(MetaCall&) = nullptr;
  void (*meta_in_place)(MetaCall&) = nullptr;  // the same for the form in place
  bool python_meta =
      false;  // PyTorch's C++ code is wrong without memory, its Python function right
  // Refuses what PyTorch's CPU kernel refuses and its Meta kernel lets pass.
  Check checks_call = nullptr;
  // The memory format of the first result; Preserve leaves that of the Meta kernel.
  at::MemoryFormat (*layout)(const Arguments&) = nullptr;
  bool dtype_of_out = false;     // computes in the dtype of out=
  bool fills_any_shape = false;  // of out=, of as many elements
  bool warns_of_size = false;    // of an out= of another number of elements
  bool known_shape = false;      // arguments tell the shape, though PyTorch's tags deny it

  // --- Numbers and values ---
  // Looks at runtime numbers at each call: PyTorch's Meta kernel sees those of the first call only.
  Check checks_numbers = nullptr;
  // Returns whether PyTorch's CPU kernel would refuse what is known of the values.
  bool (*suspects_values)(const KnownArguments&) = nullptr;
  NarrowFloats narrow_floats = NarrowFloats::AsFloat;
  bool rounds_one = false;      // to narrow floats, where the result has one element
  bool converts_all = false;    // numbers in the place of tensors, too
  bool takes_integers = false;  // as on CUDA, where the CPU kernel refuses them

  // --- Memory ---
  bool reads_elsewhere = false;   // elements at other places than it writes
  bool writes_repeated = false;   // in place also to elements that a tensor shows several times
  bool made_like = false;         // its result is split like its first argument, as of *_like
  bool recorded_by_name = false;  // by dispatch/calls/call.h alone: a call has another kernel
  bool stays_composite = false;   // its parts keep autograd, conjugation or aliasing right
  bool takes_masks = false;       // among its indices, the second argument
  // Names the form in place and the statement in PyTorch's warning of writes to expanded tensors.
  struct Deprecated {
    const char *name, *statement;
  };
  std::optional<Deprecated> writes_expanded = std::nullopt;

  ViewTraits view = {};

  // --- Comparison ---
  // Carries a call out on CPU tensors, with operators of PyTorch's, where it has no kernel.
  c10::KernelFunction reference = {};

  // --- Autocast ---
  Autocast autocast = Autocast::Unnamed;
  const char* refuses_float16 = nullptr;  // under autocast; says what to do instead
};

}  // namespace torch_xla::ops
