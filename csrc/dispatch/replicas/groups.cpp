#include "dispatch/replicas/groups.h"

#include <algorithm>
#include <map>
#include <mutex>

#include <torch/csrc/distributed/c10d/Backend.hpp>
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
  it.groups[members.vec()] = std::move(backend);
}

std::vector<int64_t> own_group(at::IntArrayRef members, int64_t size) {
  const int64_t at = std::ranges::find(members, this_replica()) - members.begin();
  if (at == std::ssize(members)) return {};
  if (size != 0) {
    return members.slice(static_cast<size_t>(at / size * size), static_cast<size_t>(size)).vec();
  }
  std::vector<int64_t> all = members.vec();
  std::ranges::sort(all);
  all.erase(std::ranges::unique(all).begin(), all.end());
  return all;
}

std::optional<ReplicaGroup> find_replica_group(at::IntArrayRef members, int64_t size) {
  ReplicaGroup group;
  group.members = own_group(members, size);
  if (group.size() == 0) return std::nullopt;
  group.place = std::ranges::find(group.members, this_replica()) - group.members.begin();
  if (group.size() == 1) return group;
  Job& it = job();
  const std::lock_guard lock(it.mutex);
  const auto known = it.groups.find(group.members);
  if (known == it.groups.end()) return std::nullopt;
  group.backend = known->second;
  return group;
}

ReplicaGroup replica_group(at::IntArrayRef members, int64_t size) {
  std::optional<ReplicaGroup> group = find_replica_group(members, size);
  TXLA_CHECK(group, "replicas: expected a group of c10d that holds replica ", this_replica(),
             ", got ", members, " in groups of ", size, ". Please report this.");
  return *std::move(group);
}

}  // namespace torch_xla::dispatch
