// The order of what a device exchanges with other replicas (ops/exchange.h): a value that each
// exchange reads and replaces, and that lives as long as the device. What is sent to one member has
// an order of its own, since it waits for nobody: a send goes out where a receive, which was
// recorded before it, waits for the other's. In a function that is being recorded both stand for
// one parameter. Callers hold the GraphLock.
#pragma once

#include "lazy/node.h"

namespace torch_xla::dispatch {

const lazy::Geometry* geometry_of_order();
enum class Order { Exchanges, Sends };
lazy::Value read_order(int device, Order order = Order::Exchanges);
void write_order(int device, lazy::Value next, Order order = Order::Exchanges);
// Launches all exchanges of an order that were recorded and wait, with what they need; without the
// lock. Who waits for other processes outside of a program calls this before: they may wait for
// such an exchange.
void launch_exchanges(Order order = Order::Exchanges);

}  // namespace torch_xla::dispatch
