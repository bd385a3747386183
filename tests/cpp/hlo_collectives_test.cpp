// Each collective among two members, which are the replicas of a program, or its partitions.
#include <functional>
#include <numeric>

#include "hlo/collectives.h"
#include "hlo/partition.h"
#include "hlo_testing.h"
#include "pjrt/device.h"

namespace torch_xla::hlo {
namespace {

using pjrt::testing::client;
using testing::expect_error;
using Numbers = std::vector<float>;
using Body = std::function<Values(const Value&, const Groups&)>;

constexpr int64_t kMembers = 2;

pjrt::Devices two_devices() {
  const std::vector<pjrt::Device>& all = client()->devices();
  return pjrt::Devices({all.begin(), all.begin() + kMembers});
}

Groups both(Groups::Of of) { return {of, {{0, 1}}}; }

// A program in which each member has four elements of eight.
std::string program(Groups::Of of, const Body& body) {
  Builder b;
  const Groups groups = both(of);
  if (of == Groups::Of::Replicas) {
    const Type part{DType::F32, {4}};
    const Value x = b.begin_function("main", std::span(&part, 1))[0];
    const Values results = body(x, groups);
    b.end_function(results);
    return b.finish();
  }
  const spmd::Mesh* mesh = spmd::Mesh::of({"x"}, {kMembers}, {0, 1});
  b.module_item("sdy.mesh @mesh = " + mesh->text);
  b.set_mesh(mesh);
  const auto split = [&](const Type& part) {
    std::vector<std::vector<spmd::Axis>> dims(part.dims.size());
    dims[0] = {{0, 1, kMembers}};
    Type whole = part;
    whole.dims[0] *= kMembers;
    return Split{spmd::Sharding::of(mesh, dims), whole, part};
  };
  const Split of_argument = split({DType::F32, {4}});
  const Attributes attributes = {sharding_attribute(b, *of_argument.sharding)};
  const Value x =
      b.begin_function("main", std::span(&of_argument.whole, 1), std::span(&attributes, 1))[0];
  std::vector<Attributes> of_results;
  const Values results = on_each_device(
      b, std::span(&x, 1), std::span(&of_argument, 1),
      [&](std::span<const Value> parts) { return body(parts[0], groups); },
      [&](const Type& part) {
        const Split made = split(part);
        of_results.push_back({sharding_attribute(b, *made.sharding)});
        return made;
      });
  b.end_function(results, of_results);
  return b.finish();
}

// What each member has of each result; they begin with 0, ..., 3 and 4, ..., 7.
std::vector<std::vector<Numbers>> run(Groups::Of of, const Body& body) {
  const std::string text = program(of, body);
  SCOPED_TRACE(text);
  pjrt::CompileOptions options;
  const bool replicas = of == Groups::Of::Replicas;
  options.set_devices(two_devices(), replicas ? pjrt::Over::Replicas : pjrt::Over::Partitions);
  EXPECT_EQ(replicas ? options.num_replicas : options.num_partitions, kMembers);
  options.use_shardy = !replicas;
  const auto executable = pjrt::Executable::compile(*client(), text, options);
  const auto sent = [](float first, int device) {
    Numbers x(4);
    std::iota(x.begin(), x.end(), first);
    return std::move(*pjrt::testing::upload(x, {4}, two_devices().all[device]));
  };
  pjrt::Array x(sent(0, 0));
  x.add(sent(4, 1));
  const pjrt::Array* const arguments[] = {&x};
  const auto made = executable->execute(arguments);
  std::vector<std::vector<Numbers>> results;
  for (const auto& output : made.outputs) {
    auto& of_members = results.emplace_back();
    for (size_t member = 0; member < kMembers; ++member) {
      of_members.push_back(pjrt::testing::download<float>(output->buffer(member)));
    }
  }
  return results;
}

class Collectives : public ::testing::TestWithParam<Groups::Of> {};
INSTANTIATE_TEST_SUITE_P(Among, Collectives,
                         ::testing::Values(Groups::Of::Replicas, Groups::Of::Partitions),
                         [](const auto& info) {
                           return info.param == Groups::Of::Replicas ? "Replicas" : "Partitions";
                         });

TEST_P(Collectives, Reduce) {
  const auto results = run(GetParam(), [](const Value& x, const Groups& groups) {
    const Value list[] = {x, slice_dim(x, 0, 1, 3)};
    Values all = all_reduce(list, reduction_by("multiply"), groups);
    all.push_back(all_reduce(x, reduction_by("add"), groups));
    all.push_back(all_reduce(x, [](const Value& a, const Value& b) { return max(a, b); }, groups));
    all.push_back(reduce_scatter(x, reduction_by("add"), 0, groups));
    return all;
  });
  ASSERT_EQ(results.size(), 5u);
  EXPECT_EQ(results[0], (std::vector<Numbers>(2, {0, 5, 12, 21})));
  EXPECT_EQ(results[1], (std::vector<Numbers>(2, {5, 12})));
  EXPECT_EQ(results[2], (std::vector<Numbers>(2, {4, 6, 8, 10})));
  EXPECT_EQ(results[3], (std::vector<Numbers>(2, {4, 5, 6, 7})));
  EXPECT_EQ(results[4], (std::vector<Numbers>{{4, 6}, {8, 10}}));
}

TEST_P(Collectives, Move) {
  const auto results = run(GetParam(), [](const Value& x, const Groups& groups) {
    const Value rows = reshape(x, {2, 2});
    Groups swapped = groups, forward = groups;
    swapped.members = {{0, 1}, {1, 0}};
    forward.members = {{0, 1}};
    return Values{all_gather(x, 0, groups), all_to_all(x, 0, 0, groups),
                  all_to_all(rows, 0, 1, groups), collective_permute(x, swapped),
                  collective_permute(x, forward)};
  });
  ASSERT_EQ(results.size(), 5u);
  EXPECT_EQ(results[0], (std::vector<Numbers>(2, {0, 1, 2, 3, 4, 5, 6, 7})));
  EXPECT_EQ(results[1], (std::vector<Numbers>{{0, 1, 4, 5}, {2, 3, 6, 7}}));
  EXPECT_EQ(results[2], (std::vector<Numbers>{{0, 1, 4, 5}, {2, 3, 6, 7}}));
  EXPECT_EQ(results[3], (std::vector<Numbers>{{4, 5, 6, 7}, {0, 1, 2, 3}}));
  EXPECT_EQ(results[4], (std::vector<Numbers>{{0, 0, 0, 0}, {0, 1, 2, 3}}));
}

TEST_P(Collectives, Broadcast) {
  const auto results = run(GetParam(), [](const Value& x, const Groups& groups) {
    Groups from_second = groups;
    from_second.members = {{1, 0}};
    return Values{broadcast_by_gather(x, groups), broadcast_by_gather(x, from_second)};
  });
  EXPECT_EQ(results[0], (std::vector<Numbers>(2, {0, 1, 2, 3})));
  EXPECT_EQ(results[1], (std::vector<Numbers>(2, {4, 5, 6, 7})));
}

TEST(CollectivesText, TheGroupSaysWho) {
  const auto text = [](Groups::Of of) {
    return program(of, [](const Value& x, const Groups& groups) {
      return Values{all_gather(x, 0, groups), all_to_all(x, 0, 0, groups),
                    collective_permute(x, groups), collective_broadcast(x, groups)};
    });
  };
  const std::string replicas = text(Groups::Of::Replicas);
  EXPECT_HAS(replicas,
             "%1 = \"stablehlo.all_gather\"(%0) {all_gather_dim = 0 : i64, replica_groups = "
             "dense<[[0, 1]]> : tensor<1x2xi64>} : (tensor<4xf32>) -> tensor<8xf32>");
  EXPECT_HAS(replicas,
             "\"stablehlo.collective_permute\"(%0) {source_target_pairs = dense<[[0, 1]]> "
             ": tensor<1x2xi64>} : (tensor<4xf32>) -> tensor<4xf32>");
  EXPECT_HAS(replicas,
             "\"stablehlo.collective_broadcast\"(%0) {replica_groups = dense<[[0, 1]]> "
             ": tensor<1x2xi64>} : (tensor<4xf32>) -> tensor<4xf32>");
  EXPECT_EQ(replicas.find("channel"), replicas.npos);
  const std::string partitions = text(Groups::Of::Partitions);
  EXPECT_HAS(partitions,
             "channel_handle = #stablehlo.channel_handle<handle = 2, type = 1>, "
             "use_global_device_ids = unit}");
  EXPECT_HAS(partitions,
             "split_count = 2 : i64, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, "
             "channel_handle = #stablehlo.channel_handle<handle = 2, type = 1>} : ");
}

// The CPU's compiler has no code for all of them.
TEST(CollectivesText, ReducesByAnyRegion) {
  const std::string text = program(Groups::Of::Replicas, [](const Value& x, const Groups& groups) {
    const auto smaller = [](const Value& a, const Value& b) {
      const Value first = unary("negate", a), second = unary("negate", b);
      return unary("negate", max(first, second));
    };
    return Values{all_reduce(x, smaller, groups)};
  });
  EXPECT_HAS(text, R"("stablehlo.all_reduce"(%0) ({
    ^bb0(%1: tensor<f32>, %2: tensor<f32>):
      %3 = "stablehlo.negate"(%1) : (tensor<f32>) -> tensor<f32>
      %4 = "stablehlo.negate"(%2) : (tensor<f32>) -> tensor<f32>
      %5 = "stablehlo.maximum"(%3, %4) : (tensor<f32>, tensor<f32>) -> tensor<f32>
      %6 = "stablehlo.negate"(%5) : (tensor<f32>) -> tensor<f32>
      "stablehlo.return"(%6) : (tensor<f32>) -> ()
    }) {replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>} : (tensor<4xf32>) -> tensor<4xf32>)");
}

TEST(CollectivesText, RefusesWhatDoesNotDivide) {
  Builder b;
  const Type type{DType::F32, {3}};
  const Value x = b.begin_function("main", std::span(&type, 1))[0];
  const Groups groups = both(Groups::Of::Replicas);
  expect_error([&] { reduce_scatter(x, reduction_by("add"), 0, groups); },
               "reduce_scatter: expected a dimension that the 2 members of a group divide, got 3.");
  expect_error([&] { all_to_all(x, 0, 0, groups); }, "all_to_all: expected a dimension");
}

}  // namespace
}  // namespace torch_xla::hlo
