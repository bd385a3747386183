// Replays: calls of a Python function that are recorded again without running it, where all that it
// can read is as it was. torch_xla._src.replay decides which functions have no other effects.
#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <pybind11/stl.h>
#include <torch/csrc/Device.h>
#include <torch/csrc/autograd/functions/basic_ops.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/utils/pybind.h>

#include "dispatch/calls/autograd_node.h"
#include "dispatch/record/step_replay.h"
#include "executor/runtime.h"
#include "python/init.h"
#include "python/reach.h"
#include "util/error.h"

namespace py = pybind11;

namespace torch_xla::python {
namespace {

using dispatch::StepReplay;
using dispatch::Tensors;

// Whether an object that is equal is as good: it cannot be changed, but in the objects that it has.
bool has_no_identity(const py::object& object) {
  PyObject* o = object.ptr();
  return PyTuple_Check(o) || PyBytes_CheckExact(o) || PyComplex_CheckExact(o) || PyRange_Check(o) ||
         PySlice_Check(o) || PyFrozenSet_CheckExact(o) || PyMethod_Check(o) ||
         PyCFunction_Check(o) || THPDevice_Check(o) || Py_IS_TYPE(o, &Py_GenericAliasType);
}

class Replay {
 public:
  Replay(py::object function, std::vector<Reach::Name> names, std::vector<py::object> others,
         py::dict opaque)
      : reach_({std::move(function), std::move(names), std::move(others), std::move(opaque)}) {}

  // Begins to watch a call.
  void begin(const py::args& args, const py::kwargs& kwargs) {
    take(args, kwargs);
    before_ = reach_.tensors();
    objects_before_ = reach_.objects();
    watch_.emplace(executor::current_device(), reachable());
  }

  // Ends it. `has_history` tells of each result whether autograd has computed it.
  void end(const py::args& args, const py::kwargs& kwargs, Tensors results,
           std::vector<bool> has_history) {
    TXLA_CHECK(watch_.has_value(), "is not being watched");
    const bool same = reach_.holds(args, kwargs, /*ignoring_grads=*/true);
    TXLA_CHECK(same, "changes ", reach_.place().empty() ? "what it reads" : reach_.place());
    for (size_t i = 0; i < before_.size(); ++i) {
      TXLA_CHECK(before_[i].is_same(reach_.tensors()[i]),
                 "puts another tensor in the place of one");
    }
    for (size_t i = 0; i < objects_before_.size(); ++i) {
      const py::object &before = objects_before_[i], &now = reach_.objects()[i];
      TXLA_CHECK(before.is(now) || has_no_identity(before), "puts another object of type ",
                 Py_TYPE(now.ptr())->tp_name, " in the place of one");
    }
    has_grad_.clear();
    Tensors left;  // the gradients that it leaves, then what it returns
    for (const at::Tensor& tensor : before_) {
      const at::Tensor grad = tensor.grad();
      has_grad_.push_back(grad.defined());
      if (!grad.defined()) continue;
      TXLA_CHECK(!grad.requires_grad(), "makes gradients that have a gradient");
      TXLA_CHECK(std::ranges::none_of(results, [&](const auto& r) { return r.is_same(grad); }),
                 "returns a gradient that a tensor keeps");
      left.push_back(grad);
    }
    num_grads_ = left.size();
    left.insert(left.end(), results.begin(), results.end());
    has_history_ = std::move(has_history);
    step_ = watch_->finish(left);
    drop();
  }

  // What the watched call and this object have held.
  void drop() {
    watch_.reset();
    before_.clear();
    const auto objects = std::exchange(objects_before_, {});
    reach_.forget();
  }

  // Records the call and returns its results, or None where it does not fit.
  py::object call(const py::args& args, const py::kwargs& kwargs) {
    // The walk may end in code of finalizers, and so in other threads.
    if (step_ == nullptr || is_busy_) return py::none();
    const Busy busy(*this);
    if (!reach_.holds(args, kwargs, false)) return py::none();
    const Tensors arguments = reachable();
    if (!step_->fits(arguments)) return py::none();
    Tensors left = step_->record(arguments);
    size_t next = 0;
    for (size_t i = 0; i < has_grad_.size(); ++i) {
      at::Tensor& grad = reach_.tensors()[i].mutable_grad();
      at::Tensor now = has_grad_[i] ? std::move(left[next++]) : at::Tensor();
      if (!grad.is_same(now)) grad = std::move(now);
    }
    py::list results;
    for (size_t i = 0; i < has_history_.size(); ++i) {
      at::Tensor& result = left[num_grads_ + i];
      if (has_history_[i]) {
        torch::autograd::set_history(
            result, dispatch::new_node<torch::autograd::Error>(
                        "Trying to backward through the graph a second time: the function that "
                        "torch_xla.compile was given has done so. Call backward() in it, or not."));
      }
      results.append(py::cast(result));
    }
    return results;
  }

  void take(const py::args& args, const py::kwargs& kwargs) {
    try {
      reach_.take(args, kwargs);
    } catch (const Reach::Refused& refused) {
      util::fail(util::ErrorKind::Runtime, refused.what);
    }
  }

  const Reach& reach() const { return reach_; }

 private:
  Tensors reachable() const {
    Tensors all = reach_.tensors();
    for (const at::Tensor& grad : reach_.grads()) {
      if (grad.defined()) all.push_back(grad);
    }
    return all;
  }

  struct Busy {
    explicit Busy(Replay& r) : replay(r) { replay.is_busy_ = true; }
    ~Busy() {
      replay.is_busy_ = false;
      replay.reach_.forget();
    }
    Replay& replay;
  };

  Reach reach_;
  bool is_busy_ = false;
  Tensors before_;
  std::vector<py::object> objects_before_;
  std::optional<StepReplay::Watch> watch_;
  std::vector<bool> has_grad_;  // of each tensor, after the call
  size_t num_grads_ = 0;
  std::vector<bool> has_history_;
  std::unique_ptr<StepReplay> step_;
};

}  // namespace

void init_replay(py::module_& m) {
  py::class_<Replay>(m, "_Replay")
      .def(py::init<py::object, std::vector<Reach::Name>, std::vector<py::object>, py::dict>(),
           py::arg("function"), py::arg("names"), py::arg("others"), py::arg("opaque"))
      .def("look", [](Replay& r, const py::tuple& args,
                      const py::dict& kwargs) { r.take(py::args(args), py::kwargs(kwargs)); })
      .def("begin", [](Replay& r, const py::tuple& args,
                       const py::dict& kwargs) { r.begin(py::args(args), py::kwargs(kwargs)); })
      .def("end",
           [](Replay& r, const py::tuple& args, const py::dict& kwargs, Tensors results,
              std::vector<bool> has_history) {
             r.end(py::args(args), py::kwargs(kwargs), std::move(results), std::move(has_history));
           })
      .def("drop", &Replay::drop)
      .def("call",
           [](Replay& r, const py::tuple& args, const py::dict& kwargs) {
             return r.call(py::args(args), py::kwargs(kwargs));
           })
      .def("sees", [](const Replay& r, const py::object& o) { return r.reach().sees(o.ptr()); })
      .def("codes", [](const Replay& r) { return r.reach().codes(); })
      .def("built_ins", [](const Replay& r) { return r.reach().built_ins(); })
      .def("types", [](const Replay& r) { return r.reach().types(); });
}

}  // namespace torch_xla::python
