// Prints recorded graphs. The caller holds the GraphLock.
#pragma once

#include <string>
#include <vector>

#include "lazy/node.h"

namespace torch_xla::lazy {

// Prints one line per node under the values:
//   %2 = aten::add.Tensor(%0, %1) : Float[2,3]  // train.py:3
std::string text_of(const std::vector<Value>& values);
// Prints the graph for Graphviz; roots have a double border.
std::string dot_of(const std::vector<Value>& values);
// Prints "Float[2,3], Long[2]"; "none" for a result that a call does not give.
std::string types_of(const std::vector<const Geometry*>& geometries);
size_t count_nodes(const std::vector<Value>& values);

}  // namespace torch_xla::lazy
