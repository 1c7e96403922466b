#include "model/text/bpe.h"

#include <algorithm>
#include <functional>
#include <queue>

namespace lockstep {
namespace {

// Pieces up to here are merged by scanning an array, longer ones through a heap.
constexpr std::size_t kShortPiece = 96;

void MergeShort(const TokenTables& tables, std::string_view piece, std::vector<std::int32_t>* ids) {
  std::int32_t tokens[kShortPiece];
  std::uint32_t ranks[kShortPiece];  // ranks[i]: of tokens[i] with tokens[i + 1]
  std::size_t n = piece.size();
  for (std::size_t i = 0; i < n; ++i) tokens[i] = tables.ByteId(static_cast<unsigned char>(piece[i]));
  for (std::size_t i = 0; i + 1 < n; ++i) ranks[i] = tables.MergeRank(tokens[i], tokens[i + 1]);
  ranks[n - 1] = kNoRank;
  for (;;) {
    const std::size_t i = static_cast<std::size_t>(std::min_element(ranks, ranks + n) - ranks);
    if (ranks[i] == kNoRank) break;
    tokens[i] = tables.MergeResult(ranks[i]);
    std::copy(tokens + i + 2, tokens + n, tokens + i + 1);
    std::copy(ranks + i + 2, ranks + n, ranks + i + 1);
    --n;
    ranks[i] = i + 1 < n ? tables.MergeRank(tokens[i], tokens[i + 1]) : kNoRank;
    if (i > 0) ranks[i - 1] = tables.MergeRank(tokens[i - 1], tokens[i]);
  }
  ids->insert(ids->end(), tokens, tokens + n);
}

// A doubly linked list of tokens with a queue of candidate merges; a candidate whose pair has changed since is
// skipped.
class LongMerger {
 public:
  LongMerger(const TokenTables& tables, std::string_view piece) : tables_(tables), nodes_(piece.size()) {
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      nodes_[i] = {tables.ByteId(static_cast<unsigned char>(piece[i])), kNoRank,
                   static_cast<std::int32_t>(i) - 1, static_cast<std::int32_t>(i) + 1};
    }
    nodes_.back().next = kNone;
    for (std::size_t i = 0; i + 1 < nodes_.size(); ++i) Propose(static_cast<std::int32_t>(i));
  }

  void Run(std::vector<std::int32_t>* ids) {
    while (!queue_.empty()) {
      const std::uint64_t candidate = queue_.top();
      queue_.pop();
      const auto position = static_cast<std::int32_t>(candidate & 0xFFFFFFFFu);
      const auto rank = static_cast<std::uint32_t>(candidate >> 32);
      if (At(position).rank == rank) Merge(position);
    }
    for (std::int32_t i = 0; i != kNone; i = At(i).next) ids->push_back(At(i).token);
  }

 private:
  static constexpr std::int32_t kNone = -1;
  struct Node {
    std::int32_t token;
    std::uint32_t rank;  // of the pair with the next node
    std::int32_t previous, next;
  };

  Node& At(std::int32_t i) { return nodes_[static_cast<std::size_t>(i)]; }

  void Propose(std::int32_t i) {
    Node& node = At(i);
    node.rank = node.next == kNone ? kNoRank : tables_.MergeRank(node.token, At(node.next).token);
    if (node.rank != kNoRank) queue_.push((std::uint64_t{node.rank} << 32) | static_cast<std::uint64_t>(i));
  }

  void Merge(std::int32_t i) {
    Node& node = At(i);
    Node& absorbed = At(node.next);
    node.token = tables_.MergeResult(node.rank);
    node.next = absorbed.next;
    absorbed.rank = kNoRank;
    if (node.next != kNone) At(node.next).previous = i;
    Propose(i);
    if (node.previous != kNone) Propose(node.previous);
  }

  const TokenTables& tables_;
  std::vector<Node> nodes_;
  std::priority_queue<std::uint64_t, std::vector<std::uint64_t>, std::greater<>> queue_;
};

}  // namespace

void MergePiece(const TokenTables& tables, std::string_view piece, std::vector<std::int32_t>* ids) {
  if (piece.empty()) return;
  if (piece.size() <= kShortPiece) {
    MergeShort(tables, piece, ids);
  } else {
    LongMerger(tables, piece).Run(ids);
  }
}

}  // namespace lockstep
