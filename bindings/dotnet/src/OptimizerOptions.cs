using System;
using System.Collections.Generic;

namespace Trireme
{
    /// <summary>How the step clips gradients. A number is MaxNorm.</summary>
    public sealed class Clipping
    {
        /// <summary>
        /// The global L2 norm of all gradients is clipped to this; 0 or more, finite. 0: no clipping.
        /// </summary>
        public double MaxNorm { get; set; }

        /// <summary>
        /// Each reduced gradient is clipped to [-MaxValue, MaxValue], before MaxNorm sees it. 0: no
        /// clipping.
        /// </summary>
        public double MaxValue { get; set; }

        /// <summary>The global norm.</summary>
        public static implicit operator Clipping(double maxNorm)
        {
            return new Clipping { MaxNorm = maxNorm };
        }

        internal unsafe NativeClippingOptions Native()
        {
            return new NativeClippingOptions
            {
                StructSize = (uint)sizeof(NativeClippingOptions),
                MaxNorm = MaxNorm,
                MaxValue = MaxValue,
            };
        }
    }

    /// <summary>
    /// Settings of a group of parameters. ParameterOptions.ParameterGroup is the number of
    /// the group in OptimizerOptions.Groups.
    /// </summary>
    public sealed class ParameterGroup
    {
        /// <summary>
        /// The L2 norm of the group's gradients is clipped to this. Not with Clipping.MaxNorm. 0: no
        /// clipping.
        /// </summary>
        public double MaxNorm { get; set; }

        /// <summary>
        /// The group's learning rate is the optimizer's times this; 0 or more, finite.
        /// Optimizer.SetGroupRateFactor() changes it. Null: 1.
        /// </summary>
        public double? RateFactor { get; set; }

        /// <summary>
        /// The group's weight decay; 0 or more, finite, such as 0 for biases. Not with a UserRule.
        /// Null: that of the OptimizerOptions.
        /// </summary>
        public double? WeightDecay { get; set; }

        /// <summary>
        /// Of Muon: no parameter of the group counts as a matrix, as is best for embeddings and
        /// output layers.
        /// </summary>
        public bool Elementwise { get; set; }

        internal unsafe NativeParameterGroup Native(CallMemory memory)
        {
            return new NativeParameterGroup
            {
                StructSize = (uint)sizeof(NativeParameterGroup),
                Flags = Elementwise
                    ? (uint)NativeMethods.TRIREME_PARAMETER_GROUP_FLAG_ELEMENTWISE
                    : 0,
                MaxNorm = MaxNorm,
                RateFactor = memory.Put(RateFactor),
                WeightDecay = memory.Put(WeightDecay),
            };
        }
    }

    /// <summary>How a model is updated; null and zero are the defaults.</summary>
    public sealed class OptimizerOptions
    {
        /// <summary>
        /// The update rule, such as new AdamW { Beta2 = 0.95 } or RuleKind.AdamW; required.
        /// </summary>
        public Rule Rule { get; set; }

        public OptimizerFlags Flags { get; set; }

        /// <summary>Learning rate of the first steps. 0: 0.001; for Adafactor 0.01.</summary>
        public double LearningRate { get; set; }

        /// <summary>0 or more, finite; not with a UserRule.</summary>
        public double WeightDecay { get; set; }

        /// <summary>How gradients are clipped, or just the global norm. Null: not at all.</summary>
        public Clipping Clipping { get; set; }

        /// <summary>
        /// Settings of groups of parameters, at most 1,024. Null: no groups, and every
        /// ParameterOptions.ParameterGroup is 0.
        /// </summary>
        public IReadOnlyList<ParameterGroup> Groups { get; set; }

        /// <summary>
        /// How losses are scaled, or just the first scale. Null: they are not, and an inf or NaN
        /// goes through the rule.
        /// </summary>
        public LossScale LossScale { get; set; }

        /// <summary>
        /// A file of optimizer state, which streams through memory at each step, or just its
        /// directory. Null: all state stays in memory.
        /// </summary>
        public Offload Offload { get; set; }

        /// <summary>
        /// The ranks of all models that step together, such as data x tensor. Their gradients have
        /// one norm, and with LossScale they skip a step together. Null: the ranks of the model.
        /// </summary>
        public Communicator NormRanks { get; set; }

        /// <summary>
        /// After every so many steps, Model.CheckReplicas() is part of the step; 0 is never.
        /// </summary>
        public ulong CheckEvery { get; set; }

        /// <summary>
        /// With <see cref="OptimizerFlags.StochasticRounding"/>: other numbers, other draws.
        /// </summary>
        public ulong RoundingSeed { get; set; }

        /// <summary>All but NormRanks, and the options of a UserRule.</summary>
        internal unsafe NativeOptimizerOptions Native(CallMemory memory)
        {
            var groups = new NativeParameterGroup[Groups?.Count ?? 0];
            for (int i = 0; i < groups.Length; ++i)
            {
                ParameterGroup group = Groups[i];
                if (group == null)
                {
                    throw new ArgumentException("Groups[" + i + "] is null.", "options");
                }

                groups[i] = group.Native(memory);
            }

            return new NativeOptimizerOptions
            {
                StructSize = (uint)sizeof(NativeOptimizerOptions),
                Kind = (int)Rule.Kind,
                Flags = (uint)Flags,
                LearningRate = LearningRate,
                WeightDecay = WeightDecay,
                Rule = Rule.Put(memory),
                Clipping = Clipping == null ? IntPtr.Zero : memory.Put(Clipping.Native()),
                Groups = memory.Put(groups),
                GroupCount = (ulong)groups.Length,
                LossScale = LossScale == null ? IntPtr.Zero : memory.Put(LossScale.Native()),
                Offload = Offload == null ? IntPtr.Zero : memory.Put(Offload.Native(memory)),
                CheckEvery = CheckEvery,
                RoundingSeed = RoundingSeed,
            };
        }
    }
}
