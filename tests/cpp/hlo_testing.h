// What the tests of csrc/hlo share: a program that is compiled and run by the CPU plugin, and whose
// results are compared one by one. Many expectations go into one program, since compiling is slow.
#pragma once

#include <cmath>
#include <complex>
#include <source_location>
#include <string>
#include <vector>

#include "hlo/builder.h"
#include "hlo/ops.h"
#include "pjrt_testing.h"
#include "util/error.h"

namespace torch_xla::hlo::testing {

// The text of a statement's util::Error.
template <typename Statement>
std::string error_of(Statement&& statement) {
  try {
    statement();
  } catch (const util::Error& error) {
    return error.what();
  }
  ADD_FAILURE() << "expected a util::Error, nothing was thrown";
  return "";
}

// The statement throws a util::Error whose text has this part.
template <typename Statement>
void expect_error(Statement&& statement, std::string_view part,
                  std::source_location where = std::source_location::current()) {
  const ::testing::ScopedTrace trace(where.file_name(), static_cast<int>(where.line()), part);
  const std::string text = error_of(statement);
  EXPECT_HAS(text, part);
}

class Program {
 public:
  Program() {
    const Type pool{DType::F64, {kPoolSize}};
    pool_ = b.begin_function("main", std::span<const Type>(&pool, 1))[0];
  }

  // Numbers that the compiler does not know: they arrive as the program's one argument.
  Value input(DType dtype, const Dims& dims, const std::vector<double>& numbers) {
    const auto at = static_cast<int64_t>(numbers_.size());
    numbers_.insert(numbers_.end(), numbers.begin(), numbers.end());
    return convert(reshape(slice_dim(pool_, 0, at, static_cast<int64_t>(numbers_.size())), dims),
                   dtype);
  }
  Value floats(const Dims& dims, const std::vector<double>& numbers) {
    return input(DType::F32, dims, numbers);
  }
  Value ints(const Dims& dims, const std::vector<double>& numbers) {
    return input(DType::S32, dims, numbers);
  }

  // Floats and predicates by value (nan equals nan, -0 differs from 0); `tolerance` is relative.
  void expect(const Value& x, std::vector<double> values, double tolerance = 0,
              std::source_location where = std::source_location::current()) {
    expected_.push_back({std::move(values), {}, tolerance, where});
    results_.push_back(convert(x, DType::F64));
  }
  // Integers exactly, unsigned ones by their bits; floats of 8, 16, 32 and 64 bits by theirs.
  void expect_bits(const Value& x, std::vector<uint64_t> bits,
                   std::source_location where = std::source_location::current()) {
    static constexpr std::pair<size_t, DType> kUnsigned[] = {
        {8, DType::U8}, {16, DType::U16}, {32, DType::U32}, {64, DType::U64}};
    Value y = x;
    if (is_float(x.dtype())) {
      for (const auto& [width, dtype] : kUnsigned) {
        if (width == bit_width(x.dtype())) y = bitcast_convert(x, x.type().with(dtype));
      }
    }
    if (y.dtype() == DType::U64) {
      y = bitcast_convert(y, y.type().with(DType::S64));
    } else {
      y = convert(y, DType::S64);
    }
    expected_.push_back({{}, std::move(bits), 0, where});
    results_.push_back(y);
  }
  void expect_ints(const Value& x, const std::vector<int64_t>& values,
                   std::source_location where = std::source_location::current()) {
    expect_bits(x, std::vector<uint64_t>(values.begin(), values.end()), where);
  }

  // Closes main, compiles, runs and compares.
  void run() {
    b.end_function(results_);
    const std::string text = b.finish();
    SCOPED_TRACE(text);
    ASSERT_LE(static_cast<int64_t>(numbers_.size()), kPoolSize);
    numbers_.resize(kPoolSize);
    pjrt::CompileOptions options;
    options.env_overrides = {{"xla_cpu_enable_fast_min_max", false}};  // which would lose nan
    auto executable = pjrt::Executable::compile(*pjrt::testing::client(), text, options);
    auto pool = pjrt::testing::upload(numbers_, {kPoolSize});
    PJRT_Buffer* argument = pool->handle();
    auto outputs = executable->execute({&argument, 1}).outputs;
    ASSERT_EQ(outputs.size(), expected_.size());
    for (size_t i = 0; i < outputs.size(); ++i) {
      const Expected& e = expected_[i];
      const ::testing::ScopedTrace trace(e.where.file_name(), static_cast<int>(e.where.line()),
                                         results_[i].type().str());
      EXPECT_EQ(outputs[i]->dims(), results_[i].dims());
      if (results_[i].dtype() == DType::S64) {
        compare_bits(pjrt::testing::download<int64_t>(*outputs[i]), e);
      } else {
        compare_values(pjrt::testing::download<double>(*outputs[i]), e);
      }
    }
  }

  Builder b;

 private:
  static constexpr int64_t kPoolSize = 512;

  struct Expected {
    std::vector<double> values;
    std::vector<uint64_t> bits;
    double tolerance;
    std::source_location where;
  };

  static void compare_bits(const std::vector<int64_t>& got, const Expected& e) {
    ASSERT_EQ(got.size(), e.bits.size());
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_EQ(got[i], static_cast<int64_t>(e.bits[i])) << "at " << i;
    }
  }
  static void compare_values(const std::vector<double>& got, const Expected& e) {
    ASSERT_EQ(got.size(), e.values.size());
    for (size_t i = 0; i < got.size(); ++i) {
      const double want = e.values[i];
      if (std::isnan(want)) {
        EXPECT_TRUE(std::isnan(got[i])) << "at " << i << ": " << got[i];
      } else if (e.tolerance == 0 || std::isinf(want)) {
        EXPECT_EQ(got[i], want) << "at " << i;
        EXPECT_EQ(std::signbit(got[i]), std::signbit(want)) << "at " << i;
      } else {
        EXPECT_NEAR(got[i], want, e.tolerance * std::max(1.0, std::abs(want))) << "at " << i;
      }
    }
  }

  Value pool_;
  std::vector<double> numbers_;
  Values results_;
  std::vector<Expected> expected_;
};

inline constexpr double kInf = std::numeric_limits<double>::infinity();
inline constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

}  // namespace torch_xla::hlo::testing
