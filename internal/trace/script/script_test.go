package script

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/detour-collective/dcol/internal/trace"
	"github.com/detour-collective/dcol/internal/trace/probe"
)

// nowhere is a network that answers nothing.
type nowhere struct{}

func (nowhere) Send([]byte) error              { return nil }
func (nowhere) Arrivals() <-chan trace.Arrival { return nil }

func host() *Host {
	return &Host{
		Net: nowhere{}, Source: netip.MustParseAddr("192.0.2.1"), Destination: netip.MustParseAddr("198.51.100.2"),
		Random: rand.New(rand.NewPCG(1, 2)), Out: io.Discard,
		Hold: func(uint16, uint16) (func() error, error) { return nil, errors.New("no right to hold") },
	}
}

func TestBadScripts(t *testing.T) {
	for code, want := range map[string]string{
		"x = ":                                      "test.lua",
		"tracebox()":                                "userdata expected",
		"tracebox(5)":                               "userdata expected",
		"tracebox(IP / tcp{dst=99999})":             "dst must be between 0 and 65535",
		"tracebox(IPv6 / TCP)":                      "write IP or ip{}",
		"tracebox(IP / TCP / 5)":                    "a number cannot be part of a probe",
		"tracebox(ip{dst='192.0.2.77'} / TCP)":      "a script may only trace its destination, 198.51.100.2",
		"filter(IP / UDP)":                          "only TCP has resets",
		"filter(IP / TCP)":                          "no right to hold",
		"tracebox(IP / TCP, {callback = 5})":        "the callback must be a function",
		"tcp{dst={}}":                               "not a table",
		"os.execute('true')":                        "attempt to index a non-table object(nil)",
		"io.open('/etc/passwd')":                    "attempt to index a non-table object(nil)",
		"dofile('/etc/passwd')":                     "attempt to call a non-function object",
		"require('os')":                             "attempt to call a non-function object",
		"string.rep('x', 1e9)":                      "at most 1048576 bytes",
		"local function f() return 1 + f() end f()": "stack overflow",
		"print(('x\\27[2J'):nothing())":             "attempt to call a non-function object",
		"(IP / TCP):tcp():nothing()":                "attempt to call a non-function object",
	} {
		err := Run(t.Context(), "test.lua", code, host(), Limits{})
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\x1b") {
			t.Errorf("%s: %v, want %q", code, err, want)
		}
	}
}

// Scripts that never end, or allocate without bound, are ended.
func TestLimits(t *testing.T) {
	for code, limit := range map[string]Limits{
		"while true do end": {Time: 50 * time.Millisecond},
		"while true do pcall(function() while true do end end) end": {Time: 50 * time.Millisecond},
	} {
		if err := Run(t.Context(), "test.lua", code, host(), limit); !errors.Is(err, ErrTime) {
			t.Errorf("%s: %v", code, err)
		}
	}
	for _, code := range []string{
		"t = {} while true do t[#t+1] = string.rep('x', 100000) .. #t end",
		"s = 'x' while #s < 2^26 do s = s .. s end while true do end",
	} {
		if err := Run(t.Context(), "test.lua", code, host(), Limits{Memory: 16 << 20}); !errors.Is(err, ErrMemory) {
			t.Errorf("%s: %v", code, err)
		}
	}
	for _, code := range []string{
		big + "t = {} for i = 1, 1000 do t[i] = s end table.concat(t)",
		big + "t = {} for i = 1, 1000 do t[i] = 'x' end table.concat(t, s)",
		big + "return (s .. s .. s .. s .. s .. s .. s .. s .. s .. s .. s .. s .. s .. s .. s .. s .. s)",
		big + "string.rep('x', 1000):gsub('x', s)",
		big + "string.rep('x', 1000):gsub('x', function() return s end)",
		big + "string.rep('x', 1000):gsub('x', {x = s})",
		"string.rep('x', 150):gsub('.+', string.rep('%0', 200000))",
		big + "string.format(string.rep('%s', 20), s, s, s, s, s, s, s, s, s, s, s, s, s, s, s, s, s, s, s, s)",
		"string.format(string.rep('%99d', 200000), 1)",
	} {
		least := allocated()
		err := Run(t.Context(), "test.lua", code, host(), Limits{Memory: 1 << 30})
		if !errors.Is(err, ErrMemory) || allocated()-least > 200<<20 {
			t.Errorf("%s: %v, with %d MiB", code, err, (allocated()-least)>>20)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Run(ctx, "test.lua", "while true do end", host(), Limits{}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

const big = "local s = string.rep('x', 1000000); "

// allocated returns the bytes that were ever allocated.
func allocated() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.TotalAlloc
}

// What takes the place of the library's functions, and of an operator, does the same.
func TestBoundedFunctions(t *testing.T) {
	for code, want := range map[string]string{
		`print("a" .. 1 .. "b" .. 2.5)`:                                                  "a1b2.5",
		`local function two() return "x", "y" end print("a" .. two())`:                   "ax",
		`local function f(...) return "a" .. ... end print(f("x", "y"))`:                 "ax",
		`print(#("a" .. "b"), -2 .. "", ("a" .. "b"):upper())`:                           "2\t-2\tAB",
		`local t = {k = "a" .. "b", ["c" .. "d"] = "e" .. "f"} print(t.k, t.cd)`:         "ab\tef",
		`if "a" .. "b" == "ab" then for i = 1, #("x" .. "y") do print("i" .. i) end end`: "i1\ni2",
		`print(IP .. TCP / ("MSS" .. "x" and MSS))`:                                      "TCP port 80, SYN with MSS 1460",
		`print(pcall(function() return "a" .. {} end))`:                                  "false\ttest.lua:1: cannot perform concat operation between string and table",
		`print(("hello world"):gsub("o", "0"))`:                                          "hell0 w0rld\t2",
		`print(("hello world"):gsub("(%w+) (%w+)", "%2 %1 %0 %%"))`:                      "world hello hello world %\t1",
		`print(("abc"):gsub("%w", "%0%0", 2))`:                                           "aabbc\t2",
		`print(("abc"):gsub("", "-"))`:                                                   "-a-b-c-\t4",
		`print(("a1b2"):gsub("(%a)(%d)", function(a, d) return d .. a end))`:             "1a2b\t2",
		`print(("$x $y"):gsub("%$(%w)", {x = 5}))`:                                       "5 $y\t2",
		`print(("ab"):gsub("()", "%1"))`:                                                 "1a2b3\t3",
		`print(("ab"):gsub("b", function() end))`:                                        "ab\t1",
		`for k, v in ("a=1, b=2"):gmatch("(%w)=(%w)") do print(k .. v) end`:              "a1\nb2",
		`print(("|%5.2f|%-3s|%x|%%|%s"):format(3.14159, "a", 255, "end"))`:               "| 3.14|a  |ff|%|end",
		`print(table.concat({1, 2, 3}, "-"), table.concat({1, 2, 3}, ",", 2))`:           "1-2-3\t2,3",
		`local t = {} t[60000000] = 1 print(t[60000000], #t)`:                            "1\t0",
	} {
		var out strings.Builder
		h := host()
		h.Out = &out
		if err := Run(t.Context(), "test.lua", code, h, Limits{}); err != nil || out.String() != want+"\n" {
			t.Errorf("%s prints %q, want %q; %v", code, out.String(), want, err)
		}
	}
	for code, want := range map[string]string{
		`("x"):format(1) return ("%100d"):format(1)`: "at most two digits", `("%[1]s"):format(1)`: "cannot have", `("a"):gsub("a", "%1%2")`: "invalid capture index",
		big + `(s .. s):gsub("x", "y")`: "at most 1048576 bytes", big + `(s .. s):gmatch("x")`: "at most 1048576 bytes", `("a"):gsub("(", "")`: "",
	} {
		if err := Run(t.Context(), "test.lua", code, host(), Limits{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", code, err, want)
		}
	}
}

// Every macro can be made: open leaves out those that cannot.
func TestMacros(t *testing.T) {
	for _, name := range probe.Macros() {
		if _, err := probe.Macro(name); err != nil && name != "SACK" {
			t.Error(err)
		}
	}
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
