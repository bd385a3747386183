// This process among the replicas of its job, and the groups of c10d by which replicas exchange
// values where the plugin cannot.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <c10/util/ArrayRef.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "ops/exchange.h"

namespace torch_xla::dispatch {

// Says which of `count` replicas this process is.
void set_replica(int64_t rank, int64_t count);
// Returns which one this process is.
int64_t this_replica();
// Returns how many there are; where nobody has told, by the client's processes.
int64_t num_replicas(int device);

// Says that the CPU's backend of a group that c10d knows by a name serves these replicas. Replaces
// what did before.
void add_replica_group(at::IntArrayRef members, const std::string& name);

// Says that the ranks of a group would exchange different things. From now on nothing is exchanged.
void note_disagreement(const std::string& what);
// Throws where that was said.
void expect_agreement();
bool has_disagreement();

// The group of some replicas, and the place of this one among them.
struct ReplicaGroup {
  std::vector<int64_t> members;
  int64_t place = 0;
  c10::intrusive_ptr<c10d::Backend> backend;  // null: of one member

  int64_t number = 0;  // of exchanges in it that have begun

  int64_t size() const { return std::ssize(members); }
};
// Returns this replica's among groups of `size`, which are given one after the other; of pairs,
// whose size is 0, all. For an exchange that begins, and is counted unless it is of two members.
ReplicaGroup replica_group(at::IntArrayRef members, int64_t size, bool counts = true);

// The exchanges of a program, as its groups compare them.
struct GroupNotes {
  std::vector<int64_t> members;
  int64_t first;  // number in the group of the first
  std::vector<const ops::ExchangeNote*> exchanges;
};
// Counts the exchanges of a program that is about to be launched, and returns them by this
// replica's groups.
std::vector<GroupNotes> count_exchanges(const std::vector<ops::ExchangeNote>& exchanges);

}  // namespace torch_xla::dispatch
