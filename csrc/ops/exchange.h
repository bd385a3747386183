// Exchanges among replicas as recorded calls. What a device exchanges is in order: a call takes the
// device's order, a number, and gives the next one, so that no compiler turns calls around and none
// is left out or made twice.
//   torch_xla::exchange(tensors, order, what, reduction, scale, dims, members, size)
// `what` is the name of an operator of ops/collectives.h. `dims` are its dimensions; of
// collective_broadcast the place of the sender in each group. Gives a result for each tensor, and
// the next order. Where the plugin cannot exchange (ops::Target::exchanges_on_host), a program
// calls the operator's CPU kernel.
#pragma once

#include "ops/registry.h"

namespace torch_xla::ops::rules {

extern const RuleFunction exchange;

}  // namespace torch_xla::ops::rules
