// FileCache keeps contents by key in a folder that processes share, one file each: it is there
// whole or not at all, only its user can write it, and the least recently used go where there are
// too many.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

#include "util/hash.h"

namespace torch_xla::util {

class FileCache {
 public:
  // `read_only`: nothing is created, changed or removed. `bound`: bytes of all files; none if
  // negative.
  FileCache(std::string folder, bool read_only, std::int64_t bound);

  // Returns what keeps this process from using the folder, an error number, or 0. Creates it.
  int open() const;
  // Returns who can change the folder beside this user and root; empty if nobody can.
  std::string others_who_write() const;

  // Contents, or why a file is not used; empty where there is no file.
  struct Contents {
    std::string bytes, problem;
  };
  Contents read(const Hash128& key) const;
  // Returns the error number, 0 for none.
  int write(const Hash128& key, std::string_view bytes);

  const std::string& folder() const { return folder_; }
  std::string path_of(const Hash128& key) const;

 private:
  std::int64_t counted(std::int64_t size) const;
  void trim() const;

  const std::string folder_;
  const bool read_only_;
  const std::int64_t bound_;
  // Files are not counted at every write, which would take longer the more there are: a process
  // does so at its first one, and then each time that it has written so many bytes.
  const std::int64_t interval_;
  std::atomic<std::int64_t> unseen_;
};

}  // namespace torch_xla::util
