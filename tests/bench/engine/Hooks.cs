using System;
using System.Diagnostics;
using System.Globalization;
using Trireme;

// What the hooks of a unit cost in C#, in microseconds; see row_hooks() in gather.c.
internal static class Hooks
{
    private const int Units = 1000;
    private const int Passes = 50;

    private static void Main()
    {
        using (Communicator communicator = Communicator.Create(0, 1, "local://hooks"))
        using (var model = new Model(communicator, new ModelOptions { Strategy = Strategy.Zero3 }))
        {
            for (int unit = 0; unit < Units; ++unit)
            {
                model.AddParameter(new ParameterOptions("layer" + unit, ElementType.F32, 1));
            }

            model.Seal();
            using (var optimizer = new Optimizer(
                model, new OptimizerOptions { Kind = OptimizerKind.Sgd, LearningRate = 0.001 }))
            {
                double best = double.MaxValue;
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

                    long ticks = Stopwatch.GetTimestamp() - start;
                    best = Math.Min(best, ticks * 1e6 / Stopwatch.Frequency / Units);
                    model.EndBackward();
                    optimizer.Step();
                }

                Console.WriteLine(best.ToString("F4", CultureInfo.InvariantCulture));
            }
        }
    }
}
