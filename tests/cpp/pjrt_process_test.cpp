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
  auto executable = client()->compile(kAddOne);
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
    check(error_of([&] { client()->compile(kAddOne); }));
    check(error_of([&] { client()->deserialize("any"); }));
    check(error_of([&] { executable->execute({&arg, 1}); }));
    check(error_of([&] { executable->serialize(); }));
    check(error_of([&] { x->copy_to_host(values, sizeof(values)); }));
    check(error_of([&] { x->ready(); }));
    check(error_of([&] { x->is_deleted(); }));
    check(error_of([&] { x->delete_(); }));
    check(error_of([&] { result.done.await(); }));
    check(error_of([&] { device().memory_stats(); }));
    check(error_of([&] { Topology::of(client()); }));
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

TEST(PjrtProcessDeathTest, ExitWithWorkInFlight) {
  // A fresh process, which runs only this test, so that threads and exit handlers are a program's.
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        auto own = Client::create(plugin());
        auto executable = own->compile(R"(
func.func @main(%x: tensor<1024x1024xf32>) -> tensor<1024x1024xf32> {
  %y = stablehlo.dot_general %x, %x, contracting_dims = [1] x [0]
      : (tensor<1024x1024xf32>, tensor<1024x1024xf32>) -> tensor<1024x1024xf32>
  return %y : tensor<1024x1024xf32>
})");
        std::vector<float> values(1 << 20, 1.0f);
        std::shared_ptr<Buffer> x = own->from_host(
            values.data(), PJRT_Buffer_Type_F32, std::vector<int64_t>{1024, 1024}, std::nullopt,
            HostSemantics::ImmutableOnlyDuringCall, own->addressable_devices()[0]);
        for (int i = 0; i < 8; ++i) {
          PJRT_Buffer* arg = x->handle();
          x = executable->execute({&arg, 1}).outputs[0];
        }
        std::exit(7);
      },
      ::testing::ExitedWithCode(7), "");
}

}  // namespace
}  // namespace torch_xla::pjrt::testing
