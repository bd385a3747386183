// Splits values among the devices of a program: a Mesh arranges the devices in a grid with
// named axes, a Sharding says along which axes each dimension of a value is split. Both are
// interned: equal ones are one object, which lives as long as the process. Devices are numbered by
// their positions among those of the program.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "util/hash.h"

namespace torch_xla::spmd {

struct TileAssignment;

struct Mesh {
  std::vector<std::string> names;  // of the axes
  std::vector<int64_t> sizes;
  std::vector<int64_t> devices;  // row-major
  std::string text;              // as sdy.mesh writes it: <["data"=4, "model"=2]>
  // For each device, its index along each axis.
  std::vector<std::vector<int64_t>> coordinates = {};

  // Returns the one mesh with these axes. Throws a ValueError unless the names differ, and the
  // devices are 0, 1, 2, ... in any order, as many as the sizes multiply to.
  static const Mesh* of(std::vector<std::string> names, std::vector<int64_t> sizes,
                        std::vector<int64_t> devices);
};

// An axis of a mesh or a part of one: of an axis of 8 = 2 x 4 devices, {before 2, size 4} is the
// index that changes faster.
struct Axis {
  size_t index = 0;
  int64_t before = 1;
  int64_t size = 1;

  friend bool operator==(const Axis&, const Axis&) = default;
};

// Each device has a manual value of its own, of the value's sizes. A program holds such values in
// one array with a dimension more, the first, which is split along all axes.
struct Sharding {
  const Mesh* mesh;
  // For each dimension, the axis that changes slowest first; of a manual value, those of the array.
  std::vector<std::vector<Axis>> dims;
  std::string text;
  util::Hash128 hash;
  bool is_manual = false;

  // Returns the one sharding with these axes. Throws a ValueError where an axis is used twice.
  static const Sharding* of(const Mesh* mesh, std::vector<std::vector<Axis>> dims);
  static const Sharding* replicated(const Mesh* mesh, size_t rank) {
    return of(mesh, std::vector<std::vector<Axis>>(rank));
  }
  // Returns the sharding of manual values of so many dimensions.
  static const Sharding* manual(const Mesh* mesh, size_t rank);
  // Returns whether manual() was ever called: nothing is manual before.
  static bool any_manual();
  // Returns the sharding with this text, or of a tile assignment with it. Throws a ValueError for
  // what is neither.
  static const Sharding* read(const std::string& text);

  size_t num_devices() const { return mesh->devices.size(); }
  // Returns the sizes, padded to equal parts, of the array that a program holds for a value of
  // these.
  std::vector<int64_t> held_sizes(std::span<const int64_t> sizes) const;
  bool is_replicated() const;  // each device holds all of the value
  // The next five are not of manual values.
  // Along each dimension: into how many parts it is split, and which of them a device holds.
  std::vector<int64_t> parts() const;
  size_t num_parts() const;  // different ones
  std::vector<int64_t> part_of(int64_t device) const;
  // Numbers the devices that hold the same part.
  int64_t replica_of(int64_t device) const;
  // Sizes of a part, with the padding that makes parts equal.
  std::vector<int64_t> part_sizes(std::span<const int64_t> sizes) const;

  // Returns the sharding that splits only what divides evenly.
  const Sharding* evened(std::span<const int64_t> sizes) const;
  // Returns the same split along the axes of another mesh, or null where that cannot say it.
  const Sharding* in_mesh(const Mesh* other) const;
  // Returns whether it goes along axes as they are, not along parts of them.
  bool has_whole_axes() const;

  std::string shardy() const;  // [{"data"}, {}]
  std::string gspmd() const;   // that of tiles(), or {manual}
  // Returns that of the array in a program.
  TileAssignment tiles() const;
};

// A tile assignment, which is how GSPMD writes shardings: `devices` go through the parts of a value
// row by row; those in a row along a last dimension beyond the value's hold the same part. Without
// parts, each device has the whole.
struct TileAssignment {
  std::vector<int64_t> parts;  // and the number of replicas, where `replicates`
  std::vector<int64_t> devices;
  bool replicates = false;

  // {devices=[4,1,2]0,1,2,3,4,5,6,7 last_tile_dim_replicate} or {replicated}
  std::string text() const;
  // Returns the one with this text, or nothing.
  static std::optional<TileAssignment> read(std::string_view text);
  // Returns the sharding, along the axes of `mesh` where that can say it.
  const Sharding* sharding(const Mesh* mesh = nullptr) const;
};

// Returns a mesh that can say all of these shardings, of one number of devices: theirs, where it is
// one. Null where there is none. Those among `along_axes` go along whole axes of it.
const Mesh* common_mesh(std::span<const Sharding* const> shardings,
                        std::span<const Sharding* const> along_axes = {});

}  // namespace torch_xla::spmd
