// Makes the nodes that the recorder adds by itself, whose result geometry it already knows: casts,
// broadcasts, scatters into a base. No Meta kernel runs.
#pragma once

#include <initializer_list>
#include <vector>

#include "lazy/tensor.h"

namespace torch_xla::dispatch {

// One argument of the schema: a lazy::Value, or a static IValue. A call may leave trailing
// arguments out.
struct CallArgument {
  CallArgument(lazy::Value v) : value(std::move(v)) {}  // NOLINT(runtime/explicit)
  CallArgument(const lazy::Geometry* g, lazy::Value v) : value(std::move(v)), geometry(g) {}
  CallArgument(c10::IValue s) : fixed(std::move(s)) {}  // NOLINT(runtime/explicit)

  lazy::Value value;
  const lazy::Geometry* geometry = nullptr;  // of the tensor; null: row-major
  c10::IValue fixed;
};

lazy::Value call(const char* op, int device, std::initializer_list<CallArgument> arguments,
                 const lazy::Geometry* result);

// Returns `value` in another dtype; `value` itself where the dtype is right.
lazy::Value cast(const lazy::Value& value, at::ScalarType dtype, int device);
lazy::Value reshape(const lazy::Value& value, c10::IntArrayRef sizes, int device);
lazy::Value expand(const lazy::Value& value, c10::IntArrayRef sizes, int device);

// Writes into the tensor, through its views into the storage. `value` has the tensor's sizes and
// dtype.
void write(lazy::TensorImpl& tensor, lazy::Value value);

}  // namespace torch_xla::dispatch
