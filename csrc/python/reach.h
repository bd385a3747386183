// Reach, all that a Python function can read: its closure, its arguments, the globals that its code
// names, and what can be got to from there. Two walks that give the same tokens see the same
// objects in the same state, but for the values of tensors.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <pybind11/pybind11.h>

namespace torch_xla::python {

class Reach {
 public:
  // Where to begin, beside the arguments of a call.
  struct Roots {
    pybind11::object function;
    std::vector<std::pair<pybind11::object, pybind11::object>> names;  // a dictionary and its key
    std::vector<pybind11::object> others;
    pybind11::tuple opaque;  // types whose objects have no state that code could read
  };
  // Thrown where an object may have a state that no walk sees. `what` says which, and where.
  struct Refused {
    std::string what;
  };

  explicit Reach(Roots roots) : roots_(std::move(roots)) {}

  // Walks and keeps what it sees. Throws Refused.
  void take(const pybind11::args& args, const pybind11::kwargs& kwargs);
  // Walks again; whether it sees the same. `ignoring_grads`: whatever tensors have as gradients.
  bool holds(const pybind11::args& args, const pybind11::kwargs& kwargs, bool ignoring_grads);

  // Of the last walk: the tensors, each once; and the gradient of each, which may be undefined.
  const std::vector<at::Tensor>& tensors() const { return tensors_; }
  const std::vector<at::Tensor>& grads() const { return grads_; }
  // Of take(): code objects of the functions, types of the objects, and functions written in C.
  const pybind11::set& codes() const { return codes_; }
  const pybind11::set& types() const { return types_; }
  const pybind11::list& built_ins() const { return built_ins_; }
  // Whether the last walk has come to this object.
  bool sees(PyObject* object) const { return seen_.contains(object); }
  // The attribute or key where the last walk ended.
  std::string place() const;
  void forget_tensors() {
    tensors_.clear();
    grads_.clear();
  }

 private:
  enum class Kind : uint8_t {
    Seen,
    Same,
    Equal,
    Number,
    Sequence,
    Mapping,
    Instance,
    Function,
    Cell,
    Tensor,
    Grad,
    State,
    End
  };
  struct Token {
    Kind kind;
    uint64_t number;
    pybind11::object object;
  };
  enum class Base : uint8_t { Plain, Dict, List, Tuple, Set, Deque, Opaque, Refused };
  struct Layout {
    Base base = Base::Refused;
    bool has_dict = false;
    bool makes_values = false;  // of a defaultdict
    std::vector<pybind11::object> slots;
  };

  bool walk(const pybind11::args& args, const pybind11::kwargs& kwargs, bool ignoring_grads);
  bool state();
  bool visit(PyObject* object);
  bool visit_rest(PyObject* object, PyTypeObject* type);
  bool visit_tensor(PyObject* object);
  bool visit_grads();
  bool visit_function(PyObject* object);
  bool visit_dict(PyObject* dict);
  bool visit_items(PyObject* iterable);
  bool visit_instance(PyObject* object, PyTypeObject* type);
  bool named(PyObject* place, PyObject* object);
  const Layout& layout_of(PyTypeObject* type);
  [[noreturn]] void refuse(const std::string& what) const;

  bool emit(Kind kind, uint64_t number, PyObject* object = nullptr);

  Roots roots_;
  std::vector<Token> tokens_;
  bool keeps_ = false;
  size_t next_ = 0;
  int depth_ = 0;
  std::unordered_map<PyObject*, uint32_t> seen_;
  std::unordered_map<PyTypeObject*, Layout> layouts_;
  std::vector<at::Tensor> tensors_, grads_;
  std::vector<PyObject*> path_;
  pybind11::set codes_, types_;
  pybind11::list built_ins_;
};

}  // namespace torch_xla::python
