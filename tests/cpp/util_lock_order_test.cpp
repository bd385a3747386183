#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "util/error.h"
#include "util/hooks.h"
#include "util/lock_order.h"

namespace torch_xla::util {
namespace {

using CheckedMutex = RankedMutex<true>;

template <class Function>
std::string error_of(Function function) {
  try {
    function();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(LockOrder, LetsAThreadTakeLaterRanks) {
  CheckedMutex graph(Rank::Graph), section;
  for (int i = 0; i < 2; ++i) {  // again, once they are free
    const std::lock_guard outer(graph);
    lock_order::check(Rank::Compiler);
    lock_order::check(Rank::Device);
    const std::lock_guard inner(section);
  }
}

TEST(LockOrder, RefusesAnEarlierRankThoughNobodyHoldsIt) {
  CheckedMutex graph(Rank::Graph), section;
  const std::lock_guard inner(section);
  EXPECT_EQ(error_of([&] { graph.lock(); }),
            "lock order: expected a thread that waits for the graph lock to hold earlier ranks "
            "only, got one that holds a mutex of a short section. Let that go first "
            "(csrc/util/lock_order.h).");
  EXPECT_NE(error_of([&] { graph.try_lock(); }), "");
  std::thread([&] { graph.lock(), graph.unlock(); }).join();  // the order is each thread's own
}

TEST(LockOrder, RefusesTwoOfOneRank) {
  CheckedMutex first, second;
  const std::lock_guard lock(first);
  EXPECT_NE(error_of([&] { second.lock(); }), "");
}

TEST(LockOrder, RefusesAWaitForWhatComesBeforeWhatIsHeld) {
  CheckedMutex section;
  const std::lock_guard lock(section);
  EXPECT_NE(error_of([] { lock_order::check(Rank::Compiler); }), "");
}

// The deadlock of threads that all have compiled and want the graph lock, whose holder waits for
// one more compilation.
TEST(LockOrder, RefusesTheGraphLockToAThreadThatOthersWaitFor) {
  CheckedMutex graph(Rank::Graph);
  lock_order::hold(Rank::Compiler);
  EXPECT_NE(error_of([&] { graph.lock(); }), "");
  lock_order::let_go(Rank::Compiler);
  EXPECT_EQ(error_of([&] { graph.lock(); }), "");
  graph.unlock();
}

TEST(LockOrder, AConditionVariableLetsItsMutexGo) {
  CheckedMutex mutex;
  std::condition_variable_any changed;
  bool is_set = false;
  std::thread other([&] {
    const std::lock_guard lock(mutex);
    is_set = true;
    changed.notify_all();
  });
  {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return is_set; });
    EXPECT_NE(error_of([] { lock_order::check(Rank::Device); }), "");
  }
  other.join();
  lock_order::check(Rank::Graph);
}

thread_local bool has_interpreter = false;

TEST(LockOrder, RefusesAWaitWithTheInterpretersLock) {
  hooks.holds_interpreter = [] { return has_interpreter; };
  has_interpreter = true;
  const std::string error = error_of([] { lock_order::check(Rank::Device); });
  EXPECT_NE(error.find("got one that holds the interpreter's lock"), std::string::npos) << error;
  lock_order::check(Rank::Section);
  has_interpreter = false;
  lock_order::check(Rank::Device);
}

}  // namespace
}  // namespace torch_xla::util
