// The long tail: operators without a lowering, written by PyTorch in terms of others.
#pragma once

#include <functional>

#include "dispatch/record/recorder.h"

namespace torch_xla::dispatch {

bool has_decomposition(const lazy::Operator& op);

// How calls of an operator are carried out, as far as its name tells.
Route route_of(const lazy::Operator& op);

// The route of a call without a lowering rule. Runs PyTorch's decomposition once on placeholders
// and keeps the calls that it made in the signature. Where there is none, or it needs values, the
// program calls the CPU kernel if its platform can.
Route expand_signature(lazy::Signature& signature, int device);

// Whether a decomposition is running on this thread; host work is refused meanwhile.
bool is_decomposing();

// Installed by the Python bindings. `has` looks an operator up in PyTorch's tables; `run` calls the
// decomposition with the stack's arguments and leaves the results.
struct Decompositions {
  std::function<bool(const c10::OperatorHandle&)> has;
  std::function<void(const c10::OperatorHandle&, torch::jit::Stack*)> run;
};
Decompositions& decompositions();

}  // namespace torch_xla::dispatch
