#include "executor/background.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <functional>
#include <system_error>
#include <thread>
#include <unordered_map>
#include <utility>

#include <c10/util/Exception.h>
#include <pthread.h>

#include "debug/trace.h"
#include "executor/deferred.h"
#include "executor/runtime.h"
#include "executor/waits.h"
#include "util/unlocked.h"

namespace torch_xla::executor {
namespace {

// Guarded by the GraphLock.
std::unordered_map<util::Hash128, std::weak_ptr<Compilation>, util::Hash128Hasher>& known() {
  static auto& all =
      *new std::unordered_map<util::Hash128, std::weak_ptr<Compilation>, util::Hash128Hasher>;
  return all;
}

// Threads that compile, as many as there are processors: they stay, since profiles have a track of
// each. A compiler takes gigabytes for a large program, so more wait for their turn.
class Threads {
 public:
  static Threads& get() {
    static auto& threads = *new Threads;
    return threads;
  }

  void start(std::function<void()> work) {
    std::unique_lock lock(mutex_);
    work_.push_back(std::move(work));
    if (work_.size() <= idle_ || threads_ == most_) return changed_.notify_all();
    try {
      std::thread([this] { serve(); }).detach();
      ++threads_;
    } catch (const std::system_error&) {
      if (threads_ > 0) return;
      auto here = std::move(work_.back());  // there can be no thread
      work_.pop_back();
      lock.unlock();
      here();
    }
  }

  void set_mode(Compilation::Mode mode) {
    const std::lock_guard lock(mutex_);
    mode_ = mode;
    changed_.notify_all();
  }
  bool refuses() {
    const std::lock_guard lock(mutex_);
    return mode_ == Compilation::Mode::Refusing;
  }

  void wait_for_all() {
    const util::Unlocked unlocked;
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return work_.empty() && idle_ == threads_; });
  }

 private:
  void serve() {
    pthread_setname_np(pthread_self(), "compiler");
    std::unique_lock lock(mutex_);
    while (true) {
      ++idle_;
      changed_.notify_all();
      changed_.wait(lock, [this] { return !work_.empty() && mode_ != Compilation::Mode::Pausing; });
      --idle_;
      {
        const std::function<void()> next = std::move(work_.front());
        work_.pop_front();
        lock.unlock();
        next();
      }
      lock.lock();
    }
  }

  const unsigned most_ = std::max(1u, std::thread::hardware_concurrency());
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> work_;
  unsigned threads_ = 0, idle_ = 0;
  Compilation::Mode mode_ = Compilation::Mode::Normal;
};

}  // namespace

std::shared_ptr<Compilation> Compilation::start(Missing& missing, const Cause& cause) {
  auto made = std::make_shared<Compilation>();
  made->missing_ = std::exchange(missing, {});
  made->is_of_line_ = cause.is_of_line;
  std::erase_if(known(), [](const auto& entry) { return entry.second.expired(); });
  known()[made->missing_.key] = made;
  Threads::get().start([made] {
    made->compile();
    launch_deferred();
  });
  return made;
}

std::shared_ptr<Compilation> Compilation::find(const util::Hash128& key) {
  const auto it = known().find(key);
  if (it == known().end()) return nullptr;
  std::shared_ptr<Compilation> found = it->second.lock();
  return found != nullptr && found->state_ == State::Failed ? nullptr : found;
}

void Compilation::set_mode(Mode mode) { Threads::get().set_mode(mode); }

void Compilation::wait_for_all() { Threads::get().wait_for_all(); }

bool Compilation::ended() const { return state_ != State::Runs; }

void Compilation::compile() {
  State state = State::Made;
  try {
    if (Threads::get().refuses()) throw Refused();
    seconds_ = make(missing_, cause());
  } catch (c10::Error& e) {
    const std::string& place = missing_.program->place;
    if (!place.empty()) e.add_context("the program of " + place);
    failure_ = std::current_exception();
    state = State::Failed;
  } catch (...) {
    failure_ = std::current_exception();
    state = State::Failed;
  }
  const std::lock_guard lock(mutex_);
  state_ = state;
  changed_.notify_all();
}

void Compilation::wait() {
  using Clock = std::chrono::steady_clock;
  Runtime::get();  // throws in a forked child, where no thread compiles
  const Clock::time_point start = Clock::now();
  {
    const debug::Span span("wait for the compiler");
    const util::Unlocked unlocked;
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return ended(); });
  }
  const std::chrono::duration<double> taken = Clock::now() - start;
  WaitScope::pause(taken.count());
}

std::shared_ptr<const Program> Compilation::take() {
  if (state_ == State::Failed) std::rethrow_exception(failure_);
  if (!is_kept_) {
    keep(missing_, cause(), seconds_);
    missing_.lowered.clear();
    known().erase(missing_.key);
    is_kept_ = true;
  }
  return missing_.program;
}

}  // namespace torch_xla::executor
