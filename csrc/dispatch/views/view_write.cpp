// Writes through views: each view operator's inverse takes a new value of the view back to its
// base.
#include "dispatch/views/resize.h"
#include "lazy/operator.h"
#include "lazy/tensor.h"
#include "ops/traits.h"
#include "util/error.h"

namespace torch_xla::dispatch {
namespace {

using lazy::Geometry;
using lazy::Value;

void write_base(lazy::Storage& storage, const Geometry& base, const Value& value) {
  if (&base == &storage.geometry()) {
    storage.set_value(value);
  } else {
    write_over(storage, base, value);
  }
}

}  // namespace

void write(lazy::TensorImpl& tensor, lazy::Value value) {
  lazy::Storage& storage = tensor.lazy_storage();
  if (!tensor.view().defined()) {
    write_base(storage, *tensor.geometry(), value);
    return;
  }
  Value next = value;
  const Geometry* base = nullptr;  // of what the first step of the chain reads
  bool exact = true;
  for (const lazy::View* view = tensor.view().get(); view != nullptr; view = view->parent().get()) {
    const lazy::Operator& op = *view->step()->op;
    const ops::ViewTraits& traits = op.traits->view;
    TXLA_CHECK(traits.inverse != nullptr, op.name,
               ": expected a view that can be written through, this one has no inverse. "
               "Clone the tensor before writing into it.");
    base = view->step()->operands[0].geometry;
    const Value parent =
        view->parent().defined() ? view->parent()->read(storage) : lazy::value_over(storage, *base);
    next = traits.inverse(
        {*view->step(), parent, next, view == tensor.view().get(), storage.device_index()});
    exact = exact && !traits.repeats;
  }
  write_base(storage, *base, next);
  // Reading this view again needs no replay.
  if (exact) tensor.view()->remember(storage, std::move(value));
}

}  // namespace torch_xla::dispatch
