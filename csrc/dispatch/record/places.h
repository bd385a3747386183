// Tensors as views of distinct storages: how a recorded function knows what it takes and gives.
// Which of them are one tensor, and which count their versions together, is a part of that: by a
// version autograd sees that what it keeps has been written.
#pragma once

#include <utility>
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

// How often autograd was told that tensors of a list were written: places and counts.
using Writes = std::vector<std::pair<size_t, uint32_t>>;

std::vector<uint32_t> versions_of(const Tensors& tensors);
void bump_versions(const Tensors& tensors, const Writes& writes);

// What a function takes: tensors of these geometries, which share storages and versions as these
// do.
struct Taken {
  int device = 0;
  std::vector<const lazy::Geometry*> storages;
  std::vector<Place> places;
  std::vector<size_t> counters;  // of each tensor: the first one whose versions it shares

  Taken() = default;
  // Throws where the tensors are of several devices, or not as they lie in memory (conjugated).
  Taken(const Layout& layout, const Tensors& tensors, int device);

  bool fits(const Tensors& tensors) const;
  // Returns the storages of tensors that fit.
  Storages storages_of(const Tensors& tensors) const;
  // Makes tensors in these places, which share versions as those do.
  Tensors stand_ins(const Storages& made) const;
  // Returns what has been written of tensors that fit since they had these versions.
  Writes writes_since(const std::vector<uint32_t>& versions, const Tensors& tensors) const;

 private:
  bool shares_versions_as(const Tensors& tensors, size_t i) const;
};

// A tensor that a function gives.
struct Given {
  enum class Kind {
    Undefined,
    Same,    // an argument or an earlier result
    Shared,  // another tensor, which counts its versions with one of those
    Own
  } kind;
  size_t first = 0;      // that argument, or result, which come after the arguments
  uint32_t version = 0;  // of a tensor that counts its own
  Place place = {};      // storages of results come after those of arguments

  // `all`: the layout of the arguments, then of the defined results.
  static std::vector<Given> of(const Tensors& results, const Tensors& arguments, const Layout& all);
  static Tensors tensors(const std::vector<Given>& given, const Tensors& arguments,
                         const Storages& storages);
};

}  // namespace torch_xla::dispatch
