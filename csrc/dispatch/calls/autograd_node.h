// Makes nodes of autograd's graph, whichever way PyTorch counts references to them.
#pragma once

#include <memory>
#include <type_traits>
#include <utility>

#include <torch/csrc/autograd/function.h>

namespace torch_xla::dispatch {

// PyTorch 2.13 counts references to the graph's nodes in the nodes; before, it shared them.
template <class Node, class... Arguments>
auto new_node(Arguments&&... arguments) {
  using Pointer = decltype(torch::autograd::Edge::function);
  if constexpr (std::is_same_v<Pointer, std::shared_ptr<torch::autograd::Node>>) {
    return std::shared_ptr<Node>(new Node(std::forward<Arguments>(arguments)...),
                                 [](Node* node) { deleteNode(node); });
  } else {
    return c10::make_intrusive<Node>(std::forward<Arguments>(arguments)...);
  }
}

}  // namespace torch_xla::dispatch
