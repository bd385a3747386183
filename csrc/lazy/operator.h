// An ATen operator as the recorder and the lowerings know it: its functional form and how to lower
// it.
#pragma once

#include <string>

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
  const ops::Traits* traits;   // what else is known of it
  bool seeded;                 // draws random numbers
  util::Hash128 hash = {};     // of the name

  const c10::FunctionSchema& schema() const { return handle.schema(); }
};

}  // namespace torch_xla::lazy
