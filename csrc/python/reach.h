// Reach, all that a Python function can read: its closure, its arguments, the globals that its code
// names, and what can be got to from there. Two walks that give the same tokens see the same
// objects in the same state, but for the values of tensors.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <pybind11/pybind11.h>

namespace torch_xla::python {

class Reach {
 public:
  // A key of a dictionary. `expected`: the object that must be there, which is not walked, or None.
  using Name = std::tuple<pybind11::object, pybind11::object, pybind11::object>;
  // Where to begin, beside the arguments of a call.
  struct Roots {
    pybind11::object function;
    std::vector<Name> names;
    std::vector<pybind11::object> others;
    pybind11::dict opaque;  // types with the attributes that no code reads, or None for all
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
  const pybind11::set& built_ins() const { return built_ins_; }
  // The objects that the last walk has come to, in order, but for strings and numbers. They stay
  // alive until forget(), so that code of finalizers cannot free what is walked.
  const std::vector<pybind11::object>& objects() const { return objects_; }
  bool sees(PyObject* object) const { return seen_.contains(object); }
  // The attribute or key where the last walk ended.
  std::string place() const;
  // Lets go of what the last walk has come to.
  void forget();

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
    pybind11::object hidden;  // of an opaque type: what its objects have and is not walked
    pybind11::object type;    // alive, so that no other takes its address
  };

  bool walk(const pybind11::args& args, const pybind11::kwargs& kwargs, bool ignoring_grads);
  bool walk_names();
  bool state();
  bool visit(PyObject* object);
  bool visit_rest(PyObject* object, PyTypeObject* type);
  bool visit_value(PyObject* object, PyTypeObject* type);
  bool visit_type(PyTypeObject* type);
  bool visit_built_in(PyObject* object);
  bool visit_parts(PyObject* object, std::initializer_list<const char*> attributes);
  bool visit_elements(PyObject* sequence);
  bool visit_tensor(PyObject* object);
  bool visit_grads();
  bool visit_function(PyObject* object);
  bool visit_dict(PyObject* dict);
  bool visit_items(const pybind11::object& iterator);
  bool visit_instance(PyObject* object, PyTypeObject* type);
  bool visit_base(PyObject* object, const Layout& layout);
  bool visit_opaque(PyObject* object, const Layout& layout);
  bool visit_attributes(PyObject* object);
  bool named(PyObject* place, PyObject* object);
  const Layout& layout_of(PyTypeObject* type);
  uint64_t version_of(PyTypeObject* type) const;
  [[noreturn]] void refuse(const std::string& what) const;

  bool emit(Kind kind, uint64_t number, PyObject* object = nullptr);

  Roots roots_;
  std::vector<Token> tokens_;
  bool keeps_ = false;
  size_t next_ = 0;
  int depth_ = 0;
  std::unordered_map<PyObject*, uint32_t> seen_;
  std::vector<pybind11::object> objects_;
  std::unordered_map<PyTypeObject*, Layout> layouts_;
  std::vector<at::Tensor> tensors_, grads_;
  std::vector<pybind11::object> path_;
  pybind11::set codes_, types_, built_ins_;
};

}  // namespace torch_xla::python
