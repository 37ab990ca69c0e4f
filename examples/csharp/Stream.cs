// Streams float32 samples through a model, chunk by chunk, and feeds its states back:
//
//   dotnet run -- MODEL.onnx STEPS [LIBRARY] [IN:OUT ...] < inputs.f32 > outputs.f32
//
// The model has one input that is not a state. Its first unknown dimension is STEPS, other unknown dimensions are 1; a
// chunk is as many samples as that shape has. States begin as zeros. The first output that is not a state is written.
// LIBRARY is librnnqc_ops of this system, with its folder; without it the file runs in standard operators, with the same
// bits. The language is C# 7, which the compilers of Unity and Mono know.

using System;
using System.Collections.Generic;
using System.Linq;
using Microsoft.ML.OnnxRuntime;

internal sealed class Stream
{
    private readonly InferenceSession session;
    // From the input's name to the output's.
    private readonly Dictionary<string, string> states = new Dictionary<string, string>();
    private readonly Dictionary<string, OrtValue> fed = new Dictionary<string, OrtValue>();
    private readonly string samples;
    private readonly long[] shape;

    private Stream(string[] arguments)
    {
        using (var options = new SessionOptions { IntraOpNumThreads = 1 })
        {
            foreach (var argument in arguments.Skip(2))
            {
                // '=' is for names with colons; a library ends in .so, .dylib or .dll
                var library = argument.EndsWith(".so") || argument.EndsWith(".dylib") || argument.EndsWith(".dll");
                var pair = argument.Split(new[] { argument.Contains("=") ? '=' : ':' }, 2);
                if (pair.Length == 2 && !library) states[pair[0]] = pair[1];
                else options.RegisterCustomOpLibrary(argument);
            }
            session = new InferenceSession(arguments[0], options);
        }
        var steps = long.Parse(arguments[1]);
        foreach (var input in session.InputMetadata)
        {
            var isState = states.ContainsKey(input.Key);
            var known = Known(input.Value.Dimensions, isState ? 1 : steps);
            if (isState)
            {
                Feed(input.Key, new float[Size(known)], known);
            }
            else if (samples == null)
            {
                samples = input.Key;
                shape = known;
            }
            else
            {
                throw new ArgumentException(
                    $"inputs '{samples}' and '{input.Key}' are no states; say which output one of them is");
            }
        }
        if (samples == null || fed.Count != states.Count)
            throw new ArgumentException("the model has no input of a state's name, or no other input");
    }

    // The first unknown dimension is `first`, others are 1.
    private static long[] Known(int[] shape, long first)
    {
        var known = new long[shape.Length];
        for (var i = 0; i < shape.Length; ++i)
        {
            known[i] = shape[i] < 0 ? first : shape[i];
            if (shape[i] < 0) first = 1;
        }
        return known;
    }

    private static long Size(long[] shape) => shape.Aggregate(1L, (size, dimension) => size * dimension);

    private void Feed(string input, float[] values, long[] shape)
    {
        if (fed.TryGetValue(input, out var before)) before.Dispose();
        fed[input] = OrtValue.CreateTensorValueFromMemory(values, shape);
    }

    // The output of a chunk; the states are those after it.
    private float[] Run(float[] chunk)
    {
        Feed(samples, chunk, shape);
        using (var run = new RunOptions())
        using (var outputs = session.Run(run, fed, session.OutputNames))
        {
            var named = Enumerable.Range(0, outputs.Count).ToDictionary(i => session.OutputNames[i], i => outputs[i]);
            foreach (var state in states)
            {
                var after = named[state.Value];
                Feed(state.Key, after.GetTensorDataAsSpan<float>().ToArray(), after.GetTensorTypeAndShape().Shape);
            }
            var result = session.OutputNames.First(name => !states.ContainsValue(name));
            return named[result].GetTensorDataAsSpan<float>().ToArray();
        }
    }

    // Fills `bytes`; false at the end of the stream.
    private static bool Read(System.IO.Stream from, byte[] bytes)
    {
        for (var filled = 0; filled < bytes.Length;)
        {
            var read = from.Read(bytes, filled, bytes.Length - filled);
            if (read == 0) return false;
            filled += read;
        }
        return true;
    }

    private static int Main(string[] arguments)
    {
        if (arguments.Length < 2)
        {
            Console.Error.WriteLine("usage: stream MODEL.onnx STEPS [LIBRARY] [IN:OUT ...]");
            return 2;
        }
        var stream = new Stream(arguments);
        var chunk = new float[Size(stream.shape)];
        var bytes = new byte[chunk.Length * sizeof(float)];
        var chunks = 0;
        using (var from = Console.OpenStandardInput())
        using (var to = Console.OpenStandardOutput())
        {
            for (; Read(from, bytes); ++chunks)
            {
                Buffer.BlockCopy(bytes, 0, chunk, 0, bytes.Length);
                var result = stream.Run(chunk);
                var written = new byte[result.Length * sizeof(float)];
                Buffer.BlockCopy(result, 0, written, 0, written.Length);
                to.Write(written, 0, written.Length);
            }
        }
        Console.Error.WriteLine($"{chunks} chunks");
        return 0;
    }
}
