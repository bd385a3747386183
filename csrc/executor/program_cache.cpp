#include "executor/program_cache.h"

#include <algorithm>

namespace torch_xla::executor {

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
  while (entries_.size() > std::max<size_t>(bound, 1)) {
    index_.erase(entries_.back().key);
    entries_.pop_back();
  }
}

void ProgramCache::clear() {
  entries_.clear();
  index_.clear();
}

}  // namespace torch_xla::executor
