using System;
using System.Collections.Generic;
using System.Linq;
using System.Reflection;
using System.Text.RegularExpressions;

namespace Trireme.Tests
{
    /// <summary>The class of each rule: its kind, and each of its options.</summary>
    internal static class RuleTests
    {
        // A rule that comes later with an option of another name needs a value here.
        private static readonly Dictionary<string, object> Others = new Dictionary<string, object>
        {
            ["Alpha"] = 0.5,
            ["Beta1"] = 0.9999,
            ["Beta2"] = 0.5,
            ["Beta2Decay"] = -0.25,
            ["Centered"] = true,
            ["Epsilon"] = 100.0,
            ["MaxTrust"] = 1e-5,
            ["MaxUpdateRms"] = 0.01,
            ["MinParameterRms"] = 100.0,
            ["Momentum"] = 0.5,
            ["Nesterov"] = true,
            ["OrthogonalSteps"] = 2u,
            ["RateAdjustment"] = RateAdjustment.MatchAdamW,
            ["TrustCoefficient"] = 0.5,
        };

        private static IEnumerable<Type> Classes
        {
            get
            {
                return typeof(Rule).Assembly.GetExportedTypes().Where(
                    type => type.IsSubclassOf(typeof(Rule)) && type != typeof(UserRule));
            }
        }

        [Test]
        public static void Each_kind_has_a_class_and_both_train_the_same()
        {
            var kinds = new List<RuleKind>();
            foreach (Type type in Classes)
            {
                Rule rule = New(type);
                Check.Equal(type.Name, rule.Kind.ToString());
                kinds.Add(rule.Kind);
                Check.Equal(rule.Kind, ((Rule)rule.Kind).Kind, "short form");
                Check.Same(Train(rule.Kind), Train(rule), type.Name);
            }

            Check.Equal(
                string.Join(" ", Enum.GetNames(typeof(RuleKind)).OrderBy(name => name)),
                string.Join(" ", kinds.Select(k => k.ToString()).Concat(new[] { "User" })
                    .OrderBy(name => name)),
                "kinds");
        }

        [Test]
        public static void Each_option_of_each_rule_changes_the_training()
        {
            int options = 0;
            foreach (Type type in Classes)
            {
                foreach (PropertyInfo option in Options(type))
                {
                    Check.That(Others.ContainsKey(option.Name), option.Name + " has no value here");
                    Rule plain = New(type);
                    Rule other = New(type);
                    if (type == typeof(Sgd) && option.Name == "Nesterov")
                    {
                        foreach (Sgd each in new[] { plain, other }) each.Momentum = 0.5;
                    }

                    option.SetValue(other, Others[option.Name]);
                    Check.That(
                        !Train(plain).SequenceEqual(Train(other)),
                        type.Name + "." + option.Name + " changes nothing");
                    ++options;
                }
            }

            Check.That(options >= 33, options + " options were tried");
        }

        [Test]
        public static void Each_option_of_each_rule_is_refused_by_its_own_name()
        {
            using (Communicator c = Communicator.Create(0, 1, Ranks.NewRendezvous()))
            using (Model model = ModelTests.Sealed(c, Strategy.Zero1))
            {
                foreach (Type type in Classes)
                {
                    foreach (PropertyInfo option in Options(type))
                    {
                        Rule rule = New(type);
                        Type kind = option.PropertyType;
                        if (kind == typeof(bool)) continue; // no value is wrong
                        option.SetValue(
                            rule,
                            kind == typeof(double) ? double.NaN
                            : kind == typeof(uint) ? 100u : Enum.ToObject(kind, 99));
                        string text = Check.Throws<InvalidArgumentException>(
                            () => new Optimizer(model, new OptimizerOptions { Rule = rule })).Message;
                        string name = Regex.Replace(option.Name, "(?<!^)[A-Z]", "_$0").ToLower();
                        Check.Contains("options.rule." + name + " ", text);
                    }
                }
            }
        }

        [Test]
        public static void Nesterov_of_Sgd_needs_momentum()
        {
            using (Communicator c = Communicator.Create(0, 1, Ranks.NewRendezvous()))
            using (Model model = ModelTests.Sealed(c, Strategy.Zero1))
            {
                var options = new OptimizerOptions { Rule = new Sgd { Nesterov = true } };
                Check.Contains(
                    "options.rule.",
                    Check.Throws<InvalidArgumentException>(
                        () => new Optimizer(model, options)).Message);
            }
        }

        private static Rule New(Type type)
        {
            return (Rule)Activator.CreateInstance(type);
        }

        private static PropertyInfo[] Options(Type type)
        {
            return type.GetProperties().Where(option => option.CanWrite).ToArray();
        }

        // Three steps whose gradients change their sign.
        private static float[] Train(Rule rule)
        {
            using (Communicator c = Communicator.Create(0, 1, Ranks.NewRendezvous()))
            using (Model model = ModelTests.Sealed(c, Strategy.Zero2))
            using (var optimizer = new Optimizer(
                model, new OptimizerOptions { Rule = rule, LearningRate = 0.125 }))
            {
                model.SetParameters<float>(ModelTests.Values(0));
                for (int step = 0; step < 3; ++step)
                {
                    model.AccumulateFlat<float>(Enumerable.Range(0, 20)
                        .Select(i => ((((7 * i) + (5 * step)) % 11) - 5.5f) / (1 + step)).ToArray());
                    optimizer.Step();
                }

                var values = new float[20];
                model.GetParameters<float>(values);
                return values;
            }
        }
    }
}
