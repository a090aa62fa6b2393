"""Several lines between two ranks: stretches, further addresses, the watch over lines."""

from defects.settings import QUICK

UNEQUAL = QUICK + "TRIREME_TESTS_NETWORK=1 TRIREME_TESTS_LINES=21"

DEFECTS = [
    ("lines: one line takes all stretches", "src/backends/tcp/further_lines.cpp",
     "const int line = (last_ + step) % all;", "const int line = 0;", "unit_test_exchange_lines"),
    ("lines: a piece is done when its first stretch is sent", "src/backends/tcp/stretches.cpp",
     "if (from.sent < from.transfer->bytes) return false;", "", "unit_test_exchange_lines"),
    ("lines: a piece is there when its first stretch is", "src/backends/tcp/stretches.cpp",
     "if (found->arrived < found->transfer->bytes) return false;", "", "unit_test_exchange_lines"),
    ("lines: stretches go to the first receive of their ticket", "src/backends/tcp/stretches.cpp",
     "return each.number == header.number && each.transfer->ticket == header.ticket;",
     "return each.transfer->ticket == header.ticket;", "unit_test_exchange_lines"),
    ("lines: a stretch may lie anywhere", "src/backends/tcp/stretches.cpp",
     "return fits ? into : nullptr;", "return into;", "unit_test_exchange_lines"),
    ("lines: the code of a stretch is not compared", "src/backends/tcp/further_line.cpp",
     "!received_.fits(code, came)) {", "false) {", "unit_test_exchange_lines"),
    ("lines: a line that is cut short is told to nobody", "src/backends/tcp/exchange_peer.cpp",
     "if (found == FurtherLines::Found::broken_line) end(error_number);", "", "unit_test_exchange_lines"),
    ("lines: the end of the first line ends the others", "src/backends/tcp/exchange_peer.cpp",
     "if (line_.has_ended && !(further_.awaits() && further_.are_open()))", "if (line_.has_ended)",
     "unit_test_exchange_lines"),
    ("lines: a line that comes later is not taken", "src/backends/tcp/exchange.cpp",
     "if (to.is_connected() || to.has_ended()) return;",
     "if (to.events() != 0 || to.has_ended()) return;", "unit_test_exchange_lines"),
    ("lines: any line comes in at any address", "src/backends/tcp/entrances.cpp",
     "is_first ? purposes : std::vector<Purpose>{purpose_of_line(static_cast<int>(i))}",
     "is_first ? purposes : std::vector<Purpose>{purpose_of_line(1), purpose_of_line(2)}",
     "unit_test_entrances"),
    ("lines: a further address is believed", "src/backends/tcp/entrances.cpp",
     "if (parse_endpoint(text, out).ok()) return", "static_cast<void>(parse_endpoint(text, out));\n  return",
     "unit_test_entrances"),
    ("lines: a line that ends alone is no loss", "src/backends/tcp/line_watch.cpp",
     'return name_of(socket, line) + " was closed";', "return {};", "unit_test_line_watch"),
    ("lines: a rank that leaves is lost by its further lines", "src/backends/tcp/line_watch.cpp",
     " || !is_open(first, &of_first)", "", "unit_test_line_watch"),
    ("lines: one interface may be two", "src/backends/tcp/address.cpp",
     "if ((*out)[i].text() != own.text()) continue;", "continue;", "api_test_network"),
    ("lines: two ranks count their lines differently", "src/backends/tcp/mesh.cpp",
     "1 + std::min(own, theirs)", "1 + own", UNEQUAL),
]
