// Builds a StableHLO module as text through one generic operation printer.
// Helpers for single operations are in hlo/ops.h; this file knows no operation by name but
// `return`.
#pragma once

#include <functional>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hlo/types.h"

namespace torch_xla::spmd {
struct Mesh;
}

namespace torch_xla::hlo {

class Builder;

// An SSA value of a module under construction.
class Value {
 public:
  Value() = default;
  Value(Builder* builder, int id, Type type) : builder_(builder), id_(id), type_(std::move(type)) {}

  Builder& builder() const { return *builder_; }
  int id() const { return id_; }
  const Type& type() const { return type_; }
  DType dtype() const { return type_.dtype; }
  const Dims& dims() const { return type_.dims; }
  int64_t dim(int64_t i) const { return type_.dims[i]; }
  int64_t rank() const { return type_.rank(); }
  explicit operator bool() const { return builder_ != nullptr; }

 private:
  Builder* builder_ = nullptr;
  int id_ = -1;
  Type type_;
};

using Values = std::vector<Value>;

// An attribute by name, its value already printed by one of the functions in `attr`.
struct Attribute {
  std::string name;
  std::string text;
};
using Attributes = std::vector<Attribute>;

namespace attr {
std::string i64(int64_t value);                      // 3 : i64
std::string i32(int64_t value);                      // 3 : i32
std::string boolean(bool value);                     // true
std::string string(std::string_view value);          // "text", escaped
std::string symbol(std::string_view name);           // @name, quoted if need be
std::string array(std::span<const int64_t> values);  // array<i64: 1, 2>
std::string array(std::span<const bool> values);
inline std::string array(std::initializer_list<int64_t> values) {
  return array(std::span<const int64_t>(values.begin(), values.size()));
}
std::string matrix(std::span<const int64_t> values,
                   int64_t columns);  // dense<[[0, 1]]> : tensor<1x2xi64>
std::string stablehlo(std::string_view kind, std::string_view value);  // #stablehlo<kind VALUE>
}  // namespace attr

// The text of one region, made by Builder::region.
struct Region {
  std::string text;
};

// The precision of float products in matrix products and convolutions, by XLA's names; some devices
// have faster, coarser ones.
enum class Precision { Default, High, Highest };

// Lists what StableHLO has and the target's compiler lacks; hlo/ops.h builds it from other
// operations.
struct Lacks {
  bool wide_products = false;  // matrix products and convolutions of 64-bit integers
  bool integer_convolutions = false;
  // Updates in place of a value by what is read from it: the compiler may fuse the two, and then
  // reads what it has just written.
  bool updates_from_self = false;
  // Products that contract several dimensions, without a transposed copy of their operands.
  bool several_contracted = false;
  bool vector_extremes = false;  // maxima and minima of rows, many elements at a time
  // Sizes that stay what they are. Which operations there are must not depend on one, nor may
  // their attributes, but for those that hlo/dynamic.cpp rewrites.
  bool fixed_sizes = false;
  // Shardy, by which a program says how values are split; it says so in GSPMD's words.
  bool shardy = false;
};

class Builder {
 public:
  // The one generic printer: `%r = "name"(operands) ({regions}) {attributes} : (types) -> types`.
  Values op(std::string_view name, std::span<const Value> operands, std::span<const Type> results,
            const Attributes& attributes = {}, std::span<const Region> regions = {});
  Value op(std::string_view name, std::initializer_list<Value> operands, Type result,
           const Attributes& attributes = {}, std::span<const Region> regions = {});

  // Makes a region whose block takes arguments of these types and returns what `body` returns.
  Region region(std::span<const Type> arguments,
                const std::function<Values(std::span<const Value>)>& body,
                std::string_view terminator = "stablehlo.return");

  // Adds a literal; `text` stands inside dense<...>.
  Value constant(std::string_view text, Type type);

  // Opens the body of a function; arguments come back as values. Close with `end_function`.
  Values begin_function(std::string_view name, std::span<const Type> arguments,
                        std::span<const Attributes> argument_attributes = {},
                        bool is_public = true);
  void end_function(std::span<const Value> results,
                    std::span<const Attributes> result_attributes = {});

  // Adds a private function once per name and returns whether it was new; `body` builds it.
  bool private_function(std::string_view name, std::span<const Type> arguments,
                        const std::function<Values(std::span<const Value>)>& body);
  // Adds the text of one, which declares it by this name, once per name.
  void private_text(std::string_view name, std::string_view text);

  // Source locations: each operation printed from now on carries `location` (empty: none).
  // It is MLIR text such as `loc("model.py":3:0)`.
  void set_location(std::string location) { location_ = std::move(location); }

  // Sets the recorded call that the next operations are made for, by its place in the program; -1
  // is none. A custom call that may fail carries it.
  void set_call(int64_t call) { call_ = call; }
  int64_t call() const { return call_; }

  void set_precision(Precision precision) { precision_ = precision; }
  Precision precision() const { return precision_; }

  void set_lacks(const Lacks& lacks) { lacks_ = lacks; }
  const Lacks& lacks() const { return lacks_; }

  // Returns whether `value` is computed from something that may lie in the memory of `whole`:
  // `whole` itself, a value of as many bytes that `whole` is made of, or another that is computed
  // alike.
  bool may_read(const Value& value, const Value& whole) const;

  // Returns how many operations each reader of `value` computes anew where the compiler fuses all
  // that it can. A value that only moves another one counts as none.
  int64_t recomputed(const Value& value) const {
    const Origin& origin = origins_[value.id()];
    return origin.is_moved ? 0 : origin.work;
  }

  // Returns what `value` was made from by swapping its middle two dimensions, or null.
  const Value* transposed_from(const Value& value) const {
    return origins_[value.id()].transposed_from.get();
  }
  void set_transposed_from(const Value& value, const Value& origin) {
    origins_[value.id()].transposed_from = std::make_shared<const Value>(origin);
  }

  // Entry `index` of `whole` along its first dimension.
  struct Row {
    Value whole;
    int64_t index;
  };
  // Returns the row that `value` is, with the first dimension or without it, or null.
  const Row* row_of(const Value& value) const { return origins_[value.id()].row_of.get(); }
  void set_row_of(const Value& value, Row row) {
    origins_[value.id()].row_of = std::make_shared<const Row>(std::move(row));
  }

  // Adds a top-level operation that precedes the functions, e.g. an sdy.mesh.
  void module_item(std::string text) { items_ += std::move(text) + "\n"; }
  // The mesh that shardings of this module refer to as @mesh, null where nothing is split.
  void set_mesh(const spmd::Mesh* mesh) { mesh_ = mesh; }
  const spmd::Mesh* mesh() const { return mesh_; }
  // The mesh whose devices each compute by themselves what is being added, or null: then mesh() is.
  void set_apart(const spmd::Mesh* mesh) { apart_ = mesh; }
  const spmd::Mesh* apart() const { return apart_; }
  void module_attribute(std::string name, std::string text) {
    module_attributes_.push_back({std::move(name), std::move(text)});
  }

  std::string finish(std::string_view module_name = "torch_xla") const;

 private:
  // Records how a value is computed. Values that are computed alike have the same `hash`.
  struct Origin {
    uint64_t hash = 0;
    size_t bytes = 0;
    std::vector<int> operands;
    int64_t work = 0;  // of its readers
    bool is_moved = true;
    std::shared_ptr<const Value> transposed_from = nullptr;
    std::shared_ptr<const Row> row_of = nullptr;
  };
  struct Function {
    std::string name;
    Values arguments;
    std::vector<Attributes> argument_attributes;
    bool is_public = true;
    std::string outer_body;
    std::vector<Origin> outer_origins;
  };

  // `work` is fused_work() of the operation that makes the value.
  Value fresh(const Type& type, uint64_t hash, std::vector<int> operands = {}, int64_t work = -1);

  std::string items_;
  const spmd::Mesh* mesh_ = nullptr;
  const spmd::Mesh* apart_ = nullptr;
  Attributes module_attributes_;
  std::string functions_;
  std::string body_;  // of the function or region that is being built
  std::string location_;
  int64_t call_ = -1;
  Precision precision_ = Precision::Highest;
  Lacks lacks_;
  std::vector<Function> open_;
  std::vector<std::string> private_names_;  // and their arguments' types, on a second line
  std::vector<Origin> origins_;  // of each value of the function that is being built, by its id
  uint64_t arguments_ = 0;       // of all functions and regions so far
  int depth_ = 2;
};

}  // namespace torch_xla::hlo
