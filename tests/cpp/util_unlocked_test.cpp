#include <gtest/gtest.h>

#include "util/hooks.h"
#include "util/unlocked.h"

namespace torch_xla::util {
namespace {

// An interpreter's lock, which the calling thread holds or not.
struct FakeLock {
  bool held = false;
  int taken = 0;
} fake;

bool is_held() { return fake.held; }

void* release() {
  if (!fake.held) return nullptr;
  fake.held = false;
  return &fake;
}

void take(void* held) {
  EXPECT_EQ(held, &fake);
  fake.held = true;
  ++fake.taken;
}

TEST(Unlocked, LetsTheLockGoAndTakesItOnce) {
  {
    const Unlocked unlocked;
  }  // without an interpreter
  hooks.holds_interpreter = &is_held;
  hooks.release_interpreter = &release;
  hooks.take_interpreter = &take;

  {
    const Unlocked unlocked;
  }
  EXPECT_EQ(fake.taken, 0) << "the thread did not hold it";

  fake.held = true;
  {
    const Unlocked unlocked;
    EXPECT_FALSE(fake.held);
    const Unlocked inner;
  }
  EXPECT_TRUE(fake.held);
  EXPECT_EQ(fake.taken, 1);

  Unlocked unlocked;
  unlocked.end();
  EXPECT_TRUE(fake.held);
  EXPECT_EQ(fake.taken, 2);
  unlocked.end();
  EXPECT_EQ(fake.taken, 2);
  fake.held = false;
}

}  // namespace
}  // namespace torch_xla::util
