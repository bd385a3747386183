#include "executor/stored/job_programs.h"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "debug/metrics.h"
#include "debug/trace.h"
#include "executor/run/doing.h"
#include "executor/stored/disk_cache.h"
#include "executor/stored/tcp_store.h"
#include "util/flags.h"
#include "util/log.h"
#include "util/unlocked.h"

namespace torch_xla::executor {
namespace {

using std::chrono_literals::operator""ms;
using std::chrono_literals::operator""s;
using Clock = std::chrono::steady_clock;

constexpr size_t kPart = 4 << 20;  // the store takes 8 MiB in a value
constexpr auto kToFindStore = 10s;

// A process answers to its claim with one of these. The last is followed by the number of parts.
constexpr std::string_view kNone = "none", kCannot = "cannot", kInFolder = "folder",
                           kInStore = "store ";

enum class Search : uint8_t { None, Runs, Failed, Found };

struct Meeting {
  util::Mutex mutex;
  std::condition_variable_any changed;
  Search search = Search::None;
  std::unique_ptr<JobPrograms> programs;
};

Meeting& meeting() {
  static auto& it = *new Meeting;  // compilers may ask while the process ends
  return it;
}

void note(Search search, std::unique_ptr<JobPrograms> programs = nullptr) {
  const std::lock_guard lock(meeting().mutex);
  meeting().search = search;
  if (programs != nullptr) meeting().programs = std::move(programs);
  meeting().changed.notify_all();
}

std::shared_ptr<c10d::Store> connect(const std::string& host, uint16_t port) {
  auto store = connect_to_store(host, port, 60s);
  return {store.get(), [store](c10d::Store*) {}};
}

}  // namespace

JobPrograms* JobPrograms::get() {
  if (util::flag::XLA_JOB_COMPILE_SECONDS() <= 0) return nullptr;
  Meeting& it = meeting();
  const util::Unlocked unlocked;
  std::unique_lock lock(it.mutex);
  it.changed.wait_for(lock, kToFindStore, [&] { return it.search != Search::Runs; });
  return it.search == Search::Found && it.programs->usable_ ? it.programs.get() : nullptr;
}

void JobPrograms::look_for_store() { note(Search::Runs); }
void JobPrograms::go_alone() { note(Search::Failed); }
void JobPrograms::found_store(const std::string& host, uint16_t port, std::string prefix,
                              int64_t rank, int64_t count) {
  std::unique_ptr<JobPrograms> made(new JobPrograms(host, port, std::move(prefix), rank, count));
  note(Search::Found, std::move(made));
}

JobPrograms::JobPrograms(const std::string& host, uint16_t port, std::string prefix, int64_t rank,
                         int64_t count)
    : store_(connect(host, port)), prefix_(std::move(prefix)), rank_(rank), count_(count) {
  for (int64_t other = 0; other < count_; ++other) {
    if (other != rank_) others_.insert(other);
  }
}

std::string JobPrograms::name(const util::Hash128& key, std::string_view what) const {
  return prefix_ + key.hex() + "/" + std::string(what);
}

// Its end, or the job's, is for the watch to tell.
void JobPrograms::give_up(const char* why) noexcept {
  if (!usable_.exchange(false)) return;
  TXLA_LOG(INFO) << "one compile for a job: expected the job's store, by which its processes "
                    "share programs, got '"
                 << why << "'. From now on this process compiles for itself.";
}

std::optional<JobPrograms::Claim> JobPrograms::claim(const ProgramKey& key) {
  const util::Unlocked unlocked;
  const std::string mine = std::to_string(rank_);
  try {
    std::call_once(folder_told_, [this] { tell_folder(); });
    const auto holder = store_->compareSet(name(key.hash, "claimed"), {}, bytes_of(mine));
    if (text_of(holder) != mine) return std::nullopt;
  } catch (const c10::Error& error) {
    give_up(error.what_without_backtrace());
  }
  return Claim(*this, key.hash);
}

void JobPrograms::tell_folder() {
  if (const DiskCache* disk = DiskCache::get()) folder_ = disk->place();
  store_->set(prefix_ + "folder/" + std::to_string(rank_), bytes_of(folder_));
}

// Tells whether all others find what is in this process's folder.
bool JobPrograms::have_our_folder() {
  std::set<int64_t> unknown;
  {
    const std::lock_guard lock(mutex_);
    unknown = others_;
  }
  for (const int64_t rank : unknown) {
    const std::string theirs = prefix_ + "folder/" + std::to_string(rank);
    if (!store_->check({theirs}) || text_of(store_->get(theirs)) != folder_) return false;
    const std::lock_guard lock(mutex_);
    others_.erase(rank);
  }
  return true;
}

// Whoever keeps the store needs memory for what not all others have taken.
bool JobPrograms::has_room(size_t bytes) {
  constexpr size_t kMost = size_t{1} << 30;
  const auto all = [this] {
    const std::lock_guard lock(mutex_);
    return in_store_;
  };
  const auto size = [&] {
    size_t sum = bytes;
    for (const auto& [key, size] : all()) sum += size;
    return sum;
  };
  if (size() <= kMost) return true;
  for (const auto& [key, ignored] : all()) {
    if (store_->check({name(key, "0")})) continue;
    const std::lock_guard lock(mutex_);
    std::erase_if(in_store_, [&](const auto& given) { return given.first == key; });
  }
  return size() <= kMost;
}

void JobPrograms::put(const util::Hash128& key, std::string_view answer) noexcept {
  if (!usable_) return;
  try {
    store_->set(name(key, "answer"), bytes_of(answer));
  } catch (const std::exception& error) {
    give_up(error.what());
  }
}

JobPrograms::Claim::~Claim() {
  if (job_ != nullptr) job_->put(key_, kNone);
}

void JobPrograms::Claim::refuse() {
  const util::Unlocked unlocked;
  std::exchange(job_, nullptr)->put(key_, kCannot);
}

void JobPrograms::Claim::give(std::string_view bytes, bool in_folder) {
  static const debug::Counter given("JobCompileGiven");
  JobPrograms& job = *job_;
  if (!job.usable_) return;
  const util::Unlocked unlocked;
  try {
    if (in_folder && job.have_our_folder()) {
      std::exchange(job_, nullptr)->put(key_, kInFolder);
    } else {
      if (!job.has_room(bytes.size())) return;
      {
        const std::lock_guard lock(job.mutex_);
        job.in_store_.emplace_back(key_, bytes.size());
      }
      size_t parts = 0;
      for (; !bytes.empty(); ++parts) {
        const std::string_view part = bytes.substr(0, kPart);
        job.store_->set(job.name(key_, std::to_string(parts)), bytes_of(part));
        bytes.remove_prefix(part.size());
      }
      std::exchange(job_, nullptr)->put(key_, std::string(kInStore) + std::to_string(parts));
    }
    given.add();
  } catch (const c10::Error& error) {
    job.give_up(error.what_without_backtrace());
  }
}

std::optional<JobPrograms::Given> JobPrograms::await(const ProgramKey& key,
                                                     const std::string& program) {
  static const debug::Metric time("JobCompileWaitTime");
  static const debug::Counter failures("JobCompileFailure");
  const util::Unlocked unlocked;
  const debug::TimedScope scope(time);
  const debug::Span span("wait for another process's compiler");
  const std::string answer = name(key.hash, "answer");
  const auto begin = Clock::now();
  const std::chrono::seconds limit(util::flag::XLA_JOB_COMPILE_SECONDS());
  try {
    const std::string holder = text_of(store_->get(name(key.hash, "claimed")));
    const Doing doing(
        {Work::WaitsForCompiler, "rank " + holder + ", which compiles " + program, begin});
    bool has_answer;
    while (!(has_answer = store_->check({answer}))) {
      const auto waited =
          std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - begin);
      if (waited > limit) {
        TXLA_LOG(WARNING) << "one compile for a job: expected a program from rank " << holder
                          << " within " << limit.count()
                          << " s (XLA_JOB_COMPILE_SECONDS). This process compiles it itself.";
        break;
      }
      std::this_thread::sleep_for(std::clamp(waited / 32, 1ms, 100ms));
    }
    if (has_answer) {
      if (auto given = read(key.hash, text_of(store_->get(answer)), std::stoll(holder))) {
        return given;
      }
    }
  } catch (const c10::Error& error) {
    give_up(error.what_without_backtrace());
  }
  failures.add();
  return std::nullopt;
}

std::optional<JobPrograms::Given> JobPrograms::read(const util::Hash128& key,
                                                    std::string_view answer, int64_t rank) {
  Given given;
  given.rank = rank;
  given.in_folder = answer == kInFolder;
  if (answer == kCannot) usable_ = false;
  if (answer.starts_with(kInStore)) {
    answer.remove_prefix(kInStore.size());
    const size_t parts = std::stoul(std::string(answer));
    for (size_t i = 0; i < parts; ++i) {
      given.bytes += text_of(store_->get(name(key, std::to_string(i))));
    }
    forget_if_all_have(key, parts);
  }
  if (!given.in_folder && given.bytes.empty()) return std::nullopt;
  return given;
}

void JobPrograms::forget_if_all_have(const util::Hash128& key, size_t parts) {
  if (store_->add(name(key, "taken"), 1) < count_ - 1) return;
  store_->set(name(key, "answer"), bytes_of(kNone));
  for (size_t i = 0; i < parts; ++i) store_->deleteKey(name(key, std::to_string(i)));
}

}  // namespace torch_xla::executor
