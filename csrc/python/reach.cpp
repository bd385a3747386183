#include "python/reach.h"

#include <bit>
#include <string_view>
#include <utility>

#include <ATen/Context.h>
#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/SavedTensorHooks.h>
#include <ATen/autocast_mode.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <pthread.h>
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
constexpr size_t kSpareStack = size_t{48} << 10;
constexpr size_t kLongestPart = 40;

// Where this thread's stack ends. Python's own limit of recursion does not hold for C++.
uintptr_t stack_end() {
  thread_local const uintptr_t end = [] {
    pthread_attr_t attributes;
    if (pthread_getattr_np(pthread_self(), &attributes) != 0) return uintptr_t{0};
    void* lowest = nullptr;
    size_t size = 0;
    pthread_attr_getstack(&attributes, &lowest, &size);
    pthread_attr_destroy(&attributes);
    return reinterpret_cast<uintptr_t>(lowest);
  }();
  return end;
}

bool is_stack_short() {
  return reinterpret_cast<uintptr_t>(__builtin_frame_address(0)) < stack_end() + kSpareStack;
}

// The beginning of a string, which may hold what is not to be encoded.
std::string text_of(PyObject* string) {
  const auto bytes = py::reinterpret_steal<py::bytes>(
      PyUnicode_AsEncodedString(string, "utf-8", "backslashreplace"));
  if (!bytes) throw py::error_already_set();
  const std::string text = bytes;
  return text.size() <= kLongestPart ? text : text.substr(0, kLongestPart) + "...";
}

// Of Python's own field: a metaclass may answer for the attributes of a class.
std::string name_of(PyTypeObject* type) { return std::string(type->tp_name).substr(0, 100); }

// Throws where there is none.
py::object attribute_of(PyObject* object, const char* name) {
  PyObject* found = PyObject_GetAttrString(object, name);
  if (found == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(found);
}

py::object owned(PyObject* object) { return py::reinterpret_borrow<py::object>(object); }

PyObject* as_object(PyTypeObject* type) { return reinterpret_cast<PyObject*>(type); }

// Lets no error of what is walked leave, but those that end a program.
template <typename Walk>
void refusing_errors(const Walk& walk) {
  try {
    walk();
  } catch (py::error_already_set& error) {
    if (!error.matches(PyExc_Exception)) throw;
    throw Reach::Refused{"reaches an object that raises " +
                         name_of(reinterpret_cast<PyTypeObject*>(error.type().ptr()))};
  }
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

PyTypeObject* type_in(const char* module, const char* name) {
  PyObject* type = py::object(py::module_::import(module).attr(name)).release().ptr();
  return reinterpret_cast<PyTypeObject*>(type);
}

PyTypeObject* partial_type() {
  static PyTypeObject* type = type_in("functools", "partial");
  return type;
}

PyTypeObject* deque_type() {
  static PyTypeObject* type = type_in("collections", "deque");
  return type;
}

bool is_plain(PyObject* value) {
  return value == Py_None || PyBool_Check(value) || PyUnicode_CheckExact(value) ||
         PyLong_CheckExact(value) || PyFloat_CheckExact(value);
}

}  // namespace

void Reach::refuse(const std::string& what) const {
  const std::string where = place();
  throw Refused{"reaches " + what + (where.empty() ? "" : " (" + where + ")")};
}

std::string Reach::place() const {
  std::string text;
  for (const py::object& part : path_) {
    if (!PyUnicode_Check(part.ptr())) continue;
    if (!text.empty()) text += ".";
    text += text_of(part.ptr());
  }
  return text;
}

void Reach::forget() {
  // What is freed by this may run code, which must find the members as they will be.
  const auto objects = std::exchange(objects_, {});
  const auto path = std::exchange(path_, {});
  const auto tensors = std::exchange(tensors_, {});
  const auto grads = std::exchange(grads_, {});
  seen_.clear();
}

// The interpreter gives a type a new tag when it or a base of it is changed, as long as it has some
// left.
uint64_t Reach::version_of(PyTypeObject* type) const {
  if (type->tp_version_tag == 0) {
    static PyObject* name = PyUnicode_InternFromString("__eq__");
    _PyType_Lookup(type, name);  // gives it one
  }
  if (type->tp_version_tag == 0) refuse("a type whose changes nothing tells, " + name_of(type));
  return type->tp_version_tag;
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
  built_ins_ = py::set();
  keeps_ = true;
  try {
    refusing_errors([&] {
      if (!walk(args, kwargs, false)) refuse("what cannot be walked");
    });
  } catch (...) {
    keeps_ = false;
    throw;
  }
  keeps_ = false;
}

bool Reach::holds(const py::args& args, const py::kwargs& kwargs, bool ignoring_grads) {
  bool same = false;
  try {
    refusing_errors([&] { same = walk(args, kwargs, ignoring_grads) && next_ == tokens_.size(); });
  } catch (const Refused&) {
    return false;
  }
  return same;
}

bool Reach::walk(const py::args& args, const py::kwargs& kwargs, bool ignoring_grads) {
  next_ = 0;
  depth_ = 0;
  forget();
  if (!state()) return false;
  if (!visit(args.ptr()) || !visit(kwargs.ptr()) || !visit(roots_.function.ptr())) return false;
  if (!walk_names()) return false;
  for (const py::object& other : roots_.others) {
    if (!visit(other.ptr())) return false;
  }
  if (!emit(Kind::End, tensors_.size())) return false;
  if (!ignoring_grads) return visit_grads();
  next_ = tokens_.size();
  return true;
}

bool Reach::walk_names() {
  for (const auto& [dict, key, expected] : roots_.names) {
    const py::object found = owned(PyDict_GetItemWithError(dict.ptr(), key.ptr()));
    PyErr_Clear();
    if (!expected.is_none()) {
      if (found.is(expected)) continue;
      path_.push_back(key);
      if (keeps_) refuse("another object than before");
      return false;
    }
    if (!(found ? named(key.ptr(), found.ptr()) : emit(Kind::End, 0))) return false;
  }
  return true;
}

// What calls depend on beside their arguments.
bool Reach::state() {
  if (at::impl::PythonTorchFunctionTLS::stack_len() != 0) refuse("a mode of __torch_function__");
  if (!at::SavedTensorDefaultHooks::get_tls_state().stack.empty()) {
    refuse("hooks on saved tensors");
  }
  if (torch::autograd::AnomalyMode::is_enabled()) refuse("the anomaly mode");
  // Classes that are registered with an abstract one are its own from then on.
  static PyObject* registered =
      py::object(py::module_::import("abc").attr("get_cache_token")).release().ptr();
  const auto token = py::reinterpret_steal<py::object>(PyObject_CallNoArgs(registered));
  if (!token) throw py::error_already_set();
  if (!emit(Kind::Equal, 0, token.ptr())) return false;
  const c10::impl::LocalDispatchKeySet keys = c10::impl::tls_local_dispatch_key_set();
  const at::Context& context = at::globalContext();
  const uint64_t flags = (uint64_t{c10::AutogradState::get_tls_state().get_grad_mode()} << 0) |
                         (uint64_t{c10::InferenceMode::is_enabled()} << 1) |
                         (uint64_t{context.userEnabledCuDNN()} << 2) |
                         (uint64_t{at::autocast::is_autocast_cache_enabled()} << 3) |
                         (uint64_t{context.deterministicAlgorithms()} << 4) |
                         (uint64_t{context.deterministicFillUninitializedMemory()} << 5) |
                         (uint64_t{context.userEnabledFlashSDP()} << 6) |
                         (uint64_t{context.userEnabledMemEfficientSDP()} << 7) |
                         (uint64_t{context.userEnabledMathSDP()} << 8);
  for (const at::DeviceType device : at::autocast::_AUTOCAST_SUPPORTED_DEVICES) {
    const auto dtype = static_cast<uint64_t>(at::autocast::get_autocast_dtype(device));
    if (!emit(Kind::State, (dtype << 1) | uint64_t{at::autocast::is_autocast_enabled(device)})) {
      return false;
    }
  }
  return emit(Kind::State, flags) && emit(Kind::State, keys.included_.raw_repr()) &&
         emit(Kind::State, keys.excluded_.raw_repr()) &&
         emit(Kind::State, static_cast<uint64_t>(c10::get_default_dtype_as_scalartype())) &&
         emit(Kind::State, static_cast<uint64_t>(context.float32MatmulPrecision())) &&
         emit(Kind::State, static_cast<uint64_t>(executor::current_device())) &&
         emit(Kind::State, std::hash<std::string>()(util::flags::cache_key_text()));
}

bool Reach::named(PyObject* place, PyObject* object) {
  path_.push_back(owned(place));
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
  objects_.push_back(owned(object));
  if (++depth_ > kDeepest || is_stack_short()) refuse("objects that are nested too deeply");
  const bool same = visit_rest(object, type);
  --depth_;
  return same;
}

bool Reach::visit_rest(PyObject* object, PyTypeObject* type) {
  if (type == &PyDict_Type) return emit(Kind::Mapping, 0) && visit_dict(object);
  if (THPVariable_CheckExact(object)) return visit_tensor(object);
  if (type == &PyFunction_Type) return visit_function(object);
  if (type == &PyList_Type || type == &PyTuple_Type) {
    return emit(Kind::Sequence, 0, as_object(type)) && visit_elements(object);
  }
  if (type == &PyMethod_Type) {
    return emit(Kind::Function, 0) && visit(PyMethod_GET_FUNCTION(object)) &&
           visit(PyMethod_GET_SELF(object));
  }
  if (type == &PyCell_Type) {
    const py::object content = owned(PyCell_GET(object));
    return emit(Kind::Cell, content ? 1 : 0) && (!content || visit(content.ptr()));
  }
  if (type == &PyCFunction_Type || type == &PyMethodDescr_Type) return visit_built_in(object);
  if (PyType_Check(object)) return visit_type(reinterpret_cast<PyTypeObject*>(object));
  if (PyWeakref_CheckRefExact(object)) {
    const auto get = py::reinterpret_steal<py::object>(PyObject_CallNoArgs(object));
    return emit(Kind::Cell, 2) && visit(get.ptr());
  }
  if (type == partial_type()) {
    return visit_parts(object, {"func", "args", "keywords"}) && visit_attributes(object);
  }
  return visit_value(object, type);
}

// What does not change, but in the objects that it has.
bool Reach::visit_value(PyObject* object, PyTypeObject* type) {
  if (PyModule_Check(object) && !is_trusted_module(object)) refuse("a module");
  if (PyModule_Check(object) || PyCode_Check(object) || object == Py_Ellipsis ||
      object == Py_NotImplemented || THPDtype_Check(object) || THPLayout_Check(object) ||
      THPMemoryFormat_Check(object) || type == &PyWrapperDescr_Type) {
    return emit(Kind::Same, 0, object);
  }
  if (THPDevice_Check(object) || type == &PyBytes_Type) return emit(Kind::Equal, 0, object);
  if (type == &PyComplex_Type) {
    const Py_complex value = PyComplex_AsCComplex(object);
    return emit(Kind::Number, std::bit_cast<uint64_t>(value.real)) &&
           emit(Kind::Number, std::bit_cast<uint64_t>(value.imag));
  }
  if (type == &PyRange_Type || type == &PySlice_Type) {
    return visit_parts(object, {"start", "stop", "step"});
  }
  if (type == &Py_GenericAliasType) return visit_parts(object, {"__origin__", "__args__"});
  return visit_instance(object, type);
}

bool Reach::visit_parts(PyObject* object, std::initializer_list<const char*> attributes) {
  if (!emit(Kind::Sequence, attributes.size(), as_object(Py_TYPE(object)))) return false;
  for (const char* name : attributes) {
    if (!visit(attribute_of(object, name).ptr())) return false;
  }
  return true;
}

bool Reach::visit_type(PyTypeObject* type) {
  if (keeps_) types_.add(py::handle(as_object(type)));
  if (!emit(Kind::Same, version_of(type), as_object(type))) return false;
  PyTypeObject* metaclass = Py_TYPE(as_object(type));
  return metaclass == &PyType_Type || visit(as_object(metaclass));
}

bool Reach::visit_built_in(PyObject* object) {
  if (keeps_) built_ins_.add(py::handle(object));
  if (Py_TYPE(object) == &PyMethodDescr_Type) return emit(Kind::Same, 0, object);
  PyObject* self = PyCFunction_GET_SELF(object);
  if (self == nullptr || PyModule_Check(self) || PyType_Check(self)) {
    return emit(Kind::Same, 0, object);
  }
  const auto method = reinterpret_cast<PyCFunctionObject*>(object)->m_ml;
  return emit(Kind::Function, reinterpret_cast<uint64_t>(method)) && visit(self);
}

// Code of finalizers may change what is walked: each part is owned, and sizes are read anew.
bool Reach::visit_elements(PyObject* sequence) {
  for (Py_ssize_t i = 0; i < Py_SIZE(sequence); ++i) {
    const py::object element = owned(PySequence_Fast_GET_ITEM(sequence, i));
    if (!visit(element.ptr())) return false;
  }
  return emit(Kind::End, static_cast<uint64_t>(Py_SIZE(sequence)));
}

bool Reach::visit_dict(PyObject* dict) {
  PyObject *borrowed_key, *borrowed_value;
  Py_ssize_t position = 0;
  while (PyDict_Next(dict, &position, &borrowed_key, &borrowed_value)) {
    const py::object key = owned(borrowed_key), value = owned(borrowed_value);
    if (!visit(key.ptr()) || !named(key.ptr(), value.ptr())) return false;
  }
  return emit(Kind::End, 0);
}

bool Reach::visit_items(const py::object& iterator) {
  if (!iterator) throw py::error_already_set();
  while (auto item = py::reinterpret_steal<py::object>(PyIter_Next(iterator.ptr()))) {
    if (!visit(item.ptr())) return false;
  }
  if (PyErr_Occurred()) throw py::error_already_set();
  return emit(Kind::End, 0);
}

bool Reach::visit_function(PyObject* object) {
  const auto* function = reinterpret_cast<PyFunctionObject*>(object);
  const py::object code = owned(function->func_code);
  if (keeps_) codes_.add(code);
  if (!emit(Kind::Function, 1, code.ptr())) return false;
  for (PyObject* const* part :
       {&function->func_name, &function->func_qualname, &function->func_closure,
        &function->func_defaults, &function->func_kwdefaults, &function->func_dict}) {
    const py::object now = owned(*part);
    if (!(now ? visit(now.ptr()) : emit(Kind::End, 1))) return false;
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
                         (uint64_t{tensor.is_neg()} << 4) | (uint64_t{tensor.is_view()} << 5);
  PyTypeObject* type = Py_TYPE(object);
  if (keeps_) types_.add(py::type::of(object));
  if (!emit(Kind::Tensor, flags, as_object(type)) ||
      !emit(Kind::Instance, version_of(type), as_object(type)) ||
      !emit(Kind::Tensor, reinterpret_cast<uint64_t>(impl->geometry())) ||
      !emit(Kind::Tensor, static_cast<uint64_t>(impl->storage_offset()))) {
    return false;
  }
  tensors_.push_back(tensor);
  if (has_hooks) {
    for (const char* name : {"_backward_hooks", "_post_accumulate_grad_hooks"}) {
      if (!visit(attribute_of(object, name).ptr())) return false;
    }
  }
  return visit_attributes(object);
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
  layout.type = owned(as_object(type));
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
  const auto base_of = [&] {
    if (base == &PyBaseObject_Type) return Base::Plain;
    if (base == &PyDict_Type || base == &PyODict_Type || base->tp_base == &PyDict_Type) {
      return Base::Dict;  // the last: defaultdict
    }
    if (base == &PyList_Type) return Base::List;
    if (base == &PyTuple_Type || base->tp_base == &PyTuple_Type) return Base::Tuple;
    if (base == &PySet_Type || base == &PyFrozenSet_Type) return Base::Set;
    if (base == deque_type()) return Base::Deque;
    return Base::Refused;
  };
  layout.base = base_of();
  for (const auto& [opaque, hidden] : roots_.opaque) {
    if (PyType_IsSubtype(type, reinterpret_cast<PyTypeObject*>(opaque.ptr()))) {
      layout.base = Base::Opaque;
      layout.hidden = py::reinterpret_borrow<py::object>(hidden);
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
  if (layout.base == Base::Opaque) return visit_opaque(object, layout);
  if (layout.base == Base::Refused) refuse("an object of type " + name_of(type));
  if (keeps_) types_.add(py::type::of(object));
  if (!emit(Kind::Instance, version_of(type), as_object(type))) return false;
  PyTypeObject* metaclass = Py_TYPE(as_object(type));
  if (metaclass != &PyType_Type && !visit(as_object(metaclass))) return false;
  if (!visit_base(object, layout)) return false;
  for (const py::object& slot : layout.slots) {
    const auto value =
        py::reinterpret_steal<py::object>(PyObject_GenericGetAttr(object, slot.ptr()));
    if (!value) PyErr_Clear();
    if (!(value ? named(slot.ptr(), value.ptr()) : emit(Kind::End, 2))) return false;
  }
  return !layout.has_dict || visit_attributes(object);
}

// What an object has of a built-in base.
bool Reach::visit_base(PyObject* object, const Layout& layout) {
  switch (layout.base) {
    case Base::Dict:
      if (layout.makes_values && !visit(attribute_of(object, "default_factory").ptr())) {
        return false;
      }
      // An ordered dictionary keeps an order of its own.
      if (PyODict_Check(object) && PyDict_GET_SIZE(object) > 1 &&
          !visit_items(py::reinterpret_steal<py::object>(PyODict_Type.tp_iter(object)))) {
        return false;
      }
      return visit_dict(object);
    case Base::List:
    case Base::Tuple:
      return visit_elements(object);
    case Base::Set:
    case Base::Deque:
      if (Py_TYPE(object)->tp_flags & Py_TPFLAGS_HEAPTYPE) {
        refuse("an object of type " + name_of(Py_TYPE(object)));
      }
      if (layout.base == Base::Deque && !visit(attribute_of(object, "maxlen").ptr())) return false;
      return visit_items(py::reinterpret_steal<py::object>(PyObject_GetIter(object)));
    default:
      return true;
  }
}

// An object that leads to far more than code reads of it, such as a logger to all others.
bool Reach::visit_opaque(PyObject* object, const Layout& layout) {
  if (!emit(Kind::Same, 0, object) || !visit(as_object(Py_TYPE(object)))) return false;
  const auto dict = py::reinterpret_steal<py::object>(PyObject_GenericGetDict(object, nullptr));
  PyErr_Clear();
  if (!dict) return true;
  PyObject *borrowed_key, *borrowed_value;
  Py_ssize_t position = 0;
  while (PyDict_Next(dict.ptr(), &position, &borrowed_key, &borrowed_value)) {
    const py::object key = owned(borrowed_key), value = owned(borrowed_value);
    const bool is_hidden = layout.hidden.is_none()
                               ? !is_plain(value.ptr()) && !PyType_Check(value.ptr())
                               : layout.hidden.contains(key);
    if (!is_hidden && (!visit(key.ptr()) || !named(key.ptr(), value.ptr()))) return false;
  }
  return emit(Kind::End, 0);
}

bool Reach::visit_attributes(PyObject* object) {
  const auto dict = py::reinterpret_steal<py::object>(PyObject_GenericGetDict(object, nullptr));
  PyErr_Clear();
  if (!dict || PyDict_GET_SIZE(dict.ptr()) == 0) return emit(Kind::End, 3);
  return visit_dict(dict.ptr());
}

}  // namespace torch_xla::python
