// A table of bounded size.
#pragma once

#include <cstddef>
#include <unordered_map>

#include "util/hash.h"

namespace torch_xla::util {

// What was made for a key. Keys that never repeat must not fill memory: a full table is emptied,
// and whoever uses an entry holds what it holds.
template <class T, size_t kMost>
class Memo {
 public:
  const T* find(const Hash128& key) const {
    const auto it = entries_.find(key);
    return it == entries_.end() ? nullptr : &it->second;
  }
  const T& add(const Hash128& key, T entry) {
    if (entries_.size() >= kMost) entries_.clear();
    return entries_[key] = std::move(entry);
  }

 private:
  std::unordered_map<Hash128, T, Hash128Hasher> entries_;
};

}  // namespace torch_xla::util
