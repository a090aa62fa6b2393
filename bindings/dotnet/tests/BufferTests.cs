using System;

namespace Trireme.Tests
{
    /// <summary>Memory that peers read in place.</summary>
    internal static class BufferTests
    {
        [Test]
        public static void A_buffer_is_zero_and_has_the_size_asked_for()
        {
            using (Communicator c = Communicator.Create(0, 1, Ranks.NewRendezvous()))
            using (var buffer = new Buffer<double>(c, 1000))
            using (var empty = new Buffer<int>(c, 0))
            {
                Check.Equal(1000, buffer.Span.Length);
                Check.Equal(8000ul, buffer.Bytes);
                Check.Equal(0, empty.Span.Length);
                Check.Equal(0ul, empty.Bytes);
                foreach (double value in buffer.Span)
                {
                    Check.Equal(0.0, value);
                }
            }
        }

        [Test]
        public static void Collectives_work_on_the_memory_of_a_buffer()
        {
            Ranks.RunAndLeaveTogether(3, c =>
            {
                using (var buffer = new Buffer<float>(c, 5000))
                {
                    buffer.Span.Fill(c.Rank + 1);
                    c.AllReduce(buffer.Span);
                    Check.Equal(6f, buffer.Span[4999]);
                    c.StartAllReduce(buffer.Memory.Slice(1000)).Wait();
                    Check.Equal(6f, buffer.Span[999]);
                    Check.Equal(18f, buffer.Span[1000]);
                    var gathered = new float[6];
                    c.AllGather<float>(buffer.Span.Slice(999, 2), gathered);
                    Check.Same(new[] { 6f, 18f, 6f, 18f, 6f, 18f }, gathered, "gathered");
                }
            });
        }

        [Test]
        public static void Disposing_a_buffer_in_use_lets_the_operation_end()
        {
            Ranks.RunAndLeaveTogether(2, c =>
            {
                var buffer = new Buffer<float>(c, 100000);
                buffer.Span.Fill(1);
                Request request = c.StartAllReduce(buffer.Memory);
                buffer.Dispose();
                Check.Throws<ObjectDisposedException>(() => buffer.GetSpan());
                request.Wait();
                buffer.Dispose();
                c.Barrier();
            });
        }

        [Test]
        public static void Wrong_buffers_are_refused()
        {
            using (Communicator c = Communicator.Create(0, 1, Ranks.NewRendezvous()))
            {
                Check.Throws<ArgumentNullException>(() => new Buffer<float>(null, 1));
                Check.Throws<ArgumentOutOfRangeException>(() => new Buffer<float>(c, -1));
                Check.Throws<NotSupportedException>(
                    () => new Buffer<System.Collections.Generic.KeyValuePair<int, string>>(c, 1));
                using (var buffer = new Buffer<float>(c, 3))
                {
                    Check.Throws<ArgumentOutOfRangeException>(() => buffer.Pin(4));
                    Check.Throws<ArgumentOutOfRangeException>(() => buffer.Pin(-1));
                }

                var gone = new Buffer<float>(c, 3);
                gone.Dispose();
                Check.Throws<ObjectDisposedException>(() => gone.Bytes.ToString());
                Check.Throws<ObjectDisposedException>(() => gone.Pin());
            }
        }
    }
}
