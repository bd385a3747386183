#include "hlo/dynamic.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "hlo/builder.h"
#include "util/error.h"

namespace torch_xla::hlo {
namespace {

using Lines = std::vector<std::string_view>;

// factor * monomial + offset
struct Size {
  int64_t factor = 0;
  size_t monomial = 0;
  int64_t offset = 0;

  bool is_static() const { return factor == 0; }
  auto operator<=>(const Size&) const = default;
};
using Sizes = std::vector<Size>;

struct DynamicType {
  Sizes dims;
  std::string element;

  bool is_static() const {
    for (const Size& s : dims) {
      if (!s.is_static()) return false;
    }
    return true;
  }
  std::string str() const {
    std::string text = "tensor<";
    for (const Size& s : dims) text += (s.is_static() ? std::to_string(s.offset) : "?") + "x";
    return text + element + ">";
  }
};

Lines lines_of(std::string_view text) {
  Lines lines;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    lines.push_back(text.substr(0, end));
    text = end == text.npos ? "" : text.substr(end + 1);
  }
  return lines;
}

// The part of a line between two texts; empty where they are not there.
std::string_view between(std::string_view line, std::string_view before, std::string_view after) {
  const size_t start = line.find(before);
  if (start == line.npos) return {};
  line.remove_prefix(start + before.size());
  return line.substr(0, line.find(after));
}

// A line, cut into types and the text around them.
struct Parts {
  std::vector<std::string_view> texts;  // one more than types
  std::vector<Dims> dims;
  std::vector<std::string_view> elements;

  explicit Parts(std::string_view line) {
    static constexpr std::string_view kOpen = "tensor<";
    size_t from = 0;
    for (size_t at = line.find(kOpen); at != line.npos; at = line.find(kOpen, from)) {
      at += kOpen.size();
      texts.push_back(line.substr(from, at - from));
      Dims sizes;
      while (true) {
        size_t end = at;
        while (end < line.size() && line[end] >= '0' && line[end] <= '9') ++end;
        if (end == at || end == line.size() || line[end] != 'x') break;
        sizes.push_back(std::atoll(std::string(line.substr(at, end - at)).c_str()));
        at = end + 1;
      }
      size_t end = line.find('>', at);
      if (line.substr(at).starts_with("complex<")) end = line.find('>', end + 1);
      dims.push_back(std::move(sizes));
      elements.push_back(line.substr(at, end - at));
      from = end;
    }
    texts.push_back(line.substr(from));
  }
};

// A value of a float or integer literal; nothing for those of 8 bits and half precision.
std::optional<double> value_of(std::string_view literal, std::string_view element) {
  const std::string text(literal);
  if (text.starts_with("0x")) {
    const uint64_t bits = std::strtoull(text.c_str() + 2, nullptr, 16);
    if (element == "f64") return std::bit_cast<double>(bits);
    if (element == "f32") return std::bit_cast<float>(static_cast<uint32_t>(bits));
    if (element == "bf16") return std::bit_cast<float>(static_cast<uint32_t>(bits << 16));
    return std::nullopt;
  }
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  return end == text.c_str() + text.size() && !text.empty() ? std::optional(value) : std::nullopt;
}

std::vector<int64_t> integers_of(std::string_view list) {
  std::vector<int64_t> values;
  const std::string text(list);
  for (const char* at = text.c_str(); *at != 0;) {
    char* end = nullptr;
    const int64_t value = std::strtoll(at, &end, 10);
    if (end == at) {
      ++at;
      continue;
    }
    values.push_back(value);
    at = end;
  }
  return values;
}

class Merger {
 public:
  Merger(std::span<const SizedProgram> programs, bool with_locations)
      : with_locations_(with_locations) {
    for (const SizedProgram& program : programs) {
      texts_.push_back(lines_of(program.text));
      std::vector<int64_t> values = program.sizes;
      for (size_t i = 0; i < program.sizes.size(); ++i) {
        for (size_t j = i; j < program.sizes.size(); ++j) {
          values.push_back(program.sizes[i] * program.sizes[j]);
        }
      }
      monomials_.push_back(std::move(values));
    }
    num_sizes_ = programs[0].sizes.size();
  }

  std::string run() {
    for (size_t i = 0; i < texts_[0].size(); ++i) {
      lines_.clear();
      for (const Lines& text : texts_) lines_.push_back(i < text.size() ? text[i] : "");
      line();
    }
    for (const Lines& text : texts_) {
      lines_ = {texts_[0].back()};
      if (text.size() != texts_[0].size()) fail("number of operations");
    }
    return std::move(body_);
  }

 private:
  // --- what a line is --------------------------------------------------------------------------

  [[noreturn]] void fail(const std::string& what) const {
    std::string_view line = lines_[0];
    const size_t at = line.find(" loc(\"");
    const std::string_view operation = between(line.substr(0, at), "\"", "\"");
    std::string who = "stablehlo", place;
    if (at != line.npos) {  // loc("forward/aten::add"(callsite("forward"("model.py":3:0) at ..
      line.remove_prefix(at + 6);
      const std::string_view name = line.substr(0, line.find('"'));
      who = name.substr(name.find('/') + 1);
      line = line.substr(name.size() + 2);
      const std::string_view function = between(line, "\"", "\"(");
      const std::string_view file = between(line, "\"(\"", "\":");
      place = std::string(file) + ":" + std::string(between(line, "\":", ":")) + " (" +
              std::string(function) + ")";
    }
    util::fail(util::ErrorKind::NotImplemented, who,
               ": expected the same program for all sizes of the dynamic dimensions, got another ",
               what, operation.empty() ? "" : " of " + std::string(operation), " for other sizes.",
               place.empty() ? "" : " Called at " + place + ".",
               " Export the model with a static size there.");
  }

  // A function beside main is a part of an operator: its call has the line.
  [[noreturn]] void fail_in_function() {
    const std::string function(between(header_, "@", "("));
    for (const std::string_view line : texts_[0]) {
      if (line.find("@" + function + "}") != line.npos ||
          line.find("@" + function + ",") != line.npos) {
        lines_ = {line};
        fail("function " + function);
      }
    }
    fail("function " + function);
  }

  // The dependence of these values, one of each program, on the sizes.
  std::optional<Size> fit(const std::vector<int64_t>& values) const {
    const auto explains = [&](const Size& s) {
      for (size_t k = 0; k < values.size(); ++k) {
        if (values[k] != s.factor * monomials_[k][s.monomial] + s.offset) return false;
      }
      return true;
    };
    if (const Size constant{0, 0, values[0]}; explains(constant)) return constant;
    for (size_t m = 0; m < monomials_[0].size(); ++m) {
      const int64_t step = monomials_[1][m] - monomials_[0][m];
      if (step == 0 || (values[1] - values[0]) % step != 0) continue;
      const int64_t factor = (values[1] - values[0]) / step;
      const Size s{factor, m, values[0] - factor * monomials_[0][m]};
      if (explains(s)) return s;
    }
    return std::nullopt;
  }

  // An `array<i64: ..>` of this name in all programs.
  Sizes array(std::string_view name) const {
    std::vector<std::vector<int64_t>> all;
    for (const std::string_view line : lines_) {
      all.push_back(integers_of(between(line, std::string(name) + " = array<i64", ">")));
    }
    Sizes sizes;
    for (size_t i = 0; i < all[0].size(); ++i) {
      std::vector<int64_t> values;
      for (const auto& list : all) values.push_back(list.at(i));
      const auto size = fit(values);
      if (!size) fail(std::string(name));
      sizes.push_back(*size);
    }
    return sizes;
  }

  void line() {
    const std::string_view first = lines_[0];
    if (first.starts_with("  func.func ")) return begin_function();
    if (first == "  }") return end_function();
    bool same = true;
    for (const std::string_view l : lines_) same = same && l == first;
    if (same) {
      emit(first);
      return;
    }
    std::vector<Parts> parts;
    for (const std::string_view l : lines_) parts.emplace_back(l);
    bool same_text = true;
    for (const Parts& p : parts) {
      if (p.dims.size() != parts[0].dims.size()) fail("form");
      same_text = same_text && p.texts == parts[0].texts;
    }
    types_.clear();
    for (size_t t = 0; t < parts[0].dims.size(); ++t) types_.push_back(merged(parts, t));
    if (!same_text || is_rewritten()) return rewrite();
    emit(with_types(parts[0]));
  }

  std::string with_types(const Parts& parts) const {
    std::string text(parts.texts[0]);
    for (size_t t = 0; t < types_.size(); ++t) {
      text += types_[t].str().substr(7);
      text.pop_back();
      text += parts.texts[t + 1];
    }
    return text;
  }

  // The results come when all else has: what makes one can be named.
  void begin_function() {
    start_ = body_.size();
    header_ = lines_[0];
    results_.clear();
    prelude_.clear();
    values_.clear();
    vectors_.clear();
    std::vector<Parts> arguments;
    for (const std::string_view l : lines_) {
      const size_t end = l.find(") -> (");
      arguments.emplace_back(l.substr(0, end));
      if (arguments.back().texts != arguments[0].texts) fail_in_function();
      results_.push_back(l.substr(end));
    }
    types_.clear();
    for (size_t t = 0; t < arguments[0].dims.size(); ++t) types_.push_back(merged(arguments, t));
    find_sources(lines_[0]);
    header_ = with_types(arguments[0]);
  }

  void end_function() {
    std::vector<Parts> results;
    for (const std::string_view l : results_) results.emplace_back(l);
    types_.clear();
    for (size_t t = 0; t < results[0].dims.size(); ++t) types_.push_back(merged(results, t));
    body_.insert(start_, header_ + with_types(results[0]) + "\n" + prelude_);
    emit(lines_[0]);
  }

  DynamicType merged(const std::vector<Parts>& parts, size_t t) const {
    DynamicType type{{}, std::string(parts[0].elements[t])};
    for (size_t d = 0; d < parts[0].dims[t].size(); ++d) {
      std::vector<int64_t> values;
      for (const Parts& p : parts) {
        if (p.dims[t].size() != parts[0].dims[t].size() || p.elements[t] != parts[0].elements[t]) {
          fail("rank or type");
        }
        values.push_back(p.dims[t][d]);
      }
      const auto size = fit(values);
      if (!size) fail("size (no multiple of a dynamic size, and no sum with one)");
      type.dims.push_back(*size);
    }
    return type;
  }

  std::string_view op() const { return between(lines_[0], " = \"", "\""); }

  // Operations that say in their result's type what they make.
  bool is_rewritten() const {
    const std::string_view name = op();
    if (types_.empty() || types_.back().is_static()) return false;
    if (name.starts_with("stablehlo.rng")) fail("random numbers");
    return name == "stablehlo.constant" || name == "stablehlo.broadcast_in_dim" ||
           name == "stablehlo.reshape" || name == "stablehlo.iota";
  }

  void emit(std::string_view text) {
    const size_t at = text.find(" loc(\"");
    body_ += with_locations_ ? text : text.substr(0, at);
    body_ += '\n';
  }

  // --- sizes as values ---------------------------------------------------------------------------

  // Each dynamic size is read off an argument of the function.
  void find_sources(std::string_view signature) {
    sources_.assign(num_sizes_, {});
    size_t at = 0;
    for (const DynamicType& type : types_) {
      at = signature.find('%', at);
      const std::string name(signature.substr(at, signature.find(':', at) - at));
      ++at;
      for (size_t d = 0; d < type.dims.size(); ++d) {
        const Size& size = type.dims[d];
        if (size.is_static() || size.monomial >= num_sizes_) continue;
        Source& source = sources_[size.monomial];
        const bool plainer = size.factor == 1 && size.offset == 0 && source.size != size;
        if (source.name.empty() || plainer) source = {name, type.str(), d, size};
      }
    }
  }

  std::string define(const std::string& operation) {
    const std::string name = "%size" + std::to_string(++defined_);
    prelude_ += "    " + name + " = " + operation + "\n";
    return name;
  }
  std::string number(int64_t value) {
    return define("\"stablehlo.constant\"() {value = dense<" + std::to_string(value) +
                  "> : tensor<1xi32>} : () -> tensor<1xi32>");
  }
  std::string arithmetic(std::string_view name, const std::string& a, const std::string& b) {
    return define("\"stablehlo." + std::string(name) + "\"(" + a + ", " + b +
                  ") : (tensor<1xi32>, tensor<1xi32>) -> tensor<1xi32>");
  }

  // A tensor<1xi32> with the value of a monomial.
  std::string monomial(size_t m) {
    if (m < num_sizes_) {
      const Source& source = sources_[m];
      if (source.name.empty() && header_.find("public") == header_.npos) fail_in_function();
      if (source.name.empty()) fail("dynamic size, which no argument has");
      const std::string read =
          define("\"stablehlo.get_dimension_size\"(" + source.name +
                 ") {dimension = " + attr::i64(static_cast<int64_t>(source.dim)) + "} : (" +
                 source.type + ") -> tensor<i32>");
      std::string value =
          define("\"stablehlo.reshape\"(" + read + ") : (tensor<i32>) -> tensor<1xi32>");
      if (source.size.offset != 0) {
        value = arithmetic("subtract", value, number(source.size.offset));
      }
      if (source.size.factor != 1) value = arithmetic("divide", value, number(source.size.factor));
      return value;
    }
    size_t k = num_sizes_;
    for (size_t i = 0; i < num_sizes_; ++i) {
      for (size_t j = i; j < num_sizes_; ++j, ++k) {
        if (k == m) return arithmetic("multiply", value({1, i, 0}), value({1, j, 0}));
      }
    }
    return {};
  }

  // A tensor<1xi32> with the value of a size.
  std::string value(const Size& size) {
    if (const auto known = values_.find(size); known != values_.end()) return known->second;
    std::string text;
    if (size.is_static()) {
      text = number(size.offset);
    } else if (size.factor == 1 && size.offset == 0) {
      text = monomial(size.monomial);
    } else {
      text = value({1, size.monomial, 0});
      if (size.factor != 1) text = arithmetic("multiply", text, number(size.factor));
      if (size.offset != 0) text = arithmetic("add", text, number(size.offset));
    }
    values_[size] = text;
    return text;
  }

  static std::string vector_type(const Sizes& sizes) {
    return "tensor<" + std::to_string(sizes.size()) + "xi32>";
  }

  // A tensor<Nxi32> with the values of sizes.
  std::string vector(const Sizes& sizes) {
    if (const auto known = vectors_.find(sizes); known != vectors_.end()) return known->second;
    std::string operands, types;
    for (const Size& size : sizes) {
      operands += (operands.empty() ? "" : ", ") + value(size);
      types += types.empty() ? "tensor<1xi32>" : ", tensor<1xi32>";
    }
    const std::string name =
        define("\"stablehlo.concatenate\"(" + operands + ") {dimension = 0 : i64} : (" + types +
               ") -> " + vector_type(sizes));
    vectors_[sizes] = name;
    return name;
  }

  // --- operations that take sizes as operands ----------------------------------------------------

  void rewrite() {
    const std::string_view name = op();
    if (name == "stablehlo.constant") return constant();
    if (name == "stablehlo.broadcast_in_dim") {
      return with_sizes("dynamic_broadcast_in_dim", {types_.back().dims}, attributes());
    }
    if (name == "stablehlo.reshape") return with_sizes("dynamic_reshape", {types_.back().dims}, "");
    if (name == "stablehlo.iota") {
      return with_sizes("dynamic_iota", {types_.back().dims}, attributes());
    }
    if (name == "stablehlo.slice") {
      return with_sizes("real_dynamic_slice",
                        {array("start_indices"), array("limit_indices"), array("strides")}, "");
    }
    if (name == "stablehlo.dynamic_slice") return slice_from_indices();
    if (name == "stablehlo.pad") {
      return with_sizes(
          "dynamic_pad",
          {array("edge_padding_low"), array("edge_padding_high"), array("interior_padding")}, "");
    }
    if (name == "stablehlo.gather") {
      std::string rest = attributes();
      const size_t at = rest.find("slice_sizes = "), end = rest.find('>', at) + 1;
      const bool last = rest[end] == '}';
      rest.erase(last ? at - 2 : at, last ? end - at + 2 : end - at + 2);
      return with_sizes("dynamic_gather", {array("slice_sizes")}, rest);
    }
    fail("form");
  }

  // " {..}"
  std::string attributes() const {
    const std::string_view line = lines_[0];
    const size_t start = line.find(") {"), end = line.rfind("} : (");
    if (start == line.npos || end == line.npos) return "";
    return " " + std::string(line.substr(start + 2, end + 1 - start - 2));
  }

  // The same operation with vectors of sizes as further operands.
  void with_sizes(std::string_view name, const std::vector<Sizes>& sizes,
                  const std::string& attributes) {
    const std::string_view line = lines_[0];
    std::string operands(between(line, "\"(", ")"));
    const size_t count = static_cast<size_t>(std::ranges::count(operands, '%'));
    std::string types;
    const size_t first = types_.size() - 1 - count;
    for (size_t i = first; i + 1 < types_.size(); ++i) {
      types += (types.empty() ? "" : ", ") + types_[i].str();
    }
    for (const Sizes& s : sizes) {
      operands += (operands.empty() ? "" : ", ") + vector(s);
      types += (types.empty() ? "" : ", ") + vector_type(s);
    }
    std::string text(line.substr(0, line.find('"')));
    text += "\"stablehlo." + std::string(name) + "\"(" + operands + ")" + attributes + " : (" +
            types + ") -> " + types_.back().str();
    emit_at_place(text);
  }

  // Cuts as many elements as a size says from where operands say.
  void slice_from_indices() {
    const std::string_view line = lines_[0];
    const std::string indent(line.substr(0, line.find('%')));
    const std::string name(between(line, "%", " "));
    const std::string operands(between(line, "\"(", ")"));
    const Sizes sizes = array("slice_sizes");
    const std::string type = vector_type(sizes), starts = "%starts" + name;
    const DynamicType& of = types_[types_.size() - sizes.size() - 2];
    std::string parts, part_types;
    size_t at = operands.find('%', 1);
    const std::string operand = operands.substr(0, operands.find(','));
    for (size_t i = 0; i < sizes.size(); ++i) {
      const std::string index = operands.substr(at, operands.find(',', at) - at);
      at = operands.find('%', at + 1);
      const std::string& element = types_[types_.size() - sizes.size() - 1 + i].element;
      const std::string part = starts + "_" + std::to_string(i);
      emit_at_place(indent + part + "_scalar = \"stablehlo.convert\"(" + index + ") : (tensor<" +
                    element + ">) -> tensor<i32>");
      emit_at_place(indent + part + " = \"stablehlo.reshape\"(" + part +
                    "_scalar) : (tensor<i32>) -> tensor<1xi32>");
      parts += (i == 0 ? "" : ", ") + part;
      part_types += i == 0 ? "tensor<1xi32>" : ", tensor<1xi32>";
    }
    emit_at_place(indent + starts + " = \"stablehlo.concatenate\"(" + parts +
                  ") {dimension = 0 : i64} : (" + part_types + ") -> " + type);
    emit_at_place(indent + "%limits" + name + " = \"stablehlo.add\"(" + starts + ", " +
                  vector(sizes) + ") : (" + type + ", " + type + ") -> " + type);
    emit_at_place(indent + "%" + name + " = \"stablehlo.real_dynamic_slice\"(" + operand + ", " +
                  starts + ", %limits" + name + ", " + vector(Sizes(sizes.size(), {0, 0, 1})) +
                  ") : (" + of.str() + ", " + type + ", " + type + ", " + type + ") -> " +
                  types_.back().str());
  }

  void emit_at_place(const std::string& text) {
    const size_t at = lines_[0].find(" loc(\"");
    emit(at == lines_[0].npos ? text : text + std::string(lines_[0].substr(at)));
  }

  // One value, that may depend on the sizes, in all elements.
  void constant() {
    const DynamicType& type = types_.back();
    const std::string indent(lines_[0].substr(0, lines_[0].find('%')));
    const std::string name(between(lines_[0], "%", " "));
    const std::string scalar = "%scalar" + name, scalar_type = "tensor<" + type.element + ">";
    std::vector<std::string_view> literals;
    bool same = true;
    for (const std::string_view line : lines_) {
      literals.push_back(between(line, "dense<", ">"));
      same = same && literals.back() == literals[0];
    }
    if (literals[0].find_first_of("[\"(") != std::string_view::npos) fail("list of values");
    if (same) {
      emit_at_place(indent + scalar + " = \"stablehlo.constant\"() {value = dense<" +
                    std::string(literals[0]) + "> : " + scalar_type + "} : () -> " + scalar_type);
    } else {
      computed_constant(indent, scalar, scalar_type, literals);
    }
    const std::string result = indent + "%" + name + " = ";
    if (type.is_static()) {
      emit_at_place(result + "\"stablehlo.broadcast_in_dim\"(" + scalar +
                    ") {broadcast_dimensions = array<i64>} : (" + scalar_type + ") -> " +
                    type.str());
    } else {
      emit_at_place(result + "\"stablehlo.dynamic_broadcast_in_dim\"(" + scalar + ", " +
                    vector(type.dims) + ") {broadcast_dimensions = array<i64>} : (" + scalar_type +
                    ", " + vector_type(type.dims) + ") -> " + type.str());
    }
  }

  // A number that is a size, or one over a size.
  void computed_constant(const std::string& indent, const std::string& scalar,
                         const std::string& scalar_type,
                         const std::vector<std::string_view>& literals) {
    const std::string& element = types_.back().element;
    std::vector<int64_t> values, inverses;
    for (const std::string_view literal : literals) {
      const auto value = value_of(literal, element);
      if (!value) fail("value");
      if (*value == std::nearbyint(*value)) values.push_back(std::llround(*value));
      const double inverse = std::nearbyint(1 / *value);
      const bool is_inverse = element == "f64"
                                  ? 1 / inverse == *value
                                  : static_cast<float>(1 / inverse) == static_cast<float>(*value);
      if (is_inverse) inverses.push_back(std::llround(inverse));
    }
    const bool direct = values.size() == literals.size();
    if (!direct && inverses.size() != literals.size()) fail("value");
    const auto size = fit(direct ? values : inverses);
    if (!size) fail("value");
    const std::string vector_type = "tensor<1x" + element + ">";
    const std::string v = scalar + "_value";
    emit_at_place(indent + v + " = \"stablehlo.convert\"(" + value(*size) +
                  ") : (tensor<1xi32>) -> " + vector_type);
    std::string last = v;
    if (!direct) {
      emit_at_place(indent + v + "_one = \"stablehlo.constant\"() {value = dense<1.0> : " +
                    vector_type + "} : () -> " + vector_type);
      last = v + "_inverse";
      emit_at_place(indent + last + " = \"stablehlo.divide\"(" + v + "_one, " + v + ") : (" +
                    vector_type + ", " + vector_type + ") -> " + vector_type);
    }
    emit_at_place(indent + scalar + " = \"stablehlo.reshape\"(" + last + ") : (" + vector_type +
                  ") -> " + scalar_type);
  }

  struct Source {
    std::string name, type;  // of an argument
    size_t dim = 0;
    Size size;
  };

  bool with_locations_;
  std::vector<Lines> texts_;
  std::vector<std::vector<int64_t>> monomials_;  // of each program: sizes, then their products
  size_t num_sizes_ = 0;
  std::vector<std::string_view> lines_;  // the present line of each program
  std::vector<DynamicType> types_;       // in it
  std::vector<Source> sources_;
  std::map<Size, std::string> values_;
  std::map<Sizes, std::string> vectors_;
  int defined_ = 0;
  std::string header_;  // of the present function, up to its results
  std::vector<std::string_view> results_;
  std::string prelude_;  // its first operations
  std::string body_;     // of the program
  size_t start_ = 0;     // of the function in it
};

}  // namespace

std::string dynamic_program(std::span<const SizedProgram> programs, bool with_locations) {
  TXLA_CHECK(programs.size() >= 3, "dynamic_program: expected three programs, got ",
             programs.size(), ".");
  return Merger(programs, with_locations).run();
}

}  // namespace torch_xla::hlo
