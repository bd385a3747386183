#include <atomic>
#include <chrono>
#include <thread>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "util/fork_mutex.h"

namespace torch_xla::util {
namespace {

TEST(ForkMutex, IsFreeInAChildThatWasForkedWhileAnotherThreadHeldIt) {
  static auto& mutex = *new ForkMutex;
  std::atomic<bool> held{false};
  std::thread holder([&] {
    const std::lock_guard lock(mutex);
    held = true;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  });
  while (!held) std::this_thread::yield();
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);  // where it waits for ever
    const std::lock_guard lock(mutex);
    execl("/bin/true", "true", nullptr);  // a sanitizer would look for threads at an exit
    _exit(1);
  }
  holder.join();
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  const std::lock_guard lock(mutex);  // free here too
}

}  // namespace
}  // namespace torch_xla::util
