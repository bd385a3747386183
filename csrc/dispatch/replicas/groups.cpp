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

struct Group {
  c10::intrusive_ptr<c10d::Backend> backend;
  int64_t launched = 0, begun = 0;  // exchanges
};

struct Job {
  util::Mutex mutex{util::Rank::Section};
  int64_t rank = -1, count = 0;  // 0: nobody has told
  std::map<std::vector<int64_t>, Group> groups;
  std::string disagreement;
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
  it.groups[members.vec()].backend = std::move(backend);
}

void note_disagreement(const std::string& what) {
  Job& it = job();
  const std::lock_guard lock(it.mutex);
  if (it.disagreement.empty()) it.disagreement = what;
}

bool has_disagreement() {
  Job& it = job();
  const std::lock_guard lock(it.mutex);
  return !it.disagreement.empty();
}

void expect_agreement() {
  Job& it = job();
  const std::lock_guard lock(it.mutex);
  TXLA_CHECK(it.disagreement.empty(),
             "collectives: expected ranks that have agreed so far. Nothing is exchanged since they "
             "have not:\n",
             it.disagreement);
}

namespace {

// The members of this replica's group; none where it is in none.
std::vector<int64_t> own_group(int64_t self, at::IntArrayRef members, int64_t size) {
  if (size == 0) {
    std::vector<int64_t> all = members.vec();
    std::ranges::sort(all);
    all.erase(std::ranges::unique(all).begin(), all.end());
    return all;
  }
  const int64_t at = std::ranges::find(members, self) - members.begin();
  if (at == std::ssize(members)) return {};
  return members.slice(static_cast<size_t>(at / size * size), static_cast<size_t>(size)).vec();
}

}  // namespace

ReplicaGroup replica_group(at::IntArrayRef members, int64_t size, bool counts) {
  Job& it = job();
  const std::lock_guard lock(it.mutex);
  ReplicaGroup group;
  group.members = own_group(it.rank, members, size);
  const auto place = std::ranges::find(group.members, it.rank);
  TXLA_CHECK_KIND(util::ErrorKind::Value, place != group.members.end(),
                  "replicas: expected a group that holds replica ", it.rank, ", got ", members,
                  ".");
  group.place = place - group.members.begin();
  if (group.size() == 1) return group;
  const auto known = it.groups.find(group.members);
  TXLA_CHECK(known != it.groups.end(), "replicas: expected a group of c10d for replicas ",
             at::IntArrayRef(group.members), ", found none. Please report this.");
  group.backend = known->second.backend;
  group.number = counts ? known->second.begun++ : known->second.begun;
  return group;
}

std::vector<GroupNotes> count_exchanges(const std::vector<ops::ExchangeNote>& exchanges) {
  std::vector<GroupNotes> all;
  Job& it = job();
  const std::lock_guard lock(it.mutex);
  for (const ops::ExchangeNote& note : exchanges) {
    std::vector<int64_t> members = own_group(it.rank, note.members, note.size);
    const auto known = it.groups.find(members);
    if (known == it.groups.end()) continue;  // of one, or the plugin's
    auto of = std::ranges::find(all, members, &GroupNotes::members);
    if (of == all.end()) {
      all.push_back({std::move(members), known->second.launched, {}});
      of = all.end() - 1;
    }
    of->exchanges.push_back(&note);
    ++known->second.launched;
  }
  return all;
}

}  // namespace torch_xla::dispatch
