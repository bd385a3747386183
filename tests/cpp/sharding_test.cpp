#include "spmd/sharding.h"

#include <algorithm>
#include <numeric>

#include <gtest/gtest.h>

#include "hlo_testing.h"
#include "spmd/compiled_module.h"
#include "util/error.h"

namespace torch_xla::spmd {
namespace {

using hlo::testing::expect_error;
using Dims = std::vector<int64_t>;

Dims counted(int64_t n) {
  Dims all(static_cast<size_t>(n));
  std::iota(all.begin(), all.end(), int64_t{0});
  return all;
}

const Mesh* grid() { return Mesh::of({"data", "model"}, {4, 2}, counted(8)); }

TEST(Sharding, EqualOnesAreOneObject) {
  EXPECT_EQ(grid(), Mesh::of({"data", "model"}, {4, 2}, counted(8)));
  EXPECT_NE(grid(), Mesh::of({"x", "model"}, {4, 2}, counted(8)));
  const Sharding* s = Sharding::of(grid(), {{{0, 1, 4}}, {}});
  EXPECT_EQ(s, Sharding::of(grid(), {{{0, 1, 4}}, {}}));
  EXPECT_EQ(s, Sharding::read(s->text));
  EXPECT_EQ(grid()->text, "<[\"data\"=4, \"model\"=2]>");
  EXPECT_EQ(Mesh::of({"x"}, {2}, {1, 0})->text, "<[\"x\"=2], device_ids=[1,0]>");
}

TEST(Sharding, SaysWhatEachDeviceHolds) {
  const Sharding* s = Sharding::of(grid(), {{{1, 1, 2}}, {{0, 1, 4}}});
  EXPECT_EQ(s->parts(), (Dims{2, 4}));
  EXPECT_EQ(s->part_of(5), (Dims{1, 2}));
  EXPECT_EQ(s->replica_of(5), 0);
  EXPECT_EQ(s->part_sizes(Dims{6, 8}), (Dims{3, 2}));
  EXPECT_EQ(s->shardy(), "[{\"model\"}, {\"data\"}]");
  EXPECT_EQ(s->gspmd(), "{devices=[2,4]0,2,4,6,1,3,5,7}");

  const Sharding* rows = Sharding::of(grid(), {{{0, 1, 4}}});
  EXPECT_EQ(rows->gspmd(), "{devices=[4,2]0,1,2,3,4,5,6,7 last_tile_dim_replicate}");
  EXPECT_EQ(rows->replica_of(6), 0);
  EXPECT_EQ(rows->replica_of(7), 1);
  EXPECT_FALSE(rows->is_replicated());

  const Sharding* half = Sharding::of(grid(), {{{0, 2, 2}, {1, 1, 2}}});
  EXPECT_EQ(half->shardy(), "[{\"data\":(2)2, \"model\"}]");
  EXPECT_EQ(half->part_of(3), (Dims{3}));  // data 1, model 1
  EXPECT_EQ(half->part_of(4), (Dims{0}));  // data 2, model 0
  EXPECT_TRUE(Sharding::replicated(grid(), 3)->is_replicated());
  EXPECT_EQ(Sharding::replicated(grid(), 3)->gspmd(), "{replicated}");
}

TEST(Sharding, ReadsTextsOfOtherProcesses) {
  const Sharding* s = Sharding::read(
      "<[\"a b\"=4, \"c\"=2], device_ids=[7,6,5,4,3,2,1,0]> "
      "[{\"a b\":(2)2, \"c\"}, {}, {\"a b\":(1)2}]");
  EXPECT_EQ(s, Sharding::of(Mesh::of({"a b", "c"}, {4, 2}, {7, 6, 5, 4, 3, 2, 1, 0}),
                            {{{0, 2, 2}, {1, 1, 2}}, {}, {{0, 1, 2}}}));
  const Sharding* scalar = Sharding::read("<[\"scalar\"=2]> []");
  EXPECT_EQ(scalar, Sharding::replicated(Mesh::of({"scalar"}, {2}, {0, 1}), 0));
  const Sharding* manual = Sharding::read("<[\"manual\"=2]> manual [{\"manual\"}, {}]");
  EXPECT_EQ(manual, Sharding::manual(Mesh::of({"manual"}, {2}, {0, 1}), 1));
  for (const Sharding* one : {s, Sharding::of(grid(), {{{0, 1, 4}}, {}})}) {
    EXPECT_EQ(Sharding::read(one->gspmd())->gspmd(), one->gspmd());
    EXPECT_EQ(TileAssignment::read(one->gspmd())->text(), one->gspmd());
  }
  EXPECT_TRUE(TileAssignment::read("{replicated}")->parts.empty());
  EXPECT_FALSE(TileAssignment::read("{manual}").has_value());
}

TEST(Sharding, SplitsEvenlyOnly) {
  const Sharding* s = Sharding::of(grid(), {{{0, 1, 4}, {1, 1, 2}}, {}});
  EXPECT_EQ(s->evened(Dims{16, 3}), s);
  EXPECT_EQ(s->evened(Dims{12, 3})->parts(), (Dims{4, 1}));
  EXPECT_EQ(s->evened(Dims{2, 3})->parts(), (Dims{1, 1}));
  EXPECT_EQ(s->evened(Dims{0, 3})->parts(), (Dims{1, 1}));
}

TEST(Sharding, TileAssignmentsBecomeAxes) {
  const auto of = [](Dims parts, Dims devices, bool replicates) {
    return TileAssignment{std::move(parts), std::move(devices), replicates}.sharding(grid());
  };
  EXPECT_EQ(of({4, 2}, counted(8), false), Sharding::of(grid(), {{{0, 1, 4}}, {{1, 1, 2}}}));
  EXPECT_EQ(of({8}, counted(8), false), Sharding::of(grid(), {{{0, 1, 4}, {1, 1, 2}}}));
  EXPECT_EQ(of({2, 4}, counted(8), true), Sharding::of(grid(), {{{0, 1, 2}}}));
  EXPECT_EQ(of({2, 4}, {0, 2, 4, 6, 1, 3, 5, 7}, true), Sharding::of(grid(), {{{1, 1, 2}}}));
  // No axes of the mesh say this; those of another order of the devices do.
  const Sharding* turned = of({8}, {7, 6, 5, 4, 3, 2, 1, 0}, false);
  EXPECT_EQ(turned->gspmd(), "{devices=[8]7,6,5,4,3,2,1,0}");
  for (int64_t d = 0; d < 8; ++d) EXPECT_EQ(turned->part_of(d), (Dims{7 - d}));
}

// Every split of up to three dimensions is found again from what each device holds.
TEST(Sharding, ReadsBackWhatItWrites) {
  const Mesh* mesh = Mesh::of({"a", "b", "c"}, {2, 3, 4}, counted(24));
  const std::vector<Axis> axes = {{0, 1, 2}, {1, 1, 3}, {2, 1, 4}, {2, 1, 2}, {2, 2, 2}};
  int checked = 0;
  for (const Axis& x : axes) {
    for (const Axis& y : axes) {
      for (const Axis& z : axes) {
        const Sharding* s = nullptr;
        try {
          s = Sharding::of(mesh, {{x}, {y, z}, {}});
        } catch (const util::Error&) {
          continue;  // an axis twice
        }
        ++checked;
        TileAssignment tiles;
        tiles.parts = s->parts();
        std::vector<std::pair<Dims, int64_t>> order;
        for (int64_t d = 0; d < 24; ++d) order.emplace_back(s->part_of(d), d);
        std::ranges::stable_sort(order, {}, [](const auto& entry) { return entry.first; });
        for (const auto& [part, device] : order) tiles.devices.push_back(device);
        int64_t parts = 1;
        for (const int64_t n : tiles.parts) parts *= n;
        tiles.parts.push_back(24 / parts);
        tiles.replicates = true;
        const Sharding* again = tiles.sharding(mesh);
        EXPECT_EQ(again->gspmd(), s->gspmd());
        EXPECT_EQ(again->mesh, mesh) << s->text;
      }
    }
  }
  EXPECT_GT(checked, 20);
}

TEST(Sharding, CommonMesh) {
  const Mesh* cube = Mesh::of({"x", "y", "z"}, {2, 2, 2}, counted(8));
  const Sharding* a = Sharding::of(grid(), {{{0, 1, 4}}});
  const Sharding* b = Sharding::of(cube, {{{2, 1, 2}}, {{0, 1, 2}, {1, 1, 2}}});
  EXPECT_EQ(common_mesh(std::vector{a, b}), grid());
  EXPECT_EQ(b->in_mesh(grid())->shardy(), "[{\"model\"}, {\"data\"}]");
  const Sharding* c = Sharding::of(cube, {{{1, 1, 2}}});
  EXPECT_EQ(c->in_mesh(grid())->shardy(), "[{\"data\":(2)2}]");
  const Mesh* six = Mesh::of({"x", "y"}, {2, 3}, counted(6));
  const Mesh* turned = Mesh::of({"x", "y"}, {3, 2}, counted(6));
  const Sharding *rows = Sharding::of(six, {{{0, 1, 2}}}),
                 *columns = Sharding::of(turned, {{{1, 1, 2}}});
  EXPECT_EQ(rows->in_mesh(turned), nullptr);
  EXPECT_EQ(common_mesh(std::vector{rows, columns}), nullptr);
}

TEST(Sharding, RefusesWhatDoesNotFit) {
  expect_error([] { Mesh::of({"x"}, {3}, counted(4)); }, "as many devices");
  expect_error([] { Mesh::of({"x", "x"}, {2, 2}, counted(4)); }, "names that differ");
  expect_error([] { Mesh::of({"x"}, {2}, {0, 0}); }, "each device once");
  expect_error([] { Sharding::of(grid(), {{{0, 1, 4}}, {{0, 2, 2}}}); }, "twice");
  for (const char* text : {"nothing", "<[\"x\"=2]>", "<[\"x\"=2]> [{\"y\"}]", "{devices=[2]0}",
                           "{devices=[2]0,1", "{replicated}"}) {
    expect_error([&] { Sharding::read(text); }, text);
  }
}

TEST(Sharding, ReadsCompiledModules) {
  using namespace std::string_literals;
  // A tuple of: 8 rows of devices; 2 x 1 parts of four devices each; the whole.
  const std::string tuple =
      "\x08\x02"s + "\x2a\x0b\x08\x03\x1a\x01\x08\x4a\x01\x08\x52\x01\x00"s +
      "\x2a\x0f\x08\x03\x1a\x03\x02\x01\x04\x30\x01\x4a\x01\x08\x52\x01\x00"s + "\x2a\x00"s;
  const std::string module = "\x0a\x01m\x62"s + static_cast<char>(tuple.size()) + tuple;
  const std::string configured = "\x0a"s + static_cast<char>(module.size()) + module;
  for (const bool with_config : {false, true}) {
    const auto read = read_output_shardings(with_config ? configured : module, with_config, grid());
    ASSERT_EQ(read.size(), 3u);
    EXPECT_EQ(read[0], Sharding::of(grid(), {{{0, 1, 4}, {1, 1, 2}}}));
    EXPECT_EQ(read[1], Sharding::of(grid(), {{{0, 1, 2}}, {}}));
    EXPECT_EQ(read[2], nullptr);
  }
  EXPECT_TRUE(read_output_shardings("\x0a\x01m"s, false, grid()).empty());
  expect_error([] { read_output_shardings("\x0a\x05m"s, false, grid()); },
               "expected a compiled module");
}

// A field of a protocol buffer that holds bytes, and one that holds a number below 128.
std::string field(int number, const std::string& bytes) {
  const int key = number << 3 | 2;
  std::string made;
  if (key < 128) {
    made += static_cast<char>(key);
  } else {
    made += static_cast<char>((key & 127) | 128);
    made += static_cast<char>(key >> 7);
  }
  made += static_cast<char>(bytes.size());
  return made + bytes;
}
std::string field(int number, char value) {
  std::string key = field(number, std::string());
  key.pop_back();
  key.front() = static_cast<char>(key.front() & ~7);
  return key + value;
}

TEST(Sharding, CountsWhatLoopsRepeat) {
  // A loop of 3 times around one of 4, and kernels that run once; of the last nothing is known.
  const auto instruction = [](const std::string& opcode, const std::string& rest) {
    return field(2, field(2, opcode) + rest);
  };
  const auto computation = [](char id, const std::string& instructions) {
    const std::string bytes = instructions + field(5, id);
    EXPECT_LT(bytes.size(), 128u);
    return field(3, bytes);
  };
  const auto kernel = [&](const std::string& cycles) {
    return instruction("fusion", field(43, "{\"estimated_cycles\":\"" + cycles + "\",\"x\":\"\"}"));
  };
  const auto condition = [&](const std::string& times) {
    return instruction("constant", field(8, field(6, times))) + instruction("compare", "");
  };
  const auto call = [&](const std::string& opcode, const std::string& called) {
    return instruction(opcode, field(38, called));
  };
  const std::string sent = instruction("all-reduce-start", "");
  const std::string module =
      computation(5, kernel("7") + sent) + computation(4, condition("\x04")) +
      computation(3, kernel("10") + call("while", "\x05\x04")) + computation(2, condition("\x03")) +
      computation(1, kernel("100")) + computation(6, kernel("9223372036854775807")) +
      computation(7,
                  call("while", "\x03\x02") + sent + call("call", "\x01") + call("call", "\x06"));
  EXPECT_EQ(read_cycles(module, false), 100 + 3 * 10 + 3 * 4 * 7);
  // 2^31 - 1 is no number of times.
  EXPECT_EQ(
      read_cycles(computation(2, kernel("5")) + computation(1, condition("\xff\xff\xff\xff\x07")) +
                      computation(0, call("while", "\x02\x01")),
                  false),
      5);
  std::vector<int64_t> times;
  for (const Collective& c : read_collectives(module, false)) times.push_back(c.times);
  EXPECT_EQ(times, (std::vector<int64_t>{12, 1}));
  EXPECT_EQ(read_cycles(field(3, instruction("add", "")), false), 0);
}

}  // namespace
}  // namespace torch_xla::spmd
