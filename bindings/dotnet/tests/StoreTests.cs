using System;
using System.IO;
using System.Linq;
using System.Threading;

namespace Trireme.Tests
{
    /// <summary>The job's store, over TCP and in a file.</summary>
    internal static class StoreTests
    {
        private const string Token = "a token of the tests of the store";

        [Test]
        public static void Operations_do_what_they_say()
        {
            Both((one, two) =>
            {
                Check.Equal(true, two.Get("k") == null, "absent");
                foreach (int size in new[] { 0, 3, 100000 })
                {
                    byte[] value = Enumerable.Range(0, size).Select(i => (byte)i).ToArray();
                    one.Set("k", value);
                    Check.Same(value, two.Get("k"), "value");
                }

                one.Set("text", "\u00e4");
                Check.Same(new byte[] { 0xc3, 0xa4 }, two.Get("text"), "text");
                Check.Equal(1L, one.Add("n"), "sum");
                Check.Equal(-4L, two.Add("n", -5), "sum");
                byte[] first = { 1 }, second = { 2 };
                Check.Equal(true, one.CompareExchange("c", null, first), "absent");
                Check.Equal(false, two.CompareExchange("c", null, second), "present");
                Check.Equal(false, two.CompareExchange("c", new byte[0], second), "other");
                Check.Equal(true, two.CompareExchange("c", first, second), "same");
                Check.Same(second, one.Get("c"), "exchanged");
                Check.Equal(true, one.Delete("c"), "deleted");
                Check.Equal(false, two.Delete("c"), "deleted again");
                two.Wait(TimeSpan.Zero, "k", "n");
                var setter = new Thread(() => one.Set("late", "value"));
                setter.Start();
                two.Wait(Ranks.Patience, "late");
                setter.Join();
            });
        }

        [Test]
        public static void Failures_are_exceptions_and_change_nothing()
        {
            Both((one, two) =>
            {
                one.Set("text", "no number");
                Check.Throws<InvalidStateException>(() => two.Add("text"));
                Check.Throws<TriremeTimeoutException>(() => two.Wait(TimeSpan.Zero, "text", "never"));
                Check.Throws<InvalidArgumentException>(() => one.Set("", "v"));
                Check.Throws<InvalidArgumentException>(() => one.Set(new string('k', 1025), "v"));
                Check.Throws<InvalidArgumentException>(
                    () => one.Set("k", new byte[(1 << 20) + 1]));
                Check.Throws<ArgumentNullException>(() => one.Set(null, "v"));
                Check.Throws<ArgumentNullException>(() => one.Set("k", (byte[])null));
                Check.Throws<ArgumentNullException>(() => one.Wait(TimeSpan.Zero, "k", null));
                Check.Throws<ArgumentException>(() => one.Get("a\0b"));
                Check.Equal(true, two.Get("k") == null, "absent");
                one.Dispose();
                Check.Throws<ObjectDisposedException>(() => one.Get("text"));
            });
        }

        [Test]
        public static void A_store_that_is_gone_is_an_exception()
        {
            Environment.SetEnvironmentVariable("TRIREME_TOKEN", Token);
            Store store = Store.Serve();
            string address = store.Address;
            using (Store other = Store.Connect(address, Ranks.Patience))
            {
                store.Dispose();
                Check.Throws<PeerLostException>(() => other.Add("n"));
            }

            Check.Throws<TriremeTimeoutException>(
                () => Store.Connect(address, TimeSpan.FromMilliseconds(50)));
            Check.Throws<InvalidArgumentException>(() => Store.Connect("http://a:1"));
        }

        // Two ends of a store over TCP, and of one in a file.
        private static void Both(Action<Store, Store> test)
        {
            Environment.SetEnvironmentVariable("TRIREME_TOKEN", Token);
            string path = Path.Combine(Path.GetTempPath(), Path.GetRandomFileName());
            foreach (bool served in new[] { true, false })
            {
                using (Store one = served ? Store.Serve("tcp://127.0.0.1:0", Ranks.Patience)
                                          : Store.Connect("file://" + path, Ranks.Patience))
                using (Store two = Store.Connect(one.Address, Ranks.Patience))
                {
                    test(one, two);
                }
            }

            File.Delete(path);
        }
    }
}
