// Programs of several sizes become one of dynamic sizes.
#include <functional>

#include "hlo/dynamic.h"
#include "hlo_testing.h"

namespace torch_xla::hlo::testing {
namespace {

constexpr int64_t kSizes[] = {23, 28, 30, 37};

// The program that `build` makes of an argument tensor<Nx3xf32>.
std::string merged(const std::function<Value(const Value&)>& build) {
  std::vector<SizedProgram> programs;
  for (const int64_t n : kSizes) {
    Builder b;
    const std::vector<Type> types = {{DType::F32, {n, 3}}};
    const Values arguments = b.begin_function("main", types);
    b.set_location("loc(\"forward/aten::op\"(\"forward\"(\"model.py\":7:0)))");
    b.end_function(Values{build(arguments[0])});
    programs.push_back({{n}, b.finish()});
  }
  return dynamic_program(programs, false);
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(HloDynamic, TypesAlone) {
  EXPECT_EQ(merged([](const Value& x) { return add(x, x); }), R"(module @torch_xla {
  func.func public @main(%0: tensor<?x3xf32>) -> (tensor<?x3xf32>) {
    %1 = "stablehlo.add"(%0, %0) : (tensor<?x3xf32>, tensor<?x3xf32>) -> tensor<?x3xf32>
    "func.return"(%1) : (tensor<?x3xf32>) -> ()
  }
}
)");
}

TEST(HloDynamic, SizesAsOperands) {
  const std::string text = merged([](const Value& x) { return reshape(x, {x.dim(0) * 3}); });
  EXPECT_TRUE(has(text,
                  "%size1 = \"stablehlo.get_dimension_size\"(%0) {dimension = 0 : i64} : "
                  "(tensor<?x3xf32>) -> tensor<i32>"))
      << text;
  EXPECT_TRUE(has(text, "dense<3> : tensor<1xi32>")) << text;
  EXPECT_TRUE(has(text, "\"stablehlo.dynamic_reshape\"(%0, %size")) << text;
  EXPECT_TRUE(has(text, "-> tensor<?xf32>")) << text;
}

TEST(HloDynamic, Constants) {
  const std::string zeros = merged([](const Value& x) { return zero(x.builder(), x.type()); });
  EXPECT_TRUE(has(zeros,
                  "%scalar1 = \"stablehlo.constant\"() {value = dense<0x00000000> : "
                  "tensor<f32>}"))
      << zeros;
  EXPECT_TRUE(has(zeros, "dynamic_broadcast_in_dim")) << zeros;
  const std::string size = merged([](const Value& x) {
    return scalar(x.builder(), static_cast<double>(2 * x.dim(0) + 1), DType::F32);
  });
  EXPECT_TRUE(has(size, "\"stablehlo.convert\"(%size")) << size;
  const std::string inverse = merged([](const Value& x) {
    return scalar(x.builder(), 1.0 / static_cast<double>(x.dim(0)), DType::F32);
  });
  EXPECT_TRUE(has(inverse, "\"stablehlo.divide\"(%scalar1_value_one, %scalar1_value)")) << inverse;
}

TEST(HloDynamic, WhatIsNotAlike) {
  const auto error = [](const std::function<Value(const Value&)>& build) {
    return error_of([&] { merged(build); });
  };
  EXPECT_EQ(error([](const Value& x) { return slice_dim(x, 0, 0, x.dim(0), 2); }),
            "aten::op: expected the same program for all sizes of the dynamic dimensions, got "
            "another size (no multiple of a dynamic size, and no sum with one) of stablehlo.slice "
            "for other sizes. Called at model.py:7 (forward). Export the model with a static size "
            "there.");
  EXPECT_TRUE(
      has(error([](const Value& x) { return x.dim(0) % 2 == 0 ? add(x, x) : x; }), "got another"));
  const std::string value = error([](const Value& x) {
    return scalar(x.builder(), std::sqrt(static_cast<double>(x.dim(0))), DType::F32);
  });
  EXPECT_TRUE(has(value, "got another value of stablehlo.constant")) << value;
}

}  // namespace
}  // namespace torch_xla::hlo::testing
