#include "executor/compile/background.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <system_error>
#include <thread>
#include <unordered_map>
#include <utility>

#include <c10/util/Exception.h>
#include <pthread.h>

#include "debug/trace.h"
#include "debug/waits.h"
#include "executor/run/runtime.h"
#include "util/unlocked.h"

namespace torch_xla::executor {
namespace {

// Guarded by the GraphLock.
std::unordered_map<util::Hash128, std::weak_ptr<Compilation>, util::Hash128Hasher>& known() {
  static auto& all =
      *new std::unordered_map<util::Hash128, std::weak_ptr<Compilation>, util::Hash128Hasher>;
  return all;
}

// Threads that do what they are given, in its order. They stay, since profiles have a track of
// each.
class Threads {
 public:
  // As many as there are processors: a compiler takes gigabytes for a large program, so more wait
  // for their turn. None takes the graph lock, whose holder may wait for the one that comes last.
  static Threads& compilers() {
    static auto& threads =
        *new Threads("compiler", std::max(1u, std::thread::hardware_concurrency()));
    return threads;
  }
  // The one that launches what has waited for a compiler.
  static Threads& launcher() {
    static auto& threads = *new Threads("launcher", 1);
    return threads;
  }

  // Returns false where there can be no thread for the work, which is not done then.
  bool start(std::function<void()> work) {
    const std::lock_guard lock(mutex_);
    work_.push_back(std::move(work));
    changed_.notify_all();
    if (work_.size() <= idle_ || threads_ == most_) return true;
    try {
      std::thread([this] { serve(); }).detach();
      ++threads_;
    } catch (const std::system_error&) {
      if (threads_ == 0) work_.pop_back();
    }
    return threads_ > 0;
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
    util::about_to_wait_for(util::Rank::Compiler);
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return work_.empty() && idle_ == threads_; });
  }

 private:
  Threads(const char* name, unsigned most) : name_(name), most_(most) {}

  void serve() {
    pthread_setname_np(pthread_self(), name_);
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

  const char* const name_;
  const unsigned most_;
  util::Mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<std::function<void()>> work_;
  unsigned threads_ = 0, idle_ = 0;
  Compilation::Mode mode_ = Compilation::Mode::Normal;
};

}  // namespace

std::shared_ptr<Compilation> Compilation::start(Unmade unmade, const Cause& cause,
                                                std::function<void()> ended) {
  auto made = std::make_shared<Compilation>();
  made->unmade_ = std::move(unmade);
  made->is_of_line_ = cause.is_of_line;
  std::erase_if(known(), [](const auto& entry) { return entry.second.expired(); });
  known()[made->program().key] = made;
  const bool is_started = Threads::compilers().start([made, ended = std::move(ended)]() mutable {
    made->compile();
    // Destroying a compilation may wait for any lock, so the launcher does it.
    Threads::launcher().start([made = std::move(made), ended = std::move(ended)] { ended(); });
  });
  if (!is_started) made->compile();
  return made;
}

std::shared_ptr<Compilation> Compilation::find(const util::Hash128& key) {
  const auto it = known().find(key);
  if (it == known().end()) return nullptr;
  std::shared_ptr<Compilation> found = it->second.lock();
  return found != nullptr && found->state_ == State::Failed ? nullptr : found;
}

void Compilation::set_mode(Mode mode) { Threads::compilers().set_mode(mode); }

void Compilation::wait_for_all() {
  Threads::compilers().wait_for_all();
  Threads::launcher().wait_for_all();
}

bool Compilation::ended() const { return state_ != State::Runs; }

void Compilation::compile() {
  const util::Awaited awaited(util::Rank::Compiler);
  State state = State::Made;
  try {
    if (Threads::compilers().refuses()) throw Refused();
    seconds_ = make(unmade_, cause());
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
    util::about_to_wait_for(util::Rank::Compiler);
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return ended(); });
  }
  const std::chrono::duration<double> taken = Clock::now() - start;
  debug::WaitScope::pause(taken.count());
}

void Compilation::raise(const NotMade& failure) const {
  try {
    failure.raise();
  } catch (c10::Error& e) {
    const std::string& place = program().place;
    if (!place.empty()) e.add_context("the program of " + place);
    throw;
  }
}

std::shared_ptr<const Program> Compilation::take() {
  if (state_ == State::Failed) {
    try {
      std::rethrow_exception(failure_);
    } catch (const NotMade& failure) {
      raise(failure);
    }
  }
  if (!is_kept_) {
    keep(unmade_, cause(), seconds_);
    unmade_.lowered.clear();
    known().erase(program().key);
    is_kept_ = true;
  }
  return unmade_.program;
}

}  // namespace torch_xla::executor
