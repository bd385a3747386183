// JobPrograms: of the processes of a job that need a program one compiles it, and the others take
// it from the folder of the disk cache, where they have the same, or through the job's store. Who
// begins to compile claims the program there. Nobody waits while it holds a claim.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "executor/stored/program_file.h"
#include "util/lock_order.h"

namespace c10d {
class Store;
}

namespace torch_xla::executor {

class JobPrograms {
 public:
  // Returns null in a process that is alone, and where the user wants each to compile for itself.
  static JobPrograms* get();
  // Somebody looks for the job's store. get() waits until one of those below is called.
  static void look_for_store();
  // It does not answer yet, or no more.
  static void go_alone();
  // Connects to it. All keys get the prefix.
  static void found_store(const std::string& host, uint16_t port, std::string prefix, int64_t rank,
                          int64_t count);

  // Has to be given, or the others are told at its end that they have to compile it themselves.
  class Claim {
   public:
    Claim(JobPrograms& job, const util::Hash128& key) : job_(&job), key_(key) {}
    Claim(Claim&& other) noexcept : job_(std::exchange(other.job_, nullptr)), key_(other.key_) {}
    Claim& operator=(Claim&& other) noexcept {
      std::swap(job_, other.job_);
      std::swap(key_, other.key_);
      return *this;
    }
    ~Claim();
    // Gives what pack() has made. `in_folder`: it is in the disk cache, too.
    void give(std::string_view bytes, bool in_folder);
    // Says that the plugin cannot serialize programs.
    void refuse();

   private:
    JobPrograms* job_;
    util::Hash128 key_;
  };
  // Returns nothing where another process has it.
  std::optional<Claim> claim(const ProgramKey& key);

  // A program that another process has compiled.
  struct Given {
    int64_t rank = 0;  // of that process
    bool in_folder = false;
    std::string bytes;  // where it is not
  };
  // Waits until the process that has claimed it gives it. Returns nothing where that cannot, or
  // takes too long. `program` tells users which one it is.
  std::optional<Given> await(const ProgramKey& key, const std::string& program);

 private:
  JobPrograms(const std::string& host, uint16_t port, std::string prefix, int64_t rank,
              int64_t count);
  std::string name(const util::Hash128& key, std::string_view what) const;
  bool have_our_folder();
  void tell_folder();
  std::optional<Given> read(const util::Hash128& key, std::string_view answer, int64_t rank);
  bool has_room(size_t bytes);
  void forget_if_all_have(const util::Hash128& key, size_t parts);
  void put(const util::Hash128& key, std::string_view answer) noexcept;
  void give_up(const char* why) noexcept;

  const std::shared_ptr<c10d::Store> store_;
  const std::string prefix_;
  const int64_t rank_, count_;
  std::atomic<bool> usable_ = true;
  std::once_flag folder_told_;
  std::string folder_;  // DiskCache::place()
  util::Mutex mutex_;
  std::set<int64_t> others_;                                // ranks that may not have that folder
  std::vector<std::pair<util::Hash128, size_t>> in_store_;  // programs given through it, and bytes
};

}  // namespace torch_xla::executor
