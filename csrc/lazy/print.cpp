#include "lazy/print.h"

#include <functional>
#include <unordered_map>

#include "lazy/operator.h"
#include "lazy/walk.h"

namespace torch_xla::lazy {
namespace {

using Numbering = std::unordered_map<const Node*, size_t>;

// Visits each node under the values once, operands before users; they are numbered in that order.
Numbering number_nodes(const std::vector<Value>& values,
                       const std::function<void(const Node&, const Numbering&)>& visit) {
  Numbering numbers;
  const auto enter = [&](const Value& value) { return !numbers.contains(value.node.get()); };
  const auto leave = [&](const Node& node) {
    numbers.emplace(&node, numbers.size());
    visit(node, numbers);
  };
  lazy::visit(values, enter, leave);
  return numbers;
}

std::vector<const Geometry*> outputs_of(const Node& node) {
  if (node.is_data()) return {&node.output(0)};
  return node.signature().outputs;
}

std::string name_of(const Node& node) {
  return node.is_data() ? "xla::device_data" : node.signature().op->name;
}

}  // namespace

std::string types_of(const std::vector<const Geometry*>& geometries) {
  std::string text;
  for (const Geometry* geometry : geometries) {
    if (!text.empty()) text += ", ";
    if (geometry == nullptr) {
      text += "none";
      continue;
    }
    text += c10::toString(geometry->dtype);
    text += "[";
    const char* comma = "";
    for (const int64_t size : geometry->sizes) {
      text += comma + std::to_string(size);
      comma = ",";
    }
    text += "]";
  }
  return text;
}

std::string text_of(const std::vector<Value>& values) {
  std::string text = "IR {\n";
  const Numbering all = number_nodes(values, [&](const Node& node, const Numbering& numbers) {
    text += "  %" + std::to_string(numbers.at(&node)) + " = " + name_of(node) + "(";
    const char* comma = "";
    for (const Value& v : node.operands()) {
      text += comma + ("%" + std::to_string(numbers.at(v.node.get())));
      if (v.index != 0) text += "." + std::to_string(v.index);
      comma = ", ";
    }
    text += ") : " + types_of(outputs_of(node));
    const char* between = "  // ";
    for (const SourceFrame& frame : node.source().frames()) {
      text += between + frame.str();
      between = " < ";
    }
    text += "\n";
  });
  for (const Value& root : values) {
    text += "  ROOT %" + std::to_string(all.at(root.node.get())) + "\n";
  }
  return text + "}\n";
}

std::string dot_of(const std::vector<Value>& values) {
  std::string text = "digraph G {\n";
  const Numbering all = number_nodes(values, [&](const Node& node, const Numbering& numbers) {
    const std::string number = std::to_string(numbers.at(&node));
    text += "  node" + number + " [label=\"" + name_of(node) + "\\n" + types_of(outputs_of(node)) +
            "\"]\n";
    for (size_t i = 0; i < node.operands().size(); ++i) {
      const Value& v = node.operands()[i];
      text += "  node" + std::to_string(numbers.at(v.node.get())) + " -> node" + number;
      text += " [label=\"" + std::to_string(i);
      if (v.index != 0) text += " (result " + std::to_string(v.index) + ")";
      text += "\"]\n";
    }
  });
  for (const Value& root : values) {
    text += "  node" + std::to_string(all.at(root.node.get())) + " [peripheries=2]\n";
  }
  return text + "}\n";
}

size_t count_nodes(const std::vector<Value>& values) {
  return number_nodes(values, [](const Node&, const Numbering&) {}).size();
}

}  // namespace torch_xla::lazy
