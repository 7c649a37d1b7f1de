package linkcheck

import (
	"log/slog"
	"math"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/detour-collective/dcol/lab/emulink"
	"github.com/detour-collective/dcol/lab/testbed"
)

func TestMain(m *testing.M) {
	testbed.Stage()
	// Else hosts and wires built with -race take a second each to end.
	os.Setenv("GORACE", "atexit_sleep_ms=0")
	goleak.VerifyTestMain(m)
}

// TestGrossErrors has bounds that a busy machine keeps. Whether the link is as
// exact as it claims is for the benchmark to say.
func TestGrossErrors(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: namespaces and TUN devices")
	}
	v, err := Open(t.Context(), testbed.BackendAuto, 1, slog.New(slog.NewTextHandler(t.Output(), nil)))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := v.Close(); err != nil {
			t.Error(err)
		}
	}()

	rtt, err := v.RTT(t.Context(), emulink.Params{Rate: 10e6, Delay: 20 * time.Millisecond}, 50, 5*time.Millisecond)
	if want := 40*time.Millisecond + 2*67200*time.Nanosecond; err != nil || rtt.Expect != want {
		t.Errorf("expects %v, %v; want %v", rtt.Expect, err, want)
	}
	if rtt.Lost > 0 || rtt.P50 > 20*time.Millisecond {
		t.Errorf("%+v: packets lost, or half of them off by more than 20 ms", rtt)
	}
	rate, err := v.Rate(t.Context(), 5e6, 500*time.Millisecond)
	if err != nil || rate.Error > 0.1 || rate.Error < -0.9 { // a slow machine sends less than is offered
		t.Errorf("%+v, %v: far off", rate, err)
	}
	loss, err := v.Loss(t.Context(), 0.05, 10e6, 500*time.Millisecond)
	if err != nil || math.Abs(loss.Sigmas) > 5 {
		t.Errorf("%+v, %v: off by more than five standard deviations", loss, err)
	}
	carried, err := v.fill(t.Context(), emulink.Params{Rate: 10e6, Delay: time.Millisecond}, 500*time.Millisecond)
	if err != nil || carried > 15e6 || carried < 1e6 {
		t.Errorf("TCP gets %.1f Mbit/s, %v; want about 10", carried/1e6, err)
	}
}
