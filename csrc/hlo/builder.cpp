#include "hlo/builder.h"

#include <algorithm>
#include <unordered_set>

#include "hlo/recompute.h"
#include "util/error.h"
#include "util/hash.h"

namespace torch_xla::hlo {
namespace attr {

std::string i64(int64_t value) { return std::to_string(value) + " : i64"; }
std::string i32(int64_t value) { return std::to_string(value) + " : i32"; }
std::string boolean(bool value) { return value ? "true" : "false"; }

std::string string(std::string_view value) {
  static constexpr char kHex[] = "0123456789ABCDEF";
  std::string text = "\"";
  for (unsigned char c : value) {
    if (c == '\\') {
      text += "\\\\";
    } else if (c == '"' || c < 32 || c > 126) {
      text += '\\';
      text += kHex[c >> 4];
      text += kHex[c & 15];
    } else {
      text += static_cast<char>(c);
    }
  }
  return text + "\"";
}

std::string symbol(std::string_view name) {
  TXLA_CHECK(!name.empty(), "symbol: expected a name, got none.");
  const auto letter = [](unsigned char c) { return (c | 32) >= 'a' && (c | 32) <= 'z'; };
  const auto plain = [&](unsigned char c) {
    return letter(c) || (c >= '0' && c <= '9') || c == '_' || c == '$' || c == '.';
  };
  const bool bare = (letter(name[0]) || name[0] == '_') && std::ranges::all_of(name, plain);
  return "@" + (bare ? std::string(name) : string(name));
}

std::string array(std::span<const int64_t> values) {
  std::string text = "array<i64";
  for (size_t i = 0; i < values.size(); ++i) {
    text += i == 0 ? ": " : ", ";
    text += std::to_string(values[i]);
  }
  return text + ">";
}

std::string array(std::span<const bool> values) {
  std::string text = "array<i1";
  for (size_t i = 0; i < values.size(); ++i) {
    text += i == 0 ? ": " : ", ";
    text += boolean(values[i]);
  }
  return text + ">";
}

std::string matrix(std::span<const int64_t> values, int64_t columns) {
  const int64_t rows = columns == 0 ? 0 : static_cast<int64_t>(values.size()) / columns;
  const std::string type =
      "tensor<" + std::to_string(rows) + "x" + std::to_string(columns) + "xi64>";
  if (values.empty()) return "dense<> : " + type;
  std::string text = "dense<[";
  for (int64_t r = 0; r < rows; ++r) {
    text += r == 0 ? "[" : ", [";
    for (int64_t c = 0; c < columns; ++c) {
      if (c != 0) text += ", ";
      text += std::to_string(values[r * columns + c]);
    }
    text += "]";
  }
  return text + "]> : " + type;
}

std::string stablehlo(std::string_view kind, std::string_view value) {
  return "#stablehlo<" + std::string(kind) + " " + std::string(value) + ">";
}

}  // namespace attr

namespace {

void append_value(std::string& text, const Value& value) {
  text += '%';
  text += std::to_string(value.id());
}

void append_types(std::string& text, std::span<const Type> types) {
  for (size_t i = 0; i < types.size(); ++i) {
    if (i != 0) text += ", ";
    text += types[i].str();
  }
}

void append_attributes(std::string& text, const Attributes& attributes) {
  text += '{';
  for (size_t i = 0; i < attributes.size(); ++i) {
    if (i != 0) text += ", ";
    text += attributes[i].name;
    text += " = ";
    text += attributes[i].text;
  }
  text += '}';
}

}  // namespace

Value Builder::fresh(const Type& type, uint64_t hash, std::vector<int> operands, int64_t work) {
  constexpr int64_t kMost = int64_t{1} << 40;  // a value that doubles often enough
  const size_t bytes = static_cast<size_t>(type.elements()) * byte_size(type.dtype);
  int64_t all = std::max<int64_t>(work, 0);
  for (size_t i = 0; work >= 0 && i < operands.size(); ++i) all += origins_[operands[i]].work;
  // A reshape lies in memory as its operand does.
  const bool is_moved =
      work < 0 || (work == 0 && (operands.size() != 1 || origins_[operands[0]].bytes != bytes ||
                                 origins_[operands[0]].is_moved));
  origins_.push_back({hash, bytes, std::move(operands), std::min(all, kMost), is_moved});
  return Value(this, static_cast<int>(origins_.size()) - 1, type);
}

bool Builder::may_read(const Value& value, const Value& whole) const {
  // Visits a value and what it is computed from; `enter` says whether to go on from there.
  const auto walk = [&](int from, const auto& enter) {
    std::unordered_set<int> seen = {from};
    std::vector<int> open = {from};
    while (!open.empty()) {
      const int id = open.back();
      open.pop_back();
      if (!enter(origins_[id])) continue;
      for (const int operand : origins_[id].operands) {
        if (seen.insert(operand).second) open.push_back(operand);
      }
    }
  };
  const size_t bytes = origins_[whole.id()].bytes;
  std::unordered_set<uint64_t> memory;
  walk(whole.id(), [&](const Origin& o) {
    if (o.bytes == bytes) memory.insert(o.hash);
    return o.bytes == bytes;
  });
  bool found = false;
  walk(value.id(), [&](const Origin& o) {
    found = found || memory.contains(o.hash);
    return !found;
  });
  return found;
}

Values Builder::op(std::string_view name, std::span<const Value> operands,
                   std::span<const Type> results, const Attributes& attributes,
                   std::span<const Region> regions) {
  for (const Value& operand : operands) {
    TXLA_CHECK(operand, name, ": expected an operand, got a value that was never built.");
    TXLA_CHECK(&operand.builder() == this, name, ": expected operands of this module, got ",
               operand.type().str(), " of another builder.");
  }
  util::Hasher h;
  h.add_bytes(name);
  std::vector<int> ids;
  ids.reserve(operands.size());
  for (const Value& operand : operands) {
    ids.push_back(operand.id());
    h.add(origins_[operand.id()].hash);
  }
  for (const Attribute& a : attributes) h.add_bytes(a.name).add_bytes(a.text);
  const uint64_t hash = h.finish().low;
  Values values;
  values.reserve(results.size());
  for (const Type& type : results) values.push_back(fresh(type, hash, ids, fused_work(name)));

  body_.append(depth_ * 2, ' ');
  for (size_t i = 0; i < values.size(); ++i) {
    if (i != 0) body_ += ", ";
    append_value(body_, values[i]);
  }
  if (!values.empty()) body_ += " = ";
  body_ += '"';
  body_ += name;
  body_ += "\"(";
  for (size_t i = 0; i < operands.size(); ++i) {
    if (i != 0) body_ += ", ";
    append_value(body_, operands[i]);
  }
  body_ += ')';
  if (!regions.empty()) {
    body_ += " (";
    for (size_t i = 0; i < regions.size(); ++i) {
      if (i != 0) body_ += ", ";
      body_ += regions[i].text;
    }
    body_ += ')';
  }
  if (!attributes.empty()) {
    body_ += ' ';
    append_attributes(body_, attributes);
  }
  body_ += " : (";
  for (size_t i = 0; i < operands.size(); ++i) {
    if (i != 0) body_ += ", ";
    body_ += operands[i].type().str();
  }
  body_ += ") -> ";
  if (results.size() != 1) body_ += '(';
  append_types(body_, results);
  if (results.size() != 1) body_ += ')';
  if (!location_.empty()) {
    body_ += ' ';
    body_ += location_;
  }
  body_ += '\n';
  return values;
}

Value Builder::op(std::string_view name, std::initializer_list<Value> operands, Type result,
                  const Attributes& attributes, std::span<const Region> regions) {
  return op(name, std::span<const Value>(operands.begin(), operands.size()),
            std::span<const Type>(&result, 1), attributes, regions)[0];
}

Region Builder::region(std::span<const Type> arguments,
                       const std::function<Values(std::span<const Value>)>& body,
                       std::string_view terminator) {
  std::string outer = std::move(body_);
  body_.clear();
  Values values;
  values.reserve(arguments.size());
  for (const Type& type : arguments) values.push_back(fresh(type, ++arguments_));
  body_ += "{\n";
  if (!values.empty()) {
    body_.append(depth_ * 2, ' ');
    body_ += "^bb0(";
    for (size_t i = 0; i < values.size(); ++i) {
      if (i != 0) body_ += ", ";
      append_value(body_, values[i]);
      body_ += ": ";
      body_ += arguments[i].str();
    }
    body_ += "):\n";
  }
  ++depth_;
  const Values results = body(values);
  op(terminator, results, {});
  --depth_;
  body_.append(depth_ * 2, ' ');
  body_ += '}';
  Region region{std::move(body_)};
  body_ = std::move(outer);
  return region;
}

Value Builder::constant(std::string_view text, Type type) {
  std::string literal = "dense<";
  literal += text;
  literal += "> : ";
  literal += type.str();
  return op("stablehlo.constant", {}, std::move(type), {{"value", std::move(literal)}});
}

Values Builder::begin_function(std::string_view name, std::span<const Type> arguments,
                               std::span<const Attributes> argument_attributes, bool is_public) {
  TXLA_CHECK(argument_attributes.size() <= arguments.size(), name,
             ": expected attributes for at most ", arguments.size(), " arguments, got ",
             argument_attributes.size(), ".");
  Function function;
  function.name = name;
  function.is_public = is_public;
  function.outer_body = std::move(body_);
  function.outer_origins = std::exchange(origins_, {});
  body_.clear();
  // A caller may pass one value, in two forms, as two arguments.
  ++arguments_;
  for (const Type& type : arguments) {
    function.arguments.push_back(fresh(type, is_public ? ++arguments_ : arguments_));
  }
  function.argument_attributes.assign(argument_attributes.begin(), argument_attributes.end());
  function.argument_attributes.resize(arguments.size());
  open_.push_back(std::move(function));
  return open_.back().arguments;
}

void Builder::end_function(std::span<const Value> results,
                           std::span<const Attributes> result_attributes) {
  TXLA_CHECK(!open_.empty(), "end_function: expected an open function, found none.");
  TXLA_CHECK(result_attributes.size() <= results.size(), open_.back().name,
             ": expected attributes for at most ", results.size(), " results, got ",
             result_attributes.size(), ".");
  Function function = std::move(open_.back());
  open_.pop_back();

  std::string text = "  func.func ";
  text += function.is_public ? "public " : "private ";
  text += attr::symbol(function.name);
  text += '(';
  for (size_t i = 0; i < function.arguments.size(); ++i) {
    if (i != 0) text += ", ";
    append_value(text, function.arguments[i]);
    text += ": ";
    text += function.arguments[i].type().str();
    if (!function.argument_attributes[i].empty()) {
      text += ' ';
      append_attributes(text, function.argument_attributes[i]);
    }
  }
  text += ") -> (";
  for (size_t i = 0; i < results.size(); ++i) {
    if (i != 0) text += ", ";
    text += results[i].type().str();
    if (i < result_attributes.size() && !result_attributes[i].empty()) {
      text += ' ';
      append_attributes(text, result_attributes[i]);
    }
  }
  text += ") {\n";
  op("func.return", results, {});
  text += body_;
  text += "  }\n";
  functions_ += text;
  body_ = std::move(function.outer_body);
  origins_ = std::move(function.outer_origins);
}

bool Builder::private_function(std::string_view name, std::span<const Type> arguments,
                               const std::function<Values(std::span<const Value>)>& body) {
  const std::string known = std::string(name) + '\n';
  std::string wanted = known;
  append_types(wanted, arguments);
  for (const std::string& there : private_names_) {
    if (!there.starts_with(known)) continue;
    TXLA_CHECK(there == wanted, name, ": expected the arguments of the function of this name, (",
               there.substr(known.size()), "), got (", wanted.substr(known.size()),
               "). Put what differs into the name.");
    return false;
  }
  private_names_.push_back(std::move(wanted));
  const int outer_depth = std::exchange(depth_, 2);
  const Values values = begin_function(name, arguments, {}, false);
  end_function(body(values));
  depth_ = outer_depth;
  return true;
}

void Builder::private_text(std::string_view name, std::string_view text) {
  const std::string known = std::string(name) + "\ntext";
  if (std::ranges::find(private_names_, known) != private_names_.end()) return;
  private_names_.push_back(known);
  functions_ += std::string(text) + "\n";
}

std::string Builder::finish(std::string_view module_name) const {
  TXLA_CHECK(open_.empty(), "finish: expected all functions to be ended, found ", open_.back().name,
             " open.");
  std::string text = "module ";
  text += attr::symbol(module_name);
  if (!module_attributes_.empty()) {
    text += " attributes ";
    append_attributes(text, module_attributes_);
  }
  text += " {\n";
  text += items_;
  text += functions_;
  text += "}\n";
  return text;
}

}  // namespace torch_xla::hlo
