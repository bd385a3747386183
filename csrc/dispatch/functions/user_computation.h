// Computations that users build operation by operation (torch_xla.core.xla_builder): functions of
// recorded calls, of which a call on tensors is one call.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "dispatch/functions/recorded_function.h"
#include "ops/user_operation.h"

namespace torch_xla::dispatch {

// An array, or a tuple of shapes.
struct UserShape {
  const lazy::Geometry* array = nullptr;  // null: a tuple
  std::vector<UserShape> parts;

  // The arrays, from left to right.
  std::vector<const lazy::Geometry*> arrays() const;
  std::string str() const;  // (f32[2,3], s32[])
};

class UserBuilder;

// A value of a computation that is being built: an array, or a tuple of them.
struct UserValue {
  std::shared_ptr<UserBuilder> builder;
  UserShape shape;
  std::vector<lazy::Value> values;  // of the shape's arrays
};

struct UserComputation {
  std::string name;
  std::vector<UserShape> parameters;
  UserShape result;
  std::shared_ptr<const lazy::Function> function;  // of all arrays of the parameters

  // As a program for every compiler, StableHLO text.
  std::string text() const;
};

class UserBuilder : public std::enable_shared_from_this<UserBuilder> {
 public:
  using Computations = std::map<std::string, std::shared_ptr<const UserComputation>>;

  explicit UserBuilder(std::string name) : name_(std::move(name)) {}
  const std::string& name() const { return name_; }

  // Throws where there is a parameter of this number.
  UserValue parameter(int64_t number, const UserShape& shape);
  // Adds an operation by XLA's name for it; `computations` are further options. Throws where the
  // operation has no meaning for these operands.
  UserValue operation(const std::string& name, const std::vector<UserValue>& operands,
                      ops::UserOptions::Texts options, const Computations& computations);
  // Ends the computation of `root`. Throws where parameters up to the last one are missing.
  std::shared_ptr<const UserComputation> build(std::string name, const UserValue& root);

 private:
  struct Parameter {
    UserShape shape;
    std::vector<lazy::Value> leaves;
  };

  std::string name_;
  std::map<int64_t, Parameter> parameters_;
};

// Records one call of a computation and returns its results, those of a tuple one by one. Throws
// where the tensors are not of the shapes that it takes.
Tensors call_computation(const std::string& name, const Tensors& inputs,
                         const UserComputation& computation);

}  // namespace torch_xla::dispatch
