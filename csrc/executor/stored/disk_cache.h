// DiskCache keeps compiled programs in a folder that processes share: one file for each, named by
// its key. A program whose file cannot be used (cut short, changed, refused by the plugin) is
// compiled and written anew.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <string_view>

#include "executor/stored/program_file.h"
#include "pjrt/executable.h"
#include "util/file_cache.h"

namespace torch_xla::executor {

class DiskCache {
 public:
  // Returns the cache that the environment names, else the user's, or null. The first call that
  // does not throw settles it for the process.
  static DiskCache* get();
  static bool settled();

  // Creates the folder unless `read_only`. Where it cannot be used there is an error if the user
  // has `named` it, else no cache. A folder that others can write to stays unused, which is logged:
  // programs loaded from it would run in this process.
  DiskCache(const std::string& folder, bool read_only, bool named = true);

  // A stored program and its file; null and "" where the folder has none that can be used. The key
  // that was looked for; none where the folder is of no use.
  struct Loaded {
    std::unique_ptr<pjrt::Executable> executable = {};
    std::string file = {};
    ProgramKey key = {};
  };
  Loaded load(std::string_view program, const pjrt::CompileOptions& options);
  bool is_written() const { return !read_only_ && usable_; }
  // Stores what pack() gives. Returns whether it is there: a failure is logged, and the program
  // runs all the same.
  bool store(const ProgramKey& key, std::string_view bytes);
  // Says that pack() has thrown.
  void cannot_pack(const pjrt::Error& error);
  // Returns a text that is equal in processes that have this folder; empty where it is of no use.
  std::string place() const;

 private:
  std::unique_ptr<pjrt::Executable> load_file(const ProgramKey& key,
                                              const pjrt::CompileOptions& options);
  void report(const std::string& problem);
  void give_up(const pjrt::Error& error);

  const bool read_only_;
  util::FileCache files_;
  // False where the folder is of no use, and once the plugin has shown that it cannot.
  std::atomic<bool> usable_{true};
  std::atomic<bool> reported_{false};  // problems with files are logged once
};

}  // namespace torch_xla::executor
