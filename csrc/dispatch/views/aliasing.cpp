#include "dispatch/views/aliasing.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include <c10/core/InferenceMode.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/autograd/VariableTypeUtils.h>

#include "util/error.h"

namespace torch_xla::dispatch {
namespace {

using lazy::Storage;
using lazy::View;
using torch::autograd::CreationMeta;
using torch::autograd::ViewInfo;

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

// Returns what tells the counter of a tensor's versions from others: its address, or null for an
// inference tensor, which has none. PyTorch compares no counters.
const void* counter_of(const at::Tensor& tensor) {
  const c10::VariableVersion& version = tensor.unsafeGetTensorImpl()->version_counter();
  static_assert(sizeof(version) == sizeof(void*));
  const void* counter = nullptr;
  std::memcpy(&counter, &version, sizeof(counter));
  return counter;
}

bool share_versions(const at::Tensor& a, const at::Tensor& b) {
  const void* counter = counter_of(a);
  return counter != nullptr && counter == counter_of(b);
}

// Returns a tensor of this view that is an inference tensor where `other` is one.
at::Tensor made_as(const at::Tensor& other, const TensorView& view, const Storages& storages) {
  std::optional<c10::InferenceMode> as_other;
  if (c10::InferenceMode::is_enabled() != other.is_inference()) {
    as_other.emplace(other.is_inference());
  }
  return view.tensor(storages);
}

// Returns one that counts its versions with `other`.
at::Tensor counted_with(const at::Tensor& other, const TensorView& view, const Storages& storages) {
  at::Tensor tensor = made_as(other, view, storages);
  if (!other.is_inference()) {
    tensor.unsafeGetTensorImpl()->set_version_counter(
        other.unsafeGetTensorImpl()->version_counter());
  }
  return tensor;
}

// Returns what autograd knows of a view of a tensor that lies as it is, and null for others.
const ViewInfo* view_info(const at::Tensor& tensor) {
  const auto* meta = torch::autograd::impl::get_view_autograd_meta(tensor);
  if (meta == nullptr || !meta->has_bw_view()) return nullptr;
  const at::Tensor& base = meta->get_backward_view().base_;
  return base.is_conj() || base.is_neg() ? nullptr : &meta->get_backward_view();
}

// Returns what autograd takes for a view of `base`, made without gradients.
at::Tensor viewed_from(const at::Tensor& base, const TensorView& view, const Storages& storages,
                       const torch::autograd::ViewFunc* replay) {
  return torch::autograd::as_view(
      base, made_as(base, view, storages), /*is_bw_differentiable=*/true,
      /*is_fw_differentiable=*/true, replay == nullptr ? nullptr : replay->clone_and_set(), nullptr,
      c10::InferenceMode::is_enabled() ? CreationMeta::INFERENCE_MODE : CreationMeta::NO_GRAD_MODE);
}

}  // namespace

std::vector<uint32_t> versions_of(const Tensors& tensors) {
  std::vector<uint32_t> versions;
  for (const at::Tensor& t : tensors) {
    versions.push_back(t.is_inference() ? 0 : static_cast<uint32_t>(t._version()));
  }
  return versions;
}

void bump_versions(const Tensors& tensors, const Writes& writes) {
  for (auto [i, count] : writes) {
    at::TensorImpl* impl = tensors[i].unsafeGetTensorImpl();
    for (; count > 0 && !impl->is_inference(); --count) impl->bump_version();
  }
}

TensorView TensorView::own() const { return {storage, geometry, offset, copy_of(view.get())}; }

at::Tensor TensorView::tensor(const Storages& storages) const {
  return at::Tensor(c10::make_intrusive<lazy::TensorImpl>(storages[storage], geometry, offset,
                                                          copy_of(view.get())));
}

Aliasing::Aliasing(const Tensors& tensors) {
  std::unordered_map<const Storage*, size_t> known;
  for (const at::Tensor& tensor : tensors) {
    const lazy::TensorImpl& impl = lazy_of(tensor);
    Storage* storage = &impl.lazy_storage();
    const auto [it, is_new] = known.emplace(storage, storages.size());
    views.push_back({it->second, impl.geometry(), impl.storage_offset(), impl.view()});
    if (is_new) storages.push_back(storage);
  }
}

ArgumentSpec::ArgumentSpec(const Aliasing& aliasing, const Tensors& tensors, int wanted)
    : device(wanted) {
  for (const Storage* storage : aliasing.storages) {
    TXLA_CHECK(storage->device_index() == device,
               "recorded function: expected tensors of one device, got xla:", device,
               " and xla:", storage->device_index(), ".");
    storages.push_back(&storage->geometry());
  }
  std::unordered_map<const void*, size_t> known;
  for (size_t i = 0; i < tensors.size(); ++i) {
    TXLA_CHECK(!tensors[i].is_conj() && !tensors[i].is_neg(),
               "recorded function: expected tensors as they lie.");
    views.push_back(aliasing.views[i].own());
    const void* counter = counter_of(tensors[i]);
    counters.push_back(counter == nullptr ? i : known.emplace(counter, i).first->second);
  }
}

bool ArgumentSpec::shares_versions_as(const Tensors& tensors, size_t i) const {
  if (counters[i] != i) return share_versions(tensors[i], tensors[counters[i]]);
  for (size_t j = 0; j < i; ++j) {
    if (counters[j] == j && views[j].storage == views[i].storage &&
        share_versions(tensors[i], tensors[j])) {
      return false;
    }
  }
  return true;
}

bool ArgumentSpec::fits(const Tensors& tensors) const {
  if (tensors.size() != views.size()) return false;
  c10::SmallVector<const Storage*, 16> found;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const lazy::TensorImpl* impl = lazy::as_lazy(tensors[i]);
    const TensorView& view = views[i];
    if (impl == nullptr || impl->geometry() != view.geometry ||
        impl->storage_offset() != view.offset || impl->is_conj() || impl->is_neg()) {
      return false;
    }
    const Storage& storage = impl->lazy_storage();
    if (view.storage == found.size()) {
      if (storage.device_index() != device || &storage.geometry() != storages[view.storage]) {
        return false;
      }
      found.push_back(&storage);
    } else if (found[view.storage] != &storage || !shares_versions_as(tensors, i)) {
      return false;
    }
    if (!same_view(impl->view().get(), view.view.get())) return false;
  }
  // Storages that the function takes for different ones must be.
  std::ranges::sort(found);
  return std::ranges::adjacent_find(found) == found.end();
}

Storages ArgumentSpec::storages_of(const Tensors& tensors) const {
  Storages found(storages.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    auto& storage = found[views[i].storage];
    if (storage.defined()) continue;
    storage = c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(
        &lazy::as_lazy(tensors[i])->lazy_storage());
  }
  return found;
}

Tensors ArgumentSpec::placeholders(const Storages& made) const {
  Tensors tensors;
  for (size_t i = 0; i < views.size(); ++i) {
    tensors.push_back(counters[i] == i ? views[i].tensor(made)
                                       : counted_with(tensors[counters[i]], views[i], made));
  }
  return tensors;
}

Writes ArgumentSpec::writes_since(const std::vector<uint32_t>& versions,
                                  const Tensors& tensors) const {
  const std::vector<uint32_t> now = versions_of(tensors);
  Writes writes;
  for (size_t i = 0; i < now.size(); ++i) {
    if (counters[i] == i && now[i] != versions[i]) writes.emplace_back(i, now[i] - versions[i]);
  }
  return writes;
}

Tensors with_bases(Tensors results, const Tensors& arguments) {
  std::unordered_set<const at::TensorImpl*> known;
  for (const at::Tensor& t : arguments) known.insert(t.unsafeGetTensorImpl());
  for (const at::Tensor& t : results) known.insert(t.unsafeGetTensorImpl());
  for (size_t i = 0, count = results.size(); i < count; ++i) {
    const ViewInfo* info = view_info(results[i]);
    if (info != nullptr && known.insert(info->base_.unsafeGetTensorImpl()).second) {
      results.push_back(info->base_);
    }
  }
  return results;
}

ResultSpecs::ResultSpecs(const Tensors& results, size_t count, const Tensors& arguments,
                         const Aliasing& all)
    : count_(count), made_(results.size()) {
  std::unordered_map<const void*, size_t> tensors, counters;
  const auto note = [&](const at::Tensor& t, size_t place) {
    tensors.emplace(t.unsafeGetTensorImpl(), place);
    const void* counter = counter_of(t);
    if (counter != nullptr && view_info(t) == nullptr) counters.emplace(counter, place);
  };
  for (size_t i = 0; i < arguments.size(); ++i) note(arguments[i], i);
  for (size_t i = 0; i < results.size(); ++i) {
    if (results[i].defined()) note(results[i], arguments.size() + i);
  }
  size_t next = arguments.size();  // of `all`, which has the defined ones
  for (size_t i = 0; i < results.size(); ++i) {
    const at::Tensor& t = results[i];
    if (!t.defined()) continue;
    TXLA_CHECK(!t.is_conj() && !t.is_neg(), "recorded function: expected results as they lie.");
    const size_t place = arguments.size() + i;
    ResultSpec spec{.place = place, .first = place, .view = all.views[next++].own()};
    const auto shared = counters.find(counter_of(t));
    if (const size_t same = tensors.at(t.unsafeGetTensorImpl()); same != place) {
      spec.kind = ResultSpec::Kind::Same;
      spec.first = same;
    } else if (const ViewInfo* info = view_info(t)) {
      spec.kind = ResultSpec::Kind::View;
      spec.first = tensors.at(info->base_.unsafeGetTensorImpl());
      if (info->has_view_fn()) spec.replay = info->view_fn().clone_and_set();
    } else if (shared != counters.end() && shared->second != place) {
      spec.kind = ResultSpec::Kind::Shared;
      spec.first = shared->second;
    } else if (!t.is_inference()) {
      spec.version = static_cast<uint32_t>(t._version());
    }
    specs_.push_back(std::move(spec));
  }
  std::ranges::stable_sort(specs_, {}, &ResultSpec::kind);
}

Tensors ResultSpecs::tensors(const Tensors& arguments, const Storages& storages) const {
  Tensors results(made_);
  const auto at = [&](size_t i) -> const at::Tensor& {
    return i < arguments.size() ? arguments[i] : results[i - arguments.size()];
  };
  for (const ResultSpec& spec : specs_) {
    at::Tensor& result = results[spec.place - arguments.size()];
    switch (spec.kind) {
      case ResultSpec::Kind::Own:
        result = spec.view.tensor(storages);
        if (spec.version != 0 && !result.is_inference()) {
          result.unsafeGetTensorImpl()->set_version_counter(spec.version);
        }
        break;
      case ResultSpec::Kind::Shared:
        result = counted_with(at(spec.first), spec.view, storages);
        break;
      case ResultSpec::Kind::View:
        result = viewed_from(at(spec.first), spec.view, storages, spec.replay.get());
        break;
      case ResultSpec::Kind::Same:
        result = at(spec.first);
        break;
    }
  }
  results.resize(count_);
  return results;
}

}  // namespace torch_xla::dispatch
