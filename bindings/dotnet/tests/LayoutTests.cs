using System;
using System.Collections.Generic;
using System.IO;
using System.Linq;
using System.Reflection;
using System.Runtime.CompilerServices;
using System.Runtime.InteropServices;

namespace Trireme.Tests
{
    /// <summary>The binding against the files that decide the ABI.</summary>
    internal static class LayoutTests
    {
        private static readonly KeyValuePair<string, Type>[] Enums =
        {
            Pair("TRIREME_MUON_RATE_", typeof(RateAdjustment)),
            Pair("TRIREME_OFFLOAD_KIND_", typeof(OffloadKind)),
            Pair("TRIREME_OPTIMIZER_FLAG_", typeof(OptimizerFlags)),
            Pair("TRIREME_PARAMETER_FLAG_", typeof(ParameterFlags)),
            Pair("TRIREME_PLACEMENT_", typeof(Placement)),
            Pair("TRIREME_SCHEDULE_KIND_", typeof(ScheduleKind)),
            Pair("TRIREME_UNUSED_", typeof(Unused)),
            Pair("TRIREME_SHARE_", typeof(ShareParameters)),
            Pair("TRIREME_STATE_KIND_", typeof(StateKind)),
            Pair("TRIREME_MODEL_FLAG_", typeof(ModelFlags)),
            Pair("TRIREME_HOOK_", typeof(HookMoment)),
            Pair("TRIREME_GRADIENTS_", typeof(Gradients)),
            Pair("TRIREME_OPERATION_KIND_", typeof(Operation)),
            Pair("TRIREME_RULE_", typeof(RuleKind)),
            Pair("TRIREME_BACKWARD_FLAG_", typeof(BackwardFlags)),
            Pair("TRIREME_STRATEGY_", typeof(Strategy)),
            Pair("TRIREME_ALGORITHM_", typeof(Algorithm)),
            Pair("TRIREME_PRIORITY_", typeof(Priority)),
            Pair("TRIREME_OPERATION_FLAG_", typeof(OperationFlags)),
            Pair("TRIREME_DEVICE_", typeof(DeviceKind)),
            Pair("TRIREME_DTYPE_", typeof(ElementType)),
            Pair("TRIREME_ERROR_", typeof(Status)),
            Pair("TRIREME_LOG_", typeof(LogLevel)),
            Pair("TRIREME_MEMORY_KIND_", typeof(MemoryKind)),
            Pair("TRIREME_MESH_ORDER_", typeof(MeshOrder)),
            Pair("TRIREME_CONTEXT_LAYOUT_", typeof(ContextLayout)),
            Pair("TRIREME_CONTEXT_METHOD_", typeof(ContextMethod)),
            Pair("TRIREME_ATTENTION_MASK_", typeof(AttentionMask)),
            Pair("TRIREME_EXPERTS_SCORES_", typeof(ExpertScores)),
            Pair("TRIREME_EXPERTS_DROP_", typeof(ExpertDrop)),
            Pair("TRIREME_REGION_KIND_", typeof(RegionKind)),
            Pair("TRIREME_GEMM_KIND_", typeof(GemmKind)),
            Pair("TRIREME_ACTIVATION_KIND_", typeof(ActivationKind)),
            Pair("TRIREME_REGION_DIMENSION_", typeof(RegionDimension)),
            Pair("TRIREME_PHASE_", typeof(LayerPhase)),
            Pair("TRIREME_REDUCTION_", typeof(Reduction)),
        };

        private static readonly string[] Plain =
        {
            "TRIREME_PARAMETER_GROUP_FLAG_ELEMENTWISE", "TRIREME_SGD_FLAG_NESTEROV",
            "TRIREME_RMSPROP_FLAG_CENTERED", "TRIREME_MUON_FLAG_NESTEROV",
            "TRIREME_LINEAR_KIND_COLUMN", "TRIREME_LINEAR_KIND_ROW", "TRIREME_LINEAR_FLAG_BIAS",
            "TRIREME_LINEAR_FLAG_GATHERED_OUTPUT", "TRIREME_LINEAR_FLAG_INPUT_SPLIT",
            "TRIREME_MLP_FLAG_BIAS", "TRIREME_MLP_FLAG_GATED", "TRIREME_PASS_FLAG_ADD",
            "TRIREME_TENSOR_FLAG_SEQUENCE", "TRIREME_TENSOR_FLAG_KEEP_GATHERED",
            "TRIREME_SCHEDULE_FLAG_FROM_ZERO", "TRIREME_SCHEDULE_FLAG_LINEAR_ANNEALING",
            "TRIREME_VOCABULARY_FLAG_IGNORE", "TRIREME_VOCABULARY_KEPT_BYTES",
            "TRIREME_CONTEXT_FLAG_CAUSAL", "TRIREME_ATTENTION_PROVIDER_BUILTIN",
            "TRIREME_ATTENTION_PROVIDER_CALLER", "TRIREME_EXPERTS_FLAG_NORMALIZE",
            "TRIREME_EXPERTS_MAX", "TRIREME_EXPERTS_MAX_LEAVES",
        };

        [Test]
        public static void Every_struct_has_the_layout_of_the_release()
        {
            int structs = 0;
            int fields = 0;
            foreach (string[] words in Golden())
            {
                if (words[0] == "struct")
                {
                    Check.Equal(long.Parse(words[3]), SizeOf(StructOf(words[1])), words[1]);
                    ++structs;
                }
                else if (words[0] == "field")
                {
                    string[] name = words[1].Split('.');
                    Type type = StructOf(name[0]);
                    string field = Pascal(name[1]);
                    FieldInfo info = type.GetField(field);
                    Check.That(info != null, words[1] + " is missing");
                    Check.Equal(
                        long.Parse(words[3]), Marshal.OffsetOf(type, field).ToInt64(), words[1]);
                    Check.Equal(long.Parse(words[5]), SizeOf(info), words[1]);
                    ++fields;
                }
            }

            Check.That(structs >= 14 && fields > structs, structs + " structs were compared");
        }

        [Test]
        public static void Every_struct_here_is_one_of_the_release()
        {
            var known = new HashSet<string>(
                Golden().Where(words => words[0] == "struct").Select(words => words[1]));
            foreach (Type type in typeof(NativeMethods).Assembly.GetTypes().Where(
                         t => t.IsValueType && t.Name.StartsWith("Native") && !t.IsNested))
            {
                Check.That(known.Contains(Snake(type.Name.Substring(6))), type.Name + " is extra");
            }
        }

        [Test]
        public static void Every_constant_has_the_number_of_the_release()
        {
            int constants = 0;
            foreach (string[] words in Golden().Where(words => words[0] == "constant"))
            {
                long wanted = long.Parse(words[2]);
                Check.Equal(wanted, ConstantOf(words[1], wanted), words[1]);
                ++constants;
            }

            Check.That(constants > 70, constants + " constants were compared");
        }

        [Test]
        public static void Every_exported_symbol_is_bound_and_no_other()
        {
            string[] exported = File.ReadAllLines(Source("src/api/trireme.map"))
                .Select(line => line.Trim())
                .Where(line => line.StartsWith("trireme_") && line.EndsWith(";"))
                .Select(line => line.TrimEnd(';')).OrderBy(name => name).ToArray();
            string[] bound = typeof(NativeMethods)
                .GetMethods(BindingFlags.Static | BindingFlags.NonPublic)
                .Where(method => method.GetCustomAttribute<DllImportAttribute>() != null)
                .Select(method => method.Name).Where(name => name.StartsWith("trireme_"))
                .OrderBy(name => name).ToArray();
            Check.That(exported.Length >= 80, exported.Length + " symbols are exported");
            Check.Equal(string.Join(" ", exported), string.Join(" ", bound), "symbols");
        }

        [Test]
        public static void Every_bound_symbol_is_in_the_library()
        {
            foreach (MethodInfo method in typeof(NativeMethods)
                         .GetMethods(BindingFlags.Static | BindingFlags.NonPublic)
                         .Where(m => m.GetCustomAttribute<DllImportAttribute>() != null))
            {
                Marshal.Prelink(method); // throws EntryPointNotFoundException
            }
        }

        private static KeyValuePair<string, Type> Pair(string prefix, Type type)
        {
            return new KeyValuePair<string, Type>(prefix, type);
        }

        private static IEnumerable<string[]> Golden()
        {
            return File.ReadAllLines(Source("tests/abi/golden-1.0.txt"))
                .Select(line => line.Split(' ')).Where(words => words.Length >= 3);
        }

        private static string Source(string path)
        {
            string root = Environment.GetEnvironmentVariable("TRIREME_SOURCE");
            Check.That(root != null, "TRIREME_SOURCE must name the folder of the sources");
            return Path.Combine(root, path);
        }

        private static Type StructOf(string name)
        {
            string ours = "Trireme.Native" + Pascal(name.Substring("trireme_".Length));
            Type type = typeof(NativeMethods).Assembly.GetType(ours);
            Check.That(type != null && type.IsLayoutSequential, ours + " is no sequential struct");
            return type;
        }

        private static long SizeOf(Type type)
        {
            return Marshal.SizeOf(type);
        }

        private static long SizeOf(FieldInfo field)
        {
            var array = field.GetCustomAttribute<FixedBufferAttribute>();
            if (array != null)
            {
                return array.Length * SizeOf(array.ElementType);
            }

            long one = SizeOf(field.FieldType);
            return field.Name == "States" ? one * NativeMethods.TRIREME_MAX_STATES : one;
        }

        private static long ConstantOf(string name, long versionPart)
        {
            // Properties of the public classes, or their sizes. Enums of pipelines have other names.
            if (Plain.Contains(name) || name.StartsWith("TRIREME_PIPELINE_") ||
                name.StartsWith("TRIREME_PARTITION_") || name.StartsWith("TRIREME_PARALLEL_"))
            {
                const BindingFlags Hidden = BindingFlags.Static | BindingFlags.NonPublic;
                return (int)typeof(NativeMethods).GetField(name, Hidden).GetRawConstantValue();
            }

            switch (name)
            {
                case "TRIREME_OK": return (long)Status.Ok;
                case "TRIREME_MAX_BLAMED_RANKS": return NativeMethods.TRIREME_MAX_BLAMED_RANKS;
                case "TRIREME_ANY_SOURCE": return NativeMethods.TRIREME_ANY_SOURCE;
                case "TRIREME_MESH_MAX_AXES": return NativeMethods.TRIREME_MESH_MAX_AXES;
                case "TRIREME_TENSOR_MAX_BLOCKS": return NativeMethods.TRIREME_TENSOR_MAX_BLOCKS;
                case "TRIREME_CONTEXT_MAX_CHUNKS": return NativeMethods.TRIREME_CONTEXT_MAX_CHUNKS;
                case "TRIREME_MAX_STATES": return NativeMethods.TRIREME_MAX_STATES;
                case "TRIREME_LAYER_DIMENSIONS": return NativeMethods.TRIREME_LAYER_DIMENSIONS;
                case "TRIREME_OPTIMIZER_COUNTERS_VERSION":
                    return NativeMethods.TRIREME_OPTIMIZER_COUNTERS_VERSION;
                case "TRIREME_TRAINER_FLAG_ZERO_GRADIENTS":
                    return NativeMethods.TRIREME_TRAINER_FLAG_ZERO_GRADIENTS;
                case "TRIREME_TRAINER_PIPELINE_FLAG_REQUIRE_SPLIT":
                    return NativeMethods.TRIREME_TRAINER_PIPELINE_FLAG_REQUIRE_SPLIT;
                case "TRIREME_TRANSPORT_FRAME_BYTES_MIN":
                    return NativeMethods.TRIREME_TRANSPORT_FRAME_BYTES_MIN;
            }

            if (name.StartsWith("TRIREME_VERSION"))
            {
                // The headers' version; a binding works with every later one of the same major.
                Check.That(
                    name != "TRIREME_VERSION_MAJOR" || versionPart == Library.Version.Major, name);
                return versionPart;
            }

            KeyValuePair<string, Type> found = Enums.First(pair => name.StartsWith(pair.Key));
            string member = Pascal(
                name.Substring(name.IndexOf('_', name.StartsWith(found.Key) &&
                                                     found.Key.EndsWith("_")
                                                         ? found.Key.Length - 1
                                                         : "TRIREME_".Length) + 1)
                    .ToLowerInvariant());
            string match = Enum.GetNames(found.Value).FirstOrDefault(
                candidate => string.Equals(candidate, member, StringComparison.OrdinalIgnoreCase));
            Check.That(match != null, name + " is missing in " + found.Value.Name);
            return Convert.ToInt64(Enum.Parse(found.Value, match));
        }

        private static string Pascal(string snake)
        {
            return string.Concat(snake.Split('_').Where(part => part.Length > 0).Select(
                part => char.ToUpperInvariant(part[0]) + part.Substring(1)));
        }

        private static string Snake(string pascal)
        {
            return "trireme" + string.Concat(pascal.Select(
                letter => char.IsUpper(letter) ? "_" + char.ToLowerInvariant(letter)
                                               : letter.ToString()));
        }
    }
}
