#include "hlo/pretty.h"

#include <algorithm>
#include <deque>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "hlo/fold_numbers.h"
#include "hlo/generic.h"
#include "hlo/pretty_attribute.h"
#include "hlo/pretty_operation.h"

namespace torch_xla::hlo {
namespace {

// The names of a function's values. MLIR counts the values of a region before those of the regions
// in it, and counts on in each of these from there.
class Names {
 public:
  explicit Names(const Block& function) { name(function, "arg", {}); }

  const std::string& of(std::string_view value) const { return names_.at(value); }

 private:
  struct Counts {
    int values = 0, arguments = 0, conflicts = 0;
    std::unordered_set<std::string> words;  // in use
  };

  void name(const Block& block, const std::string& arguments, Counts counts) {
    for (const NamedText& argument : block.arguments) {
      names_[argument.name] =
          "%" + (arguments == "arg" ? arguments + std::to_string(counts.arguments++)
                                    : unique(arguments, counts));
    }
    for (const Operation& o : block.operations) name_results(o, counts);
    for (const Operation& o : block.operations) {
      for (const Block& region : o.regions) {
        name(region, o.name == "stablehlo.while" ? "iterArg" : "arg", counts);
      }
    }
  }

  void name_results(const Operation& o, Counts& counts) {
    if (o.results.empty()) return;
    if (!name_of_result(o, 0).empty()) {
      for (size_t i = 0; i < o.results.size(); ++i) {
        names_[o.results[i]] = "%" + unique(std::string(name_of_result(o, i)), counts);
      }
      return;
    }
    const std::string all = "%" + std::to_string(counts.values++);
    for (size_t i = 0; i < o.results.size(); ++i) {
      names_[o.results[i]] = o.results.size() == 1 ? all : all + "#" + std::to_string(i);
    }
  }

  static std::string unique(const std::string& word, Counts& counts) {
    if (counts.words.insert(word).second) return word;
    return word + "_" + std::to_string(counts.conflicts++);
  }

  std::unordered_map<std::string_view, std::string> names_;
};

// The sums and the like that a reduction applies as they are.
bool commutes(std::string_view name) {
  static const std::unordered_set<std::string_view> kNames = {
      "stablehlo.add",      "stablehlo.and", "stablehlo.maximum", "stablehlo.minimum",
      "stablehlo.multiply", "stablehlo.or",  "stablehlo.xor"};
  return kNames.contains(name);
}

class Printer {
 public:
  explicit Printer(bool folds_numbers) : folds_numbers_(folds_numbers) {}

  std::string module(std::string_view program) {
    const size_t head = program.find('{', program.find(" attributes ") == program.npos
                                              ? 0
                                              : end_of_bracket(program, program.find('{')));
    line_of_module(program.substr(0, head));
    program.remove_prefix(program.find('\n', head) + 1);
    while (program != "}\n") {
      if (program.starts_with("  func.func ")) {
        function(read_function(program));
      } else if (program.starts_with("func.func ")) {  // from elsewhere, in this form already
        const size_t end = program.find("\n}\n") + 3;
        indented(program.substr(0, end));
        program.remove_prefix(end);
      } else {
        const size_t end = program.find('\n') + 1;
        text_ += program.substr(0, end);
        program.remove_prefix(end);
      }
    }
    return std::move(text_) + "}\n";
  }

 private:
  void line_of_module(std::string_view head) {
    const size_t brace = head.find('{');
    text_ += head.substr(0, brace);
    if (brace != head.npos) {
      text_ +=
          "{" + pretty_entries(entries_of(head.substr(brace + 1, head.rfind('}') - brace - 1)));
      text_ += "} ";
    }
    text_ += "{\n";
  }

  void indented(std::string_view text) {
    while (!text.empty()) {
      const size_t end = text.find('\n') + 1;
      text_ += "  " + std::string(text.substr(0, end));
      text.remove_prefix(end);
    }
  }

  static std::string with_attributes(std::string_view type, std::string_view dictionary) {
    if (dictionary.empty()) return std::string(type);
    return std::string(type) + " " + pretty_attribute(dictionary);
  }

  void function(FunctionText f) {
    std::deque<std::string> texts;
    if (folds_numbers_) fold_numbers(f.body, texts);
    const Names names(f.body);
    names_ = &names;
    text_ += f.is_private ? "  func.func private " : "  func.func ";
    text_ += pretty_symbol(f.symbol) + "(";
    for (size_t i = 0; i < f.body.arguments.size(); ++i) {
      const auto& [argument, type] = f.body.arguments[i];
      if (i != 0) text_ += ", ";
      text_ += names.of(argument) + ": " + with_attributes(type, f.argument_attributes[i]);
    }
    text_ += ")";
    std::vector<std::string> results;
    bool in_brackets = f.results.size() > 1;
    for (const auto& [type, attributes] : f.results) {
      results.push_back(with_attributes(type, attributes));
      in_brackets = in_brackets || !attributes.empty();
    }
    if (!results.empty()) text_ += in_brackets ? " -> (" : " -> ";
    text_ += joined(results);
    if (in_brackets) text_ += ")";
    text_ += " {\n";
    depth_ = 2;
    in_function_ = true;
    operations(f.body);
    text_ += "  }\n";
  }

  void line_start() { text_.append(static_cast<size_t>(depth_) * 2, ' '); }

  void operations(const Block& block) {
    for (const Operation& o : block.operations) {
      line_start();
      operation(o);
      if (!o.location.empty()) text_ += " " + std::string(o.location);
      text_ += '\n';
    }
  }

  std::vector<std::string> names_of(std::span<const std::string_view> values) const {
    std::vector<std::string> found;
    for (const std::string_view value : values) found.push_back(names_->of(value));
    return found;
  }

  void operation(const Operation& o) {
    if (!o.results.empty() && !name_of_result(o, 0).empty()) {
      text_ += joined(names_of(o.results)) + " = ";
    } else if (!o.results.empty()) {
      const std::string& first = names_->of(o.results[0]);
      text_ += first.substr(0, first.find('#'));
      if (o.results.size() > 1) text_ += ":" + std::to_string(o.results.size());
      text_ += " = ";
    }
    const std::string_view form = form_of(o);
    if (o.name == "stablehlo.reduce") {
      reduce(o);
    } else if (o.name == "stablehlo.while") {
      while_loop(o);
    } else if (o.name == "sdy.manual_computation") {
      manual(o);
    } else if (form.empty()) {
      generic(o);
    } else {
      // In a function its own dialect need not be named.
      const bool is_of_function = in_function_ && o.name.starts_with("func.");
      text_ += is_of_function ? o.name.substr(5) : o.name;
      text_ += in_form(o, form, names_of(o.operands));
    }
  }

  // The operations of a region between braces.
  void region(const Block& block) {
    const bool outer = std::exchange(in_function_, false);
    text_ += "{\n";
    ++depth_;
    operations(block);
    --depth_;
    line_start();
    text_ += '}';
    in_function_ = outer;
  }

  void generic(const Operation& o) {
    text_ += "\"" + std::string(o.name) + "\"(" + joined(names_of(o.operands)) + ")";
    text_ += inherent_attributes(o);
    for (size_t i = 0; i < o.regions.size(); ++i) {
      text_ += i == 0 ? " (" : ", ";
      const Block& block = o.regions[i];
      if (block.arguments.empty()) {
        region(block);
        continue;
      }
      text_ += "{\n";
      line_start();
      text_ += "^bb0(" + arguments(block) + "):\n";
      const size_t brace = text_.size();
      region(block);
      text_.erase(brace, 2);
    }
    if (!o.regions.empty()) text_ += ')';
    text_ += other_attributes(o) + " : " + function_type(o);
  }

  std::string arguments(const Block& block, size_t from = 0, size_t step = 1) const {
    std::string all;
    for (size_t i = from; i < block.arguments.size(); i += step) {
      if (!all.empty()) all += ", ";
      all += names_->of(block.arguments[i].name) + ": " + std::string(block.arguments[i].text);
    }
    return all;
  }

  // Returns whether a reduction's body is one operation of its two arguments.
  static bool applies_one(const Operation& o) {
    const Block& body = o.regions[0];
    if (o.operands.size() != 2 || body.operations.size() != 2) return false;
    const Operation &inner = body.operations[0], &end = body.operations[1];
    return commutes(inner.name) && inner.operands.size() == 2 && inner.attributes.empty() &&
           inner.operands[0] == body.arguments[0].name &&
           inner.operands[1] == body.arguments[1].name &&
           std::ranges::equal(end.operands, inner.results);
  }

  void reduce(const Operation& o) {
    const std::vector<std::string> operands = names_of(o.operands);
    const size_t count = operands.size() / 2;
    text_ += o.name;
    for (size_t i = 0; i < count; ++i) {
      text_ += i == 0 ? "(" : ", (";
      text_ += operands[i] + " init: " + operands[count + i] + ")";
    }
    const Block& body = o.regions[0];
    const bool brief = applies_one(o);
    if (brief) text_ += " applies " + std::string(body.operations[0].name);
    text_ +=
        " across dimensions = " + list_of(o.attribute("dimensions")) + " : " + function_type(o);
    if (brief) return;
    text_ += '\n';
    line_start();
    text_ += " reducer";
    for (size_t i = 0; i < count; ++i) {
      text_ += i == 0 ? "(" : " (";
      text_ += arguments(body, i, count) + ")";
    }
    text_ += "  ";
    region(body);
  }

  void while_loop(const Operation& o) {
    text_ += std::string(o.name) + "(";
    for (size_t i = 0; i < o.operands.size(); ++i) {
      if (i != 0) text_ += ", ";
      text_ += names_->of(o.regions[0].arguments[i].name) + " = " + names_->of(o.operands[i]);
    }
    text_ += ") : " + joined(o.operand_types) + "\n";
    line_start();
    text_ += "cond ";
    region(o.regions[0]);
    text_ += " do ";
    region(o.regions[1]);
  }

  void manual(const Operation& o) {
    const auto inside = [&](std::string_view name, std::string_view open) {
      const std::string_view text = o.attribute(name);
      const size_t at = text.find(open);
      return std::string(text.substr(at, end_of_bracket(text, at) - at));
    };
    text_ += std::string(o.name) + "(" + joined(names_of(o.operands)) + ")";
    text_ += " in_shardings=" + inside("in_shardings", "[");
    text_ += " out_shardings=" + inside("out_shardings", "[");
    text_ += " manual_axes=" + inside("manual_axes", "{");
    text_ += " (" + arguments(o.regions[0]) + ") ";
    region(o.regions[0]);
    text_ += " : " + function_type(o);
  }

  const bool folds_numbers_;
  std::string text_;
  const Names* names_ = nullptr;
  int depth_ = 2;
  bool in_function_ = true;
};

}  // namespace

std::string pretty(std::string_view program, bool folds_numbers) {
  return Printer(folds_numbers).module(program);
}

}  // namespace torch_xla::hlo
