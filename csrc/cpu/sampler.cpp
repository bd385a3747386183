// A handler of signals would do without the kernel's help, and must not be: oneDNN's products let
// the stack pointer of XLA's threads point into the heap, which the handler's frame would
// overwrite.
#include "cpu/sampler.h"

#include <atomic>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstring>
#include <ctime>
#include <memory>
#include <mutex>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <utility>

#include <dirent.h>
#include <linux/perf_event.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "util/error.h"

namespace torch_xla::cpu {
namespace {

constexpr size_t kMost = size_t{1} << 20;               // samples that are kept
constexpr auto kPause = std::chrono::milliseconds(20);  // between two looks for new threads
constexpr size_t kBytes = 16384;                        // of a thread's samples between them: 512

// The kernel writes this at each sample, as asked for below.
struct Record {
  perf_event_header header;
  uint64_t address;
  uint32_t process, thread;
  uint64_t time;
};

perf_event_attr wanted() {
  perf_event_attr attributes{};
  attributes.size = sizeof(attributes);
  attributes.type = PERF_TYPE_SOFTWARE;
  attributes.config = PERF_COUNT_SW_TASK_CLOCK;
  attributes.sample_period = kSamplePeriod;
  attributes.sample_type = PERF_SAMPLE_IP | PERF_SAMPLE_TID | PERF_SAMPLE_TIME;
  attributes.exclude_kernel = attributes.exclude_hv = 1;
  attributes.use_clockid = 1;
  attributes.clockid = CLOCK_REALTIME;
  return attributes;
}

// The samples of one thread, in memory that the kernel fills round and round.
class Ring {
 public:
  // Null, and errno, where the kernel refuses or the thread has ended.
  static std::unique_ptr<Ring> of(pid_t thread) {
    perf_event_attr attributes = wanted();
    const auto file = static_cast<int>(
        syscall(SYS_perf_event_open, &attributes, thread, -1, -1, PERF_FLAG_FD_CLOEXEC));
    if (file < 0) return nullptr;
    void* memory = mmap(nullptr, page() + kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    const int error = errno;
    close(file);  // the mapping keeps it
    if (memory == MAP_FAILED) {
      errno = error;
      return nullptr;
    }
    return std::unique_ptr<Ring>(new Ring(memory));
  }
  ~Ring() { munmap(memory_, page() + kBytes); }
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  // Takes what is there.
  void drain(std::vector<CodeSample>& into) {
    auto* state = static_cast<perf_event_mmap_page*>(memory_);
    const std::byte* data = static_cast<const std::byte*>(memory_) + page();
    const uint64_t head = std::atomic_ref(state->data_head).load(std::memory_order_acquire);
    uint64_t tail = state->data_tail;
    while (tail < head) {
      Record record{};
      copy(data, tail, &record.header, sizeof(record.header));
      if (record.header.type == PERF_RECORD_SAMPLE && record.header.size == sizeof(record)) {
        copy(data, tail, &record, sizeof(record));
        if (into.size() < kMost) {
          into.push_back({static_cast<int64_t>(record.time), record.thread, record.address});
        }
      }
      tail += record.header.size;
    }
    std::atomic_ref(state->data_tail).store(tail, std::memory_order_release);
  }

 private:
  explicit Ring(void* memory) : memory_(memory) {}

  static size_t page() { return static_cast<size_t>(sysconf(_SC_PAGESIZE)); }

  static void copy(const std::byte* data, uint64_t from, void* to, size_t count) {
    for (size_t i = 0; i < count; ++i) {
      static_cast<std::byte*>(to)[i] = data[(from + i) % kBytes];
    }
  }

  void* memory_;
};

class Sampler {
 public:
  Sampler() {
    look();
    if (rings_.empty()) {
      util::fail(util::ErrorKind::Runtime,
                 "profiler: expected a system that lets a process note where its threads are "
                 "(perf_event_open), got ",
                 std::strerror(errno),
                 ". Set kernel.perf_event_paranoid to 2, or allow the call "
                 "in the container.");
    }
    thread_ = std::jthread([this](const std::stop_token& stop) {
      pthread_setname_np(pthread_self(), "xla_sampler");
      std::unique_lock lock(mutex_);
      while (!wake_.wait_for(lock, stop, kPause, [&] { return stop.stop_requested(); })) look();
    });
  }

  std::vector<CodeSample> end() {
    thread_ = {};
    look();
    return std::move(samples_);
  }

 private:
  // Takes samples, finds new threads and lets go of those that have ended.
  void look() {
    const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir("/proc/self/task"), &closedir);
    if (folder == nullptr) return;
    std::unordered_map<pid_t, std::unique_ptr<Ring>> present;
    int refused = 0;
    while (const dirent* entry = readdir(folder.get())) {
      const std::string_view name = entry->d_name;
      pid_t thread = 0;
      std::from_chars(name.data(), name.data() + name.size(), thread);
      if (thread == 0) continue;
      const auto known = rings_.find(thread);
      std::unique_ptr<Ring> ring =
          known != rings_.end() ? std::move(known->second) : Ring::of(thread);
      if (ring != nullptr) {
        present.emplace(thread, std::move(ring));
      } else {
        refused = errno;
      }
    }
    for (auto* rings : {&rings_, &present}) {
      for (auto& [thread, ring] : *rings) {
        if (ring != nullptr) ring->drain(samples_);
      }
    }
    rings_ = std::move(present);
    errno = refused;
  }

  std::unordered_map<pid_t, std::unique_ptr<Ring>> rings_;
  std::vector<CodeSample> samples_;
  std::mutex mutex_;
  std::condition_variable_any wake_;
  std::jthread thread_;
};

std::mutex mutex;
std::unique_ptr<Sampler> sampler;

}  // namespace

void start_sampling() {
  const std::lock_guard lock(mutex);
  TXLA_CHECK(sampler == nullptr, "profiler: expected no other samples to be taken.");
  // A forked child has no thread that takes samples.
  static const int once =
      pthread_atfork(nullptr, nullptr, [] { static_cast<void>(sampler.release()); });
  TXLA_CHECK(once == 0, "profiler: no memory for a handler of fork().");
  sampler = std::make_unique<Sampler>();
}

std::vector<CodeSample> stop_sampling() {
  const std::lock_guard lock(mutex);
  TXLA_CHECK(sampler != nullptr, "profiler: expected samples that are being taken, got none.");
  std::vector<CodeSample> samples = sampler->end();
  sampler.reset();
  return samples;
}

}  // namespace torch_xla::cpu
