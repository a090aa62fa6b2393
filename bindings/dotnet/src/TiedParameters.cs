using System;
using System.Collections.Generic;
using System.Linq;

namespace Trireme
{
    /// <summary>
    /// Parameters of a whole model that are tied to others. A rank may hold some of them.
    /// </summary>
    internal sealed class TiedParameters
    {
        private readonly Dictionary<string, ParameterOptions> byName =
            new Dictionary<string, ParameterOptions>();

        // Names that others are tied to.
        private readonly HashSet<string> shared = new HashSet<string>();

        // Those of them that this rank has by now.
        private readonly HashSet<string> held = new HashSet<string>();

        public TiedParameters(IEnumerable<PipelineLayer> layers)
        {
            foreach (ParameterOptions each in layers.SelectMany(layer => layer.Parameters))
            {
                if (byName.ContainsKey(each.Name))
                {
                    throw new ArgumentException(
                        "parameter " + each.Name + " belongs to two layers: give the second one " +
                        "another name, and TiedTo", nameof(layers));
                }

                if (each.TiedTo != null && !byName.ContainsKey(each.TiedTo))
                {
                    throw new ArgumentException(
                        "TiedTo " + each.TiedTo + " of parameter " + each.Name +
                        " names no earlier parameter, in the order of layers", nameof(layers));
                }

                byName[each.Name] = each;
            }

            foreach (ParameterOptions each in byName.Values.Where(each => each.TiedTo != null))
            {
                shared.Add(RootOf(each).Name);
            }
        }

        /// <summary>
        /// Adds the parameter, or its target in its place. The first of them on a rank has the
        /// target's name.
        /// </summary>
        public void Add(Model model, ParameterOptions parameter, bool staged)
        {
            ParameterOptions root = RootOf(parameter);
            if (held.Contains(root.Name))
            {
                ParameterOptions alias = Copy(parameter);
                alias.TiedTo = root.Name;
                if (parameter.Placements != null || parameter.Splits != null)
                {
                    alias.Placements = AlsoTied(parameter); // that of the target has it, too
                }

                model.AddParameter(alias);
                return;
            }

            if (!staged || !shared.Contains(root.Name))
            {
                model.AddParameter(parameter);
                return;
            }

            held.Add(root.Name);
            ParameterOptions copy = Copy(root);
            copy.Placements = AlsoTied(root);
            model.AddParameter(copy);
        }

        private static Dictionary<string, Placement> AlsoTied(ParameterOptions parameter)
        {
            var placements = new Dictionary<string, Placement> { { "pipeline", Placement.Tied } };
            foreach (KeyValuePair<string, Placement> each in
                parameter.Placements ?? new Dictionary<string, Placement>())
            {
                placements[each.Key] = each.Value;
            }

            return placements;
        }

        private static ParameterOptions Copy(ParameterOptions from)
        {
            return new ParameterOptions(from.Name, from.Type, from.Shape)
            {
                Unit = from.Unit,
                TiedTo = from.TiedTo,
                Flags = from.Flags,
                Replicas = from.Replicas,
                ParameterGroup = from.ParameterGroup,
                Placements = from.Placements,
                Splits = from.Splits,
            };
        }

        /// <summary>The target, through other aliases.</summary>
        private ParameterOptions RootOf(ParameterOptions parameter)
        {
            var seen = new HashSet<string> { parameter.Name };
            ParameterOptions other;
            while (parameter.TiedTo != null && byName.TryGetValue(parameter.TiedTo, out other) &&
                seen.Add(other.Name))
            {
                parameter = other;
            }

            return parameter;
        }
    }
}
