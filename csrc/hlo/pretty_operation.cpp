#include "hlo/pretty_operation.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <unordered_map>
#include <vector>

#include "hlo/pretty_attribute.h"

namespace torch_xla::hlo {
namespace {

// `{operands}`, `{type}` and so on stand for what `part` says, any other name for the attribute.
// Attributes that a form does not name stand before its last ` : `.
constexpr std::string_view kTyped = " {operands} : {types}";
constexpr std::string_view kElementwise = " {operands} : {type}";
constexpr std::string_view kReturn = " {operands} : {operand_types}";

const std::unordered_map<std::string_view, std::string_view>& forms() {
  static const std::unordered_map<std::string_view, std::string_view> kForms = {
      {"func.call", " {callee}({operands}) : {types}"},
      {"func.return", kReturn},
      {"sdy.return", kReturn},
      {"sdy.sharding_constraint", " {operands} {sharding} : {result_types}"},
      {"stablehlo.bitcast_convert", kTyped},
      {"stablehlo.broadcast_in_dim", " {operands}, dims = {broadcast_dimensions} : {types}"},
      {"stablehlo.cholesky", " {operands}, lower = {lower} : {type}"},
      {"stablehlo.compare", "  {comparison_direction}, {operands},  {compare_type} : {types}"},
      {"stablehlo.complex", " {operands} : {result_types}"},
      {"stablehlo.composite", " {name} {operands} : {types}"},
      {"stablehlo.concatenate", " {operands}, dim = {dimension} : {types}"},
      {"stablehlo.constant", " {value}"},
      {"stablehlo.convolution",
       "({operands}) dim_numbers = {dimension_numbers}, window = {window} : {types}"},
      {"stablehlo.custom_call", " {call_target_name}({operands}) : {types}"},
      {"stablehlo.dot_general",
       " {operands}, {dot_dimension_numbers}, precision = {precision_config} : {types}"},
      {"stablehlo.dynamic_broadcast_in_dim",
       " {operands}, dims = {broadcast_dimensions} : {types}"},
      {"stablehlo.dynamic_iota", " {operands}, dim = {iota_dimension} : {types}"},
      {"stablehlo.dynamic_pad", kTyped},
      {"stablehlo.dynamic_reshape", kTyped},
      {"stablehlo.dynamic_slice", " {operands}, sizes = {slice_sizes} : {types}"},
      {"stablehlo.dynamic_update_slice", kTyped},
      {"stablehlo.fft", " {operands}, type =  {fft_type}, length = {fft_length} : {types}"},
      {"stablehlo.get_dimension_size", " {operands}, dim = {dimension} : {types}"},
      {"stablehlo.iota", " dim = {iota_dimension} : {result_types}"},
      {"stablehlo.optimization_barrier", " {operands} : {result_types}"},
      {"stablehlo.pad",
       " {operands}, low = {edge_padding_low}, high = {edge_padding_high}, "
       "interior = {interior_padding} : {types}"},
      {"stablehlo.real_dynamic_slice", kTyped},
      {"stablehlo.reshape", kTyped},
      {"stablehlo.return", kReturn},
      {"stablehlo.reverse", " {operands}, dims = {dimensions} : {result_types}"},
      {"stablehlo.select", " {operands} : {choice}"},
      {"stablehlo.slice", " {operands} {ranges} : {types}"},
      {"stablehlo.transpose", " {operands}, dims = {permutation} : {types}"},
  };
  return kForms;
}

// Operations of StableHLO whose form is the generic one.
bool is_generic(std::string_view name) {
  static constexpr std::array<std::string_view, 13> kNames = {"all_gather",
                                                              "all_reduce",
                                                              "case",
                                                              "dynamic_gather",
                                                              "gather",
                                                              "if",
                                                              "map",
                                                              "reduce_scatter",
                                                              "reduce_window",
                                                              "scatter",
                                                              "select_and_scatter",
                                                              "sort",
                                                              "triangular_solve"};
  name.remove_prefix(std::string_view("stablehlo.").size());
  return std::ranges::find(kNames, name) != kNames.end();
}

// Returns whether the attribute has the value with which it is not printed.
bool is_default(const Operation& o, const NamedText& a) {
  static constexpr std::array<std::array<std::string_view, 3>, 5> kDefaults = {{
      {"stablehlo.cholesky", "lower", "false"},
      {"stablehlo.composite", "composite_attributes", "{}"},
      {"stablehlo.composite", "version", "0 : i32"},
      {"stablehlo.custom_call", "api_version", "1 : i32"},
      {"stablehlo.custom_call", "has_side_effect", "false"},
  }};
  return std::ranges::find(kDefaults, std::array{o.name, a.name, a.text}) != kDefaults.end();
}

std::string_view inside(std::string_view text, std::string_view open) {
  const size_t at = text.find(open);
  if (at == text.npos) return {};
  const size_t bracket = at + open.size() - 1;
  return text.substr(bracket + 1, end_of_bracket(text, bracket) - bracket - 2);
}

// A member of #stablehlo.dot<..> or #stablehlo.conv<..>.
std::string_view field(std::string_view text, std::string_view name) {
  for (const NamedText& entry : entries_of(inside(text, "<"))) {
    if (entry.name == name || entry.name == "raw " + std::string(name)) return entry.text;
  }
  return {};
}

std::string dot_dimensions(std::string_view numbers) {
  const auto pair = [&](std::string_view kind) {
    return std::string(field(numbers, "lhs_" + std::string(kind))) + " x " +
           std::string(field(numbers, "rhs_" + std::string(kind)));
  };
  std::string text;
  if (field(numbers, "lhs_batching_dimensions") != "[]") {
    text = "batching_dims = " + pair("batching_dimensions") + ", ";
  }
  return text + "contracting_dims = " + pair("contracting_dimensions");
}

// [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]
std::string convolution_dimensions(std::string_view numbers) {
  const auto part = [&](const std::string& of, const std::string& first, char first_name,
                        const std::string& second, char second_name) {
    const auto spatial = members_of(inside(field(numbers, of + "_spatial_dimensions"), "["));
    std::vector<std::string> names(spatial.size() + 2);
    const auto put = [&](std::string_view position, std::string name) {
      names[static_cast<size_t>(std::atoi(std::string(position).c_str()))] = std::move(name);
    };
    put(field(numbers, of + "_" + first + "_dimension"), {first_name});
    put(field(numbers, of + "_" + second + "_dimension"), {second_name});
    for (size_t i = 0; i < spatial.size(); ++i) put(spatial[i], std::to_string(i));
    return "[" + joined(names) + "]";
  };
  return part("input", "batch", 'b', "feature", 'f') + "x" +
         part("kernel", "input_feature", 'i', "output_feature", 'o') + "->" +
         part("output", "batch", 'b', "feature", 'f');
}

// The bracketed numbers of `dense<[[0, 0], [0, 1]]> : tensor<2x2xi64>`, also where all are equal.
std::string rows_of(std::string_view matrix) { return std::string(inside(matrix, "dense<")); }

std::string window(const Operation& o) {
  return "{stride = " + list_of(o.attribute("window_strides")) +
         ", pad = " + rows_of(o.attribute("padding")) +
         ", lhs_dilate = " + list_of(o.attribute("lhs_dilation")) +
         ", rhs_dilate = " + list_of(o.attribute("rhs_dilation")) +
         ", reverse = " + list_of(o.attribute("window_reversal")) + "}";
}

// [0:4, 1:9:2]
std::string ranges(const Operation& o) {
  const std::string starts = list_of(o.attribute("start_indices")),
                    limits = list_of(o.attribute("limit_indices")),
                    strides = list_of(o.attribute("strides"));
  const auto from = members_of(inside(starts, "[")), to = members_of(inside(limits, "[")),
             by = members_of(inside(strides, "["));
  std::vector<std::string> all;
  for (size_t i = 0; i < from.size(); ++i) {
    all.push_back(std::string(from[i]) + ":" + std::string(to[i]));
    if (by[i] != "1") all.back() += ":" + std::string(by[i]);
  }
  return "[" + joined(all) + "]";
}

// An attribute in the words of a form: `#stablehlo<kind WORD>` is its word.
std::string brief(std::string_view text) {
  if (text.starts_with("array<")) return list_of(text);
  if (text.starts_with("#stablehlo<")) {
    const std::string_view words = inside(text, "<");
    return std::string(words.substr(words.find(' ') + 1));
  }
  if (text.starts_with("#sdy.sharding<")) return std::string(text.substr(text.find('<')));
  if (text.starts_with("[")) {
    std::vector<std::string> words;
    for (const std::string_view member : members_of(inside(text, "["))) {
      words.push_back(brief(member));
    }
    return "[" + joined(words) + "]";
  }
  const std::string whole = pretty_attribute(text);
  return whole.ends_with(" : i64") ? whole.substr(0, whole.size() - 6) : whole;
}

bool is_one_type(const Operation& o) {
  const auto is_result = [&](std::string_view type) { return type == o.result_types[0]; };
  return o.result_types.size() == 1 && std::ranges::all_of(o.operand_types, is_result);
}

std::string part(const Operation& o, std::string_view name, std::span<const std::string> operands) {
  if (name == "operands") return joined(operands);
  if (name == "types") return function_type(o);
  if (name == "type") return is_one_type(o) ? std::string(o.result_types[0]) : function_type(o);
  if (name == "result_types") return joined(o.result_types);
  if (name == "operand_types") return joined(o.operand_types);
  if (name == "choice") {
    const bool is_plain =
        o.operand_types[1] == o.result_types[0] && o.operand_types[2] == o.result_types[0];
    return is_plain ? joined(std::span(o.operand_types).first(2)) : function_type(o);
  }
  if (name == "ranges") return ranges(o);
  if (name == "window") return window(o);
  const std::string_view attribute = o.attribute(name);
  if (name == "call_target_name") return pretty_symbol("@" + std::string(attribute));
  if (name == "dimension_numbers") return convolution_dimensions(attribute);
  if (name == "dot_dimension_numbers") return dot_dimensions(attribute);
  return brief(attribute);
}

// The attributes that a form does not speak of.
std::string rest(const Operation& o, std::string_view form) {
  static constexpr std::string_view kOfWindow =
      "{window_strides}{padding}{lhs_dilation}{rhs_dilation}{window_reversal}";
  static constexpr std::string_view kOfRanges = "{start_indices}{limit_indices}{strides}";
  std::string named(form);
  if (form.find("{window}") != form.npos) named += kOfWindow;
  if (form.find("{ranges}") != form.npos) named += kOfRanges;
  std::vector<NamedText> others;
  for (const NamedText& a : o.attributes) {
    const bool is_named = named.find("{" + std::string(a.name) + "}") != named.npos;
    if (!is_named && !is_default(o, a)) others.push_back(a);
  }
  return others.empty() ? "" : " {" + pretty_entries(others) + "}";
}

bool is_inherent(const Operation& o, const NamedText& a) {
  const bool is_known = o.name.starts_with("stablehlo.") || o.name.starts_with("sdy.");
  return is_known && a.name.find('.') == a.name.npos;
}

std::string attributes_where(const Operation& o, bool inherent) {
  std::vector<NamedText> some;
  for (const NamedText& a : o.attributes) {
    if (is_inherent(o, a) == inherent) some.push_back(a);
  }
  return pretty_entries(some);
}

template <class Text>
std::string join(std::span<const Text> texts) {
  std::string all;
  for (size_t i = 0; i < texts.size(); ++i) {
    if (i != 0) all += ", ";
    all += texts[i];
  }
  return all;
}

}  // namespace

std::string_view name_of_result(const Operation& o, size_t result) {
  if (o.name == "chlo.top_k") return result == 0 ? "values" : "indices";
  if (o.name != "stablehlo.constant") return {};
  const std::string_view element = element_of(o.result_types[0]);
  return element.starts_with("i") || element.starts_with("ui") ? "c" : "cst";
}

std::string_view form_of(const Operation& o) {
  if (o.name == "stablehlo.cholesky" && o.attribute("lower") == "false") return kElementwise;
  if (const auto found = forms().find(o.name); found != forms().end()) return found->second;
  if (!o.regions.empty()) return {};
  if (o.name == "chlo.top_k") return "({operands}, k = {k}) : {operand_types} -> ({result_types})";
  if (o.name.starts_with("chlo.")) return " {operands} : {operand_types} -> {result_types}";
  if (o.name.starts_with("stablehlo.") && !is_generic(o.name)) return kElementwise;
  return {};
}

std::string in_form(const Operation& o, std::string_view form,
                    std::span<const std::string> operands) {
  if (operands.empty() && o.name.ends_with(".return")) return rest(o, form);
  if (operands.empty() && o.name == "stablehlo.optimization_barrier") return "()" + rest(o, form);
  const size_t types = form.rfind(" : ");
  std::string text;
  for (size_t at = 0; at < form.size();) {
    if (at == types) text += rest(o, form);
    if (form[at] != '{') {
      text += form[at++];
      continue;
    }
    const size_t end = form.find('}', at);
    text += part(o, form.substr(at + 1, end - at - 1), operands);
    at = end + 1;
  }
  return text;
}

std::string inherent_attributes(const Operation& o) {
  const std::string text = attributes_where(o, true);
  return text.empty() ? "" : " <{" + text + "}>";
}

std::string other_attributes(const Operation& o) {
  const std::string text = attributes_where(o, false);
  return text.empty() ? "" : " {" + text + "}";
}

std::string joined(std::span<const std::string_view> texts) { return join(texts); }
std::string joined(std::span<const std::string> texts) { return join(texts); }

std::string function_type(const Operation& o) {
  std::string text = "(" + joined(o.operand_types) + ") -> ";
  const bool is_single = o.result_types.size() == 1;
  return text + (is_single ? std::string(o.result_types[0]) : "(" + joined(o.result_types) + ")");
}

std::string list_of(std::string_view attribute) {
  const size_t colon = attribute.find(": ");
  if (colon == attribute.npos) return "[]";
  return "[" + std::string(attribute.substr(colon + 2, attribute.size() - colon - 3)) + "]";
}

}  // namespace torch_xla::hlo
