using System;
using System.IO;
using System.Reflection;
using System.Runtime.InteropServices;

namespace Trireme
{
    /// <summary>
    /// Every function and number of the native library under its own name (Abi/, generated from the
    /// headers), and where it is loaded from.
    /// </summary>
    internal static partial class NativeMethods
    {
        /// <summary>The answer of trireme_model_get_leaf() for "none".</summary>
        internal const uint NoLeaf = uint.MaxValue;

        // Found as libtrireme.so.1: on .NET by Resolve(), on Mono by Trireme.dll.config.
        private const string Library = "trireme";
        private const string SoName = "libtrireme.so.1";
        private const uint Major = 1;
        private const CallingConvention Cdecl = CallingConvention.Cdecl;

        static NativeMethods()
        {
            string chosen = Environment.GetEnvironmentVariable("TRIREME_LIBRARY");
            bool resolves = InstallResolver();
            uint version;
            try
            {
                version = trireme_version();
            }
            catch (DllNotFoundException problem)
            {
                throw new DllNotFoundException(
                    SoName + " does not load: " + problem.Message + ". TRIREME_LIBRARY is '" +
                    chosen + "'. On Mono the folder must be in LD_LIBRARY_PATH.");
            }

            if (!resolves && !string.IsNullOrEmpty(chosen))
            {
                CheckLoaded(chosen);
            }

            if (version / 1000000 != Major)
            {
                throw new DllNotFoundException(
                    SoName + " has version " + version + "; this binding needs major version " +
                    Major + ".");
            }
        }

        // .NET asks a resolver where a library is; the type is missing on Mono and .NET Framework.
        private static bool InstallResolver()
        {
            const string Namespace = "System.Runtime.InteropServices.";
            const string From = ", System.Runtime.InteropServices";
            Type loader = Type.GetType(Namespace + "NativeLibrary" + From);
            Type resolver = Type.GetType(Namespace + "DllImportResolver" + From);
            if (loader == null || resolver == null)
            {
                return false;
            }

            MethodInfo resolve = typeof(NativeMethods).GetMethod(
                nameof(Resolve), BindingFlags.Static | BindingFlags.NonPublic);
            loader.GetMethod("SetDllImportResolver").Invoke(
                null,
                new object[]
                {
                    typeof(NativeMethods).Assembly, Delegate.CreateDelegate(resolver, resolve),
                });
            return true;
        }

        private static IntPtr Resolve(
            string name, Assembly assembly, DllImportSearchPath? searchPath)
        {
            if (name != Library)
            {
                return IntPtr.Zero;
            }

            Type loader = Type.GetType(
                "System.Runtime.InteropServices.NativeLibrary, System.Runtime.InteropServices");
            string chosen = Environment.GetEnvironmentVariable("TRIREME_LIBRARY");
            if (!string.IsNullOrEmpty(chosen))
            {
                // Not found is an error and no reason to take another one in silence.
                MethodInfo load = loader.GetMethod("Load", new[] { typeof(string) });
                try
                {
                    return (IntPtr)load.Invoke(null, new object[] { FullPath(chosen) });
                }
                catch (TargetInvocationException invocation)
                {
                    throw new DllNotFoundException(invocation.InnerException.Message);
                }
            }

            MethodInfo tryLoad = loader.GetMethod(
                "TryLoad",
                new[]
                {
                    typeof(string), typeof(Assembly), typeof(DllImportSearchPath?),
                    typeof(IntPtr).MakeByRefType(),
                });
            var arguments = new object[] { SoName, assembly, searchPath, IntPtr.Zero };
            return (bool)tryLoad.Invoke(null, arguments) ? (IntPtr)arguments[3] : IntPtr.Zero;
        }

        // Mono looks for libraries before any code of ours runs, so here the variable can only be
        // compared with what was found.
        private static void CheckLoaded(string path)
        {
            const int NowIfLoaded = 2 | 4;
            using (var text = new Utf8(FullPath(path), nameof(path)))
            {
                if (dlopen(text.Pointer, NowIfLoaded) == IntPtr.Zero)
                {
                    throw new DllNotFoundException(
                        "TRIREME_LIBRARY names '" + path + "', but another " + SoName +
                        " was found. On Mono its folder must come first in LD_LIBRARY_PATH.");
                }
            }
        }

        private static string FullPath(string path)
        {
            return path.IndexOf('/') >= 0 ? Path.GetFullPath(path) : path;
        }

        [DllImport("libdl.so.2", CallingConvention = Cdecl, ExactSpelling = true)]
        private static extern IntPtr dlopen(IntPtr name, int flags);
    }
}
