using System;
using System.Diagnostics;
using System.Globalization;
using Trireme;

// The cost of the calls of a unit in C#, in microseconds: `Units.exe hooks` as row_hooks() in
// gather.c, `Units.exe trainer` as row_trainer() in trainer.c.
internal static class OfUnits
{
    private const int Units = 1000;
    private const int Passes = 50;

    private static void Main(string[] arguments)
    {
        using (Communicator communicator = Communicator.Create(0, 1, "local://units"))
        using (var model = new Model(communicator, new ModelOptions { Strategy = Strategy.Zero3 }))
        {
            for (int unit = 0; unit < Units; ++unit)
            {
                model.AddParameter(new ParameterOptions("layer" + unit, ElementType.F32, 1));
            }

            model.Seal();
            using (var optimizer = new Optimizer(
                model, new OptimizerOptions { Rule = RuleKind.Sgd, LearningRate = 0.001 }))
            {
                long best = arguments[0] == "trainer" ? OfTrainer(optimizer)
                                                      : OfHooks(model, optimizer);
                double microseconds = best * 1e6 / Stopwatch.Frequency / Units;
                Console.WriteLine(microseconds.ToString("F4", CultureInfo.InvariantCulture));
            }
        }
    }

    private static long OfHooks(Model model, Optimizer optimizer)
    {
        long best = long.MaxValue;
        var gradient = new float[] { 1 };
        for (int pass = 0; pass < Passes; ++pass)
        {
            model.BeginBackward();
            long start = Stopwatch.GetTimestamp();
            for (ulong unit = Units; unit-- > 0;)
            {
                model.GatherUnit(unit);
                model.GradientReady<float>(unit, gradient);
                model.ReleaseUnit(unit);
            }

            best = Math.Min(best, Stopwatch.GetTimestamp() - start);
            model.EndBackward();
            optimizer.Step();
        }

        return best;
    }

    private static long OfTrainer(Optimizer optimizer)
    {
        var layers = new Layer[Units];
        for (int unit = 0; unit < Units; ++unit)
        {
            layers[unit] = new Layer("layer" + unit, DoNothing, WriteGradient)
            {
                FirstParameter = (ulong)unit, ParameterCount = 1, OutputBytes = 64, SavedBytes = 64,
            };
        }

        long best = long.MaxValue;
        using (var trainer = new Trainer(optimizer, layers))
        {
            for (int pass = 0; pass < Passes; ++pass)
            {
                long start = Stopwatch.GetTimestamp();
                trainer.Step();
                best = Math.Min(best, Stopwatch.GetTimestamp() - start);
            }
        }

        return best;
    }

    private static void DoNothing(LayerCall call)
    {
    }

    // A trainer refuses gradients that backward has not written.
    private static void WriteGradient(LayerCall call)
    {
        Span<float> gradient = call.Gradient<float>(0);
        gradient[0] = 1;
    }
}
