package validate

import (
	"log/slog"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/detour-collective/dcol/lab/testbed"
	"github.com/detour-collective/dcol/lab/wire"
)

func TestMain(m *testing.M) {
	testbed.Stage()
	goleak.VerifyTestMain(m)
}

func TestExplore(t *testing.T) {
	if os.Getenv("EXPLORE") == "" {
		t.Skip()
	}
	v, err := Open(t.Context(), "wire", 1, slog.Default())
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	for _, d := range []time.Duration{0, 5 * time.Millisecond, 30 * time.Millisecond} {
		r, err := v.RTT(t.Context(), wire.Params{Delay: d, Rate: 10_000_000}, 1000, 5*time.Millisecond)
		t.Logf("%+v %v", r, err)
	}
	if os.Getenv("EXPLORE") == "rtt" {
		return
	}
	for _, rate := range []int64{1e6, 10e6, 100e6, 500e6} {
		r, err := v.Rate(t.Context(), rate, 2*time.Second)
		t.Logf("%+v %v", r, err)
	}
	for _, rate := range []int64{10e6, 100e6} {
		r, err := v.Loss(t.Context(), 0.01, rate, 2*time.Second)
		t.Logf("%+v %v", r, err)
		ab, _, _ := v.net.LinkStats(linkName)
		t.Logf("%+v", ab)
	}
	h, err := v.Highest(t.Context(), time.Second)
	t.Logf("%+v %v", h, err)
	ab, _, _ := v.net.LinkStats(linkName)
	t.Logf("%+v", ab)
}
