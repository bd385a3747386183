// Tensors as views of distinct storages: how a recorded function knows what it takes and gives.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "lazy/tensor.h"

namespace torch_xla::dispatch {

using Tensors = std::vector<at::Tensor>;
using Storages = std::vector<c10::intrusive_ptr<c10::StorageImpl>>;

// A tensor as a view of one of several storages.
struct Place {
  size_t storage;
  const lazy::Geometry* geometry;
  int64_t offset;
  c10::intrusive_ptr<lazy::View> view;

  // Returns the place with a view object of its own; one belongs to one storage.
  Place own() const;
  at::Tensor tensor(const Storages& storages) const;
};

// The tensors of a list as places of distinct storages, in the order of their first use.
struct Layout {
  std::vector<lazy::Storage*> storages;
  std::vector<Place> places;

  // Throws where one is not an xla tensor.
  explicit Layout(const Tensors& tensors);
};

// What a function takes: tensors of these geometries, which share storages as these do.
struct Taken {
  int device = 0;
  std::vector<const lazy::Geometry*> storages;
  std::vector<Place> places;

  Taken() = default;
  // Throws where the tensors are of several devices, or not as they lie in memory (conjugated).
  Taken(const Layout& layout, const Tensors& tensors, int device);

  bool fits(const Tensors& tensors) const;
  // Returns the storages of tensors that fit.
  Storages storages_of(const Tensors& tensors) const;
  // Tells autograd that these storages have been written.
  void bump_versions(const Tensors& tensors, const std::vector<size_t>& written) const;
};

// A tensor that a function gives.
struct Given {
  enum class Kind { Undefined, Argument, Place } kind;
  size_t argument = 0;  // the tensor itself
  Place place = {};     // storages of results come after those of arguments

  // `all`: the layout of the arguments, then of the defined results.
  static std::vector<Given> of(const Tensors& results, const Tensors& arguments, const Layout& all);
  static Tensors tensors(const std::vector<Given>& given, const Tensors& arguments,
                         const Storages& storages);
};

}  // namespace torch_xla::dispatch
