#include "cpu/host_parts.h"

#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <pthread.h>

#include "cpu/ffi_frame.h"

// PyTorch's OpenMP, which comes with it; ATen's own setter changes all threads.
extern "C" {
[[gnu::weak]] int omp_get_max_threads();
[[gnu::weak]] void omp_set_num_threads(int count);
}

namespace torch_xla::cpu {
namespace {

// PyTorch's kernels use this thread only.
class SingleThread {
 public:
  SingleThread() {
    at::get_num_threads();  // ATen gives each thread its number once, at the first question
    if (omp_set_num_threads == nullptr) return;
    before_ = omp_get_max_threads();
    omp_set_num_threads(1);
  }
  ~SingleThread() {
    if (before_ != 0) omp_set_num_threads(before_);
  }
  SingleThread(const SingleThread&) = delete;
  SingleThread& operator=(const SingleThread&) = delete;

 private:
  int before_ = 0;
};

// Shared with threads that may come when all is done: those must not touch the frame.
struct Work {
  Work(int64_t count, const std::function<void(int64_t)>& function) : parts(count), run(function) {}

  const int64_t parts;
  const std::function<void(int64_t)>& run;
  std::atomic<int64_t> next{0};
  std::atomic<int64_t> done{0};
  std::mutex mutex;
  std::exception_ptr failure;

  void drain() {
    for (int64_t part = next++; part < parts; part = next++) {
      try {
        // A program may run on the thread that recorded it, with whatever modes are on there.
        const c10::impl::ForceDispatchKeyGuard plain(
            c10::DispatchKeySet(c10::DispatchKey::BackendSelect),
            c10::default_excluded_set | c10::autograd_dispatch_keyset_with_ADInplaceOrView);
        const at::NoGradGuard no_grad;
        const SingleThread single;
        run(part);
      } catch (...) {
        const std::lock_guard lock(mutex);
        failure = std::current_exception();
      }
      ++done;
      done.notify_one();
    }
  }
};

void drain_scheduled(void* data) {
  const std::unique_ptr<std::shared_ptr<Work>> work(static_cast<std::shared_ptr<Work>*>(data));
  (*work)->drain();
}

// Never destroyed: threads may wait in it while the process ends.
class WaitingThreads {
 public:
  void run(std::function<void()> call) {
    const std::lock_guard lock(mutex_);
    calls_.push_back(std::move(call));
    if (calls_.size() > idle_) {
      std::thread([this] { work(); }).detach();
    } else {
      called_.notify_one();
    }
  }

 private:
  void work() {
    pthread_setname_np(pthread_self(), "xla exchange");
    std::unique_lock lock(mutex_);
    while (true) {
      ++idle_;
      called_.wait(lock, [this] { return !calls_.empty(); });
      --idle_;
      std::function<void()> call = std::move(calls_.front());
      calls_.pop_front();
      lock.unlock();
      call();
      call = nullptr;
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable called_;
  std::deque<std::function<void()>> calls_;
  size_t idle_ = 0;  // threads that wait for a call
};

}  // namespace

void run_waiting(std::function<void()> call) {
  static auto& threads = *new WaitingThreads;
  threads.run(std::move(call));
}

int64_t thread_count(const XLA_FFI_CallFrame& frame) {
  int64_t count = 1;
  XLA_FFI_ThreadPool_NumThreads_Args args = {XLA_FFI_ThreadPool_NumThreads_Args_STRUCT_SIZE,
                                             nullptr, frame.ctx, &count};
  return succeeded(frame.api, frame.api->XLA_FFI_ThreadPool_NumThreads(&args)) ? count : 1;
}

void run_parts(const XLA_FFI_CallFrame& frame, int64_t parts,
               const std::function<void(int64_t)>& run) {
  const auto work = std::make_shared<Work>(parts, run);
  for (int64_t i = 1; i < parts; ++i) {
    auto* mine = new std::shared_ptr<Work>(work);
    XLA_FFI_ThreadPool_Schedule_Args args = {XLA_FFI_ThreadPool_Schedule_Args_STRUCT_SIZE, nullptr,
                                             frame.ctx, drain_scheduled, mine};
    if (!succeeded(frame.api, frame.api->XLA_FFI_ThreadPool_Schedule(&args))) delete mine;
  }
  work->drain();
  // The others are at work on their parts already: nothing is left that needs a free thread.
  for (int64_t done = work->done; done < parts; done = work->done) work->done.wait(done);
  if (work->failure) std::rethrow_exception(work->failure);
}

}  // namespace torch_xla::cpu
