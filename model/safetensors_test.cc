// The safetensors reader and writer. Images are put together here from the format's own rules: u64 length,
// JSON, data.
#include "model/safetensors.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "model/error.h"
#include "model/test_util.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

std::string LengthOf(std::uint64_t size) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(size >> (8 * i) & 0xff);
  return bytes;
}

std::string Image(const std::string& header, std::size_t data_bytes) {
  std::string image = LengthOf(header.size()) + header;
  for (std::size_t i = 0; i < data_bytes; ++i) image += static_cast<char>(i);
  return image;
}

std::string Interval(std::size_t begin, std::size_t end) {
  std::string text = "[";
  return text.append(std::to_string(begin)).append(",").append(std::to_string(end)).append("]");
}

std::vector<TensorView> Parse(const std::string& image) {
  return ParseSafetensors(std::as_bytes(std::span(image)), "some/file");
}

std::string Entry(const std::string& name, const std::string& dtype, const std::string& shape,
                  const std::string& offsets) {
  return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape + ",\"data_offsets\":" + offsets +
         "}";
}

void ExpectRefused(const std::string& image, std::initializer_list<std::string_view> parts) {
  ExpectInputError([&] { Parse(image); }, {"some/file"});
  ExpectInputError([&] { Parse(image); }, parts);
}

TEST(Safetensors, ReadsTensorsInHeaderOrder) {
  const std::string header = "{\"__metadata__\":{\"format\":\"pt\"}," + Entry("z", "F32", "[1]", "[4,8]") +
                             "," + Entry("a", "I16", "[1,2]", "[0,4]") + "," +
                             Entry("scalar", "U8", "[]", "[8,9]") + "," +
                             Entry("none", "F16", "[3,0]", "[9,9]") + "}  ";
  const std::string image = Image(header, 9);
  const std::vector<TensorView> tensors = Parse(image);
  ASSERT_EQ(tensors.size(), 4u);
  EXPECT_EQ(tensors[0].name, "z");
  EXPECT_EQ(tensors[0].dtype, DType::kF32);
  EXPECT_EQ(tensors[0].At<std::uint32_t>(0), 0x07060504u);
  EXPECT_EQ(tensors[1].name, "a");
  EXPECT_EQ(tensors[1].shape, (std::vector<std::int64_t>{1, 2}));
  EXPECT_EQ(tensors[1].At<std::uint16_t>(1), 0x0302);
  EXPECT_EQ(tensors[2].elements(), 1);
  EXPECT_EQ(tensors[3].elements(), 0);
  EXPECT_FALSE(tensors[3].empty());
  EXPECT_EQ(tensors[0].file, "some/file");
}

TEST(Safetensors, ReadsEveryDTypeByItsName) {
  const std::vector<std::pair<std::string, std::size_t>> sizes = {
      {"BF16", 2}, {"F16", 2}, {"F32", 4}, {"F8_E4M3", 1}, {"F8_E8M0", 1},
      {"I8", 1},   {"U8", 1},  {"I16", 2}, {"I32", 4},     {"I64", 8}};
  for (const auto& [name, size] : sizes) {
    std::string header = "{";
    header.append(Entry("x", name, "[3]", Interval(0, 3 * size))).append("}");
    const std::string image = Image(header, 3 * size);
    const std::vector<TensorView> tensors = Parse(image);
    EXPECT_EQ(NameOf(tensors[0].dtype), name);
    EXPECT_EQ(SizeOf(tensors[0].dtype), size);
  }
}

TEST(SafetensorsBadFile, TooShortForALength) {
  ExpectRefused("", {"0 bytes"});
  ExpectRefused("1234567", {"7 bytes"});
}

TEST(SafetensorsBadFile, HeaderLongerThanTheFile) {
  ExpectRefused(LengthOf(3) + "{}", {"header length 3 exceeds"});
  ExpectRefused(LengthOf(~0ull) + "{}", {"header length 18446744073709551615 exceeds"});
}

TEST(SafetensorsBadFile, TruncatedData) {
  const std::string image = Image("{" + Entry("x", "F32", "[2]", "[0,8]") + "}", 8);
  for (std::size_t size = 0; size < image.size(); ++size) ExpectRefused(image.substr(0, size), {"some/file"});
  ExpectRefused(image.substr(0, image.size() - 1),
                {"tensor 'x'", "data_offsets [0, 8] outside the file's 7 bytes"});
}

TEST(SafetensorsBadFile, MalformedJson) {
  for (const char* header :
       {"", "{", "{}}", "{} x", "{\"x\"}", "{\"x\":}", "{,}", "\xff", "{\"\xff\":1}", "nul"}) {
    ExpectRefused(Image(header, 8), {"safetensors header: malformed JSON at byte"});
  }
  ExpectRefused(Image(std::string("{}\0{", 4), 8), {"malformed JSON: NUL at byte 2"});
}

TEST(SafetensorsBadFile, WrongStructure) {
  ExpectRefused(Image("[]", 0), {"expected an object, found an array"});
  ExpectRefused(Image("{\"x\":3}", 0),
                {"tensor 'x'", "expected an object with dtype, shape and data_offsets, found a number"});
  ExpectRefused(Image("{\"x\":{}}", 0), {"tensor 'x'", "field 'dtype' is missing"});
  ExpectRefused(Image("{\"x\":{\"dtype\":\"U8\",\"shape\":[]}}", 0),
                {"tensor 'x'", "field 'data_offsets' is missing"});
  ExpectRefused(Image("{\"x\":{\"dtype\":8,\"shape\":[]}}", 0),
                {"tensor 'x'", "dtype: expected a string, found a number"});
  ExpectRefused(Image("{\"x\":{\"strides\":[]}}", 0), {"tensor 'x'", "unknown field 'strides'"});
  ExpectRefused(Image("{" + Entry("x", "U8", "{}", "[0,1]") + "}", 1),
                {"shape: expected a list of non-negative integers"});
  ExpectRefused(Image("{" + Entry("x", "U8", "[[1]]", "[0,1]") + "}", 1),
                {"shape: expected a list", "found an array"});
  ExpectRefused(Image("{" + Entry("x", "U8", "[1]", "[0]") + "}", 1),
                {"data_offsets: expected two integers, found 1"});
  ExpectRefused(Image("{\"__metadata__\":{\"a\":1}}", 0), {"__metadata__: expected an object of strings"});
}

TEST(SafetensorsBadFile, AbsurdNumbers) {
  const auto with_shape = [](const std::string& shape) {
    return Image("{" + Entry("x", "F32", shape, "[0,4]") + "}", 4);
  };
  ExpectRefused(with_shape("[-1]"), {"tensor 'x'", "shape", "found a negative number"});
  ExpectRefused(with_shape("[1.0]"), {"tensor 'x'", "shape", "found a fraction"});
  ExpectRefused(with_shape("[1e300]"), {"tensor 'x'", "shape", "found a fraction"});
  ExpectRefused(with_shape("[99999999999999999999]"), {"tensor 'x'", "shape", "beyond 2^64"});
  ExpectRefused(with_shape("[null]"), {"tensor 'x'", "shape", "found null"});
  ExpectRefused(with_shape("[true]"), {"tensor 'x'", "shape", "found a boolean"});
  ExpectRefused(with_shape("[18446744073709551615]"),
                {"tensor 'x'", "shape: the number of bytes exceeds 2^63"});
  // The product wraps to exactly the 4 bytes that are there.
  ExpectRefused(with_shape("[4294967296,4294967296,4294967297]"), {"tensor 'x'", "exceeds 2^63"});
  ExpectRefused(with_shape("[9223372036854775807,9223372036854775807,0]"), {"tensor 'x'", "exceeds 2^63"});
}

TEST(SafetensorsBadFile, DataOffsets) {
  const auto with_offsets = [](const std::string& offsets) {
    return Image("{" + Entry("x", "F32", "[2]", offsets) + "}", 16);
  };
  EXPECT_EQ(Parse(with_offsets("[4,12]")).size(), 1u);
  ExpectRefused(with_offsets("[12,20]"),
                {"tensor 'x'", "data_offsets [12, 20] outside the file's 16 bytes of data"});
  ExpectRefused(with_offsets("[8,0]"), {"tensor 'x'", "data_offsets [8, 0] outside"});
  ExpectRefused(with_offsets("[0,12]"), {"tensor 'x'", "data_offsets [0, 12] do not match the 8 bytes"});
  ExpectRefused(with_offsets("[0,4]"), {"tensor 'x'", "do not match"});
  ExpectRefused(with_offsets("[18446744073709551608,18446744073709551616]"), {"tensor 'x'"});
  ExpectRefused(with_offsets("[-8,0]"), {"tensor 'x'", "data_offsets"});
}

TEST(SafetensorsBadFile, OverlappingTensors) {
  const std::string header =
      "{" + Entry("a", "U8", "[4]", "[0,4]") + "," + Entry("b", "U8", "[4]", "[3,7]") + "}";
  ExpectRefused(Image(header, 8), {"tensor 'b'", "overlap tensor 'a'"});
  // A large tensor in front must not hide behind a small one inside it.
  const std::string nested = "{" + Entry("big", "U8", "[8]", "[0,8]") + "," +
                             Entry("inside", "U8", "[1]", "[2,3]") + "," + Entry("last", "U8", "[1]", "[6,7]") +
                             "}";
  ExpectRefused(Image(nested, 8), {"overlap tensor 'big'"});
}

TEST(SafetensorsBadFile, NameTwice) {
  const std::string entry = Entry("same", "U8", "[1]", "[0,1]");
  ExpectRefused(Image("{" + entry + "," + entry + "}", 1), {"tensor 'same' appears twice"});
  ExpectRefused(Image("{\"__metadata__\":{},\"__metadata__\":{}}", 0), {"'__metadata__' appears twice"});
  ExpectRefused(Image("{\"x\":{\"dtype\":\"U8\",\"dtype\":\"U8\"}}", 0),
                {"tensor 'x'", "field 'dtype' appears twice"});
}

TEST(SafetensorsBadFile, UnknownDType) {
  ExpectRefused(Image("{" + Entry("x", "F8_E5M2", "[1]", "[0,1]") + "}", 1),
                {"tensor 'x'", "unknown dtype 'F8_E5M2'"});
}

TEST(SafetensorsBadFile, NestingAMillionDeep) {
  const std::string deep(1'000'000, '[');
  ExpectRefused(Image(deep, 0), {"expected an object, found an array"});
  ExpectRefused(Image("{\"x\":{\"shape\":" + deep, 0), {"tensor 'x'", "found an array"});
}

TEST(SafetensorsBadFile, MessagesStayOnOneLine) {
  ExpectRefused(Image("{" + Entry("a\\nb\\u0000c", "?", "[1]", "[0,1]") + "}", 1), {"tensor 'a\\x0ab\\x00c'"});
  const std::string long_name(100'000, 'n');
  ExpectInputError([&] { Parse(Image("{\"" + long_name + "\":3}", 0)); }, {"nnn...'"});
}

// One file with one U8 tensor a name, each of one byte.
std::string OneByteTensors(const std::vector<std::string>& names) {
  std::string header = "{";
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (i > 0) header += ",";
    header += Entry(names[i], "U8", "[1]", Interval(i, i + 1));
  }
  return Image(header + "}", names.size());
}

std::string IndexText(const std::vector<std::pair<std::string, std::string>>& entries) {
  std::string text = "{\"metadata\":{\"total_size\":3},\"weight_map\":{";
  for (std::size_t i = 0; i < entries.size(); ++i) {
    text += i > 0 ? ",\"" : "\"";
    text.append(entries[i].first).append("\":\"").append(entries[i].second).append("\"");
  }
  return text + "}}";
}

constexpr char kIndex[] = "model.safetensors.index.json";

TEST(SafetensorsDirectory, OpensOneFileOrMany) {
  const TestDirectory dir;
  dir.Put("model.safetensors", OneByteTensors({"a", "b"}));
  EXPECT_EQ(SafetensorsSet::OpenDirectory(dir.path()).tensors().size(), 2u);
  dir.Put("more.safetensors", OneByteTensors({"c"}));
  dir.Put("notes.txt", "not a tensor");
  const SafetensorsSet set = SafetensorsSet::OpenDirectory(dir.path());
  EXPECT_EQ(set.tensors().size(), 3u);
  EXPECT_EQ(set.total_bytes(), 3u);
  ASSERT_NE(set.Find("c"), nullptr);
  EXPECT_EQ(set.Find("c")->file, dir.File("more.safetensors"));
  EXPECT_EQ(set.Find("d"), nullptr);
}

TEST(SafetensorsDirectory, OpensTheShardsOfTheIndexAndNoOtherFile) {
  const TestDirectory dir;
  dir.Put("one.safetensors", OneByteTensors({"a"}));
  dir.Put("two.safetensors", OneByteTensors({"b"}));
  dir.Put("unlisted.safetensors", "broken");
  dir.Put(kIndex, IndexText({{"a", "one.safetensors"}, {"b", "two.safetensors"}}));
  EXPECT_EQ(SafetensorsSet::OpenDirectory(dir.path()).tensors().size(), 2u);
}

TEST(SafetensorsDirectory, FollowsLinksToABlobStore) {
  const TestDirectory dir;
  dir.Put("blobs/0a1b", OneByteTensors({"a"}));
  dir.Put("snapshot/readme", "");
  fs::create_symlink("../blobs/0a1b", dir.File("snapshot/model.safetensors"));
  EXPECT_NE(SafetensorsSet::OpenDirectory(dir.File("snapshot")).Find("a"), nullptr);
}

TEST(SafetensorsDirectory, ViewsOutliveMovesOfTheSet) {
  const TestDirectory dir;
  dir.Put("model.safetensors", OneByteTensors({"a", "b"}));
  SafetensorsSet first = SafetensorsSet::OpenDirectory(dir.path());
  const TensorView view = *first.Find("b");
  const SafetensorsSet second = std::move(first);
  EXPECT_EQ(view.At<std::uint8_t>(0), 1);
}

TEST(SafetensorsDirectory, ReadsATensorWithoutTheMap) {
  const TestDirectory dir;
  dir.Put("a.safetensors", OneByteTensors({"a0", "a1"}));
  dir.Put("b.safetensors", OneByteTensors({"b0", "b1", "b2"}));
  const SafetensorsSet set = SafetensorsSet::OpenDirectory(dir.path());
  for (const auto& [name, tensor] : set.tensors()) {
    const std::vector<std::byte> bytes = set.Read(tensor);
    ASSERT_EQ(bytes.size(), 1u);
    EXPECT_EQ(std::to_integer<int>(bytes[0]), name[1] - '0') << name;
  }
  fs::resize_file(dir.File("b.safetensors"), 10);
  ExpectInputError([&] { set.Read(*set.Find("b2")); }, {dir.File("b.safetensors"), "has shrunk"});
}

void ExpectDirectoryRefused(const std::string& path, std::initializer_list<std::string_view> parts) {
  ExpectInputError([&] { SafetensorsSet::OpenDirectory(path); }, {path});
  ExpectInputError([&] { SafetensorsSet::OpenDirectory(path); }, parts);
}

TEST(SafetensorsBadDirectory, MissingOrNotADirectoryOrEmpty) {
  const TestDirectory dir;
  ExpectDirectoryRefused(dir.path(), {"no model.safetensors.index.json and no *.safetensors file"});
  ExpectDirectoryRefused(dir.File("absent"), {"no such model directory"});
  ExpectDirectoryRefused(dir.Put("file", "x"), {"expected a model directory"});
}

TEST(SafetensorsBadDirectory, ShardThatCannotBeMapped) {
  const TestDirectory dir;
  dir.Put(kIndex, IndexText({{"a", "one.safetensors"}}));
  ExpectDirectoryRefused(dir.path(), {"one.safetensors", "No such file"});
  fs::create_directory(dir.File("one.safetensors"));
  ExpectDirectoryRefused(dir.path(), {"one.safetensors", "expected a regular file"});
  fs::remove(dir.File("one.safetensors"));
  ASSERT_EQ(::mkfifo(dir.File("one.safetensors").c_str(), 0600), 0);
  ExpectDirectoryRefused(dir.path(), {"one.safetensors", "expected a regular file"});
}

TEST(SafetensorsBadDirectory, LinksThatLeadNowhere) {
  const TestDirectory dir;
  fs::create_symlink("b.safetensors", dir.File("a.safetensors"));
  fs::create_symlink("a.safetensors", dir.File("b.safetensors"));
  ExpectDirectoryRefused(dir.path(), {"a.safetensors", "symbolic link"});
  const TestDirectory dangling;
  dangling.Put("model.safetensors", OneByteTensors({"a"}));
  fs::create_symlink("gone", dangling.File(kIndex));
  ExpectDirectoryRefused(dangling.path(), {kIndex, "No such file"});
  const TestDirectory loop;
  fs::create_symlink("self", loop.File("self"));
  ExpectDirectoryRefused(loop.File("self"), {"symbolic link"});
}

TEST(SafetensorsBadDirectory, IndexAndShardsDisagree) {
  const TestDirectory dir;
  dir.Put("one.safetensors", OneByteTensors({"a"}));
  dir.Put("two.safetensors", OneByteTensors({"b"}));
  dir.Put(kIndex, IndexText({{"a", "one.safetensors"}, {"c", "two.safetensors"}}));
  ExpectDirectoryRefused(dir.path(), {kIndex, "tensor 'c' is not in", "two.safetensors"});
  dir.Put(kIndex, IndexText({{"a", "two.safetensors"}, {"b", "one.safetensors"}}));
  ExpectDirectoryRefused(dir.path(), {kIndex, "tensor 'a' is not in", "two.safetensors"});
  dir.Put("two.safetensors", OneByteTensors({"a", "b"}));
  dir.Put(kIndex, IndexText({{"a", "one.safetensors"}, {"b", "two.safetensors"}}));
  ExpectDirectoryRefused(dir.path(), {"tensor 'a' is also in", "one.safetensors"});
}

TEST(SafetensorsBadDirectory, BrokenIndex) {
  const TestDirectory dir;
  dir.Put("one.safetensors", OneByteTensors({"a"}));
  const auto expect = [&](const std::string& text, std::initializer_list<std::string_view> parts) {
    dir.Put(kIndex, text);
    ExpectDirectoryRefused(dir.path(), {kIndex});
    ExpectDirectoryRefused(dir.path(), parts);
  };
  expect("", {"malformed JSON"});
  expect("{\"weight_map\":", {"malformed JSON at byte"});
  expect("[]", {"expected an object 'weight_map'"});
  expect("{}", {"expected an object 'weight_map'"});
  expect("{\"weight_map\":[]}", {"expected an object 'weight_map'"});
  expect("{\"weight_map\":{}}", {"at least one tensor"});
  expect("{\"weight_map\":{\"a\":1}}", {"tensor 'a'", "expected a file name, found 1"});
  expect(IndexText({{"a", "one.safetensors"}, {"a", "one.safetensors"}}), {"key 'a' appears twice"});
  expect(IndexText({{"a", "../one.safetensors"}}), {"tensor 'a'", "inside the model directory"});
  expect(IndexText({{"a", "/etc/hosts"}}), {"tensor 'a'", "inside the model directory"});
  expect(IndexText({{"a", ""}}), {"tensor 'a'", "inside the model directory"});
  expect(std::string(1'000'000, '['), {"nested deeper than 64 levels"});
}

TensorToWrite Counting(const std::string& name, DType dtype, std::vector<std::int64_t> shape) {
  const auto fill = [](std::int64_t offset, std::span<std::byte> chunk) {
    for (std::size_t i = 0; i < chunk.size(); ++i)
      chunk[i] = static_cast<std::byte>((offset + std::int64_t(i)) % 251);
  };
  return {.name = name, .dtype = dtype, .shape = std::move(shape), .fill = fill};
}

void ExpectCounting(const TensorView& view) {
  for (std::size_t i = 0; i < view.data.size(); ++i) {
    ASSERT_EQ(std::to_integer<int>(view.data[i]), static_cast<int>(i % 251)) << view.name << " byte " << i;
  }
}

TEST(SafetensorsWriter, WritesWhatTheReaderReads) {
  const TestDirectory dir;
  const std::vector<TensorToWrite> tensors = {
      Counting("odd", DType::kU8, {3}),         Counting("half", DType::kF16, {5}),
      Counting("matrix", DType::kBF16, {4, 6}), Counting("scalar", DType::kI32, {}),
      Counting("none", DType::kF32, {0}),       Counting("\"quoted\"\n", DType::kI64, {2}),
      Counting("last", DType::kF8E4M3, {64})};
  WriteSafetensors(dir.File("model.safetensors"), tensors);
  const SafetensorsSet set = SafetensorsSet::OpenDirectory(dir.path());
  ASSERT_EQ(set.tensors().size(), tensors.size());
  for (const TensorToWrite& tensor : tensors) {
    const TensorView* view = set.Find(tensor.name);
    ASSERT_NE(view, nullptr) << tensor.name;
    EXPECT_EQ(view->dtype, tensor.dtype);
    EXPECT_EQ(view->shape, tensor.shape);
    ExpectCounting(*view);
  }
  EXPECT_EQ(std::distance(fs::directory_iterator(dir.path()), {}), 1) << "a temporary file is left";
}

// The format demands no holes; the header promises alignment.
TEST(SafetensorsWriter, LeavesNoHolesAndAlignsEveryTensor) {
  const TestDirectory dir;
  const std::vector<TensorToWrite> tensors = {
      Counting("u8", DType::kU8, {5}), Counting("a", DType::kF32, {2, 4}), Counting("f16", DType::kF16, {3}),
      Counting("f32", DType::kF32, {1}), Counting("b", DType::kU8, {16})};
  WriteSafetensors(dir.File("x.safetensors"), tensors);
  const MappedFile file(dir.File("x.safetensors"));
  const std::vector<TensorView> views = ParseSafetensors(file.bytes(), file.path());
  const std::byte* expected = views[0].data.data();
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(expected) % 8, 0u);
  for (const TensorView& view : views) {
    EXPECT_EQ(view.data.data(), expected) << view.name;
    const std::size_t alignment = view.data.size() % 8 == 0 ? 8 : SizeOf(view.dtype);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(view.data.data()) % alignment, 0u) << view.name;
    expected += view.data.size();
  }
  EXPECT_EQ(expected, file.bytes().data() + file.bytes().size());
  EXPECT_EQ(views[0].name, "a");
  EXPECT_EQ(views[1].name, "b");
}

TEST(SafetensorsWriter, AsksForALargeTensorInChunks) {
  const TestDirectory dir;
  std::vector<std::int64_t> offsets;
  TensorToWrite tensor = Counting("large", DType::kU8, {kWriteChunk + 24});
  const auto fill = tensor.fill;
  tensor.fill = [&](std::int64_t offset, std::span<std::byte> chunk) {
    offsets.push_back(offset);
    EXPECT_LE(static_cast<std::int64_t>(chunk.size()), kWriteChunk);
    fill(offset, chunk);
  };
  WriteSafetensors(dir.File("x.safetensors"), std::span(&tensor, 1));
  EXPECT_EQ(offsets, (std::vector<std::int64_t>{0, kWriteChunk}));
  const SafetensorsSet set = SafetensorsSet::OpenDirectory(dir.path());
  const TensorView view = *set.Find("large");
  EXPECT_EQ(std::to_integer<int>(view.data.back()), (kWriteChunk + 23) % 251);
}

TEST(SafetensorsWriter, AFailureLeavesTheOldFileAndNoOther) {
  const TestDirectory dir;
  dir.Put("x.safetensors", "old");
  TensorToWrite tensor = Counting("x", DType::kU8, {8});
  tensor.fill = [](std::int64_t, std::span<std::byte>) { throw InputError("no data"); };
  EXPECT_THROW(WriteSafetensors(dir.File("x.safetensors"), std::span(&tensor, 1)), InputError);
  EXPECT_EQ(fs::file_size(dir.File("x.safetensors")), 3u);
  EXPECT_EQ(std::distance(fs::directory_iterator(dir.path()), {}), 1);
  ExpectInputError([&] { WriteSafetensors(dir.File("absent/x"), {}); }, {"absent/x", "cannot create"});
}

TEST(TensorViewTest, ReadsFloatsOfEveryFormatAndRows) {
  const std::vector<std::uint16_t> bf16 = {0x3f80, 0xc000, 0x4040, 0x4080};
  TensorView view{.dtype = DType::kBF16, .shape = {2, 2}, .data = std::as_bytes(std::span(bf16))};
  EXPECT_EQ(view.Floats(), (std::vector<float>{1, -2, 3, 4}));
  const TensorView row = view.Rows(1, 2);
  EXPECT_EQ(row.shape, (std::vector<std::int64_t>{1, 2}));
  EXPECT_EQ(row.Floats(), (std::vector<float>{3, 4}));
  EXPECT_EQ(view.Rows(1, 1).elements(), 0);

  const std::vector<std::uint16_t> f16 = {0x3c00};
  const std::vector<float> f32 = {0.1f};
  const std::vector<std::uint8_t> bytes = {0x38};
  EXPECT_EQ((TensorView{.dtype = DType::kF16, .shape = {1}, .data = std::as_bytes(std::span(f16))}).Float(0),
            1.0f);
  EXPECT_EQ((TensorView{.dtype = DType::kF32, .shape = {1}, .data = std::as_bytes(std::span(f32))}).Float(0),
            0.1f);
  EXPECT_EQ(
      (TensorView{.dtype = DType::kF8E4M3, .shape = {1}, .data = std::as_bytes(std::span(bytes))}).Float(0),
      1.0f);
  EXPECT_EQ(
      (TensorView{.dtype = DType::kF8E8M0, .shape = {1}, .data = std::as_bytes(std::span(bytes))}).Float(0),
      0x1p-71f);
}

}  // namespace
}  // namespace lockstep
