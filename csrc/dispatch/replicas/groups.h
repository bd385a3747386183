// This process among the replicas of its job, and the groups of c10d by which replicas exchange
// values where the plugin cannot.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <c10/util/ArrayRef.h>
#include <c10/util/intrusive_ptr.h>

namespace c10d {
class Backend;  // its header takes the compiler nine seconds
}

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

// The group of some replicas, and the place of this one among them.
struct ReplicaGroup {
  std::vector<int64_t> members;
  int64_t place = 0;
  c10::intrusive_ptr<c10d::Backend> backend;  // null: of one member
  int64_t size() const { return std::ssize(members); }
};
// Returns the members of this replica's among groups of `size`, which are given one after the
// other; of pairs, whose size is 0, all. None where it is in none.
std::vector<int64_t> own_group(at::IntArrayRef members, int64_t size);
// Returns that group; null where c10d knows no such.
std::optional<ReplicaGroup> find_replica_group(at::IntArrayRef members, int64_t size);
// Throws where there is none.
ReplicaGroup replica_group(at::IntArrayRef members, int64_t size);

}  // namespace torch_xla::dispatch
