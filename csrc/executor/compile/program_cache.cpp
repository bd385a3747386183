#include "executor/compile/program_cache.h"

#include <algorithm>
#include <fstream>
#include <iterator>

#include "util/log.h"

namespace torch_xla::executor {
namespace {

// XLA's CPU compiler makes up to 32 libraries of most programs, of some four maps each; one with
// many loops, as that of an eigenvalue problem, takes a thousand.
constexpr size_t kMapsOfProgram = 2048;

// 0 where the system does not tell.
size_t count_maps() {
  std::ifstream maps("/proc/self/maps");
  return static_cast<size_t>(std::count(std::istreambuf_iterator<char>(maps), {}, '\n'));
}

size_t map_limit() {
  size_t limit = 65530;
  std::ifstream("/proc/sys/vm/max_map_count") >> limit;
  return limit;
}

}  // namespace

std::shared_ptr<const Program> ProgramCache::find(const util::Hash128& key) {
  const auto it = index_.find(key);
  if (it == index_.end()) return nullptr;
  entries_.splice(entries_.begin(), entries_, it->second);
  return it->second->program;
}

void ProgramCache::insert(const util::Hash128& key, std::shared_ptr<const Program> program,
                          size_t bound) {
  if (const auto it = index_.find(key); it != index_.end()) entries_.erase(it->second);
  entries_.push_front({key, std::move(program)});
  index_[key] = entries_.begin();
  keep_newest(bound);
  if (nears_map_limit()) keep_newest(entries_.size() / 2);
}

void ProgramCache::keep_newest(size_t count) {
  while (entries_.size() > std::max<size_t>(count, 1)) {
    index_.erase(entries_.back().key);
    entries_.pop_back();
  }
}

bool ProgramCache::nears_map_limit() {
  if (inserts_until_count_ > 0) {
    --inserts_until_count_;
    return false;
  }
  const size_t maps = count_maps(), enough = map_limit() / 4 * 3;
  if (maps < enough) {
    inserts_until_count_ = (enough - maps) / kMapsOfProgram;
    return false;
  }
  TXLA_LOG(INFO) << "This process has " << maps << " memory maps: the less recently used half of "
                 << entries_.size() << " compiled programs is dropped.";
  return true;
}

void ProgramCache::drop_users_of(const util::Hash128& signature) {
  std::erase_if(entries_, [&](const Entry& entry) {
    const bool uses = std::ranges::any_of(entry.program->function.calls, [&](const auto& call) {
      return call.signature->key == signature;
    });
    if (uses) index_.erase(entry.key);
    return uses;
  });
}

void ProgramCache::clear() {
  entries_.clear();
  index_.clear();
}

std::vector<std::shared_ptr<const Program>> ProgramCache::programs() const {
  std::vector<std::shared_ptr<const Program>> programs;
  for (const Entry& entry : entries_) programs.push_back(entry.program);
  return programs;
}

}  // namespace torch_xla::executor
