using System;
using System.Linq;

namespace Trireme
{
    /// <summary>C strings for the length of one call.</summary>
    internal sealed class Texts : IDisposable
    {
        private readonly Utf8[] texts;

        public Texts(string[] names, string parameterName)
        {
            if (names == null || names.Any(name => name == null))
            {
                throw new ArgumentNullException(parameterName);
            }

            texts = new Utf8[names.Length];
            try
            {
                for (int i = 0; i < names.Length; ++i)
                {
                    texts[i] = new Utf8(names[i], parameterName);
                }
            }
            catch
            {
                Dispose();
                throw;
            }

            Pointers = texts.Select(text => text.Pointer).ToArray();
        }

        public IntPtr[] Pointers { get; }

        public void Dispose()
        {
            for (int i = 0; i < texts.Length; ++i)
            {
                texts[i].Dispose();
            }
        }
    }
}
