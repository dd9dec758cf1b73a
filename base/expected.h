// A value, or the reason why there is none.
//
//   Expected<int> ParsePort(std::string_view text);
//
//   auto port = ParsePort(text);
//   if (!port) return port.error();
//   Listen(*port);
//
// Return the value, or the error (wrapped as Unexpected(error) where T and E
// can be mistaken for each other). Reading an absent one ends the process with
// a message. For operations without a value use Status.
//
// A plain value: as thread-safe as its content; nothing blocks.

#ifndef FLARE_BASE_EXPECTED_H_
#define FLARE_BASE_EXPECTED_H_

#include <cstdio>
#include <cstdlib>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>

#include "flare/base/status.h"

namespace flare {

template <class E>
class Unexpected {
 public:
  explicit Unexpected(E error) : error_(std::move(error)) {}

  const E& error() const& noexcept { return error_; }
  E&& error() && noexcept { return std::move(error_); }

 private:
  E error_;
};

template <class T, class E = Status>
class [[nodiscard]] Expected {
  static_assert(!std::is_reference_v<T> && !std::is_void_v<T>);

 public:
  using value_type = T;
  using error_type = E;

  Expected() requires std::is_default_constructible_v<T>
      : state_(std::in_place_index<0>) {}

  template <class U = T>
  requires(
      std::is_convertible_v<U&&, T> &&
      (std::is_same_v<T, E> ||
       !std::is_same_v<std::remove_cvref_t<U>,
                       E>)&&!std::is_same_v<std::remove_cvref_t<U>, Expected>)
      Expected(U&& value)  // NOLINT: implicit, for `return value;`
      : state_(std::in_place_index<0>, std::forward<U>(value)) {}

  Expected(const E& error)  // NOLINT: implicit, for `return error;`
      requires(!std::is_same_v<T, E>)
      : state_(std::in_place_index<1>, error) {}
  Expected(E&& error)  // NOLINT: implicit
      requires(!std::is_same_v<T, E>)
      : state_(std::in_place_index<1>, std::move(error)) {}

  template <class G>
  requires std::is_constructible_v<E, G> Expected(
      Unexpected<G> error)  // NOLINT: implicit
      : state_(std::in_place_index<1>, std::move(error).error()) {}

  // Is there a value?
  explicit operator bool() const noexcept { return state_.index() == 0; }
  bool has_value() const noexcept { return state_.index() == 0; }

  T& value() & { return *Get(); }
  const T& value() const& { return *Get(); }
  T&& value() && { return std::move(*Get()); }

  E& error() & {
    Require(!has_value());
    return *std::get_if<1>(&state_);
  }
  const E& error() const& {
    Require(!has_value());
    return *std::get_if<1>(&state_);
  }
  E&& error() && {
    Require(!has_value());
    return std::move(*std::get_if<1>(&state_));
  }

  T& operator*() & noexcept { return *Get(); }
  const T& operator*() const& noexcept { return *Get(); }
  T&& operator*() && noexcept { return std::move(*Get()); }
  T* operator->() noexcept { return Get(); }
  const T* operator->() const noexcept { return Get(); }

  template <class U>
  T value_or(U&& alternative) const& {
    return has_value() ? **this : static_cast<T>(std::forward<U>(alternative));
  }
  template <class U>
  T value_or(U&& alternative) && {
    return has_value() ? *std::move(*this)
                       : static_cast<T>(std::forward<U>(alternative));
  }

 private:
  T* Get() noexcept {
    Require(has_value());
    return std::get_if<0>(&state_);
  }
  const T* Get() const noexcept {
    Require(has_value());
    return std::get_if<0>(&state_);
  }

  void Require(bool there) const noexcept {
    if (!there) [[unlikely]]
      DieOfMisuse();
  }

  [[noreturn, gnu::cold, gnu::noinline]] void DieOfMisuse() const noexcept {
    std::string text = "error() of an Expected that holds a value";
    if (!has_value()) {
      text = "value() of an Expected that holds an error";
      if constexpr (requires(const E& e) { e.ToString(); }) {
        text += ": " + std::get_if<1>(&state_)->ToString();
      }
    }
    std::fprintf(stderr, "%s\n", text.c_str());
    std::abort();
  }

  std::variant<T, E> state_;
};

}  // namespace flare

#endif  // FLARE_BASE_EXPECTED_H_
