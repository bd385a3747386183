#include "dispatch/record/places.h"

#include <algorithm>
#include <unordered_map>

#include <c10/util/SmallVector.h>

#include "util/error.h"

namespace torch_xla::dispatch {
namespace {

using lazy::Storage;
using lazy::View;

const lazy::TensorImpl& lazy_of(const at::Tensor& tensor) {
  const lazy::TensorImpl* impl = lazy::as_lazy(tensor);
  TXLA_CHECK(impl != nullptr, "recorded function: expected xla tensors, got one on ",
             tensor.device(), ".");
  return *impl;
}

// Equal chains of views show the same elements of a storage.
bool same_view(const View* a, const View* b) {
  for (; a != b; a = a->parent().get(), b = b->parent().get()) {
    if (a == nullptr || b == nullptr || a->step() != b->step() || a->index() != b->index()) {
      return false;
    }
  }
  return true;
}

// Without recursion: chains may be long.
c10::intrusive_ptr<View> copy_of(const View* view) {
  std::vector<const View*> chain;
  for (; view != nullptr; view = view->parent().get()) chain.push_back(view);
  c10::intrusive_ptr<View> copy;
  for (; !chain.empty(); chain.pop_back()) {
    copy = c10::make_intrusive<View>(std::move(copy), *chain.back());
  }
  return copy;
}

}  // namespace

Place Place::own() const { return {storage, geometry, offset, copy_of(view.get())}; }

at::Tensor Place::tensor(const Storages& storages) const {
  return at::Tensor(c10::make_intrusive<lazy::TensorImpl>(storages[storage], geometry, offset,
                                                          copy_of(view.get())));
}

Layout::Layout(const Tensors& tensors) {
  std::unordered_map<const Storage*, size_t> known;
  for (const at::Tensor& tensor : tensors) {
    const lazy::TensorImpl& impl = lazy_of(tensor);
    Storage* storage = &impl.lazy_storage();
    const auto [it, is_new] = known.emplace(storage, storages.size());
    places.push_back({it->second, impl.geometry(), impl.storage_offset(), impl.view()});
    if (is_new) storages.push_back(storage);
  }
}

Taken::Taken(const Layout& layout, const Tensors& tensors, int wanted) : device(wanted) {
  for (const Storage* storage : layout.storages) {
    TXLA_CHECK(storage->device_index() == device,
               "recorded function: expected tensors of one device, got xla:", device,
               " and xla:", storage->device_index(), ".");
    storages.push_back(&storage->geometry());
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    TXLA_CHECK(!tensors[i].is_conj() && !tensors[i].is_neg(),
               "recorded function: expected tensors as they lie.");
    places.push_back(layout.places[i].own());
  }
}

bool Taken::fits(const Tensors& tensors) const {
  if (tensors.size() != places.size()) return false;
  c10::SmallVector<const Storage*, 16> found;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const lazy::TensorImpl* impl = lazy::as_lazy(tensors[i]);
    const Place& place = places[i];
    if (impl == nullptr || impl->geometry() != place.geometry ||
        impl->storage_offset() != place.offset || impl->is_conj() || impl->is_neg()) {
      return false;
    }
    const Storage& storage = impl->lazy_storage();
    if (place.storage == found.size()) {
      if (storage.device_index() != device || &storage.geometry() != storages[place.storage]) {
        return false;
      }
      found.push_back(&storage);
    } else if (found[place.storage] != &storage) {
      return false;
    }
    if (!same_view(impl->view().get(), place.view.get())) return false;
  }
  // Storages that the function takes for different ones must be.
  std::ranges::sort(found);
  return std::ranges::adjacent_find(found) == found.end();
}

Storages Taken::storages_of(const Tensors& tensors) const {
  Storages found(storages.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    auto& storage = found[places[i].storage];
    if (storage.defined()) continue;
    storage = c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(
        &lazy::as_lazy(tensors[i])->lazy_storage());
  }
  return found;
}

void Taken::bump_versions(const Tensors& tensors, const std::vector<size_t>& written) const {
  std::vector<bool> is_written(storages.size());
  for (const size_t storage : written) is_written[storage] = true;
  for (size_t i = 0; i < tensors.size(); ++i) {
    at::TensorImpl* impl = tensors[i].unsafeGetTensorImpl();
    if (is_written[places[i].storage] && !impl->is_inference()) impl->bump_version();
  }
}

std::vector<Given> Given::of(const Tensors& results, const Tensors& arguments, const Layout& all) {
  std::vector<Given> given;
  size_t next = arguments.size();
  for (const at::Tensor& t : results) {
    Given result{t.defined() ? Kind::Place : Kind::Undefined};
    if (t.defined()) {
      TXLA_CHECK(!t.is_conj() && !t.is_neg(), "recorded function: expected results as they lie.");
      result.place = all.places[next++].own();
      const auto same = std::ranges::find_if(arguments, [&](auto& a) { return a.is_same(t); });
      result.argument = static_cast<size_t>(same - arguments.begin());
      if (same != arguments.end()) result.kind = Kind::Argument;
    }
    given.push_back(std::move(result));
  }
  return given;
}

Tensors Given::tensors(const std::vector<Given>& given, const Tensors& arguments,
                       const Storages& storages) {
  Tensors results;
  for (const Given& result : given) {
    switch (result.kind) {
      case Kind::Undefined:
        results.emplace_back();
        break;
      case Kind::Argument:
        results.push_back(arguments[result.argument]);
        break;
      case Kind::Place:
        results.push_back(result.place.tensor(storages));
        break;
    }
  }
  return results;
}

}  // namespace torch_xla::dispatch
