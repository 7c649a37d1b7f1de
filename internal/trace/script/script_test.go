package script

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net/netip"
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
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Run(ctx, "test.lua", "while true do end", host(), Limits{}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
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
