// Computations that users build: torch_xla.core.xla_builder and xla_op_registry build on these.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <pybind11/stl.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include "dispatch/functions/user_computation.h"
#include "executor/insight/hlo_dump.h"
#include "executor/run/runtime.h"
#include "lazy/tensor.h"
#include "pjrt/buffer.h"
#include "python/init.h"
#include "util/error.h"

namespace py = pybind11;

namespace torch_xla::python {
namespace {

using dispatch::UserBuilder;
using dispatch::UserComputation;
using dispatch::UserShape;
using dispatch::UserValue;
using Tensors = std::vector<at::Tensor>;

// An array is a dictionary of its type and sizes, a tuple a list of shapes.
py::object to_python(const UserShape& shape) {
  if (shape.array == nullptr) {
    py::list parts;
    for (const UserShape& part : shape.parts) parts.append(to_python(part));
    return parts;
  }
  py::dict array;
  array["type"] = ops::xla_name(shape.array->dtype);
  array["sizes"] = py::tuple(py::cast(shape.array->sizes));
  array["dynamic_dimensions"] =
      py::tuple(py::cast(std::vector<bool>(shape.array->sizes.size(), false)));
  return array;
}

UserShape from_python(const py::handle& shape) {
  UserShape made;
  if (!py::isinstance<py::dict>(shape)) {
    TXLA_CHECK_KIND(util::ErrorKind::Type, py::isinstance<py::sequence>(shape),
                    "xla_builder: expected a shape, got ", py::repr(shape).cast<std::string>(),
                    ". torch_xla.core.xla_builder.mkshape makes one.");
    for (const py::handle part : shape) made.parts.push_back(from_python(part));
    return made;
  }
  const auto array = py::reinterpret_borrow<py::dict>(shape);
  TXLA_CHECK_KIND(util::ErrorKind::Value, array.contains("type") && array.contains("sizes"),
                  "xla_builder: expected a shape of a type and sizes, got ",
                  py::repr(shape).cast<std::string>(), ".");
  const auto sizes = array["sizes"].cast<std::vector<int64_t>>();
  for (const int64_t size : sizes) {
    TXLA_CHECK_KIND(util::ErrorKind::Value, size >= 0,
                    "xla_builder: expected sizes from 0 on, got ", size, ".");
  }
  if (array.contains("dynamic_dimensions") && !array["dynamic_dimensions"].is_none()) {
    for (const py::handle is_dynamic : array["dynamic_dimensions"]) {
      TXLA_CHECK_KIND(util::ErrorKind::NotImplemented, !is_dynamic.cast<bool>(),
                      "xla_builder: expected fixed sizes, got dynamic dimensions, which no program "
                      "here has. Leave dynamic_dimensions out.");
    }
  }
  made.array = lazy::intern_contiguous(ops::dtype_of_xla(array["type"].cast<std::string>()), sizes);
  return made;
}

// Numbers of nested sequences, one after the other.
void append_numbers(const py::handle& value, std::string& text) {
  TXLA_CHECK_KIND(util::ErrorKind::Type, !py::isinstance<py::str>(value),
                  "xla_builder: expected numbers, got the text ",
                  py::repr(value).cast<std::string>(), " in a list.");
  if (py::isinstance<py::sequence>(value)) {
    for (const py::handle item : value) append_numbers(item, text);
    return;
  }
  const auto number = py::module_::import("operator").attr("index")(value).cast<int64_t>();
  text += (text.empty() ? "" : ",") + std::to_string(number);
}

void add_constant(const at::Tensor& given, ops::UserOptions::Texts& options) {
  const at::Tensor value = given.detach().cpu().resolve_conj().resolve_neg().contiguous();
  options["type"] = ops::xla_name(value.scalar_type());
  std::string sizes, hex;
  for (const int64_t size : value.sizes()) {
    sizes += (sizes.empty() ? "" : ",") + std::to_string(size);
  }
  options["sizes"] = std::move(sizes);
  constexpr std::string_view kDigits = "0123456789abcdef";
  const auto* bytes = static_cast<const uint8_t*>(value.const_data_ptr());
  for (size_t i = 0; i < value.nbytes(); ++i) {
    hex += kDigits[bytes[i] >> 4];
    hex += kDigits[bytes[i] & 15];
  }
  options["bytes"] = std::move(hex);
}

UserValue operation(UserBuilder& builder, const std::string& name,
                    const std::vector<UserValue>& operands, const py::dict& given) {
  ops::UserOptions::Texts options;
  UserBuilder::Computations computations;
  for (const auto& [key, value] : given) {
    const auto option = key.cast<std::string>();
    if (value.is_none()) continue;
    if (py::isinstance<UserComputation>(value)) {
      computations.emplace(option, value.cast<std::shared_ptr<UserComputation>>());
    } else if (THPVariable_Check(value.ptr())) {
      add_constant(value.cast<at::Tensor>(), options);
    } else if (py::isinstance<py::str>(value)) {
      options[option] = value.cast<std::string>();
    } else if (py::isinstance<py::dict>(value)) {
      const UserShape shape = from_python(value);
      options["type"] = ops::xla_name(shape.array->dtype);
      std::string sizes;
      append_numbers(py::cast(shape.array->sizes), sizes);
      options["sizes"] = std::move(sizes);
    } else {
      std::string numbers;
      append_numbers(value, numbers);
      options[option] = std::move(numbers);
    }
  }
  return builder.operation(name, operands, std::move(options), computations);
}

py::object tensor_shape(const at::Tensor& tensor) {
  return to_python({lazy::intern_contiguous(tensor.scalar_type(), tensor.sizes()), {}});
}

at::Tensor placeholder_tensor(const py::handle& shape) {
  const UserShape read = from_python(shape);
  TXLA_CHECK(read.array != nullptr, "create_placeholder_tensor: expected the shape of an array, ",
             "got a tuple.");
  const int device = executor::current_device();
  const lazy::GraphLock lock;
  return lazy::make_tensor(lazy::placeholder(*read.array, device), read.array, device);
}

bool is_placeholder(const at::Tensor& tensor) {
  const lazy::TensorImpl* impl = lazy::as_lazy(tensor);
  if (impl == nullptr) return false;
  const lazy::GraphLock lock;
  const lazy::Value& value = impl->lazy_storage().value();
  if (!value || !value.node->is_data()) return false;
  const pjrt::Array* array = value.node->data().array.get();
  return array == nullptr || array->is_given_away();
}

}  // namespace

void init_builder(py::module_& m) {
  py::class_<UserBuilder, std::shared_ptr<UserBuilder>>(m, "XlaBuilder");
  py::class_<UserValue>(m, "XlaOp");
  py::class_<UserComputation, std::shared_ptr<UserComputation>>(m, "XlaComputation")
      .def("name", [](const UserComputation& c) { return c.name; })
      .def("stablehlo", &UserComputation::text);

  m.def("_xla_op_create_builder",
        [](const std::string& name) { return std::make_shared<UserBuilder>(name); });
  m.def("_xla_op_param", [](UserBuilder& builder, int64_t number, const py::object& shape) {
    return builder.parameter(number, from_python(shape));
  });
  m.def("_xla_op_create", &operation);
  m.def("_xla_op_build", [](const std::string& name, const UserValue& root) {
    return std::const_pointer_cast<UserComputation>(root.builder->build(name, root));
  });
  m.def("_xla_op_shape", [](const UserValue& op) { return to_python(op.shape); });
  m.def("_xla_op_builder", [](const UserValue& op) { return op.builder; });
  m.def("_xla_op_tensor_shape",
        [](const at::Tensor& tensor, const std::string&) { return tensor_shape(tensor); });
  m.def("_xla_user_computation",
        [](const std::string& name, const Tensors& inputs, const UserComputation& computation) {
          return dispatch::call_computation(name, inputs, computation);
        });
  m.def("_xla_computation_text", [](const UserComputation& computation) {
    return executor::hlo_of(computation.text(), executor::current_device()).text;
  });
  m.def("_xla_create_placeholder_tensor", &placeholder_tensor);
  m.def("_is_placecholder", &is_placeholder);
}

}  // namespace torch_xla::python
