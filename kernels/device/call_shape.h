// What a failed kernel call worked on, in words.
#pragma once

#include <cstdint>
#include <string>

namespace lockstep::kernels {

// "rows=4 hidden=5120": those of the sizes that all operations name alike which these arguments have.
template <typename Args>
std::string ShapeOf(const Args& a) {
  std::string text;
  const auto add = [&text](const char* name, std::int64_t value) {
    if (!text.empty()) text += ' ';
    text.append(name).append("=").append(std::to_string(value));
  };
  if constexpr (requires { a.rows; }) add("rows", a.rows);
  if constexpr (requires { a.entries; }) add("entries", a.entries);
  if constexpr (requires { a.num_jobs; }) add("jobs", a.num_jobs);
  if constexpr (requires { a.max_pairs; }) add("max_pairs", a.max_pairs);
  if constexpr (requires { a.spec->in_features; }) {
    add("in", a.spec->in_features);
    add("out", a.spec->out_features);
  }
  if constexpr (requires { a.streams; }) add("streams", a.streams);
  if constexpr (requires { a.hidden; }) add("hidden", a.hidden);
  if constexpr (requires { a.heads; }) add("heads", a.heads);
  if constexpr (requires { a.head_dim; }) add("head_dim", a.head_dim);
  if constexpr (requires { a.n; }) add("n", a.n);
  if constexpr (requires { a.width; }) add("width", a.width);
  if constexpr (requires { a.channels; }) add("channels", a.channels);
  if constexpr (requires { a.format.width; }) add("width", a.format.width);
  if constexpr (requires { a.experts; }) add("experts", a.experts);
  if constexpr (requires { a.top_k; }) add("top_k", a.top_k);
  if constexpr (requires { a.max_visible; }) add("max_visible", a.max_visible);
  if constexpr (requires { a.vocab; }) add("vocab", a.vocab);
  return text;
}

}  // namespace lockstep::kernels
