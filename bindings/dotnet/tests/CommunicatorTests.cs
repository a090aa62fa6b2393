using System;
using System.Linq;
using System.Threading;

namespace Trireme.Tests
{
    /// <summary>Joining a group, watching it, leaving it.</summary>
    internal static class CommunicatorTests
    {
        [Test]
        public static void Every_rank_knows_its_number_and_the_size()
        {
            foreach (int world in Ranks.Worlds)
            {
                int seen = 0;
                Ranks.RunAndLeaveTogether(world, communicator =>
                {
                    communicator.WaitReady(Ranks.Patience);
                    Check.Equal(world, communicator.WorldSize);
                    Interlocked.Add(ref seen, 1 << communicator.Rank);
                });
                Check.Equal((1 << world) - 1, seen, "ranks");
            }
        }

        [Test]
        public static void A_communicator_tells_its_backend_statistics_and_flight_record()
        {
            Ranks.RunAndLeaveTogether(2, communicator =>
            {
                Check.Contains("local", communicator.Backend);
                var values = new float[100];
                for (int i = 0; i < 20; ++i)
                {
                    communicator.AllReduce<float>(values);
                }

                CommunicatorStatistics statistics = communicator.GetStatistics();
                Check.Equal(20ul, statistics.Operations);
                Check.Equal(0ul, statistics.Failures);
                Check.That(statistics.SentBytes > 0, "bytes sent");
                Check.That(statistics.ReceivedBytes > 0, "bytes received");
                Check.Equal(0ul, statistics.SentMessages, "messages in shared memory");
                string[] lines = communicator.FlightRecord.Split(
                    new[] { '\n' }, StringSplitOptions.RemoveEmptyEntries);
                Check.Equal(20, lines.Length, "lines of the flight record");
                Check.That(lines.All(line => line.StartsWith("{") && line.EndsWith("}")), "JSON");
                Check.Contains("all_reduce", lines[19]);
                string[] calls = communicator.LastCalls.Split(
                    new[] { '\n' }, StringSplitOptions.RemoveEmptyEntries);
                Check.Equal(2, calls.Length, "lines of the last calls");
                Check.Contains(
                    "\"collective\":\"all_reduce\",\"sequence\":20,", calls[communicator.Rank]);
            });
        }

        [Test]
        public static void A_rank_that_is_late_is_told_to_the_log()
        {
            string rendezvous = Ranks.NewRendezvous();
            TimeSpan soon = TimeSpan.FromMilliseconds(10);
            using (var late = new ManualResetEvent(false))
            {
                Log.SetHandler(
                    (level, message) =>
                    {
                        if (message.Contains("rank 1 has not joined for"))
                        {
                            late.Set();
                        }
                    },
                    LogLevel.Warning);
                try
                {
                    var first = new Thread(() =>
                    {
                        using (Communicator group = Communicator.Create(
                            0, 2, rendezvous, stallWarning: soon))
                        {
                            group.Barrier();
                        }
                    });
                    first.Start();
                    Check.That(late.WaitOne(Ranks.Patience), "a warning");
                    using (Communicator group = Communicator.Create(1, 2, rendezvous))
                    {
                        group.Barrier();
                        first.Join();
                    }
                }
                finally
                {
                    Log.SetHandler(null);
                }
            }
        }

        [Test]
        public static void Arguments_of_joining_are_checked()
        {
            string free = Ranks.NewRendezvous();
            Check.Throws<ArgumentNullException>(() => Communicator.Create(0, 1, null));
            Check.Throws<ArgumentException>(() => Communicator.Create(0, 1, "local://a\0b"));
            Check.Throws<UnsupportedException>(() => Communicator.Create(0, 1, ""));
            Check.Throws<UnsupportedException>(() => Communicator.Create(0, 1, "smoke://hill"));
            Check.Throws<InvalidArgumentException>(() => Communicator.Create(-1, 2, free));
            Check.Throws<InvalidArgumentException>(() => Communicator.Create(2, 2, free));
            Check.Throws<InvalidArgumentException>(() => Communicator.Create(0, 0, free));
            Check.Throws<InvalidArgumentException>(
                () => Communicator.Create(0, 1, free, name: new string('x', 64)));
            Check.Throws<UnsupportedException>(
                () => Communicator.Create(0, 1, free, backend: "no-such-backend"));
            Check.Throws<ArgumentOutOfRangeException>(
                () => Communicator.Create(0, 1, free, TimeSpan.FromSeconds(-1)));
            Check.Throws<ArgumentOutOfRangeException>(
                () => Communicator.Create(0, 1, free, stallWarning: TimeSpan.FromSeconds(-1)));
        }

        [Test]
        public static void A_place_is_taken_once()
        {
            string rendezvous = Ranks.NewRendezvous();
            using (Communicator.Create(0, 2, rendezvous))
            {
                Check.Throws<InvalidArgumentException>(
                    () => Communicator.Create(0, 2, rendezvous));
                Check.Throws<MismatchException>(() => Communicator.Create(1, 3, rendezvous));
            }
        }

        [Test]
        public static void Waiting_in_vain_names_the_missing_ranks()
        {
            using (Communicator communicator =
                       Communicator.Create(1, 3, Ranks.NewRendezvous(), name: "grüppe"))
            {
                var failure = Check.Throws<TriremeTimeoutException>(
                    () => communicator.WaitReady(TimeSpan.FromMilliseconds(10)));
                Check.Same(new[] { 0, 2 }, failure.BlamedRanks, "blamed");
                Check.Equal(2, failure.BlamedCount);
                Check.Equal("grüppe", failure.CommunicatorName);
                Check.Throws<TriremeTimeoutException>(
                    () => communicator.WaitReady(TimeSpan.Zero));
            }
        }

        [Test]
        public static void An_operation_in_vain_names_the_missing_rank()
        {
            using (var timedOut = new ManualResetEventSlim())
            {
                Ranks.Run(2, communicator =>
                {
                    communicator.WaitReady(Ranks.Patience);
                    if (communicator.Rank == 1)
                    {
                        Check.That(timedOut.Wait(Ranks.Patience), "rank 0 gives up");
                        return;
                    }

                    var options = new OperationOptions { Timeout = TimeSpan.FromMilliseconds(200) };
                    var failure = Check.Throws<TriremeTimeoutException>(
                        () => communicator.AllReduce<int>(new int[5], Reduction.Sum, options));
                    Check.Same(new[] { 1 }, failure.BlamedRanks, "blamed");
                    Check.Equal("all_reduce", failure.Operation);
                    Check.Equal(1ul, failure.Sequence);
                    timedOut.Set();
                });
            }
        }

        [Test]
        public static void An_abort_from_another_thread_ends_a_blocked_call_on_all_ranks()
        {
            Ranks.RunAndLeaveTogether(2, communicator =>
            {
                communicator.WaitReady(Ranks.Patience);
                Thread aborter = null;
                if (communicator.Rank == 0)
                {
                    aborter = new Thread(() =>
                    {
                        Thread.Sleep(50);
                        communicator.Abort("enough für heute");
                    });
                    aborter.Start();
                }

                // No rank sends, so both wait for the abort.
                var failure = Check.Throws<AbortedException>(
                    () => communicator.Receive<float>(new float[3], 1 - communicator.Rank));
                Check.Contains("enough für heute", failure.Message);
                Check.Throws<AbortedException>(() => communicator.Barrier());
                communicator.Abort();
                aborter?.Join();
            });
        }

        [Test]
        public static void A_rank_that_left_is_blamed()
        {
            using (var ready = new CountdownEvent(3))
            {
                Ranks.Run(3, communicator =>
                {
                    communicator.WaitReady(Ranks.Patience);
                    ready.Signal();
                    ready.Wait(Ranks.Patience);
                    if (communicator.Rank == 2)
                    {
                        return;
                    }

                    var failure = Check.Throws<PeerLostException>(() => communicator.Barrier());
                    Check.That(failure.BlamedRanks.Contains(2), "blames 2: " + failure.Message);
                });
            }
        }

        [Test]
        public static void A_disposed_communicator_is_refused()
        {
            Communicator communicator = Communicator.Create(0, 1, Ranks.NewRendezvous());
            communicator.Dispose();
            communicator.Dispose();
            Check.Equal(1, communicator.WorldSize);
            Check.Throws<ObjectDisposedException>(() => communicator.Barrier());
            Check.Throws<ObjectDisposedException>(() => communicator.StartBarrier());
            Check.Throws<ObjectDisposedException>(() => communicator.Abort());
            Check.Throws<ObjectDisposedException>(() => communicator.GetStatistics());
            Check.Throws<ObjectDisposedException>(() => communicator.WaitReady(TimeSpan.Zero));
            Check.Throws<ObjectDisposedException>(() => communicator.Backend.ToString());
            Check.Throws<ObjectDisposedException>(() => communicator.FlightRecord.ToString());
            Check.Throws<ObjectDisposedException>(
                () => communicator.StartAllReduce<float>(new float[1]));
            Check.Throws<ObjectDisposedException>(() => new Buffer<float>(communicator, 1));
            Check.Throws<ObjectDisposedException>(
                () => new Model(communicator, new ModelOptions { Strategy = Strategy.Zero1 }));
        }

        [Test]
        public static void A_stale_handle_is_an_error_and_no_crash()
        {
            IntPtr stale;
            using (Communicator communicator = Communicator.Create(0, 1, Ranks.NewRendezvous()))
            {
                stale = communicator.Handle.DangerousGetHandle();
            }

            using (var forged = new CommunicatorHandle(stale))
            {
                int rank;
                Check.Equal(
                    Status.InvalidHandle,
                    NativeMethods.trireme_communicator_get_rank(forged, out rank), "stale");
            }

            foreach (long number in new[] { 1L, -1L, 0x7fffffffffffL })
            {
                using (var forged = new RequestHandle(new IntPtr(number)))
                {
                    int done;
                    Check.Equal(
                        Status.InvalidHandle,
                        NativeMethods.trireme_request_test(forged, out done), "forged");
                }
            }
        }
    }
}
