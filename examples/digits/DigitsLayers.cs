// The classifier of Digits.cs as layers that a trainer runs: it keeps no parameters and no gradients
// of its own, but works on the library's memory. The trained parameters are the same bits.
//
//   $ mono build/dotnet/Digits.exe --train layers --strategy zero3 --threads 4 --checkpoint-every 1
using System;
using Trireme;

/// <summary>Rows of the data, cut into leaves: what a step is made of.</summary>
internal sealed class DigitsBatch
{
    public readonly ArraySegment<int> Rows;

    public DigitsBatch(ArraySegment<int> rows)
    {
        Rows = rows;
    }

    public int RowOf(uint leaf, int sample) =>
        Rows.Array[Rows.Offset + (int)leaf * DigitsLayers.Samples + sample];
}

/// <summary>One layer, and what it computes for the samples of a leaf.</summary>
internal sealed class DigitsLayers
{
    /// <summary>In a leaf.</summary>
    public const int Samples = Classifier.Batch / Digits.Leaves;
    private readonly DigitsData data;
    private readonly int inputs, outputs;
    private readonly bool first, last;

    private DigitsLayers(DigitsData data, int layer)
    {
        this.data = data;
        inputs = Classifier.Width[layer];
        outputs = Classifier.Width[layer + 1];
        first = layer == 0;
        last = layer == Classifier.Layers - 1;
    }

    /// <summary>All of them, each with its weights and biases.</summary>
    public static Layer[] Make(DigitsData data)
    {
        var layers = new Layer[Classifier.Layers];
        for (int i = 0; i < layers.Length; ++i)
        {
            var made = new DigitsLayers(data, i);
            layers[i] = new Layer("layer" + (i + 1), made.Forward, made.Backward)
            {
                FirstParameter = 2 * (ulong)i,
                ParameterCount = 2,
                OutputBytes = (ulong)(sizeof(float) * Samples * made.outputs),
            };
        }
        return layers;
    }

    private void Forward(LayerCall call)
    {
        ReadOnlySpan<float> weights = call.Parameter<float>(0), biases = call.Parameter<float>(1);
        Span<float> output = call.Output<float>();
        double loss = 0;
        for (int sample = 0; sample < Samples; ++sample)
        {
            ReadOnlySpan<float> values = Inputs(call, sample);
            Span<float> sums = output.Slice(sample * outputs, outputs);
            biases.CopyTo(sums);
            int weight = 0;
            foreach (float input in values)
                for (int j = 0; j < outputs; ++j)
                    sums[j] = (float)(sums[j] + (float)(input * weights[weight++]));
            for (int j = 0; !last && j < outputs; ++j) sums[j] = sums[j] > 0 ? sums[j] : 0;
            if (last) loss += Loss(sums, LabelOf(call, sample)) / Samples;
        }
        if (last) call.Loss = loss;
    }

    private void Backward(LayerCall call)
    {
        ReadOnlySpan<float> weights = call.Parameter<float>(0);
        Span<float> weightGradient = call.Gradient<float>(0), biasGradient = call.Gradient<float>(1);
        weightGradient.Clear();
        biasGradient.Clear();
        for (int sample = 0; sample < Samples; ++sample)
        {
            ReadOnlySpan<float> values = Inputs(call, sample);
            ReadOnlySpan<float> delta =
                last ? Classifier.OutputDelta(call.Output<float>().Slice(sample * outputs, outputs)
                           .ToArray(), LabelOf(call, sample))
                     : call.OutputGradient<float>().Slice(sample * outputs, outputs);
            int weight = 0;
            foreach (float input in values)
                for (int j = 0; j < outputs; ++j, ++weight)
                    weightGradient[weight] =
                        (float)(weightGradient[weight] + (float)(input * delta[j]));
            for (int j = 0; j < outputs; ++j) biasGradient[j] = (float)(biasGradient[j] + delta[j]);
            if (first) continue;
            Span<float> below = call.InputGradient<float>().Slice(sample * inputs, inputs);
            weight = 0;
            for (int k = 0; k < inputs; ++k)
            {
                float sum = 0;
                foreach (float d in delta) sum = (float)(sum + (float)(d * weights[weight++]));
                below[k] = values[k] > 0 ? sum : 0; // of the ReLU before this layer
            }
        }
    }

    private ReadOnlySpan<float> Inputs(LayerCall call, int sample) =>
        first ? data.Images[((DigitsBatch)call.Batch).RowOf(call.Leaf, sample)]
              : call.Input<float>().Slice(sample * inputs, inputs);

    private int LabelOf(LayerCall call, int sample) =>
        data.Labels[((DigitsBatch)call.Batch).RowOf(call.Leaf, sample)];

    private static double Loss(ReadOnlySpan<float> scores, int label)
    {
        double sum = 0;
        foreach (float score in scores) sum += Math.Exp(score - scores[label]);
        return Math.Log(sum);
    }
}
