#include <algorithm>
#include <atomic>
#include <cstring>
#include <future>
#include <numeric>
#include <random>

#include "pjrt_testing.h"

namespace torch_xla::pjrt::testing {
namespace {

using Bytes = std::vector<unsigned char>;

Bytes download_bytes(const Buffer& buffer) {
  Bytes bytes(buffer.host_size());
  buffer.copy_to_host(bytes.data(), bytes.size()).await();
  return bytes;
}

class EveryDType : public ::testing::TestWithParam<DType> {};

TEST_P(EveryDType, RoundTrip) {
  const DType dtype = GetParam();
  const std::vector<int64_t> dims{3, 5};
  Bytes source(15 * host_element_size(dtype));
  std::mt19937 random(7);
  for (auto& byte : source) byte = static_cast<unsigned char>(random());
  // Types smaller than a byte keep the low bits of each byte, a truth value is 0 or 1.
  auto mask = [&](unsigned char byte, int bits) -> unsigned char {
    return byte & ((1 << bits) - 1);
  };
  for (auto& byte : source) {
    if (dtype == PJRT_Buffer_Type_PRED) byte = mask(byte, 1);
    if (dtype == PJRT_Buffer_Type_U2) byte = mask(byte, 2);
    if (dtype == PJRT_Buffer_Type_U4 || dtype == PJRT_Buffer_Type_F4E2M1FN) byte = mask(byte, 4);
    if (dtype == PJRT_Buffer_Type_S2) byte = mask(byte, 1);
    if (dtype == PJRT_Buffer_Type_S4) byte = mask(byte, 3);
  }
  auto buffer = Buffer::from_host(*client(), source.data(), dtype, dims, std::nullopt,
                                  HostSemantics::ImmutableOnlyDuringCall, device());
  EXPECT_EQ(buffer->dtype(), dtype);
  EXPECT_EQ(buffer->dims(), dims);
  EXPECT_EQ(buffer->host_size(), source.size());
  buffer->ready().await();
  EXPECT_EQ(download_bytes(*buffer), source);
}

INSTANTIATE_TEST_SUITE_P(
    Pjrt, EveryDType,
    ::testing::Values(
        PJRT_Buffer_Type_PRED, PJRT_Buffer_Type_S8, PJRT_Buffer_Type_S16, PJRT_Buffer_Type_S32,
        PJRT_Buffer_Type_S64, PJRT_Buffer_Type_U8, PJRT_Buffer_Type_U16, PJRT_Buffer_Type_U32,
        PJRT_Buffer_Type_U64, PJRT_Buffer_Type_F16, PJRT_Buffer_Type_F32, PJRT_Buffer_Type_F64,
        PJRT_Buffer_Type_BF16, PJRT_Buffer_Type_C64, PJRT_Buffer_Type_C128, PJRT_Buffer_Type_F8E5M2,
        PJRT_Buffer_Type_F8E4M3FN, PJRT_Buffer_Type_F8E4M3B11FNUZ, PJRT_Buffer_Type_F8E5M2FNUZ,
        PJRT_Buffer_Type_F8E4M3FNUZ, PJRT_Buffer_Type_S4, PJRT_Buffer_Type_U4, PJRT_Buffer_Type_S2,
        PJRT_Buffer_Type_U2, PJRT_Buffer_Type_F8E4M3, PJRT_Buffer_Type_F8E3M4,
        PJRT_Buffer_Type_F8E8M0FNU, PJRT_Buffer_Type_F4E2M1FN),
    [](const auto& info) { return dtype_name(info.param); });

TEST(PjrtBuffer, ScalarsAndEmptyArrays) {
  auto scalar = upload<int64_t>({42}, {});
  EXPECT_TRUE(scalar->dims().empty());
  EXPECT_EQ(download<int64_t>(*scalar), std::vector<int64_t>{42});

  auto empty =
      Buffer::from_host(*client(), nullptr, PJRT_Buffer_Type_F32, std::vector<int64_t>{2, 0, 3},
                        std::nullopt, HostSemantics::ZeroCopy, device());
  EXPECT_EQ(empty->host_size(), 0u);
  empty->copy_to_host(nullptr, 0).await();
}

TEST(PjrtBuffer, ManyDimensions) {
  std::vector<float> values(1 << 11);
  std::iota(values.begin(), values.end(), 0.0f);
  auto buffer = upload(values, std::vector<int64_t>(11, 2));
  EXPECT_EQ(download<float>(*buffer), values);
}

TEST(PjrtBuffer, StridedSources) {
  std::vector<float> values(12);
  std::iota(values.begin(), values.end(), 0.0f);
  auto strided = [&](int64_t offset, std::vector<int64_t> dims, std::vector<int64_t> strides) {
    for (auto& stride : strides) stride *= sizeof(float);
    return download<float>(*Buffer::from_host(*client(), values.data() + offset,
                                              PJRT_Buffer_Type_F32, dims, strides,
                                              HostSemantics::ImmutableOnlyDuringCall, device()));
  };
  using V = std::vector<float>;
  EXPECT_EQ(strided(0, {3, 4}, {4, 1}), values);
  EXPECT_EQ(strided(0, {4, 3}, {1, 4}), (V{0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11}));
  EXPECT_EQ(strided(1, {3, 2}, {4, 2}), (V{1, 3, 5, 7, 9, 11}));
  EXPECT_EQ(strided(11, {12}, {-1}), (V{11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0}));
  EXPECT_EQ(strided(2, {2, 3}, {1, 0}), (V{2, 2, 2, 3, 3, 3}));
}

TEST(PjrtBuffer, WrongArguments) {
  std::vector<int64_t> dims{2, 3}, one_stride{4}, negative{-1};
  float values[6] = {};
  auto from = [&](const void* data, const std::vector<int64_t>& shape,
                  std::optional<std::span<const int64_t>> strides) {
    return error_of([&] {
      Buffer::from_host(*client(), data, PJRT_Buffer_Type_F32, shape, strides,
                        HostSemantics::ImmutableOnlyDuringCall, device());
    });
  };
  EXPECT_HAS(from(nullptr, dims, std::nullopt).what(), "expected data for F32[2,3]");
  EXPECT_HAS(from(values, dims, one_stride).what(), "one stride for each dimension of [2,3]");
  EXPECT_HAS(from(values, negative, std::nullopt).what(), "no negative dimension, got [-1]");

  auto buffer = upload<float>({1, 2, 3}, {3});
  Error error = error_of([&] { buffer->copy_to_host(values, 11); });
  EXPECT_EQ(error.code(), PJRT_Error_Code_INVALID_ARGUMENT);
  EXPECT_HAS(error.what(), "expected room for 12 bytes, got 11");
}

struct AlignedBlock {
  explicit AlignedBlock(size_t count)
      : data(static_cast<float*>(std::aligned_alloc(64, count * 4))) {
    std::iota(data, data + count, 0.0f);
  }
  ~AlignedBlock() { std::free(data); }
  AlignedBlock(const AlignedBlock&) = delete;
  AlignedBlock& operator=(const AlignedBlock&) = delete;
  float* data;
};

TEST(PjrtBuffer, ZeroCopyAliasesAlignedMemory) {
  AlignedBlock block(1024);
  std::promise<void> done;
  auto buffer =
      Buffer::from_host(*client(), block.data, PJRT_Buffer_Type_F32, std::vector<int64_t>{1024},
                        std::nullopt, HostSemantics::ZeroCopy, device(), [&] { done.set_value(); });
  buffer->ready().await();
  EXPECT_EQ(buffer->unsafe_pointer(), block.data);
  EXPECT_TRUE(buffer->is_on_cpu());
  auto future = done.get_future();
  EXPECT_EQ(future.wait_for(std::chrono::milliseconds(20)), std::future_status::timeout)
      << "the buffer still uses the memory";
  buffer.reset();
  ASSERT_EQ(future.wait_for(std::chrono::seconds(60)), std::future_status::ready);
}

TEST(PjrtBuffer, ZeroCopyOfMisalignedMemoryIsACopy) {
  AlignedBlock block(1024);
  auto buffer =
      Buffer::from_host(*client(), block.data + 1, PJRT_Buffer_Type_F32, std::vector<int64_t>{512},
                        std::nullopt, HostSemantics::ZeroCopy, device());
  buffer->ready().await();
  EXPECT_NE(buffer->unsafe_pointer(), block.data + 1);
  EXPECT_EQ(download<float>(*buffer)[511], 512.0f);
}

TEST(PjrtBuffer, MemoryOfAnotherOwnerIsUsedAsItIs) {
  AlignedBlock block(1024);
  std::promise<void> done;
  auto buffer = Buffer::view_of_device_memory(*client(), block.data, PJRT_Buffer_Type_F32,
                                              std::vector<int64_t>{32, 32}, device(),
                                              [&] { done.set_value(); });
  EXPECT_EQ(buffer->unsafe_pointer(), block.data);
  EXPECT_EQ(buffer->dims(), (std::vector<int64_t>{32, 32}));
  EXPECT_EQ(download<float>(*buffer)[1023], 1023.0f);
  auto future = done.get_future();
  EXPECT_EQ(future.wait_for(std::chrono::milliseconds(20)), std::future_status::timeout)
      << "the buffer still uses the memory";
  buffer.reset();
  ASSERT_EQ(future.wait_for(std::chrono::seconds(60)), std::future_status::ready);
}

TEST(PjrtBuffer, CallersMemoryIsReturnedForEachSemantics) {
  for (auto semantics :
       {HostSemantics::ImmutableOnlyDuringCall, HostSemantics::UntilTransferCompletes,
        HostSemantics::ZeroCopy, HostSemantics::MutableZeroCopy}) {
    AlignedBlock block(1 << 16);
    std::promise<void> done;
    // What the callback holds is released with it.
    auto token = std::make_shared<int>(1);
    auto buffer = Buffer::from_host(*client(), block.data, PJRT_Buffer_Type_F32,
                                    std::vector<int64_t>{1 << 16}, std::nullopt, semantics,
                                    device(), [&done, token] { done.set_value(); });
    if (semantics == HostSemantics::ImmutableOnlyDuringCall) block.data[5] = -1.0f;
    EXPECT_EQ(download<float>(*buffer)[5], 5.0f);
    buffer.reset();
    ASSERT_EQ(done.get_future().wait_for(std::chrono::seconds(60)), std::future_status::ready);
  }
}

TEST(PjrtBuffer, DeletedBufferIsRefused) {
  auto buffer = upload<float>({1, 2}, {2});
  EXPECT_FALSE(buffer->is_deleted());
  buffer->delete_();
  EXPECT_TRUE(buffer->is_deleted());
  float values[2];
  Error error = error_of([&] { buffer->copy_to_host(values, sizeof(values)).await(); });
  EXPECT_HAS(error.what(), "deleted");
}

TEST(PjrtBuffer, CopyToAnotherDevice) {
  auto source = upload<float>({1, 2, 3}, {3});
  EXPECT_EQ(source->device(), device(0));
  auto copy = source->copy_to_device(device(2));
  EXPECT_EQ(copy->device(), device(2));
  EXPECT_EQ(copy->dims(), source->dims());
  source.reset();
  EXPECT_EQ(download<float>(*copy), (std::vector<float>{1, 2, 3}));
}

TEST(PjrtBuffer, MoveLeavesOneOwner) {
  auto first = upload<float>({1}, {});
  Buffer second(std::move(*first));
  EXPECT_EQ(first->handle(), nullptr);
  auto third = upload<float>({3}, {});
  *third = std::move(second);
  EXPECT_EQ(download<float>(*third), std::vector<float>{1});
}

TEST(PjrtBuffer, KeepsItsClientAlive) {
  auto other = Client::create(plugin(), {{"cpu_device_count", int64_t{1}}});
  float value = 2.5f, back = 0;
  auto buffer =
      Buffer::from_host(*other, &value, PJRT_Buffer_Type_F32, {}, std::nullopt,
                        HostSemantics::ImmutableOnlyDuringCall, other->addressable_devices()[0]);
  std::weak_ptr<Client> watched = other;
  other.reset();
  EXPECT_FALSE(watched.expired());
  buffer->copy_to_host(&back, sizeof(back)).await();
  EXPECT_EQ(back, 2.5f);
  buffer.reset();
  EXPECT_TRUE(watched.expired());
}

TEST(PjrtEvent, DefaultIsReady) {
  Event event;
  EXPECT_TRUE(event.ready());
  event.await();
  bool called = false;
  event.on_ready([&](std::exception_ptr error) { called = error == nullptr; });
  EXPECT_TRUE(called);
}

TEST(PjrtEvent, CallbackOutlivesItsEvent) {
  std::vector<float> values(1 << 20, 1.0f);
  std::promise<bool> succeeded;
  upload(values, {1 << 20})->ready().on_ready([&](std::exception_ptr error) {
    succeeded.set_value(error == nullptr);
  });
  auto future = succeeded.get_future();
  ASSERT_EQ(future.wait_for(std::chrono::seconds(60)), std::future_status::ready);
  EXPECT_TRUE(future.get());
}

}  // namespace
}  // namespace torch_xla::pjrt::testing
