using System.Runtime.CompilerServices;

[assembly: InternalsVisibleTo("Trireme.Tests")]
