// ProgramCache keeps compiled programs by graph key and drops the least recently used first.
#pragma once

#include <list>
#include <memory>
#include <string>
#include <unordered_map>

#include "executor/program/program.h"
#include "util/hash.h"

namespace torch_xla::executor {

class ProgramCache {
 public:
  std::shared_ptr<const Program> find(const util::Hash128& key);
  // Replaces the program of the same key, if any. The newest always stays. The older half goes when
  // this process nears Linux's limit of memory maps, of which the code of each program takes some.
  void insert(const util::Hash128& key, std::shared_ptr<const Program> program, size_t bound);
  size_t size() const { return entries_.size(); }
  // Returns all programs, the most recently used first.
  std::vector<std::shared_ptr<const Program>> programs() const;
  // Drops the programs that were made from a call with this signature key.
  void drop_users_of(const util::Hash128& signature);
  void clear();

 private:
  struct Entry {
    util::Hash128 key;
    std::shared_ptr<const Program> program;
  };
  void keep_newest(size_t count);
  bool nears_map_limit();

  size_t inserts_until_count_ = 0;  // before maps can have become too many
  std::list<Entry> entries_;        // most recently used first
  std::unordered_map<util::Hash128, std::list<Entry>::iterator, util::Hash128Hasher> index_;
};

}  // namespace torch_xla::executor
