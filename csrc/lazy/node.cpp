#include "lazy/node.h"

namespace torch_xla::lazy {

Node::~Node() { release_operands(); }

void Node::become_data(DeviceData data) {
  leaf_geometry_ = &output(0);
  data_ = std::move(data);
  is_data_ = true;
  release_operands();
  numbers_.clear();
}

void Node::release_operands() {
  if (operands_.empty()) return;
  // The outermost call drains what nested destructors hand over.
  thread_local std::vector<Operands>* pending = nullptr;
  if (pending != nullptr) {
    pending->push_back(std::move(operands_));
    operands_.clear();
    return;
  }
  std::vector<Operands> queue;
  pending = &queue;
  queue.push_back(std::move(operands_));
  operands_.clear();
  while (!queue.empty()) {
    Operands last = std::move(queue.back());
    queue.pop_back();
    last.clear();
  }
  pending = nullptr;
}

}  // namespace torch_xla::lazy
