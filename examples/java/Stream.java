// Streams float32 samples through a model, chunk by chunk, and feeds its states back:
//
//   java -cp onnxruntime.jar examples/java/Stream.java MODEL.onnx STEPS [LIBRARY] [IN:OUT ...] \
//     < inputs.f32 > outputs.f32
//
// The model has one input that is not a state. Its first unknown dimension is STEPS, other unknown dimensions are 1; a
// chunk is as many samples as that shape has. States begin as zeros. The first output that is not a state is written.
// LIBRARY is librnnqc_ops of this system, with its folder; without it the file runs in standard operators, with the same
// bits.

import ai.onnxruntime.NodeInfo;
import ai.onnxruntime.OnnxTensor;
import ai.onnxruntime.OrtEnvironment;
import ai.onnxruntime.OrtException;
import ai.onnxruntime.OrtSession;
import ai.onnxruntime.TensorInfo;
import java.io.BufferedOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.FloatBuffer;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.Map;

public final class Stream {
  private final OrtEnvironment environment = OrtEnvironment.getEnvironment();
  private final OrtSession session;
  private final Map<String, String> states = new LinkedHashMap<>(); // from the input's name to the output's
  private final Map<String, OnnxTensor> fed = new HashMap<>();
  private String samples;
  private long[] shape;

  private Stream(String[] arguments) throws OrtException {
    OrtSession.SessionOptions options = new OrtSession.SessionOptions();
    options.setIntraOpNumThreads(1);
    for (int i = 2; i < arguments.length; ++i) {
      // '=' is for names with colons; a library ends in .so, .dylib or .dll
      boolean library = arguments[i].matches(".*\\.(so|dylib|dll)");
      String separator = arguments[i].contains("=") ? "=" : ":";
      String[] pair = arguments[i].split(separator, 2);
      if (pair.length == 2 && !library) {
        states.put(pair[0], pair[1]);
      } else {
        options.registerCustomOpLibrary(arguments[i]);
      }
    }
    session = environment.createSession(arguments[0], options);
    long steps = Long.parseLong(arguments[1]);
    for (Map.Entry<String, NodeInfo> input : session.getInputInfo().entrySet()) {
      boolean isState = states.containsKey(input.getKey());
      long[] known = known(((TensorInfo) input.getValue().getInfo()).getShape(), isState ? 1 : steps);
      if (isState) {
        feed(input.getKey(), new float[size(known)], known);
      } else if (samples == null) {
        samples = input.getKey();
        shape = known;
      } else {
        throw new IllegalArgumentException(
            "inputs '" + samples + "' and '" + input.getKey() + "' are no states; say which output one of them is");
      }
    }
    if (samples == null || fed.size() != states.size()) {
      throw new IllegalArgumentException("the model has no input of a state's name, or no other input");
    }
  }

  // The first unknown dimension is `first`, others are 1.
  private static long[] known(long[] shape, long first) {
    long next = first;
    for (int i = 0; i < shape.length; ++i) {
      if (shape[i] < 0) {
        shape[i] = next;
        next = 1;
      }
    }
    return shape;
  }

  private static int size(long[] shape) {
    long size = 1;
    for (long dimension : shape) size *= dimension;
    return Math.toIntExact(size);
  }

  private void feed(String input, float[] values, long[] shape) throws OrtException {
    OnnxTensor before = fed.put(input, OnnxTensor.createTensor(environment, FloatBuffer.wrap(values), shape));
    if (before != null) before.close();
  }

  // The output of a chunk; the states are those after it.
  private float[] run(float[] chunk) throws OrtException {
    feed(samples, chunk, shape);
    try (OrtSession.Result outputs = session.run(fed)) {
      for (Map.Entry<String, String> state : states.entrySet()) {
        OnnxTensor after = (OnnxTensor) outputs.get(state.getValue()).orElseThrow();
        feed(state.getKey(), values(after), after.getInfo().getShape());
      }
      String result =
          session.getOutputNames().stream().filter(name -> !states.containsValue(name)).findFirst().orElseThrow();
      return values((OnnxTensor) outputs.get(result).orElseThrow());
    }
  }

  private static float[] values(OnnxTensor tensor) {
    FloatBuffer buffer = tensor.getFloatBuffer();
    float[] values = new float[buffer.remaining()];
    buffer.get(values);
    return values;
  }

  public static void main(String[] arguments) throws OrtException, IOException {
    if (arguments.length < 2) {
      System.err.println("usage: Stream MODEL.onnx STEPS [LIBRARY] [IN:OUT ...]");
      System.exit(2);
    }
    Stream stream = new Stream(arguments);
    byte[] bytes = new byte[size(stream.shape) * Float.BYTES];
    OutputStream to = new BufferedOutputStream(System.out);
    int chunks = 0;
    for (; System.in.readNBytes(bytes, 0, bytes.length) == bytes.length; ++chunks) {
      float[] chunk = new float[bytes.length / Float.BYTES];
      ByteBuffer.wrap(bytes).order(ByteOrder.LITTLE_ENDIAN).asFloatBuffer().get(chunk);
      float[] result = stream.run(chunk);
      ByteBuffer written = ByteBuffer.allocate(result.length * Float.BYTES).order(ByteOrder.LITTLE_ENDIAN);
      written.asFloatBuffer().put(result);
      to.write(written.array());
    }
    to.flush();
    System.err.println(chunks + " chunks");
  }
}
