#include "spmd/sharding.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <functional>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <unordered_map>

#include "util/error.h"
#include "util/fork_mutex.h"

namespace torch_xla::spmd {
namespace {

using Dims = std::vector<int64_t>;

int64_t product(std::span<const int64_t> sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
}

std::string joined(std::span<const int64_t> numbers) {
  std::string text;
  for (const int64_t n : numbers) text += (text.empty() ? "" : ",") + std::to_string(n);
  return text;
}

bool in_order(std::span<const int64_t> devices) {
  for (size_t i = 0; i < devices.size(); ++i) {
    if (devices[i] != static_cast<int64_t>(i)) return false;
  }
  return true;
}

// Objects by their text. Never destroyed: leaves of the graph refer to them.
template <class T>
class Interned {
 public:
  const T* find(const std::string& text) {
    const std::lock_guard lock(mutex_);
    const auto it = all_.find(text);
    return it == all_.end() ? nullptr : it->second.get();
  }
  const T* add(T object) {
    const std::lock_guard lock(mutex_);
    std::unique_ptr<const T>& known = all_[object.text];
    if (known == nullptr) known = std::make_unique<const T>(std::move(object));
    return known.get();
  }

 private:
  util::ForkMutex mutex_;
  std::unordered_map<std::string, std::unique_ptr<const T>> all_;
};

Interned<Mesh>& meshes() {
  static auto& all = *new Interned<Mesh>;
  return all;
}

Interned<Sharding>& shardings() {
  static auto& all = *new Interned<Sharding>;
  return all;
}

std::string name_of(const Mesh& mesh, const Axis& axis) {
  std::string text = "\"" + mesh.names[axis.index] + "\"";
  if (axis.size == mesh.sizes[axis.index]) return text;
  return text + ":(" + std::to_string(axis.before) + ")" + std::to_string(axis.size);
}

// Mesh::coordinates.
std::vector<Dims> coordinates_of(const Mesh& mesh) {
  std::vector<Dims> of(mesh.devices.size());
  for (size_t position = 0; position < mesh.devices.size(); ++position) {
    Dims& at = of[mesh.devices[position]];
    at.resize(mesh.sizes.size());
    auto rest = static_cast<int64_t>(position);
    for (size_t axis = mesh.sizes.size(); axis-- > 0;) {
      at[axis] = rest % mesh.sizes[axis];
      rest /= mesh.sizes[axis];
    }
  }
  return of;
}

int64_t along(const Mesh& mesh, const Axis& axis, const Dims& at) {
  const int64_t after = mesh.sizes[axis.index] / (axis.before * axis.size);
  return at[axis.index] / after % axis.size;
}

std::vector<int64_t> prime_factors(int64_t n) {
  std::vector<int64_t> factors;
  for (int64_t p = 2; n > 1; ++p) {
    for (; n % p == 0; n /= p) factors.push_back(p);
  }
  return factors;
}

// The parts of prime size of all axes of a mesh.
std::vector<Axis> smallest_axes(const Mesh& mesh) {
  std::vector<Axis> axes;
  for (size_t i = 0; i < mesh.sizes.size(); ++i) {
    int64_t before = 1;
    for (const int64_t factor : prime_factors(mesh.sizes[i])) {
      axes.push_back({i, before, factor});
      before *= factor;
    }
  }
  return axes;
}

// The axes of `mesh` along which a split goes that gives device d the part `part_of(d)`.
std::optional<std::vector<std::vector<Axis>>> axes_of_split(
    const Mesh& mesh, const Dims& parts, const std::function<Dims(int64_t)>& part_of) {
  const std::vector<Dims>& at = mesh.coordinates;
  const std::vector<Axis> axes = smallest_axes(mesh);
  const Dims first = part_of(mesh.devices[0]);
  Dims neighbours;  // of the first device, one step along each axis
  for (const Axis& axis : axes) {
    int64_t stride = mesh.sizes[axis.index] / (axis.before * axis.size);
    for (size_t i = axis.index + 1; i < mesh.sizes.size(); ++i) stride *= mesh.sizes[i];
    neighbours.push_back(mesh.devices[stride]);
  }
  std::vector<std::vector<Axis>> dims;
  std::vector<bool> used(axes.size());
  for (size_t dim = 0; dim < parts.size(); ++dim) {
    // The number that one step along an axis adds to the part's index.
    std::vector<std::pair<int64_t, size_t>> steps;
    if (first[dim] != 0) return std::nullopt;
    for (size_t i = 0; i < axes.size(); ++i) {
      const int64_t step = part_of(neighbours[i])[dim];
      if (step == 0) continue;
      if (used[i]) return std::nullopt;
      used[i] = true;
      steps.emplace_back(step, i);
    }
    std::ranges::sort(steps, std::greater<>());
    int64_t expected = parts[dim];
    std::vector<Axis>& split = dims.emplace_back();
    for (const auto& [step, i] : steps) {
      const Axis& axis = axes[i];
      if (expected % axis.size != 0 || step != expected / axis.size) return std::nullopt;
      expected = step;
      Axis* last = split.empty() ? nullptr : &split.back();
      if (last != nullptr && last->index == axis.index &&
          last->before * last->size == axis.before) {
        last->size *= axis.size;
      } else {
        split.push_back(axis);
      }
    }
    if (expected != 1) return std::nullopt;
  }
  for (size_t d = 0; d < at.size(); ++d) {
    const Dims part = part_of(static_cast<int64_t>(d));
    for (size_t dim = 0; dim < parts.size(); ++dim) {
      int64_t index = 0;
      for (const Axis& axis : dims[dim]) index = index * axis.size + along(mesh, axis, at[d]);
      if (index != part[dim]) return std::nullopt;
    }
  }
  return dims;
}

// Meshes of axes of prime size over devices in this order.
std::vector<const Mesh*> prime_meshes(const Dims& devices) {
  Dims sizes = prime_factors(static_cast<int64_t>(devices.size()));
  std::vector<const Mesh*> all;
  do {
    std::vector<std::string> names;
    for (size_t i = 0; i < sizes.size(); ++i) names.push_back("axis_" + std::to_string(i));
    all.push_back(Mesh::of(names, sizes, devices));
  } while (std::ranges::next_permutation(sizes).found);
  return all;
}

Dims counted(size_t n) {
  Dims all(n);
  std::iota(all.begin(), all.end(), int64_t{0});
  return all;
}

// Takes a text from its beginning.
class Reader {
 public:
  explicit Reader(std::string_view text) : rest_(text) {}
  bool at_end() const { return rest_.empty(); }
  bool take(std::string_view expected) {
    if (!rest_.starts_with(expected)) return false;
    rest_.remove_prefix(expected.size());
    return true;
  }
  bool take(int64_t& number) {
    const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), number);
    if (error != std::errc()) return false;
    rest_.remove_prefix(static_cast<size_t>(end - rest_.data()));
    return true;
  }
  // "name"
  bool take(std::string& name) {
    const size_t end = rest_.find('"', 1);
    if (!rest_.starts_with('"') || end == rest_.npos) return false;
    name = rest_.substr(1, end - 1);
    rest_.remove_prefix(end + 1);
    return true;
  }
  // As many as there are, with `separator` between them.
  template <class Take>
  bool take_all(std::string_view separator, const Take& take_one) {
    do {
      if (!take_one()) return false;
    } while (take(separator));
    return true;
  }
  bool take(Dims& numbers) {
    return take_all(",", [&] { return take(numbers.emplace_back()); });
  }

 private:
  std::string_view rest_;
};

// Mesh::text; null where that does not come.
const Mesh* read_mesh(Reader& text) {
  std::vector<std::string> names;
  Dims sizes, devices;
  const auto axis = [&] {
    return text.take(names.emplace_back()) && text.take("=") && text.take(sizes.emplace_back());
  };
  if (!text.take("<[") || !text.take_all(", ", axis) || !text.take("]")) return nullptr;
  if (text.take(", device_ids=[")) {
    if (!text.take(devices) || !text.take("]")) return nullptr;
  } else {
    devices = counted(static_cast<size_t>(product(sizes)));
  }
  return text.take(">") ? Mesh::of(std::move(names), std::move(sizes), std::move(devices))
                        : nullptr;
}

// Sharding::shardy().
bool read_axes(Reader& text, const Mesh& mesh, std::vector<std::vector<Axis>>& dims) {
  const auto axis = [&] {
    std::string name;
    if (!text.take(name)) return false;
    const auto at = std::ranges::find(mesh.names, name) - mesh.names.begin();
    if (at == std::ssize(mesh.names)) return false;
    Axis& axis = dims.back().emplace_back(Axis{static_cast<size_t>(at), 1, mesh.sizes[at]});
    if (!text.take(":(")) return true;
    return text.take(axis.before) && text.take(")") && text.take(axis.size) && axis.before > 0 &&
           axis.size > 0 && mesh.sizes[at] % (axis.before * axis.size) == 0;
  };
  const auto dim = [&] {
    dims.emplace_back();
    return text.take("{") && (text.take("}") || (text.take_all(", ", axis) && text.take("}")));
  };
  return text.take("[") && (text.take("]") || (text.take_all(", ", dim) && text.take("]")));
}

// Reads a text that no sharding of this process had yet.
const Sharding* read_new(const std::string& text) {
  if (const auto tiles = TileAssignment::read(text); tiles && !tiles->parts.empty()) {
    return tiles->sharding();
  }
  Reader reader(text);
  std::vector<std::vector<Axis>> dims;
  if (const Mesh* mesh = read_mesh(reader); mesh != nullptr && reader.take(" ")) {
    const bool is_manual = reader.take("manual ");
    if (read_axes(reader, *mesh, dims) && reader.at_end() && !(is_manual && dims.empty())) {
      return is_manual ? Sharding::manual(mesh, dims.size() - 1)
                       : Sharding::of(mesh, std::move(dims));
    }
  }
  util::fail(util::ErrorKind::Value,
             "sharding: expected a text such as <[\"x\"=4]> [{\"x\"}, {}] or "
             "{devices=[4,1]0,1,2,3}, got '",
             text, "'.");
}

}  // namespace

std::optional<TileAssignment> TileAssignment::read(std::string_view text) {
  TileAssignment tiles;
  if (text == tiles.text()) return tiles;
  Reader reader(text);
  if (!reader.take("{devices=[") || !reader.take(tiles.parts) || !reader.take("]") ||
      !reader.take(tiles.devices)) {
    return std::nullopt;
  }
  tiles.replicates = reader.take(" last_tile_dim_replicate");
  const bool is_whole = reader.take("}") && reader.at_end() &&
                        std::ranges::all_of(tiles.parts, [](int64_t n) { return n > 0; }) &&
                        product(tiles.parts) == std::ssize(tiles.devices);
  return is_whole ? std::optional(std::move(tiles)) : std::nullopt;
}

const Mesh* Mesh::of(std::vector<std::string> names, Dims sizes, Dims devices) {
  const auto check = [&](bool good, const std::string& expected) {
    if (good) return;
    util::fail(util::ErrorKind::Value, "Mesh: expected ", expected, ", got axes of the sizes (",
               joined(sizes), ") and the devices [", joined(devices), "].");
  };
  check(names.size() == sizes.size(), "a name for each axis");
  check(std::ranges::all_of(sizes, [](int64_t n) { return n > 0; }), "positive sizes");
  check(product(sizes) == static_cast<int64_t>(devices.size()),
        "as many devices as the sizes of the axes multiply to");
  Dims sorted = devices;
  std::ranges::sort(sorted);
  check(in_order(sorted), "each device once");
  Mesh mesh{std::move(names), std::move(sizes), std::move(devices), "<["};
  for (size_t i = 0; i < mesh.names.size(); ++i) {
    const std::string& name = mesh.names[i];
    check(!name.empty() && name.find_first_of("\"\\\n") == std::string::npos,
          "axis names without quotes");
    check(std::ranges::count(mesh.names, name) == 1, "axis names that differ");
    mesh.text += (i == 0 ? "\"" : ", \"") + name + "\"=" + std::to_string(mesh.sizes[i]);
  }
  mesh.text += "]";
  if (!in_order(mesh.devices)) mesh.text += ", device_ids=[" + joined(mesh.devices) + "]";
  mesh.text += ">";
  mesh.coordinates = coordinates_of(mesh);
  return meshes().add(std::move(mesh));
}

const Sharding* Sharding::of(const Mesh* mesh, std::vector<std::vector<Axis>> dims) {
  Sharding made{mesh, std::move(dims), "", {}};
  std::vector<Axis> seen;
  for (const std::vector<Axis>& dim : made.dims) {
    for (const Axis& axis : dim) {
      const auto overlaps = [&](const Axis& other) {
        return other.index == axis.index && other.before < axis.before * axis.size &&
               axis.before < other.before * other.size;
      };
      if (std::ranges::any_of(seen, overlaps)) {
        util::fail(util::ErrorKind::Value,
                   "sharding: expected each mesh axis for one dimension, "
                   "got ",
                   name_of(*mesh, axis), " twice in ", made.shardy(), ".");
      }
      seen.push_back(axis);
    }
  }
  made.text = mesh->text + " " + made.shardy();
  made.hash = util::Hasher().add_bytes(made.text).finish();
  return shardings().add(std::move(made));
}

namespace {
std::atomic<bool> manual_was_made = false;
}

bool Sharding::any_manual() { return manual_was_made; }

const Sharding* Sharding::manual(const Mesh* mesh, size_t rank) {
  manual_was_made = true;
  Sharding made{mesh, std::vector<std::vector<Axis>>(rank + 1), "", {}, true};
  for (size_t i = 0; i < mesh->sizes.size(); ++i) {
    if (mesh->sizes[i] != 1) made.dims[0].push_back({i, 1, mesh->sizes[i]});
  }
  made.text = mesh->text + " manual " + made.shardy();
  made.hash = util::Hasher().add_bytes(made.text).finish();
  return shardings().add(std::move(made));
}

const Sharding* Sharding::read(const std::string& text) {
  const Sharding* known = shardings().find(text);
  return known != nullptr ? known : read_new(text);
}

Dims Sharding::held_sizes(std::span<const int64_t> sizes) const {
  if (is_manual) {
    Dims held(sizes.begin(), sizes.end());
    held.insert(held.begin(), static_cast<int64_t>(num_devices()));
    return held;
  }
  Dims held = part_sizes(sizes);
  const Dims count = parts();
  for (size_t i = 0; i < held.size(); ++i) held[i] *= count[i];
  return held;
}

bool Sharding::has_whole_axes() const {
  return std::ranges::all_of(dims, [this](const std::vector<Axis>& dim) {
    return std::ranges::all_of(
        dim, [this](const Axis& axis) { return axis.size == mesh->sizes[axis.index]; });
  });
}

bool Sharding::is_replicated() const {
  return !is_manual && std::ranges::all_of(parts(), [](int64_t n) { return n == 1; });
}

Dims Sharding::parts() const {
  Dims parts;
  for (const std::vector<Axis>& dim : dims) {
    int64_t n = 1;
    for (const Axis& axis : dim) n *= axis.size;
    parts.push_back(n);
  }
  return parts;
}

size_t Sharding::num_parts() const { return static_cast<size_t>(product(parts())); }

namespace {

Dims part_at(const Sharding& s, const Dims& at) {
  Dims part;
  for (const std::vector<Axis>& dim : s.dims) {
    int64_t index = 0;
    for (const Axis& axis : dim) index = index * axis.size + along(*s.mesh, axis, at);
    part.push_back(index);
  }
  return part;
}

}  // namespace

Dims Sharding::part_of(int64_t device) const { return part_at(*this, mesh->coordinates[device]); }

int64_t Sharding::replica_of(int64_t device) const {
  const std::vector<Dims>& at = mesh->coordinates;
  const Dims part = part_at(*this, at[device]);
  int64_t before = 0;
  for (const int64_t other : mesh->devices) {
    if (other == device) break;
    if (part_at(*this, at[other]) == part) ++before;
  }
  return before;
}

Dims Sharding::part_sizes(std::span<const int64_t> sizes) const {
  Dims part = parts();
  for (size_t i = 0; i < part.size(); ++i) part[i] = (sizes[i] + part[i] - 1) / part[i];
  return part;
}

const Sharding* Sharding::evened(std::span<const int64_t> sizes) const {
  if (is_manual) return this;
  std::vector<std::vector<Axis>> even = dims;
  for (size_t i = 0; i < even.size(); ++i) {
    int64_t n = 1;
    size_t kept = 0;
    while (kept < even[i].size() && sizes[i] % (n * even[i][kept].size) == 0) {
      n *= even[i][kept++].size;
    }
    even[i].resize(sizes[i] == 0 ? 0 : kept);
  }
  return even == dims ? this : of(mesh, std::move(even));
}

const Sharding* Sharding::in_mesh(const Mesh* other) const {
  if (other == mesh) return this;
  if (other->devices.size() != mesh->devices.size()) return nullptr;
  // Which place of the array is a device's own makes no difference.
  if (is_manual) return manual(other, dims.size() - 1);
  auto axes = axes_of_split(*other, parts(), [this](int64_t d) { return part_of(d); });
  return axes ? of(other, std::move(*axes)) : nullptr;
}

std::string Sharding::shardy() const {
  std::string text = "[";
  for (size_t i = 0; i < dims.size(); ++i) {
    text += i == 0 ? "{" : ", {";
    for (size_t j = 0; j < dims[i].size(); ++j) {
      text += (j == 0 ? "" : ", ") + name_of(*mesh, dims[i][j]);
    }
    text += "}";
  }
  return text + "]";
}

std::string Sharding::gspmd() const { return is_manual ? "{manual}" : tiles().text(); }

TileAssignment Sharding::tiles() const {
  if (is_replicated()) return {};
  TileAssignment tiles{parts(), {}};
  const int64_t replicas = static_cast<int64_t>(num_devices()) / product(tiles.parts);
  // By part, then by the order of the mesh.
  std::vector<std::pair<Dims, int64_t>> order;
  const std::vector<Dims>& at = mesh->coordinates;
  for (const int64_t device : mesh->devices) order.emplace_back(part_at(*this, at[device]), device);
  std::ranges::stable_sort(order, {}, [](const auto& entry) { return entry.first; });
  for (const auto& [part, device] : order) tiles.devices.push_back(device);
  tiles.replicates = replicas > 1;
  if (tiles.replicates) tiles.parts.push_back(replicas);
  return tiles;
}

std::string TileAssignment::text() const {
  if (parts.empty()) return "{replicated}";
  return "{devices=[" + joined(parts) + "]" + joined(devices) +
         (replicates ? " last_tile_dim_replicate}" : "}");
}

const Sharding* TileAssignment::sharding(const Mesh* mesh) const {
  Dims split = parts;
  if (replicates) split.pop_back();
  const int64_t replicas = product(parts) / product(split);
  std::vector<Dims> part(devices.size());
  for (size_t i = 0; i < devices.size(); ++i) {
    auto rest = static_cast<int64_t>(i) / replicas;
    Dims& at = part[devices[i]];
    at.resize(split.size());
    for (size_t dim = split.size(); dim-- > 0;) {
      at[dim] = rest % split[dim];
      rest /= split[dim];
    }
  }
  const auto part_of = [&](int64_t device) { return part[device]; };
  std::vector<const Mesh*> candidates;
  if (mesh != nullptr && mesh->devices.size() == devices.size()) candidates.push_back(mesh);
  for (const Mesh* m : prime_meshes(counted(devices.size()))) candidates.push_back(m);
  for (const Mesh* m : prime_meshes(devices)) candidates.push_back(m);
  for (const Mesh* candidate : candidates) {
    if (auto axes = axes_of_split(*candidate, split, part_of)) {
      return Sharding::of(candidate, std::move(*axes));
    }
  }
  util::fail(util::ErrorKind::Value,
             "sharding: expected a tile assignment of each device once, "
             "got [",
             joined(parts), "] of the devices ", joined(devices), ".");
}

const Mesh* common_mesh(std::span<const Sharding* const> all,
                        std::span<const Sharding* const> along_axes) {
  const auto says_all = [&](const Mesh* mesh) {
    return std::ranges::all_of(all,
                               [&](const Sharding* s) { return s->in_mesh(mesh) != nullptr; }) &&
           std::ranges::all_of(along_axes, [&](const Sharding* s) {
             const Sharding* there = s->in_mesh(mesh);
             return there != nullptr && there->has_whole_axes();
           });
  };
  std::vector<const Mesh*> seen;
  for (const Sharding* s : all) {
    if (std::ranges::find(seen, s->mesh) != seen.end()) continue;
    seen.push_back(s->mesh);
    if (says_all(s->mesh)) return s->mesh;
  }
  for (const Mesh* given : seen) {
    for (const Mesh* mesh : prime_meshes(given->devices)) {
      if (says_all(mesh)) return mesh;
    }
  }
  return nullptr;
}

}  // namespace torch_xla::spmd
