#include "python/reach.h"

#include <bit>
#include <string_view>

#include <ATen/Context.h>
#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/SavedTensorHooks.h>
#include <ATen/autocast_mode.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/Device.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/Layout.h>
#include <torch/csrc/MemoryFormat.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/variable.h>

#include "executor/runtime.h"
#include "lazy/tensor.h"
#include "util/flags.h"

namespace torch_xla::python {

namespace py = pybind11;

namespace {

constexpr int kDeepest = 400;

std::string name_of(PyTypeObject* type) {
  const py::handle handle(reinterpret_cast<PyObject*>(type));
  return py::str(handle.attr("__module__")).cast<std::string>() + "." +
         py::str(handle.attr("__qualname__")).cast<std::string>();
}

// The interpreter gives a type a new tag when it or a base of it is changed.
unsigned int version_of(PyTypeObject* type) {
  if (type->tp_version_tag == 0) {
    static PyObject* name = PyUnicode_InternFromString("__doc__");
    py::reinterpret_steal<py::object>(
        PyObject_GetAttr(reinterpret_cast<PyObject*>(type), name));  // a lookup gives it one
    PyErr_Clear();
  }
  return type->tp_version_tag;
}

bool has_hooks_of(const at::Tensor& tensor) {
  namespace impl = torch::autograd::impl;
  if (impl::get_autograd_meta(tensor) == nullptr) return false;
  return !impl::hooks(tensor).empty() || impl::post_acc_grad_hooks(tensor) != nullptr;
}

// Whether the node that adds to a tensor's gradient has hooks, which belong to C++.
bool accumulator_has_hooks(const at::Tensor& tensor) {
  namespace impl = torch::autograd::impl;
  if (impl::get_autograd_meta(tensor) == nullptr) return false;
  const auto node = impl::try_get_grad_accumulator(tensor);
  return node != nullptr && (!node->pre_hooks().empty() || !node->post_hooks().empty());
}

// Modules whose attributes nobody changes while a program trains.
bool is_trusted_module(PyObject* module) {
  const char* name = PyModule_GetName(module);
  if (name == nullptr) PyErr_Clear();
  const std::string_view text = name == nullptr ? "" : name;
  return text == "torch" || text.starts_with("torch.") || text == "math";
}

PyTypeObject* partial_type() {
  static PyObject* type =
      py::object(py::module_::import("functools").attr("partial")).release().ptr();
  return reinterpret_cast<PyTypeObject*>(type);
}

}  // namespace

void Reach::refuse(const std::string& what) const {
  const std::string where = place();
  throw Refused{"reaches " + what + (where.empty() ? "" : " (" + where + ")")};
}

std::string Reach::place() const {
  std::string text;
  for (PyObject* part : path_) {
    if (!PyUnicode_Check(part)) continue;
    if (!text.empty()) text += ".";
    text += PyUnicode_AsUTF8(part);
  }
  return text;
}

bool Reach::emit(Kind kind, uint64_t number, PyObject* object) {
  if (keeps_) {
    tokens_.push_back({kind, number, py::reinterpret_borrow<py::object>(object)});
    return true;
  }
  if (next_ == tokens_.size()) return false;
  const Token& token = tokens_[next_++];
  if (token.kind != kind || token.number != number) return false;
  if (token.object.ptr() == object) return true;
  if (kind != Kind::Equal || object == nullptr || Py_TYPE(token.object.ptr()) != Py_TYPE(object)) {
    return false;
  }
  const int equal = PyObject_RichCompareBool(token.object.ptr(), object, Py_EQ);
  if (equal < 0) PyErr_Clear();
  return equal == 1;
}

void Reach::take(const py::args& args, const py::kwargs& kwargs) {
  tokens_.clear();
  codes_ = py::set();
  types_ = py::set();
  built_ins_ = py::list();
  keeps_ = true;
  try {
    walk(args, kwargs, false);
  } catch (...) {
    keeps_ = false;
    throw;
  }
  keeps_ = false;
}

bool Reach::holds(const py::args& args, const py::kwargs& kwargs, bool ignoring_grads) {
  try {
    return walk(args, kwargs, ignoring_grads) && next_ == tokens_.size();
  } catch (const Refused&) {
    return false;
  }
}

bool Reach::walk(const py::args& args, const py::kwargs& kwargs, bool ignoring_grads) {
  next_ = 0;
  depth_ = 0;
  seen_.clear();
  path_.clear();
  forget_tensors();
  if (!state()) return false;
  if (!visit(args.ptr()) || !visit(kwargs.ptr()) || !visit(roots_.function.ptr())) return false;
  for (const auto& [dict, key] : roots_.names) {
    PyObject* found = PyDict_GetItemWithError(dict.ptr(), key.ptr());
    PyErr_Clear();
    // Which attributes of a module the code reads is among the names.
    const bool same = found == nullptr        ? emit(Kind::End, 0)
                      : PyModule_Check(found) ? emit(Kind::Same, 0, found)
                                              : named(key.ptr(), found);
    if (!same) return false;
  }
  for (const py::object& other : roots_.others) {
    if (!visit(other.ptr())) return false;
  }
  if (!emit(Kind::End, tensors_.size())) return false;
  if (!ignoring_grads) return visit_grads();
  next_ = tokens_.size();
  return true;
}

// What calls depend on beside their arguments.
bool Reach::state() {
  if (at::impl::PythonTorchFunctionTLS::stack_len() != 0) refuse("a mode of __torch_function__");
  if (!at::SavedTensorDefaultHooks::get_tls_state().stack.empty()) {
    refuse("hooks on saved tensors");
  }
  if (torch::autograd::AnomalyMode::is_enabled()) refuse("the anomaly mode");
  const c10::impl::LocalDispatchKeySet keys = c10::impl::tls_local_dispatch_key_set();
  const at::Context& context = at::globalContext();
  const uint64_t flags = (uint64_t{c10::AutogradState::get_tls_state().get_grad_mode()} << 0) |
                         (uint64_t{c10::InferenceMode::is_enabled()} << 1) |
                         (uint64_t{at::autocast::is_autocast_enabled(at::kXLA)} << 2) |
                         (uint64_t{at::autocast::is_autocast_cache_enabled()} << 3) |
                         (uint64_t{context.deterministicAlgorithms()} << 4) |
                         (uint64_t{context.deterministicFillUninitializedMemory()} << 5);
  return emit(Kind::State, flags) && emit(Kind::State, keys.included_.raw_repr()) &&
         emit(Kind::State, keys.excluded_.raw_repr()) &&
         emit(Kind::State, static_cast<uint64_t>(at::autocast::get_autocast_dtype(at::kXLA))) &&
         emit(Kind::State, static_cast<uint64_t>(c10::get_default_dtype_as_scalartype())) &&
         emit(Kind::State, static_cast<uint64_t>(context.float32MatmulPrecision())) &&
         emit(Kind::State, static_cast<uint64_t>(executor::current_device())) &&
         emit(Kind::State, std::hash<std::string>()(util::flags::cache_key_text()));
}

bool Reach::named(PyObject* place, PyObject* object) {
  path_.push_back(place);
  if (!visit(object)) return false;  // the path says where
  path_.pop_back();
  return true;
}

bool Reach::visit(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  if (object == Py_None || type == &PyBool_Type) return emit(Kind::Same, 0, object);
  if (type == &PyUnicode_Type || type == &PyLong_Type || type == &PyFloat_Type) {
    if (type == &PyFloat_Type) {  // nan is not equal to itself, and -0 is to 0
      return emit(Kind::Number, std::bit_cast<uint64_t>(PyFloat_AS_DOUBLE(object)));
    }
    return emit(Kind::Equal, 0, object);
  }
  const auto [it, is_new] = seen_.emplace(object, static_cast<uint32_t>(seen_.size()));
  if (!is_new) return emit(Kind::Seen, it->second);
  if (++depth_ > kDeepest) refuse("objects that are nested too deeply");
  const bool same = visit_rest(object, type);
  --depth_;
  return same;
}

bool Reach::visit_rest(PyObject* object, PyTypeObject* type) {
  if (type == &PyDict_Type) return emit(Kind::Mapping, 0) && visit_dict(object);
  if (THPVariable_CheckExact(object)) return visit_tensor(object);
  if (type == &PyFunction_Type) return visit_function(object);
  if (type == &PyList_Type || type == &PyTuple_Type) {
    const auto size = static_cast<uint64_t>(Py_SIZE(object));
    if (!emit(Kind::Sequence, size, reinterpret_cast<PyObject*>(type))) return false;
    // By position: what is walked belongs to others.
    for (Py_ssize_t i = 0; i < Py_SIZE(object); ++i) {
      if (!visit(PySequence_Fast_GET_ITEM(object, i))) return false;
    }
    return true;
  }
  if (type == &PyMethod_Type) {
    return emit(Kind::Function, 0) && visit(PyMethod_GET_FUNCTION(object)) &&
           visit(PyMethod_GET_SELF(object));
  }
  if (type == &PyCell_Type) {
    PyObject* content = PyCell_GET(object);
    return emit(Kind::Cell, content != nullptr) && (content == nullptr || visit(content));
  }
  if (type == &PyCFunction_Type) {
    if (keeps_) built_ins_.append(py::handle(object));
    PyObject* self = PyCFunction_GET_SELF(object);
    if (self == nullptr || PyModule_Check(self) || PyType_Check(self)) {
      return emit(Kind::Same, 0, object);
    }
    const auto method = reinterpret_cast<PyCFunctionObject*>(object)->m_ml;
    return emit(Kind::Function, reinterpret_cast<uint64_t>(method)) && visit(self);
  }
  if (PyType_Check(object)) {
    if (keeps_) types_.add(py::handle(object));
    return emit(Kind::Same, version_of(reinterpret_cast<PyTypeObject*>(object)), object);
  }
  if (PyModule_Check(object) && !is_trusted_module(object)) {
    refuse("the module " + py::str(py::handle(object).attr("__name__")).cast<std::string>());
  }
  if (keeps_ && type == &PyMethodDescr_Type) built_ins_.append(py::handle(object));
  if (PyModule_Check(object) || PyCode_Check(object) || object == Py_Ellipsis ||
      object == Py_NotImplemented || THPDtype_Check(object) || THPLayout_Check(object) ||
      THPMemoryFormat_Check(object) || type == &PyMethodDescr_Type ||
      type == &PyWrapperDescr_Type) {
    return emit(Kind::Same, 0, object);
  }
  if (THPDevice_Check(object) || type == &PyBytes_Type || type == &PyComplex_Type ||
      type == &PyRange_Type || type == &PySlice_Type) {
    return emit(Kind::Equal, 0, object);
  }
  if (PyWeakref_CheckRefExact(object)) {
    const auto get = py::reinterpret_steal<py::object>(PyObject_CallNoArgs(object));
    return emit(Kind::Cell, 2) && visit(get.ptr());
  }
  if (type == partial_type()) {
    for (const char* name : {"func", "args", "keywords"}) {
      const auto part = py::reinterpret_steal<py::object>(PyObject_GetAttrString(object, name));
      if (!part || !visit(part.ptr())) return false;
    }
    return emit(Kind::End, 3);
  }
  return visit_instance(object, type);
}

bool Reach::visit_dict(PyObject* dict) {
  PyObject *key, *value;
  Py_ssize_t position = 0;
  while (PyDict_Next(dict, &position, &key, &value)) {
    if (!visit(key) || !named(key, value)) return false;
  }
  return emit(Kind::End, 0);
}

bool Reach::visit_items(PyObject* iterable) {
  const auto iterator = py::reinterpret_steal<py::object>(PyObject_GetIter(iterable));
  if (!iterator) {
    PyErr_Clear();
    refuse("an object that cannot be iterated");
  }
  while (auto item = py::reinterpret_steal<py::object>(PyIter_Next(iterator.ptr()))) {
    if (!visit(item.ptr())) return false;
  }
  if (PyErr_Occurred()) {
    PyErr_Clear();
    return false;
  }
  return emit(Kind::End, 0);
}

bool Reach::visit_function(PyObject* object) {
  PyObject* code = PyFunction_GET_CODE(object);
  if (keeps_) codes_.add(py::handle(code));
  if (!emit(Kind::Function, 1, code)) return false;
  for (PyObject* part : {PyFunction_GET_CLOSURE(object), PyFunction_GET_DEFAULTS(object),
                         PyFunction_GET_KW_DEFAULTS(object),
                         reinterpret_cast<PyFunctionObject*>(object)->func_dict}) {
    if (!(part == nullptr ? emit(Kind::End, 1) : visit(part))) return false;
  }
  return true;
}

bool Reach::visit_tensor(PyObject* object) {
  const at::Tensor& tensor = THPVariable_Unpack(object);
  const lazy::TensorImpl* impl = tensor.defined() ? lazy::as_lazy(tensor) : nullptr;
  if (impl == nullptr) refuse("a tensor that is not on xla");
  if (!tensor.is_leaf()) refuse("a tensor that autograd has computed");
  if (tensor._fw_grad(0).defined()) refuse("a tensor with a tangent");
  if (accumulator_has_hooks(tensor)) refuse("a tensor whose gradient's node has hooks");
  const bool has_hooks = has_hooks_of(tensor);
  const uint64_t flags = uint64_t{tensor.requires_grad()} | (uint64_t{tensor.is_inference()} << 1) |
                         (uint64_t{has_hooks} << 2) | (uint64_t{tensor.is_conj()} << 3) |
                         (uint64_t{tensor.is_neg()} << 4);
  if (!emit(Kind::Tensor, flags, reinterpret_cast<PyObject*>(Py_TYPE(object))) ||
      !emit(Kind::Tensor, reinterpret_cast<uint64_t>(impl->geometry())) ||
      !emit(Kind::Tensor, static_cast<uint64_t>(impl->storage_offset()))) {
    return false;
  }
  tensors_.push_back(tensor);
  if (has_hooks) {
    for (const char* name : {"_backward_hooks", "_post_accumulate_grad_hooks"}) {
      const auto hooks = py::reinterpret_steal<py::object>(PyObject_GetAttrString(object, name));
      if (!hooks || !visit(hooks.ptr())) return false;
    }
  }
  const auto dict = py::reinterpret_steal<py::object>(PyObject_GenericGetDict(object, nullptr));
  if (!dict || PyDict_GET_SIZE(dict.ptr()) == 0) {
    PyErr_Clear();
    return true;
  }
  return visit_dict(dict.ptr());
}

bool Reach::visit_grads() {
  for (const at::Tensor& tensor : tensors_) {
    const at::Tensor& grad = tensor.grad();
    if (!grad.defined()) {
      grads_.emplace_back();
      if (!emit(Kind::Grad, 0)) return false;
      continue;
    }
    const lazy::TensorImpl* impl = lazy::as_lazy(grad);
    if (impl == nullptr || grad.requires_grad() || has_hooks_of(grad)) {
      refuse("a gradient that is no plain tensor");
    }
    if (!emit(Kind::Grad, reinterpret_cast<uint64_t>(impl->geometry()))) return false;
    grads_.push_back(grad);
  }
  return true;
}

// What the objects of a type are made of: those of a class that Python code has defined have a
// dictionary and slots, beside what they have of a built-in base.
const Reach::Layout& Reach::layout_of(PyTypeObject* type) {
  if (const auto known = layouts_.find(type); known != layouts_.end()) return known->second;
  Layout layout;
  PyTypeObject* base = type;
  std::vector<py::object> slots;
  while (base->tp_flags & Py_TPFLAGS_HEAPTYPE) {
    const auto own = py::reinterpret_borrow<py::object>(base->tp_dict);
    for (const auto& [name, value] : py::reinterpret_borrow<py::dict>(own)) {
      if (Py_TYPE(value.ptr()) == &PyMemberDescr_Type) {
        slots.push_back(py::reinterpret_borrow<py::object>(name));
      }
    }
    base = base->tp_base;
  }
  static PyObject* deque =
      py::object(py::module_::import("collections").attr("deque")).release().ptr();
  const auto base_of = [&] {
    if (base == &PyBaseObject_Type) return Base::Plain;
    if (base == &PyDict_Type || base == &PyODict_Type || base->tp_base == &PyDict_Type) {
      return Base::Dict;  // the last: defaultdict
    }
    if (base == &PyList_Type) return Base::List;
    if (base == &PyTuple_Type || base->tp_base == &PyTuple_Type) return Base::Tuple;
    if (base == &PySet_Type || base == &PyFrozenSet_Type) return Base::Set;
    if (base == reinterpret_cast<PyTypeObject*>(deque)) return Base::Deque;
    return Base::Refused;
  };
  layout.base = base_of();
  for (const py::handle opaque : roots_.opaque) {
    if (PyType_IsSubtype(type, reinterpret_cast<PyTypeObject*>(opaque.ptr()))) {
      layout.base = Base::Opaque;
      return layouts_.emplace(type, std::move(layout)).first->second;
    }
  }
  layout.makes_values = base != &PyODict_Type && base->tp_base == &PyDict_Type;
  const auto has_dict = [](PyTypeObject* t) {
#ifdef Py_TPFLAGS_MANAGED_DICT
    if (t->tp_flags & Py_TPFLAGS_MANAGED_DICT) return true;
#endif
    return t->tp_dictoffset != 0;
  };
  layout.has_dict = has_dict(type);
  if (base != type && layout.base != Base::Refused && layout.base != Base::Tuple) {
    const auto words = [](PyTypeObject* t) {
      return (t->tp_basicsize - (t->tp_dictoffset > 0 ? 8 : 0) -
              (t->tp_weaklistoffset > 0 ? 8 : 0)) /
             8;
    };
    if (words(type) - words(base) != static_cast<Py_ssize_t>(slots.size())) {
      layout.base = Base::Refused;  // it has a state of C's
    }
  }
  layout.slots = std::move(slots);
  return layouts_.emplace(type, std::move(layout)).first->second;
}

bool Reach::visit_instance(PyObject* object, PyTypeObject* type) {
  const Layout& layout = layout_of(type);
  if (layout.base == Base::Opaque) return emit(Kind::Same, 0, object);
  if (layout.base == Base::Refused) refuse("an object of type " + name_of(type));
  if (keeps_) types_.add(py::type::of(object));
  if (!emit(Kind::Instance, version_of(type), reinterpret_cast<PyObject*>(type))) return false;
  switch (layout.base) {
    case Base::Dict:
      if (layout.makes_values) {
        const auto factory =
            py::reinterpret_steal<py::object>(PyObject_GetAttrString(object, "default_factory"));
        if (!factory || !visit(factory.ptr())) return false;
      }
      // An ordered dictionary keeps an order of its own.
      if (PyDict_GET_SIZE(object) > 1 && type == &PyODict_Type && !visit_items(object)) {
        return false;
      }
      if (!visit_dict(object)) return false;
      break;
    case Base::List:
    case Base::Tuple:
      for (Py_ssize_t i = 0; i < Py_SIZE(object); ++i) {
        if (!visit(PySequence_Fast_GET_ITEM(object, i))) return false;
      }
      if (!emit(Kind::End, static_cast<uint64_t>(Py_SIZE(object)))) return false;
      break;
    case Base::Set:
    case Base::Deque:
      if (Py_TYPE(object)->tp_flags & Py_TPFLAGS_HEAPTYPE)
        refuse("an object of type " + name_of(type));
      if (!visit_items(object)) return false;
      break;
    default:
      break;
  }
  for (const py::object& slot : layout.slots) {
    const auto value =
        py::reinterpret_steal<py::object>(PyObject_GenericGetAttr(object, slot.ptr()));
    if (!value) PyErr_Clear();
    if (!(value ? named(slot.ptr(), value.ptr()) : emit(Kind::End, 2))) return false;
  }
  if (!layout.has_dict) return true;
  const auto dict = py::reinterpret_steal<py::object>(PyObject_GenericGetDict(object, nullptr));
  if (!dict) {
    PyErr_Clear();
    return true;
  }
  return visit_dict(dict.ptr());
}

}  // namespace torch_xla::python
