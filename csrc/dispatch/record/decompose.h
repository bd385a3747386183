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

// Lives while this thread records a function of placeholders: the decomposition of the signature
// with this key, or a traced function. Tensors that outlive it, as those of an exception's frames
// may, have no value that a sync could compute; tensors made before it cannot be written. The
// caller holds the GraphLock.
class FunctionScope {
 public:
  explicit FunctionScope(const util::Hash128& key = {});
  ~FunctionScope();
  FunctionScope(const FunctionScope&) = delete;
  FunctionScope& operator=(const FunctionScope&) = delete;

 private:
  lazy::Storage::AsideScope aside_;
};

// Returns whether a FunctionScope lives on this thread; host work is refused meanwhile.
bool is_recording_function();

// Installed by the Python bindings. `has` looks an operator up in PyTorch's tables; `run` calls the
// decomposition with the stack's arguments and leaves the results.
struct Decompositions {
  std::function<bool(const c10::OperatorHandle&)> has;
  std::function<void(const c10::OperatorHandle&, torch::jit::Stack*)> run;
};
Decompositions& decompositions();

}  // namespace torch_xla::dispatch
