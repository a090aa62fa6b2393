using System;
using System.Diagnostics;
using System.Globalization;
using Trireme;

// The cost of a call in C#; see calls.c.
internal static class Calls
{
    private const int Batch = 200;
    private const int Batches = 2000;

    private static void Main()
    {
        using (Communicator communicator = Communicator.Create(0, 1, "local://calls"))
        {
            var value = new double[] { 1 };
            double best = double.MaxValue;
            for (int batch = 0; batch < Batches; ++batch)
            {
                long start = Stopwatch.GetTimestamp();
                for (int i = 0; i < Batch; ++i)
                {
                    communicator.AllReduce(value);
                }

                long ticks = Stopwatch.GetTimestamp() - start;
                best = Math.Min(best, ticks * 1e9 / Stopwatch.Frequency / Batch);
            }

            Console.WriteLine(best.ToString("F1", CultureInfo.InvariantCulture));
        }
    }
}
