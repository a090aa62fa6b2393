// digits: several workers train one classifier of handwritten digits. The classifier knows nothing
// of them: it gives parameters and gradients as flat vectors, and AsDistributed() does the rest. With
// `--train layers` a trainer runs it layer by layer: see DigitsLayers.cs.
//
//   $ bindings/dotnet/build.sh build/dotnet; export LD_LIBRARY_PATH=build/release
//   $ trireme run --nproc-per-node 4 -- mono build/dotnet/Digits.exe --strategy zero3
//   language=csharp strategy=zero3 ranks=4 mode=processes accuracy=97.21 seconds=4.012 ...
//   $ mono build/dotnet/Digits.exe --strategy zero3 --threads 4     the same with ranks as threads
//
// The trained parameters are the same bits for every strategy and every number of ranks.
using System;
using System.Collections.Generic;
using System.Diagnostics;
using System.Globalization;
using System.IO;
using System.IO.Compression;
using System.Linq;
using System.Threading;
using Trireme;

/// <summary>The images, 8 x 8 pixels each, and what they show.</summary>
internal sealed class DigitsData
{
    public const int Pixels = 64;
    public const int Rows = 1797;
    public readonly float[][] Images = new float[Rows][];
    public readonly int[] Labels = new int[Rows];

    public DigitsData(string path)
    {
        using (var reader = new StreamReader(
                   new GZipStream(File.OpenRead(path), CompressionMode.Decompress)))
        {
            for (int row = 0; row < Rows; ++row)
            {
                int[] cells = (reader.ReadLine() ?? "0").Split(',').Select(int.Parse).ToArray();
                if (cells.Length != Pixels + 1) throw new InvalidDataException("no digits file");
                Images[row] = cells.Take(Pixels).Select(pixel => pixel / 16.0f).ToArray();
                Labels[row] = cells[Pixels];
            }
        }
    }
}

/// <summary>
/// The 64-128-64-10 classifier; a batch is a few rows of the data. Every operation is cast to
/// float: C# may otherwise compute it in double, and the bits would differ from other languages'.
/// </summary>
internal sealed class Classifier : IGradientModel<float, ArraySegment<int>>
{
    public const int Batch = 64;
    public const int Layers = 3;
    public static readonly int[] Width = { DigitsData.Pixels, 128, 64, 10 };
    private readonly DigitsData data;
    private readonly float[] parameters = new float[WeightsOf(Layers)];
    private readonly float[] gradients = new float[WeightsOf(Layers)];

    public Classifier(DigitsData data, ref ulong random)
    {
        this.data = data;
        for (int layer = 0; layer < Layers; ++layer)
        {
            double limit = Math.Sqrt(6.0 / Width[layer]);
            for (int i = WeightsOf(layer); i < BiasesOf(layer); ++i)
            {
                double unit = (NextRandom(ref random) >> 40) * (1.0 / (1 << 24));
                parameters[i] = (float)((2 * unit - 1) * limit);
            }
        }
    }

    public static ulong NextRandom(ref ulong state) // splitmix64
    {
        ulong z = unchecked(state += 0x9e3779b97f4a7c15);
        z = unchecked((z ^ (z >> 30)) * 0xbf58476d1ce4e5b9);
        z = unchecked((z ^ (z >> 27)) * 0x94d049bb133111eb);
        return z ^ (z >> 31);
    }

    public int ParameterCount => parameters.Length;
    public float[] GetParameters() => parameters;
    public void SetParameters(float[] values) => values.CopyTo(parameters, 0);

    public float[] ComputeGradients(ArraySegment<int> rows)
    {
        Array.Clear(gradients, 0, gradients.Length);
        foreach (int row in rows)
        {
            float[][] values = Forward(data.Images[row]);
            float[] delta = OutputDelta(values[Layers], data.Labels[row]);
            for (int layer = Layers - 1; layer >= 0; --layer)
            {
                AddGradients(layer, values[layer], delta);
                if (layer > 0) delta = DeltaBelow(layer, values[layer], delta);
            }
        }
        return gradients;
    }

    /// <summary>Percent of the test rows, every fifth, that are recognised.</summary>
    public double Accuracy()
    {
        int right = 0, all = 0;
        for (int row = 4; row < DigitsData.Rows; row += 5, ++all)
        {
            float[] scores = Forward(data.Images[row])[Layers];
            right += Array.IndexOf(scores, scores.Max()) == data.Labels[row] ? 1 : 0;
        }
        return 100.0 * right / all;
    }

    /// <summary>The parameters by name, in the order of the vector; a unit a layer.</summary>
    public static IReadOnlyList<ParameterOptions> Describe()
    {
        var described = new List<ParameterOptions>();
        for (int i = 0; i < Layers; ++i)
        {
            string unit = "layer" + (i + 1);
            var weightShape = new long[] { Width[i], Width[i + 1] };
            described.Add(new ParameterOptions(unit + ".weight", ElementType.F32, weightShape));
            described.Add(new ParameterOptions(unit + ".bias", ElementType.F32, Width[i + 1]));
            described[2 * i].Unit = described[2 * i + 1].Unit = unit;
        }
        return described;
    }

    // Where a layer's weights begin in the vector; its biases follow them.
    private static int WeightsOf(int layer) => layer == 0 ? 0 : BiasesOf(layer - 1) + Width[layer];
    private static int BiasesOf(int layer) => WeightsOf(layer) + Width[layer] * Width[layer + 1];

    private float[][] Forward(float[] image)
    {
        var values = new float[Layers + 1][];
        values[0] = image;
        for (int layer = 0; layer < Layers; ++layer)
        {
            var sums = new float[Width[layer + 1]];
            Array.Copy(parameters, BiasesOf(layer), sums, 0, sums.Length);
            int weight = WeightsOf(layer);
            foreach (float input in values[layer])
                for (int j = 0; j < sums.Length; ++j)
                    sums[j] = (float)(sums[j] + (float)(input * parameters[weight++]));
            for (int j = 0; layer < Layers - 1 && j < sums.Length; ++j)
                sums[j] = sums[j] > 0 ? sums[j] : 0;
            values[layer + 1] = sums;
        }
        return values;
    }

    // Gradient of the cross-entropy of softmax, as its share of the whole batch.
    public static float[] OutputDelta(float[] scores, int label)
    {
        double largest = scores.Max();
        double[] exponentials = scores.Select(score => Math.Exp(score - largest)).ToArray();
        double sum = exponentials.Aggregate((all, next) => all + next);
        var delta = new float[scores.Length];
        for (int c = 0; c < scores.Length; ++c)
            delta[c] = (float)((exponentials[c] / sum - (c == label ? 1.0 : 0.0)) * (1.0 / Batch));
        return delta;
    }

    private void AddGradients(int layer, float[] inputs, float[] delta)
    {
        int weight = WeightsOf(layer), bias = BiasesOf(layer);
        foreach (float input in inputs)
            for (int j = 0; j < delta.Length; ++j, ++weight)
                gradients[weight] = (float)(gradients[weight] + (float)(input * delta[j]));
        for (int j = 0; j < delta.Length; ++j)
            gradients[bias + j] = (float)(gradients[bias + j] + delta[j]);
    }

    private float[] DeltaBelow(int layer, float[] inputs, float[] delta)
    {
        var below = new float[inputs.Length];
        int weight = WeightsOf(layer);
        for (int k = 0; k < inputs.Length; ++k)
        {
            foreach (float d in delta)
                below[k] = (float)(below[k] + (float)(d * parameters[weight++]));
            if (!(inputs[k] > 0)) below[k] = 0;
        }
        return below;
    }
}

internal static class Digits
{
    public const int Leaves = 8;
    private static Strategy strategy = Strategy.DataParallel;
    private static int threads, passes = 20, checkpointEvery;
    private static bool byLayers;
    private static string dataPath = "examples/data/digits.csv.gz", outPath;

    private static int Main(string[] arguments)
    {
        try
        {
            ReadOptions(arguments);
            var data = new DigitsData(dataPath);
            bool launched = Environment.GetEnvironmentVariable("RANK") != null;
            if (threads > 0) TrainOnThreads(data);
            else if (launched) Train(Communicator.FromEnvironment(), data, "processes");
            else Train(Communicator.Create(0, 1, "local://digits"), data, "alone");
            return 0;
        }
        catch (Exception failure)
        {
            bool known = failure is TriremeException;
            string status = known ? Library.NameOf(((TriremeException)failure).Status) + ": " : "";
            Console.Error.WriteLine(status + failure.Message);
            return 1;
        }
    }

    private static void ReadOptions(string[] arguments)
    {
        if (arguments.Length % 2 != 0) throw new ArgumentException("every option takes a value");
        for (int i = 0; i < arguments.Length; i += 2)
        {
            string value = arguments[i + 1];
            if (arguments[i] == "--strategy") strategy = Library.ParseStrategy(value);
            else if (arguments[i] == "--threads") threads = int.Parse(value);
            else if (arguments[i] == "--passes") passes = int.Parse(value);
            else if (arguments[i] == "--checkpoint-every") checkpointEvery = int.Parse(value);
            else if (arguments[i] == "--train" && (value == "flat" || value == "layers"))
                byLayers = value == "layers";
            else if (arguments[i] == "--data") dataPath = value;
            else if (arguments[i] == "--out") outPath = value;
            else throw new ArgumentException("unknown: " + arguments[i] + " " + value);
        }
    }

    private static void TrainOnThreads(DigitsData data)
    {
        string rendezvous = "local://digits-" + Process.GetCurrentProcess().Id;
        Exception first = null;
        Thread[] ranks = Enumerable.Range(0, threads).Select(rank => new Thread(() =>
        {
            try { Train(Communicator.Create(rank, threads, rendezvous), data, "threads"); }
            catch (Exception failure) { Interlocked.CompareExchange(ref first, failure, null); }
        })).ToArray();
        Array.ForEach(ranks, rank => rank.Start());
        Array.ForEach(ranks, rank => rank.Join());
        if (first != null) throw first;
    }

    private static void Train(Communicator communicator, DigitsData data, string mode)
    {
        ulong random = 2026;
        var classifier = new Classifier(data, ref random);
        var rule = new OptimizerOptions
        {
            Rule = RuleKind.AdamW, LearningRate = 0.003, WeightDecay = 0.01, Clipping = 1,
        };
        using (communicator)
        {
            if (byLayers) TrainLayers(communicator, classifier, rule, data, mode, random);
            else TrainFlat(communicator, classifier, rule, mode, random);
        }
    }

    private static void TrainFlat(
        Communicator communicator, Classifier classifier, OptimizerOptions rule, string mode,
        ulong random)
    {
        var options = new DistributedOptions
        {
            Strategy = strategy,
            Leaves = Leaves,
            Gradients = Gradients.Sum,
            Parameters = Classifier.Describe(),
            Optimizer = rule,
        };
        const int Leaf = Classifier.Batch / Leaves;
        using (var model = classifier.AsDistributed(communicator, options))
        {
            Stopwatch watch = Stopwatch.StartNew();
            foreach (ArraySegment<int> rows in Batches(random))
                model.Step(leaf =>
                    new ArraySegment<int>(rows.Array, rows.Offset + leaf * Leaf, Leaf));
            if (communicator.Rank == 0) Report(model.Model, classifier, mode, watch.Elapsed);
        }
    }

    private static void TrainLayers(
        Communicator communicator, Classifier classifier, OptimizerOptions rule, DigitsData data,
        string mode, ulong random)
    {
        var options = new ModelOptions
        {
            Strategy = strategy, Leaves = Leaves, Gradients = Gradients.Sum,
        };
        var checkpoints = new TrainerOptions { CheckpointEvery = (ulong)checkpointEvery };
        using (var model = new Model(communicator, options))
        {
            foreach (ParameterOptions parameter in Classifier.Describe())
                model.AddParameter(parameter);
            model.Seal();
            model.SetParameters<float>(classifier.GetParameters());
            using (var optimizer = new Optimizer(model, rule))
            using (var trainer = new Trainer(optimizer, DigitsLayers.Make(data), checkpoints))
            {
                Stopwatch watch = Stopwatch.StartNew();
                foreach (ArraySegment<int> rows in Batches(random))
                    trainer.Step(new DigitsBatch(rows));
                TimeSpan took = watch.Elapsed;
                model.GetParameters<float>(classifier.GetParameters());
                if (communicator.Rank == 0) Report(model, classifier, mode, took);
            }
        }
    }

    /// <summary>Rows of the data in an order of each pass, every fifth left out.</summary>
    private static IEnumerable<ArraySegment<int>> Batches(ulong random)
    {
        int[] order = Enumerable.Range(0, DigitsData.Rows).Where(r => r % 5 != 4).ToArray();
        for (int pass = 0; pass < passes; ++pass)
        {
            for (int i = order.Length - 1; i > 0; --i) // a shuffle by Fisher and Yates
            {
                int j = (int)(Classifier.NextRandom(ref random) % (ulong)(i + 1));
                int row = order[j];
                order[j] = order[i];
                order[i] = row;
            }
            for (int step = 0; step < order.Length / Classifier.Batch; ++step)
                yield return new ArraySegment<int>(order, step * Classifier.Batch, Classifier.Batch);
        }
    }

    private static void Report(Model model, Classifier classifier, string mode, TimeSpan took)
    {
        ModelInfo info = model.Info;
        ModelMemory memory = model.Memory;
        string accuracy = classifier.Accuracy().ToString("F2", CultureInfo.InvariantCulture);
        string seconds = took.TotalSeconds.ToString("F3", CultureInfo.InvariantCulture);
        Console.WriteLine(
            $"language=csharp strategy={Library.NameOf(info.Strategy)} ranks={info.WorldSize} " +
            $"mode={mode} accuracy={accuracy} seconds={seconds} " +
            $"parameters={memory.PlannedParameters}/{memory.AllocatedParameters} " +
            $"gradients={memory.PlannedGradients}/{memory.AllocatedGradients} " +
            $"state={memory.PlannedOptimizerState}/{memory.AllocatedOptimizerState} " +
            $"working={memory.PlannedWorking}/{memory.AllocatedWorking}");
        if (outPath == null) return;
        var bytes = new byte[sizeof(float) * classifier.ParameterCount];
        Buffer.BlockCopy(classifier.GetParameters(), 0, bytes, 0, bytes.Length);
        File.WriteAllBytes(outPath, bytes);
    }
}
