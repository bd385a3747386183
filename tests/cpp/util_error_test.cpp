#include <gtest/gtest.h>

#include "util/error.h"

namespace torch_xla::util {
namespace {

TEST(Error, FailThrowsTheKindAndTheStreamedMessage) {
  try {
    fail(ErrorKind::Index, "select: expected an index below ", 3, ", got ", 7L, '.');
    FAIL() << "fail() returned";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::Index);
    EXPECT_STREQ(error.what(), "select: expected an index below 3, got 7.");
  }
}

TEST(Error, CheckPassesWithoutEvaluatingItsMessage) {
  int evaluated = 0;
  TXLA_CHECK(2 > 1, ++evaluated);
  EXPECT_EQ(evaluated, 0);
}

TEST(Error, CheckThrowsRuntimeAndCheckKindItsKind) {
  const auto expect = [](auto check, ErrorKind kind, const std::string& message) {
    try {
      check();
      FAIL() << "the check passed";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), kind);
      EXPECT_EQ(error.what(), message);
    }
  };
  expect([] { TXLA_CHECK(1 > 2, "one"); }, ErrorKind::Runtime, "one");
  expect([] { TXLA_CHECK_KIND(ErrorKind::Type, false, "t", 1.5); }, ErrorKind::Type, "t1.5");
}

TEST(Error, CheckIsOneStatement) {
  // An `else` after it belongs to the `if` before it.
  bool taken = false;
  if (taken)
    TXLA_CHECK(false, "not reached");
  else
    taken = true;
  EXPECT_TRUE(taken);
}

}  // namespace
}  // namespace torch_xla::util
