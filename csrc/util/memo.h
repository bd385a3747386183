// Memo, a table of bounded size.
#pragma once

#include <cstddef>
#include <unordered_map>

#include "util/hash.h"

namespace torch_xla::util {

// Keeps what was made for each key. A full table is emptied, so that keys that never repeat do not
// fill memory. Callers copy an entry that they need beyond the next add().
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
