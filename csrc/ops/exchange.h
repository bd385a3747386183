// Exchanges among replicas as recorded calls. What a device exchanges is in order: a call takes the
// device's order, a number, and gives the next one, so that no compiler turns calls around and none
// is left out or made twice.
//   torch_xla::exchange(tensors, order, what, reduction, scale, dims, members, size)
// `what` is the name of an operator of ops/collectives.h. `dims` are its dimensions; of
// collective_broadcast the place of the sender in each group. The size of pairs, the members of
// collective_permute, is 0. Gives a result for each tensor, and the next order. Where the plugin
// cannot exchange (ops::Target::exchanges_on_host), a program calls a CPU kernel,
// torch_xla::exchange_on_host. It also knows all_to_all_rows, whose `dims` are the rows to each
// member and those from each; send and receive, with the place of the other member and a tag.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lazy/function.h"
#include "ops/registry.h"

namespace torch_xla::ops {

// An exchange of a program, as its members compare it.
struct ExchangeNote {
  std::vector<int64_t> members;  // of all groups, or the pairs of collective_permute
  int64_t size = 0;              // of a group; 0: pairs
  std::string text;              // "all_reduce add Float[4, 3]"
  std::string line;              // the user's; empty where not known
};

using ExchangeNotes = std::vector<ExchangeNote>;

// Returns those of a function, in their order.
ExchangeNotes exchanges_of(const lazy::Function& function);

// Returns whether a call exchanges something; the call of a function, whether its body does.
bool exchanges(const lazy::Signature& call);

namespace rules {
extern const RuleFunction exchange;
}  // namespace rules

}  // namespace torch_xla::ops
