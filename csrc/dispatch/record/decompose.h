// The long tail: operators without a lowering, written by PyTorch in terms of others.
#pragma once

#include <cstdint>

#include <ATen/core/stack.h>

#include "lazy/operator.h"
#include "lazy/signature.h"

namespace torch_xla::dispatch {

// The way in which a call is carried out; chosen once per distinct call.
enum class Route : uint8_t {
  Record,  // one node: it has a lowering, or a decomposition that is expanded when it is lowered
  Host,    // values come back, PyTorch's CPU kernel runs, results go up
};

bool has_decomposition(const lazy::Operator& op);

// Returns the route of all calls of an operator, but for those whose decomposition fails.
Route route_of(const lazy::Operator& op);

// The route of a call without a lowering rule. Runs PyTorch's decomposition once on placeholders
// and keeps the calls that it made in the signature. Where there is none, or it needs values, the
// program calls the CPU kernel if its platform can.
Route expand_signature(lazy::Signature& signature, int device);

}  // namespace torch_xla::dispatch
