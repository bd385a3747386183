#include "dispatch/replicas/groups.h"

#include <algorithm>
#include <map>
#include <mutex>

#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>

#include "executor/run/replicas.h"
#include "util/error.h"
#include "util/lock_order.h"

namespace torch_xla::dispatch {
namespace {

struct Job {
  util::Mutex mutex{util::Rank::Section};
  int64_t rank = -1, count = 0;  // 0: nobody has told
  std::map<std::vector<int64_t>, c10::intrusive_ptr<c10d::Backend>> groups;
};

Job& job() {
  static auto& it = *new Job;  // programs in flight may ask while the process ends
  return it;
}

}  // namespace

void set_replica(int64_t rank, int64_t count) {
  TXLA_CHECK_KIND(util::ErrorKind::Value, rank >= 0 && rank < count,
                  "replicas: expected a rank below ", count, ", got ", rank, ".");
  Job& it = job();
  const std::lock_guard lock(it.mutex);
  it.rank = rank;
  it.count = count;
}

int64_t this_replica() {
  Job& it = job();
  const std::lock_guard lock(it.mutex);
  return it.rank;
}

int64_t num_replicas(int device) {
  Job& it = job();
  {
    const std::lock_guard lock(it.mutex);
    if (it.count != 0) return it.count;
  }
  return std::ssize(executor::replicas_of(device).all);
}

void add_replica_group(at::IntArrayRef members, const std::string& name) {
  auto backend = c10d::resolve_process_group(name)->getBackend(c10::DeviceType::CPU);
  TXLA_CHECK_KIND(util::ErrorKind::Value, backend->getSize() == std::ssize(members),
                  "replicas: expected a group of ", members.size(), " processes, got one of ",
                  backend->getSize(), ".");
  Job& it = job();
  const std::lock_guard lock(it.mutex);
  it.groups.insert_or_assign(members.vec(), std::move(backend));
}

bool has_replica_group(at::IntArrayRef members) {
  Job& it = job();
  const std::lock_guard lock(it.mutex);
  return it.groups.contains(members.vec());
}

void drop_replica_groups() {
  Job& it = job();
  decltype(it.groups) dropped;
  const std::lock_guard lock(it.mutex);
  dropped.swap(it.groups);
}

ReplicaGroup replica_group(at::IntArrayRef members, int64_t size) {
  Job& it = job();
  const std::lock_guard lock(it.mutex);
  const auto at = std::ranges::find(members, it.rank);
  TXLA_CHECK_KIND(util::ErrorKind::Value, at != members.end() && size > 0,
                  "replicas: expected a group that holds replica ", it.rank, ", got ", members,
                  ".");
  const int64_t first = (at - members.begin()) / size * size;
  ReplicaGroup group{members.slice(first, size).vec(), at - members.begin() - first, nullptr};
  if (size == 1) return group;
  const auto known = it.groups.find(group.members);
  TXLA_CHECK(known != it.groups.end(), "replicas: expected a group of c10d for replicas ",
             at::IntArrayRef(group.members), ", found none. Please report this.");
  group.backend = known->second;
  return group;
}

}  // namespace torch_xla::dispatch
