using System;
using System.IO;
using System.Linq;

namespace Trireme.Tests
{
    /// <summary>Optimizer state in a file: the same bits, and ranges that are copied.</summary>
    internal static class OffloadTests
    {
        private const int Elements = 5000;

        [Test]
        public static void The_bits_are_the_same_and_ranges_are_copied()
        {
            string path = NewFolder();
            Ranks.RunAndLeaveTogether(2, c =>
            {
                var memory = new OptimizerOptions { Rule = RuleKind.Adam };
                var file = new OptimizerOptions
                {
                    Rule = RuleKind.Adam,
                    Offload = new Offload(path) { BufferBytes = 32768 },
                };
                using (Model plain = NewModel(c))
                using (Model model = NewModel(c))
                using (var rule = new Optimizer(plain, memory))
                using (var offloaded = new Optimizer(model, file))
                {
                    Train(c, plain, rule);
                    Train(c, model, offloaded);
                    Check.That(rule.Save().SequenceEqual(offloaded.Save()), "saved bytes");
                    OffloadInfo info = offloaded.OffloadInfo;
                    Check.Equal(path, info.Path);
                    Check.Equal(info.Direct, info.WhyNotDirect.Length == 0);
                    Check.Equal(info.IoUring, info.WhyNotIoUring.Length == 0);
                    Check.Equal(0ul, info.ResidentBytes + info.FailedWrites);
                    Check.Equal(3 * info.FileBytes, info.WrittenBytes);
                    StateRange[] ranges = offloaded.GetRanges();
                    for (int i = 0; i < ranges.Length; ++i)
                    {
                        float[] values = offloaded.ReadRange<float>(i);
                        Check.Equal(ranges[i].Count, (ulong)values.Length);
                        if (ranges[i].Kind == StateKind.Parameter)
                        {
                            Check.Same(values, ranges[i].GetData<float>().ToArray(), "parameter");
                            continue;
                        }

                        StateRange range = ranges[i];
                        Check.Throws<InvalidOperationException>(() => range.GetData<float>());
                        float[] changed = values.Select(v => (2 * v) + 1).ToArray();
                        offloaded.WriteRange<float>(i, changed);
                        Check.Same(changed, offloaded.ReadRange<float>(i), "written");
                        int number = i;
                        Check.Throws<ArgumentException>(() => offloaded.ReadRange<double>(number));
                        Check.Throws<InvalidArgumentException>(
                            () => offloaded.WriteRange<float>(number, new float[1]));
                    }
                }
            });
            Directory.Delete(path); // and nothing in it
        }

        [Test]
        public static void Parameters_in_a_file_have_the_same_bits()
        {
            string path = NewFolder();
            Ranks.RunAndLeaveTogether(2, c =>
            {
                var memory = new ModelOptions
                {
                    Strategy = Strategy.Zero3,
                    Shards = new Shards { Share = ShareParameters.Never },
                };
                var file = new ModelOptions
                {
                    Strategy = Strategy.Zero3,
                    Offload = new Offload(path) { BufferBytes = 32768 },
                };
                var adam = new OptimizerOptions { Rule = RuleKind.Adam };
                using (Model plain = NewModel(c, memory))
                using (Model model = NewModel(c, file))
                using (var rule = new Optimizer(plain, adam))
                using (var offloaded = new Optimizer(model, adam))
                {
                    Train(c, plain, rule);
                    Train(c, model, offloaded);
                    Check.That(rule.Save().SequenceEqual(offloaded.Save()), "saved bytes");
                    OffloadInfo info = model.OffloadInfo;
                    Check.Equal(path, info.Path);
                    Check.Equal(0ul, info.ResidentBytes + info.FailedWrites);
                    Check.Equal(4 * info.FileBytes, info.WrittenBytes);
                    Check.Equal(0ul, model.Memory.AllocatedParameters);
                    StateRange range = offloaded.GetRanges()[0];
                    Check.Equal(StateKind.Parameter, range.Kind);
                    Check.Throws<InvalidOperationException>(() => range.GetData<float>());
                    float[] values = offloaded.ReadRange<float>(0);
                    Check.Same(rule.ReadRange<float>(0), values, "parameters");
                    float[] changed = values.Select(v => (2 * v) + 1).ToArray();
                    offloaded.WriteRange<float>(0, changed);
                    Check.Same(changed, offloaded.ReadRange<float>(0), "written");
                    Check.Throws<InvalidStateException>(() => GC.KeepAlive(plain.OffloadInfo));
                }

                foreach (Offload wrong in new[]
                {
                    new Offload(string.Empty), new Offload(path) { Ratio = 1.5 },
                    new Offload(path) { BufferBytes = 100 },
                })
                {
                    var options = new ModelOptions { Strategy = Strategy.Zero3, Offload = wrong };
                    var failure = Check.Throws<InvalidArgumentException>(
                        () => new Model(c, options));
                    Check.Contains("options.offload.", failure.Message);
                }

                var whole = new ModelOptions { Strategy = Strategy.Zero2, Offload = path };
                Check.Throws<UnsupportedException>(() => new Model(c, whole));
            });
            Directory.Delete(path); // and nothing in it
        }

        [Test]
        public static void What_cannot_be_offloaded_is_refused()
        {
            string path = NewFolder();
            using (Communicator c = Communicator.Create(0, 1, Ranks.NewRendezvous()))
            using (Model model = NewModel(c))
            {
                foreach (Offload wrong in new[]
                {
                    new Offload(string.Empty), new Offload(path) { Ratio = 1.5 },
                    new Offload(path) { BufferBytes = 100 },
                })
                {
                    var options = new OptimizerOptions { Rule = RuleKind.Adam, Offload = wrong };
                    var failure = Check.Throws<InvalidArgumentException>(
                        () => new Optimizer(model, options));
                    Check.Contains("options.offload.", failure.Message);
                }

                var nowhere = new OptimizerOptions
                {
                    Rule = RuleKind.Adam,
                    Offload = "/nowhere/at/all",
                };
                var missing = Check.Throws<SystemErrorException>(
                    () => new Optimizer(model, nowhere));
                Check.Contains("/nowhere/at/all", missing.Message);
                var plain = new OptimizerOptions { Rule = RuleKind.Adam };
                using (var rule = new Optimizer(model, plain))
                {
                    Check.Throws<InvalidStateException>(() => GC.KeepAlive(rule.OffloadInfo));
                }
            }

            Directory.Delete(path);
        }

        private static string NewFolder()
        {
            string path = Path.Combine(Path.GetTempPath(), "trireme-" + Guid.NewGuid());
            Directory.CreateDirectory(path);
            return path;
        }

        private static Model NewModel(Communicator c)
        {
            return NewModel(c, new ModelOptions { Strategy = Strategy.Zero1 });
        }

        private static Model NewModel(Communicator c, ModelOptions options)
        {
            var model = new Model(c, options);
            model.AddParameter(new ParameterOptions("a", ElementType.F32, Elements));
            model.Seal();
            float[] start = Enumerable.Range(0, Elements).Select(i => (i % 7) - 3f).ToArray();
            model.SetParameters<float>(start);
            return model;
        }

        private static void Train(Communicator c, Model model, Optimizer optimizer)
        {
            for (int step = 0; step < 3; ++step)
            {
                int shift = step + c.Rank;
                float[] gradient = Enumerable.Range(0, Elements)
                    .Select(i => (((3 * i) + shift) % 11) - 4.5f).ToArray();
                model.AccumulateFlat<float>(gradient);
                optimizer.Step();
            }
        }
    }
}
