using System;
using System.Diagnostics;
using System.IO;
using System.Linq;
using System.Reflection;
using System.Threading;

namespace Trireme.Tests
{
    /// <summary>Version, names, capabilities, failpoints, the log, and loading.</summary>
    internal static class LibraryTests
    {
        [Test]
        public static void The_version_and_the_build_are_told()
        {
            Check.Equal(1, Library.Version.Major);
            Check.Contains("trireme " + Library.Version, Library.BuildInfo);
        }

        [Test]
        public static void Every_value_has_a_name_and_other_numbers_are_unknown()
        {
            Check.Equal("bf16", Library.NameOf(ElementType.Bf16));
            Check.Equal("average", Library.NameOf(Reduction.Average));
            Check.Equal("halving_doubling", Library.NameOf(Algorithm.HalvingDoubling));
            Check.Equal("PEER_LOST", Library.NameOf(Status.PeerLost));
            Check.Equal("zero3", Library.NameOf(Strategy.Zero3));
            Check.Equal("adamw", Library.NameOf(RuleKind.AdamW));
            Check.Equal("lion", Library.NameOf(RuleKind.Lion));
            Check.Equal("lamb", Library.NameOf(RuleKind.Lamb));
            Check.Equal("lars", Library.NameOf(RuleKind.Lars));
            Check.Equal("adafactor", Library.NameOf(RuleKind.Adafactor));
            Check.Equal("muon", Library.NameOf(RuleKind.Muon));
            Check.Equal("unknown", Library.NameOf((ElementType)99));
            Check.Equal("unknown", Library.NameOf((Reduction)99));
            Check.Equal("unknown", Library.NameOf((Algorithm)99));
            Check.Equal("unknown", Library.NameOf((Algorithm)(-1)));
            Check.Equal("UNKNOWN", Library.NameOf((Status)99));
            Check.Equal("unknown", Library.NameOf((Strategy)99));
            Check.Equal("unknown", Library.NameOf((RuleKind)99));
            foreach (Reduction reduction in Enum.GetValues(typeof(Reduction)))
            {
                Check.That(Library.NameOf(reduction) != "unknown", reduction.ToString());
            }

            foreach (Algorithm algorithm in Enum.GetValues(typeof(Algorithm)))
            {
                string name = Library.NameOf(algorithm).Replace("_", "");
                Check.Equal(algorithm.ToString().ToLowerInvariant(), name);
            }
        }

        [Test]
        public static void Element_sizes_are_those_of_the_types()
        {
            Check.Equal(4ul, Library.SizeOf(ElementType.F32));
            Check.Equal(2ul, Library.SizeOf(ElementType.Bf16));
            Check.Equal(1ul, Library.SizeOf(ElementType.Bool));
            Check.Equal(0ul, Library.SizeOf(ElementType.Automatic));
            Check.Equal(0ul, Library.SizeOf((ElementType)17));
        }

        [Test]
        public static void Strategies_are_found_by_name_and_synonym()
        {
            Check.Equal(Strategy.Zero3, Library.ParseStrategy("FSDP"));
            Check.Equal(Strategy.DataParallel, Library.ParseStrategy("ddp"));
            Check.Equal(Strategy.NoShard, Library.ParseStrategy("NoShard"));
            Check.Equal(Strategy.ShardGradOp, Library.ParseStrategy("ShardGradOp"));
            Check.Equal(Strategy.FullShard, Library.ParseStrategy("FullShard"));
            Check.Equal(Strategy.HybridShard, Library.ParseStrategy("HybridShard"));
            Check.Equal("data_parallel", Library.NameOf(Strategy.NoShard));
            Check.Equal("zero2", Library.NameOf(Strategy.ShardGradOp));
            Check.Equal("zero3", Library.NameOf(Strategy.FullShard));
            Check.Equal(Strategy.Zero2, Library.ParseStrategy("zero2"));
        }

        [Test]
        public static void An_unknown_strategy_is_refused_by_name()
        {
            var failure = Check.Throws<InvalidArgumentException>(
                () => Library.ParseStrategy("zerö9"));
            Check.Contains("zerö9", failure.Message);
            Check.Equal(Status.InvalidArgument, failure.Status);
            Check.Equal(0, failure.BlamedRanks.Length);
            Check.Throws<InvalidArgumentException>(() => Library.ParseStrategy(null));
            Check.Throws<ArgumentException>(() => Library.ParseStrategy("zero\0three"));
        }

        [Test]
        public static void Capabilities_are_told_with_a_reason()
        {
            string reason;
            Check.That(
                Library.Supports(
                    out reason, Operation.AllReduce, ElementType.F32, Reduction.Sum,
                    DeviceKind.Host, "local"),
                "all-reduce of floats");
            Check.That(reason == null, "no reason");
            Check.That(Library.Supports(out reason), "anything");
            Check.That(!Library.Supports(out reason, device: DeviceKind.Cuda), "cuda");
            Check.That(reason.Length > 10, reason);
            Check.That(
                !Library.Supports(
                    out reason, Operation.AllReduce, ElementType.Bytes, Reduction.Sum),
                "a sum of bytes");
            Check.Throws<InvalidArgumentException>(
                () => Library.Supports(out reason, (Operation)77));
        }

        [Test]
        public static void Failpoints_are_listed_set_counted_and_cleared()
        {
            string[] names = Failpoint.Names;
            Check.That(names.Length > 0, "no failpoints");
            Check.That(names.Distinct().Count() == names.Length, "names twice");
            Failpoint.Set(names[0] + "=off");
            try
            {
                Failpoint.Hits(names[0]);
                Check.Throws<InvalidArgumentException>(() => Failpoint.Set("nonsense"));
                Check.Throws<InvalidArgumentException>(() => Failpoint.Set("no.such=kill"));
                Check.Throws<InvalidArgumentException>(() => Failpoint.Hits("no.such"));
                Check.Throws<InvalidArgumentException>(() => Failpoint.Hits(null));
            }
            finally
            {
                Failpoint.Set(null);
            }
        }

        [Test]
        public static void A_log_handler_can_be_set_replaced_and_taken_back()
        {
            Log.SetHandler((level, message) => { }, LogLevel.Debug);
            Log.SetHandler((level, message) => { }, LogLevel.Error);
            Log.SetHandler(null);
            Log.SetHandler(null);
            Check.Throws<InvalidArgumentException>(
                () => Log.SetHandler((level, message) => { }, (LogLevel)9));
        }

        [Test]
        public static void A_library_that_is_not_there_is_named_and_not_replaced()
        {
            string output = Child.Run("version", "TRIREME_LIBRARY", "/no/such/libtrireme.so.1");
            Check.Contains("DllNotFoundException", output);
            Check.Contains("/no/such/libtrireme.so.1", output);
        }

        [Test]
        public static void A_child_process_finds_the_library()
        {
            Check.Contains("version " + Library.Version, Child.Run("version"));
        }

        [Test]
        public static void The_environment_describes_the_group()
        {
            string output = Child.Run(
                "environment", "RANK", "0", "WORLD_SIZE", "1", "TRIREME_RENDEZVOUS",
                "local://from-environment");
            Check.Contains("rank 0 of 1", output);
        }

        [Test]
        public static void A_program_ends_without_any_disposal_while_a_thread_waits()
        {
            for (int i = 0; i < 5; ++i)
            {
                Check.Contains("leaves 0 5", Child.Run("waiting"));
            }
        }

        [Test]
        public static void A_program_ends_without_any_disposal_and_its_last_message_arrives()
        {
            for (int i = 0; i < 5; ++i)
            {
                string rendezvous =
                    "host://dotnet-last-" + Process.GetCurrentProcess().Id + "-" + i;
                using (Communicator here =
                           Communicator.Create(1, 2, rendezvous, Ranks.Patience))
                {
                    // The other rank has gone when this one asks for what it sent.
                    string output = Child.Run("last-message", "DOTNET_TEST_GROUP", rendezvous);
                    Check.Contains("sent by 0", output);
                    var data = new int[3];
                    here.Receive<int>(data, 0);
                    Check.Same(new[] { 7, 8, i }, data);
                    Check.Throws<PeerLostException>(() => here.Receive<int>(data, 0));
                }
            }
        }

        [Test]
        public static void A_missing_environment_variable_is_named()
        {
            string output = Child.Run("environment", "RANK", null, "WORLD_SIZE", "1");
            Check.Contains("InvalidArgumentException", output);
            Check.Contains("RANK", output);
        }
    }

    /// <summary>This program again, for what needs an environment of its own.</summary>
    internal static class Child
    {
        public static int Answer(string what)
        {
            try
            {
                if (what == "version")
                {
                    Console.WriteLine("version " + Library.Version);
                }
                else if (what == "transport")
                {
                    TransportTests.StayOpen();
                }
                else if (what == "last-message")
                {
                    SendLast(Environment.GetEnvironmentVariable("DOTNET_TEST_GROUP"));
                }
                else if (what == "devices")
                {
                    DeviceTests.Tell();
                }
                else if (what.StartsWith("device-"))
                {
                    DeviceMemoryTests.Answer(what);
                }
                else if (what == "waiting")
                {
                    Wait();
                }
                else
                {
                    using (Communicator joined = Communicator.FromEnvironment())
                    {
                        Console.WriteLine("rank " + joined.Rank + " of " + joined.WorldSize);
                    }
                }
            }
            catch (Exception exception)
            {
                Console.WriteLine(exception);
            }

            return 0;
        }

        // Leaves everything as it is: a thread inside a call, started operations, memory, a group.
        private static void Wait()
        {
            Communicator group = Communicator.Create(0, 2, "local://waiting");
            var buffer = new Buffer<float>(group, 5);
            Request request = group.StartAllReduce<float>(new float[3]);
            request.AsTask().ContinueWith(task => { });
            var inside = new ManualResetEventSlim();
            var thread = new Thread(() =>
            {
                inside.Set();
                group.Barrier();
            });
            thread.IsBackground = true;
            thread.Start();
            inside.Wait();
            Console.WriteLine("leaves " + group.Rank + " " + buffer.Length);
        }

        // Leaves an idle group, with a message that the peer has not received.
        private static void SendLast(string rendezvous)
        {
            Communicator group = Communicator.Create(0, 2, rendezvous, Ranks.Patience);
            int turn = int.Parse(rendezvous.Substring(rendezvous.LastIndexOf('-') + 1));
            group.Send<int>(new[] { 7, 8, turn }, 1);
            Console.WriteLine("sent by " + group.Rank);
        }

        public static string Run(string what, params string[] environment)
        {
            string program = Process.GetCurrentProcess().MainModule.FileName;
            string runtime = Path.GetFileName(program);
            bool hosted = runtime.StartsWith("mono") || runtime.StartsWith("dotnet");
            string first =
                hosted ? "\"" + Assembly.GetExecutingAssembly().Location + "\" " : string.Empty;
            var start = new ProcessStartInfo
            {
                FileName = program,
                Arguments = first + "--child " + what,
                UseShellExecute = false,
                RedirectStandardOutput = true,
            };
            for (int i = 0; i < environment.Length; i += 2)
            {
                if (environment[i + 1] == null)
                {
                    start.EnvironmentVariables.Remove(environment[i]);
                }
                else
                {
                    start.EnvironmentVariables[environment[i]] = environment[i + 1];
                }
            }

            using (Process child = Process.Start(start))
            {
                string output = child.StandardOutput.ReadToEnd();
                child.WaitForExit();
                Check.Equal(0, child.ExitCode, "exit code after: " + output);
                return output;
            }
        }
    }
}
