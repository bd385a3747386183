// Operator, an ATen operator as the recorder and the lowerings know it: its functional form, its
// lowering rule and its traits.
#pragma once

#include <string>
#include <string_view>

#include <ATen/core/dispatch/Dispatcher.h>

#include "util/hash.h"

namespace torch_xla::ops {
struct Rule;
struct Traits;
}  // namespace torch_xla::ops

namespace torch_xla::lazy {

struct Operator {
  c10::OperatorHandle handle;  // the functional overload: what a node means
  std::string name;            // "aten::add.Tensor"
  const ops::Rule* rule;       // null: decomposed or run on the host
  const ops::Traits* traits;   // all else that is registered of it
  bool seeded;                 // draws random numbers
  util::Hash128 hash = {};     // of the name

  const c10::FunctionSchema& schema() const { return handle.schema(); }
};

// Convert an operator's name to text, "aten::add.Tensor" or, without an overload, "aten::relu"; and
// back.
inline std::string full_name(const c10::OperatorName& name) {
  return name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
}
inline c10::OperatorName operator_name(std::string_view full_name) {
  const size_t dot = full_name.find('.');
  return {std::string(full_name.substr(0, dot)),
          dot == full_name.npos ? std::string() : std::string(full_name.substr(dot + 1))};
}

}  // namespace torch_xla::lazy
