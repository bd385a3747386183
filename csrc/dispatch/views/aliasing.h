// Tensors as views of distinct storages: by these a recorded function knows its arguments and its
// results. It knows too which of them are one tensor, which are views to autograd, and which count
// their versions together: by a version autograd sees that a tensor that it keeps has been written.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lazy/tensor.h"

namespace torch::autograd {
struct ViewFunc;
}  // namespace torch::autograd

namespace torch_xla::dispatch {

using Tensors = std::vector<at::Tensor>;
using Storages = std::vector<c10::intrusive_ptr<c10::StorageImpl>>;

// A tensor as a view of one of several storages.
struct TensorView {
  size_t storage;
  const lazy::Geometry* geometry;
  int64_t offset;
  c10::intrusive_ptr<lazy::View> view;

  // Returns the same with a view object of its own; one belongs to one storage.
  TensorView own() const;
  at::Tensor tensor(const Storages& storages) const;
};

// The tensors of a list as views of distinct storages, in the order of their first use.
struct Aliasing {
  std::vector<lazy::Storage*> storages;
  std::vector<TensorView> views;

  // Throws where one is not an xla tensor.
  explicit Aliasing(const Tensors& tensors);
};

// Positions of tensors in a list, and how often autograd was told that each was written.
using Writes = std::vector<std::pair<size_t, uint32_t>>;

std::vector<uint32_t> versions_of(const Tensors& tensors);
void bump_versions(const Tensors& tensors, const Writes& writes);

// The arguments that a function takes: tensors of these geometries, which share storages and
// versions as these do.
struct ArgumentSpec {
  int device = 0;
  std::vector<const lazy::Geometry*> storages;
  std::vector<TensorView> views;
  std::vector<size_t> counters;  // of each tensor: the first one whose versions it shares

  ArgumentSpec() = default;
  // Throws where the tensors are of several devices, or not as they lie in memory (conjugated).
  ArgumentSpec(const Aliasing& aliasing, const Tensors& tensors, int device);

  bool fits(const Tensors& tensors) const;
  // Returns the storages of tensors that fit.
  Storages storages_of(const Tensors& tensors) const;
  // Makes such views of other storages, which share versions as those do.
  Tensors placeholders(const Storages& made) const;
  // Returns the writes to tensors that fit since they had these versions.
  Writes writes_since(const std::vector<uint32_t>& versions, const Tensors& tensors) const;

 private:
  bool shares_versions_as(const Tensors& tensors, size_t i) const;
};

// One result of a function, or the base of one that is a view to autograd.
struct ResultSpec {
  // In the order in which they are made: each is made of an argument or of an earlier one.
  enum class Kind {
    Own,
    Shared,  // counts its versions with another tensor
    View,    // of another tensor
    Same     // as another tensor
  } kind = Kind::Own;
  size_t place;          // results come after the arguments
  size_t first;          // the other tensor's
  uint32_t version = 0;  // of a tensor that counts its own
  TensorView view;       // storages of results come after those of arguments
  std::shared_ptr<torch::autograd::ViewFunc> replay = nullptr;  // of a view, or null
};

// Appends the tensors of which results are views to autograd and which are not among them.
Tensors with_bases(Tensors results, const Tensors& arguments);

// The results of a function, some of which may be undefined.
class ResultSpecs {
 public:
  ResultSpecs() = default;
  // `results` have their bases after the first `count`; `all` are the arguments, then the defined
  // results.
  ResultSpecs(const Tensors& results, size_t count, const Tensors& arguments, const Aliasing& all);

  Tensors tensors(const Tensors& arguments, const Storages& storages) const;

 private:
  size_t count_ = 0;
  size_t made_ = 0;
  std::vector<ResultSpec> specs_;
};

}  // namespace torch_xla::dispatch
