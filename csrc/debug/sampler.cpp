#include "debug/sampler.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstddef>
#include <ctime>
#include <memory>
#include <mutex>
#include <string_view>
#include <thread>
#include <unordered_map>

#include <dirent.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include "debug/trace.h"
#include "util/error.h"

namespace torch_xla::debug {
namespace {

constexpr size_t kMost = size_t{1} << 20;  // samples that are kept, 24 bytes each
constexpr int kPeriodsOfList = 40;         // after which new threads are looked for

// What the handlers write to. They may come late, so it is never freed.
struct Taken {
  std::atomic<bool> on{false};
  std::atomic<size_t> count{0};
  CodeSample* samples = nullptr;
};
constinit Taken taken;

uint64_t address_in(void* context) {
#if defined(__x86_64__)
  return static_cast<uint64_t>(static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_RIP]);
#elif defined(__aarch64__)
  return static_cast<ucontext_t*>(context)->uc_mcontext.pc;
#else
  static_cast<void>(context);
  return 0;
#endif
}

void take(int, siginfo_t*, void* context) {
  if (!taken.on.load(std::memory_order_relaxed)) return;
  const int interrupted = errno;
  const size_t index = taken.count.fetch_add(1, std::memory_order_relaxed);
  if (index < kMost) {
    CodeSample& sample = taken.samples[index];
    sample.thread = gettid();
    sample.address = address_in(context);
    std::atomic_ref(sample.time).store(now_ns(), std::memory_order_release);  // it is whole
  }
  errno = interrupted;
}

// A signal that has the handler above. It keeps it: one that is under way must not end the process.
int signal_of_samples() {
  static const int number = [] {
    for (int candidate = SIGRTMAX; candidate >= SIGRTMIN; --candidate) {
      struct sigaction now{};
      if (sigaction(candidate, nullptr, &now) != 0 || now.sa_handler != SIG_DFL) continue;
      struct sigaction ours{};
      ours.sa_sigaction = &take;
      ours.sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK;
      sigemptyset(&ours.sa_mask);
      if (sigaction(candidate, &ours, nullptr) == 0) return candidate;
    }
    return 0;
  }();
  TXLA_CHECK(number != 0, "profiler: expected a signal that this process does not use, got none.");
  return number;
}

// The time that a thread has computed, in nanoseconds; negative where it has ended.
int64_t computed(pid_t thread) {
  // As the kernel numbers the clocks of threads, which pthread_getcpuclockid tells of handles
  // alone.
  const clockid_t clock = static_cast<clockid_t>(~static_cast<unsigned>(thread) << 3 | 6);
  timespec time{};
  if (clock_gettime(clock, &time) != 0) return -1;
  return static_cast<int64_t>(time.tv_sec) * 1'000'000'000 + time.tv_nsec;
}

// Sends the signal to each thread that has computed since the last time.
class Sampler {
 public:
  Sampler()
      : signal_(signal_of_samples()), thread_([this](const std::stop_token& stop) {
          pthread_setname_np(pthread_self(), "xla_sampler");
          run(stop);
        }) {}

 private:
  void run(const std::stop_token& stop) {
    for (int period = 0; !stop.stop_requested(); ++period) {
      const timespec pause{0, kSamplePeriod};
      nanosleep(&pause, nullptr);
      if (!expects_device_events()) continue;
      if (period % kPeriodsOfList == 0 || computed_.empty()) list_threads();
      for (auto& [thread, before] : computed_) {
        const int64_t now = computed(thread);
        const bool computes = before >= 0 && now - before > kSamplePeriod / 5;
        before = now;
        if (computes) syscall(SYS_tgkill, getpid(), thread, signal_);
      }
    }
  }

  void list_threads() {
    const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir("/proc/self/task"), &closedir);
    if (folder == nullptr) return;
    std::unordered_map<pid_t, int64_t> threads;
    while (const dirent* entry = readdir(folder.get())) {
      const std::string_view name = entry->d_name;
      pid_t thread = 0;
      std::from_chars(name.data(), name.data() + name.size(), thread);
      if (thread == 0 || thread == gettid()) continue;
      const auto known = computed_.find(thread);
      threads.emplace(thread, known != computed_.end() ? known->second : computed(thread));
    }
    computed_ = std::move(threads);
  }

  const int signal_;
  std::unordered_map<pid_t, int64_t> computed_;
  std::jthread thread_;
};

std::mutex mutex;
std::unique_ptr<Sampler> sampler;

}  // namespace

void start_sampling() {
#if !defined(__x86_64__) && !defined(__aarch64__)
  TXLA_CHECK(false, "profiler: expected a processor of the kind x86-64 or AArch64.");
#endif
  const std::lock_guard lock(mutex);
  TXLA_CHECK(sampler == nullptr, "profiler: expected no other samples to be taken.");
  constexpr size_t kBytes = kMost * sizeof(CodeSample);
  if (taken.samples == nullptr) {
    void* memory =
        mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    TXLA_CHECK(memory != MAP_FAILED, "profiler: no memory for samples.");
    taken.samples = static_cast<CodeSample*>(memory);
    // A forked child has no thread that takes samples.
    pthread_atfork(nullptr, nullptr, [] {
      taken.on.store(false);
      static_cast<void>(sampler.release());
    });
  }
  taken.count.store(0);
  taken.on.store(true);
  sampler = std::make_unique<Sampler>();
}

std::vector<CodeSample> stop_sampling() {
  const std::lock_guard lock(mutex);
  TXLA_CHECK(sampler != nullptr, "profiler: expected samples that are being taken, got none.");
  sampler.reset();
  taken.on.store(false);
  std::vector<CodeSample> samples;
  for (size_t i = 0; i < std::min(taken.count.load(), kMost); ++i) {
    CodeSample& sample = taken.samples[i];
    const int64_t time = std::atomic_ref(sample.time).load(std::memory_order_acquire);
    if (time != 0) samples.push_back({time, sample.thread, sample.address});
  }
  madvise(taken.samples, kMost * sizeof(CodeSample), MADV_DONTNEED);  // zeros, and given back
  return samples;
}

}  // namespace torch_xla::debug
