// Constants of every dtype, by their bits as the compiler has them.
#include "hlo_testing.h"

namespace torch_xla::hlo::testing {
namespace {

// The bits that PyTorch 2.13 gives these numbers, nan and what is too large for f8E4M3FN aside:
// PyTorch gives the largest number then, the compiler nan.
TEST(HloConstants, SmallFloats) {
  const std::vector<double> numbers = {
      0.0,     -0.0, 1.0,  -1.5,  0.1,   1.0 / 3, 0x1p-9, 0x1p-10, 0x1p-16, 0x1p-17,
      0x3p-18, 448,  464,  240,   248,   249,     57344,  61439,   61440,   65504,
      1e6,     -1e6, 3e38, 1e300, 1e-40, 1e-310,  kInf,   -kInf,   kNan};
  const std::vector<std::pair<DType, std::vector<uint64_t>>> table = {
      {DType::BF16, {0,      0x8000, 0x3F80, 0xBFC0, 0x3DCD, 0x3EAB, 0x3B00, 0x3A80, 0x3780, 0x3700,
                     0x3740, 0x43E0, 0x43E8, 0x4370, 0x4378, 0x4379, 0x4760, 0x4770, 0x4770, 0x4780,
                     0x4974, 0xC974, 0x7F62, 0x7F80, 0x0001, 0,      0x7F80, 0xFF80, 0x7FC0}},
      {DType::F16, {0,      0x8000, 0x3C00, 0xBE00, 0x2E66, 0x3555, 0x1800, 0x1400, 0x0100, 0x0080,
                    0x00C0, 0x5F00, 0x5F40, 0x5B80, 0x5BC0, 0x5BC8, 0x7B00, 0x7B80, 0x7B80, 0x7BFF,
                    0x7C00, 0xFC00, 0x7C00, 0x7C00, 0,      0,      0x7C00, 0xFC00, 0x7E00}},
      {DType::F8E5M2,
       {0,    0x80, 0x3C, 0xBE, 0x2E, 0x35, 0x18, 0x14, 0x01, 0x00, 0x01, 0x5F, 0x5F, 0x5C, 0x5C,
        0x5C, 0x7B, 0x7B, 0x7C, 0x7C, 0x7C, 0xFC, 0x7C, 0x7C, 0,    0,    0x7C, 0xFC, 0x7F}},
      {DType::F8E4M3FN,
       {0,    0x80, 0x38, 0xBC, 0x1D, 0x2B, 0x01, 0,    0,    0, 0, 0x7E, 0x7E, 0x77, 0x78,
        0x78, 0x7F, 0x7F, 0x7F, 0x7F, 0x7F, 0x7F, 0x7F, 0x7F, 0, 0, 0x7F, 0x7F, 0x7F}},
      {DType::F8E5M2FNUZ,
       {0,    0,    0x40, 0xC2, 0x32, 0x39, 0x1C, 0x18, 0x02, 0x01, 0x02, 0x63, 0x63, 0x60, 0x60,
        0x60, 0x7F, 0x7F, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0,    0,    0x80, 0x80, 0x80}},
      {DType::F8E4M3FNUZ,
       {0,    0,    0x40, 0xC4, 0x25, 0x33, 0x02, 0x01, 0,    0, 0, 0x80, 0x80, 0x7F, 0x80,
        0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0, 0, 0x80, 0x80, 0x80}}};
  Program p;
  const auto count = static_cast<int64_t>(numbers.size());
  for (const auto& [dtype, bits] : table) {
    p.expect_bits(dense_floats(p.b, numbers, {dtype, {count}}), bits);
    p.expect_bits(splat(p.b, 1.0 / 3, {dtype, {2}}), {bits[5], bits[5]});
  }
  p.run();
}

TEST(HloConstants, WideFloats) {
  Program p;
  const std::vector<double> numbers = {0.0, -0.0, 0.1, 1e-310, 1e300, -kInf, kInf};
  p.expect(dense_floats(p.b, numbers, {DType::F64, {7}}), numbers);
  p.expect(dense_floats(p.b, numbers, {DType::F32, {7}}),
           {0.0, -0.0, double(0.1f), 0.0, kInf, -kInf, kInf});
  p.expect_bits(splat(p.b, 1e-45, {DType::F32, {1}}), {1});
  p.expect_bits(splat(p.b, 5e-324, {DType::F64, {1}}), {1});
  p.expect(scalar(p.b, kNan, DType::F32), {kNan});
  p.expect(scalar(p.b, kNan, DType::F64), {kNan});
  for (DType dtype : {DType::C64, DType::C128}) {
    const Value z = dense_floats(p.b, std::vector<double>{-0.0, 2.5, kInf}, {dtype, {3}});
    p.expect(real(z), {-0.0, 2.5, kInf});
    p.expect(imag(z), {0, 0, 0});
    const Value same = splat(p.b, kNan, {dtype, {1, 2}});
    p.expect(real(same), {kNan, kNan});
    p.expect(imag(one(p.b, {dtype, {}})), {0});
  }
  p.run();
}

constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

TEST(HloConstants, Integers) {
  Program p;
  const auto expect = [&](DType dtype, const std::vector<int64_t>& values) {
    const auto count = static_cast<int64_t>(values.size());
    p.expect_ints(dense_ints(p.b, values, {dtype, {count}}), values);
    p.expect_ints(splat_int(p.b, values[0], {dtype, {2}}), {values[0], values[0]});
    p.expect_ints(scalar_int(p.b, values.back(), dtype), {values.back()});
  };
  expect(DType::Pred, {0, 1});
  expect(DType::S4, {-8, 0, 7});
  expect(DType::S8, {-128, 0, 127});
  expect(DType::S16, {-32768, 0, 32767});
  expect(DType::S32, {-2147483648, 0, 2147483647});
  expect(DType::S64, {kMin, -1, 0, kMax - 1, kMax});
  expect(DType::U4, {15, 0, 1});
  expect(DType::U8, {255, 0, 1});
  expect(DType::U16, {65535, 0, 1});
  expect(DType::U32, {4294967295, 0, 1});
  expect(DType::U64, {-1, kMin, 0, kMax});  // by their bits
  // The bits of a number of the other kind of integer.
  p.expect_ints(splat_int(p.b, -1, {DType::U8, {1}}), {255});
  p.expect_ints(splat_int(p.b, 0xFFFFFFFF, {DType::S32, {1}}), {-1});
  p.expect_ints(splat_int(p.b, 128, {DType::S8, {1}}), {-128});
  // Whole numbers given as floats, which lose their fraction as in PyTorch.
  p.expect_ints(dense_floats(p.b, std::vector<double>{-2, 2.75, -2.75}, {DType::S32, {3}}),
                {-2, 2, -2});
  p.expect_bits(splat(p.b, 0x1.8p63, {DType::U64, {1}}), {0xC000000000000000});
  p.expect_ints(splat(p.b, -0x1p63, {DType::S64, {1}}), {kMin});
  p.expect_ints(splat(p.b, 0.5, {DType::Pred, {1}}), {1});
  p.expect_ints(splat(p.b, kNan, {DType::Pred, {1}}), {1});
  // Integers as floats.
  p.expect(dense_ints(p.b, std::vector<int64_t>{-3, 1 << 20}, {DType::F32, {2}}), {-3, 1 << 20});
  p.expect(imag(splat_int(p.b, 3, {DType::C64, {1}})), {0});
  p.run();
}

TEST(HloConstants, Extremes) {
  Program p;
  for (DType dtype : {DType::BF16, DType::F16, DType::F32, DType::F64, DType::F8E5M2}) {
    p.expect(lowest(p.b, {dtype, {}}), {-kInf});
    p.expect(highest(p.b, {dtype, {1}}), {kInf});
  }
  const auto finite = [&](DType dtype, double value) {
    p.expect(finite_highest(p.b, {dtype, {}}), {value});
    if (dtype == DType::F8E4M3FN || dtype == DType::F8E4M3FNUZ || dtype == DType::F8E5M2FNUZ) {
      p.expect(highest(p.b, {dtype, {}}), {value});
      p.expect(lowest(p.b, {dtype, {}}), {-value});
    }
  };
  finite(DType::BF16, 0x1.FEp127);
  finite(DType::F16, 65504);
  finite(DType::F32, std::numeric_limits<float>::max());
  finite(DType::F64, std::numeric_limits<double>::max());
  finite(DType::F8E5M2, 57344);
  finite(DType::F8E4M3FN, 448);
  finite(DType::F8E5M2FNUZ, 57344);
  finite(DType::F8E4M3FNUZ, 240);
  const std::vector<std::tuple<DType, int64_t, int64_t>> integers = {
      {DType::Pred, 0, 1},
      {DType::S4, -8, 7},
      {DType::S8, -128, 127},
      {DType::S16, -32768, 32767},
      {DType::S32, -2147483648, 2147483647},
      {DType::S64, kMin, kMax},
      {DType::U4, 0, 15},
      {DType::U8, 0, 255},
      {DType::U16, 0, 65535},
      {DType::U32, 0, 4294967295},
      {DType::U64, 0, -1}};
  for (const auto& [dtype, low, high] : integers) {
    p.expect_ints(lowest(p.b, {dtype, {}}), {low});
    p.expect_ints(highest(p.b, {dtype, {}}), {high});
    p.expect_ints(finite_highest(p.b, {dtype, {}}), {high});
  }
  p.run();
}

TEST(HloConstants, Shapes) {
  Program p;
  const std::vector<int64_t> six = {1, 2, 3, 4, 5, 6};
  const Value matrix = dense_ints(p.b, six, {DType::S32, {2, 1, 3}});
  EXPECT_EQ(matrix.type().str(), "tensor<2x1x3xi32>");
  p.expect_ints(matrix, six);
  p.expect_ints(dense_ints(p.b, std::vector<int64_t>{7}, {DType::S32, {}}), {7});
  p.expect_ints(dense_ints(p.b, std::vector<int64_t>{7}, {DType::S32, {1, 1}}), {7});
  for (const Dims& empty : {Dims{0}, Dims{2, 0, 3}}) {
    p.expect(splat(p.b, kNan, {DType::F32, empty}), {});
    p.expect(dense_floats(p.b, {}, {DType::BF16, empty}), {});
    p.expect(real(zero(p.b, {DType::C64, empty})), {});
    p.expect_ints(one(p.b, {DType::U8, empty}), {});
    p.expect_ints(zero(p.b, {DType::Pred, empty}), {});
  }
  p.expect_ints(iota(p.b, {DType::S32, {2, 3}}, 0), {0, 0, 0, 1, 1, 1});
  p.expect(iota(p.b, {DType::BF16, {2, 3}}, 1), {0, 1, 2, 0, 1, 2});
  p.run();
}

TEST(HloConstants, Errors) {
  Builder b;
  b.begin_function("main", {});
  const auto f32 = [](Dims dims) { return Type{DType::F32, std::move(dims)}; };
  EXPECT_EQ(error_of([&] { splat_int(b, 256, {DType::U8, {2}}); }),
            "constant: expected a value that ui8 holds, got 256. Convert a constant of a wider "
            "type.");
  expect_error([&] { scalar_int(b, -129, DType::S8); }, "i8 holds, got -129");
  expect_error([&] { scalar_int(b, -9, DType::U4); }, "ui4 holds, got -9");
  expect_error([&] { scalar(b, 4294967296.0, DType::S32); }, "i32 holds, got 4294967296");
  EXPECT_EQ(error_of([&] { scalar(b, kNan, DType::S64); }),
            "constant: expected a value that i64 holds, got nan.");
  expect_error([&] { scalar(b, 0x1p64, DType::U64); }, "ui64 holds, got 1.84467e+19");
  EXPECT_EQ(error_of([&] { dense_floats(b, std::vector<double>{1, 2}, f32({3})); }),
            "constant: expected as many values as tensor<3xf32> has elements, got 2.");
  expect_error([&] { dense_ints(b, {}, f32({1})); }, "tensor<1xf32> has elements, got 0");
  EXPECT_EQ(error_of([&] { lowest(b, {DType::C128, {}}); }),
            "lowest: expected numbers that have an order, got tensor<complex<f64>>.");
  EXPECT_EQ(error_of([&] { iota(b, f32({2}), 1); }),
            "iota: expected a dimension of tensor<2xf32>, got 1.");
}

}  // namespace
}  // namespace torch_xla::hlo::testing
