#include <cstdio>

#include <sys/wait.h>
#include <unistd.h>

#include "pjrt/topology.h"
#include "pjrt_testing.h"

namespace torch_xla::pjrt::testing {
namespace {

// Runs `body` in a forked child. Returns the child's wait status: 0 when the body returned, a
// signal when it hung.
template <typename Body>
int in_child(Body&& body) {
  std::fflush(nullptr);
  pid_t child = fork();
  if (child == 0) {
    alarm(20);
    bool passed = false;
    try {
      body();
      passed = !::testing::Test::HasFailure();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "child: %s\n", error.what());
    }
    std::fflush(nullptr);
    _exit(passed ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  return status;
}

TEST(PjrtProcess, ForkedChildIsToldSo) {
  auto executable = Executable::compile(*client(), kAddOne);
  auto x = upload<float>(std::vector<float>(6), {2, 3});
  PJRT_Buffer* arg = x->handle();
  auto result = executable->execute({&arg, 1});

  int status = in_child([&] {
    float values[6];
    auto check = [](const Error& error) {
      EXPECT_EQ(error.code(), PJRT_Error_Code_FAILED_PRECONDITION);
      EXPECT_HAS(error.what(), "'spawn'");
    };
    check(error_of([&] { upload<float>({1}, {}); }));
    check(error_of([&] { Executable::compile(*client(), kAddOne); }));
    check(error_of([&] { Executable::deserialize(*client(), "any"); }));
    check(error_of([&] { executable->execute({&arg, 1}); }));
    check(error_of([&] { executable->serialize(); }));
    check(error_of([&] { x->copy_to_host(values, sizeof(values)); }));
    check(error_of([&] { x->ready(); }));
    check(error_of([&] { x->is_deleted(); }));
    check(error_of([&] { x->delete_(); }));
    check(error_of([&] { result.done.await(); }));
    check(error_of([&] { device().memory_stats(); }));
    check(error_of([&] { Client::create(plugin()); }));
    // Nothing here may touch the parent's device: it would wait for threads that do not exist.
    result = {};
    x.reset();
    executable.reset();
  });
  EXPECT_EQ(status, 0);

  // The parent goes on.
  EXPECT_EQ(download<float>(*result.outputs[0])[0], 1.0f);
}

}  // namespace
}  // namespace torch_xla::pjrt::testing
