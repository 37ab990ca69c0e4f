// Streams float32 samples through a model, chunk by chunk, and feeds its states back:
//
//   dotnet run -- MODEL.onnx STEPS [LIBRARY] [STATE_INPUT=STATE_OUTPUT ...] < inputs.f32 > outputs.f32
//
// The model has one input that is not a state. Its first unknown dimension is STEPS, other unknown dimensions are 1; a
// chunk is as many samples as that shape has. States begin as zeros. The first output that is not a state is written.
// LIBRARY is librnnqc_ops of this system, with its folder; without it the file runs in standard operators, with the same
// bits.

using System;
using System.Collections.Generic;
using System.Linq;
using System.Runtime.InteropServices;
using Microsoft.ML.OnnxRuntime;

internal sealed class Stream
{
    private readonly InferenceSession session;
    private readonly Dictionary<string, string> states = new(); // from the input's name to the output's
    private readonly Dictionary<string, OrtValue> fed = new();
    private readonly string samples = "";
    private readonly long[] shape = Array.Empty<long>();

    private Stream(string[] arguments)
    {
        using var options = new SessionOptions { IntraOpNumThreads = 1 };
        foreach (var argument in arguments.Skip(2))
        {
            var pair = argument.Split('=', 2);
            if (pair.Length == 2) states[pair[0]] = pair[1];
            else options.RegisterCustomOpLibrary(argument);
        }
        session = new InferenceSession(arguments[0], options);
        var steps = long.Parse(arguments[1]);
        foreach (var (name, input) in session.InputMetadata)
        {
            var isState = states.ContainsKey(name);
            var known = Known(input.Dimensions, isState ? 1 : steps);
            if (isState) Feed(name, new float[Size(known)], known);
            else if (samples == "") (samples, shape) = (name, known);
            else throw new ArgumentException($"inputs '{samples}' and '{name}' are no states; say which output one of them is");
        }
        if (samples == "" || fed.Count != states.Count)
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
        using var run = new RunOptions();
        using var outputs = session.Run(run, fed, session.OutputNames);
        var named = session.OutputNames.Zip(outputs).ToDictionary(pair => pair.First, pair => pair.Second);
        foreach (var (input, output) in states)
        {
            var after = named[output];
            Feed(input, after.GetTensorDataAsSpan<float>().ToArray(), after.GetTensorTypeAndShape().Shape);
        }
        return named[session.OutputNames.First(name => !states.ContainsValue(name))].GetTensorDataAsSpan<float>().ToArray();
    }

    private static int Main(string[] arguments)
    {
        if (arguments.Length < 2)
        {
            Console.Error.WriteLine("usage: stream MODEL.onnx STEPS [LIBRARY] [STATE_INPUT=STATE_OUTPUT ...]");
            return 2;
        }
        var stream = new Stream(arguments);
        using var from = Console.OpenStandardInput();
        using var to = Console.OpenStandardOutput();
        var bytes = new byte[Size(stream.shape) * sizeof(float)];
        var chunks = 0;
        for (; from.ReadAtLeast(bytes, bytes.Length, throwOnEndOfStream: false) == bytes.Length; ++chunks)
        {
            var result = stream.Run(MemoryMarshal.Cast<byte, float>(bytes).ToArray());
            to.Write(MemoryMarshal.AsBytes<float>(result));
        }
        Console.Error.WriteLine($"{chunks} chunks");
        return 0;
    }
}
