// Streams float32 samples through a model, chunk by chunk, and feeds its states back:
//
//   stream MODEL.onnx STEPS [--stock] [IN:OUT ...] < inputs.f32 > outputs.f32
//
// The model has one input that is not a state. Its first unknown dimension is STEPS, other unknown dimensions are 1; a
// chunk is as many samples as that shape has. States begin as zeros. The first output that is not a state is written.
// --stock leaves the native library out: the same bits, from standard operators.
//
//   cc -std=c99 stream.c -o stream $(pkg-config --cflags --libs rnnqc_ops libonnxruntime)

#include <onnxruntime_c_api.h>
#include <rnnqc_ops.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const OrtApi* api;
static OrtSession* session;
static OrtAllocator* allocator;

static void Fail(const char* format, const char* what) {
  fprintf(stderr, "stream: ");
  fprintf(stderr, format, what);
  fprintf(stderr, "\n");
  exit(1);
}

static void Check(OrtStatus* status) {
  if (status != NULL) Fail("%s", api->GetErrorMessage(status));
}

static void* Zeros(size_t count, size_t size) {
  void* memory = calloc(count == 0 ? 1 : count, size);
  if (memory == NULL) Fail("out of memory", "");
  return memory;
}

typedef struct {
  const char* input;
  const char* output;  // null for the samples
  float* values;
  size_t count;
  OrtValue* tensor;  // of `values`
} Fed;

// The inputs in the model's order; outputs are the first one that is no state, then the states in the order of inputs.
typedef struct {
  size_t count;
  Fed* fed;
  Fed* samples;
  const char** input_names;
  const OrtValue** input_values;
  const char** output_names;
  OrtValue** output_values;
} Stream;

// The tensor of an input, of zeros; its first unknown dimension is `first`, others are 1.
static void Allocate(size_t index, int64_t first, Fed* fed) {
  OrtTypeInfo* type;
  const OrtTensorTypeAndShapeInfo* info;
  size_t rank;
  Check(api->SessionGetInputTypeInfo(session, index, &type));
  Check(api->CastTypeInfoToTensorInfo(type, &info));
  if (info == NULL) Fail("an input is no tensor", "");
  Check(api->GetDimensionsCount(info, &rank));
  int64_t* shape = Zeros(rank, sizeof(*shape));
  Check(api->GetDimensions(info, shape, rank));
  api->ReleaseTypeInfo(type);
  fed->count = 1;
  for (size_t i = 0; i < rank; ++i) {
    if (shape[i] < 0) {
      shape[i] = first;
      first = 1;
    }
    fed->count *= (size_t)shape[i];
  }
  fed->values = Zeros(fed->count, sizeof(float));
  OrtMemoryInfo* memory;
  Check(api->CreateCpuMemoryInfo(OrtDeviceAllocator, OrtMemTypeDefault, &memory));
  Check(api->CreateTensorWithDataAsOrtValue(memory, fed->values, fed->count * sizeof(float), shape, rank,
                                            ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, &fed->tensor));
  api->ReleaseMemoryInfo(memory);
  free(shape);
}

static float* Values(OrtValue* tensor, size_t* count) {
  OrtTensorTypeAndShapeInfo* info;
  void* values;
  Check(api->GetTensorTypeAndShape(tensor, &info));
  Check(api->GetTensorShapeElementCount(info, count));
  api->ReleaseTensorTypeAndShapeInfo(info);
  Check(api->GetTensorMutableData(tensor, &values));
  return values;
}

static void Open(const char* model, int stock) {
  OrtEnv* environment;
  OrtSessionOptions* options;
  api = OrtGetApiBase()->GetApi(ORT_API_VERSION);
  if (api == NULL) Fail("onnxruntime is older than its header", "");
  Check(api->CreateEnv(ORT_LOGGING_LEVEL_WARNING, "stream", &environment));
  Check(api->CreateSessionOptions(&options));
  Check(api->SetIntraOpNumThreads(options, 1));
  if (!stock) Check(RegisterCustomOps(options, OrtGetApiBase()));
  Check(api->CreateSession(environment, model, options, &session));
  Check(api->GetAllocatorWithDefaultOptions(&allocator));
}

// The output that `pairs` give a state, or null.
static const char* OutputOf(const char* input, int count, char** pairs) {
  for (int i = 0; i < count; ++i) {
    const char* equals = strchr(pairs[i], '=');  // for names with colons
    const char* end = equals != NULL ? equals : strchr(pairs[i], ':');
    if (end == NULL) Fail("argument '%s' is neither --stock nor IN:OUT", pairs[i]);
    const size_t length = (size_t)(end - pairs[i]);
    if (strlen(input) == length && memcmp(pairs[i], input, length) == 0) return end + 1;
  }
  return NULL;
}

static void SetInputs(Stream* stream, int64_t steps, int count, char** pairs) {
  size_t states = 0;
  Check(api->SessionGetInputCount(session, &stream->count));
  stream->fed = Zeros(stream->count, sizeof(*stream->fed));
  stream->input_names = Zeros(stream->count, sizeof(*stream->input_names));
  stream->input_values = Zeros(stream->count, sizeof(*stream->input_values));
  for (size_t i = 0; i < stream->count; ++i) {
    Fed* fed = &stream->fed[i];
    char* name;
    Check(api->SessionGetInputName(session, i, allocator, &name));
    fed->input = name;
    fed->output = OutputOf(name, count, pairs);
    Allocate(i, fed->output != NULL ? 1 : steps, fed);
    stream->input_names[i] = name;
    stream->input_values[i] = fed->tensor;
    if (fed->output != NULL) {
      ++states;
    } else if (stream->samples == NULL) {
      stream->samples = fed;
    } else {
      Fail("input '%s' is a second one that is no state; name its output if it is one", name);
    }
  }
  if (stream->samples == NULL || states != (size_t)count) {
    Fail("the model has no input of a state's name, or no other input", "");
  }
}

static void SetOutputs(Stream* stream) {
  size_t outputs;
  Check(api->SessionGetOutputCount(session, &outputs));
  stream->output_names = Zeros(stream->count, sizeof(*stream->output_names));
  stream->output_values = Zeros(stream->count, sizeof(*stream->output_values));
  for (size_t i = 0, next = 1; i < stream->count; ++i) {
    if (stream->fed[i].output != NULL) stream->output_names[next++] = stream->fed[i].output;
  }
  for (size_t i = 0; i < outputs && stream->output_names[0] == NULL; ++i) {
    char* name;
    int is_state = 0;
    Check(api->SessionGetOutputName(session, i, allocator, &name));
    for (size_t k = 1; k < stream->count; ++k) is_state |= strcmp(name, stream->output_names[k]) == 0;
    if (!is_state) stream->output_names[0] = name;
  }
  if (stream->output_names[0] == NULL) Fail("every output is a state", "");
}

// Writes the output of a chunk and keeps the states after it.
static void RunChunk(Stream* stream) {
  size_t count;
  for (size_t i = 0; i < stream->count; ++i) stream->output_values[i] = NULL;
  Check(api->Run(session, NULL, stream->input_names, stream->input_values, stream->count, stream->output_names,
                 stream->count, stream->output_values));
  const float* result = Values(stream->output_values[0], &count);
  if (fwrite(result, sizeof(float), count, stdout) != count) Fail("cannot write", "");
  for (size_t i = 0, next = 1; i < stream->count; ++i) {
    Fed* fed = &stream->fed[i];
    if (fed->output == NULL) continue;
    const float* after = Values(stream->output_values[next++], &count);
    if (count != fed->count) Fail("state '%s' does not have the shape of its input", fed->input);
    memcpy(fed->values, after, count * sizeof(float));
  }
  for (size_t i = 0; i < stream->count; ++i) api->ReleaseValue(stream->output_values[i]);
}

int main(int argc, char** argv) {
  if (argc < 3) {
    fprintf(stderr, "usage: stream MODEL.onnx STEPS [--stock] [IN:OUT ...]\n");
    return 2;
  }
  const int stock = argc > 3 && strcmp(argv[3], "--stock") == 0;
  const int options = 3 + stock;
  const int64_t steps = atoll(argv[2]);
  if (steps < 1) Fail("STEPS is %s; it must be 1 or more", argv[2]);
  Stream stream = {0};
  Open(argv[1], stock);
  SetInputs(&stream, steps, argc - options, argv + options);
  SetOutputs(&stream);
  Fed* samples = stream.samples;
  int chunks = 0;
  for (; fread(samples->values, sizeof(float), samples->count, stdin) == samples->count; ++chunks) RunChunk(&stream);
  fprintf(stderr, "%d chunks, native kernels: %s\n", chunks, stock ? "none" : rnnqc_isa(NULL, 0));
  return 0;
}
