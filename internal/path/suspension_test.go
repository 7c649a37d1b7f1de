package path_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/path"
	"github.com/detour-collective/dcol/internal/path/policy"
)

// corruption plays a connection with a detour whose data arrives changed from time to time.
type corruption struct {
	m      *path.Manager
	now    time.Time
	direct path.Sample
	detour path.Sample
	count  uint64 // failed checksums
	rest   time.Duration
}

func newCorruption() *corruption {
	server := netip.AddrPortFrom(ip("web"), 80)
	r := &corruption{
		m: path.New(path.Config{Policy: policy.Detours{Subflows: 2}}), now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC),
		direct: path.Sample{Token: 1, Local: netip.AddrPortFrom(ip("me"), 5000), Remote: server},
	}
	r.tell(path.ConnEstablished{Token: 1, Local: r.direct.Local, Remote: server})
	r.tell(path.DetourOffered{Detour: path.Detour{ID: "bob", Kind: path.WireGuard, Waypoint: "bob", Local: ip("tun")}})
	return r
}

func (r *corruption) tell(ev path.Event) {
	var follow []path.Event
	for _, a := range r.m.Handle(ev, r.now) {
		switch a := a.(type) {
		case path.CreateSubflow:
			local := netip.AddrPortFrom(ip("tun"), r.detour.Local.Port()+1)
			r.detour = path.Sample{Token: 1, Local: local, Remote: a.Remote}
			follow = append(follow, path.SubflowRequested{Token: 1, LocalID: a.LocalID, Local: local},
				path.SubflowEstablished{Token: 1, LocalID: a.LocalID, Local: local, Remote: a.Remote})
		case path.Measure: // the kernel has no such subflow
			follow = append(follow, path.SubflowMissing{Token: 1, Local: a.Local, Remote: a.Remote, ChecksumErrors: r.count})
		case path.Blame:
			r.rest = a.Until.Sub(r.now)
		}
	}
	for _, ev := range follow {
		r.tell(ev)
	}
}

// sample lets a second pass in which data comes on both paths.
func (r *corruption) sample() {
	r.now = r.now.Add(time.Second)
	r.tell(path.Tick{})
	r.direct.BytesReceived += 1000
	r.detour.BytesReceived += 1000
	r.tell(path.Measured{Samples: []path.Sample{r.direct, r.detour}, Complete: true, ChecksumErrors: r.count})
}

// corrupts ends the detour by a failed checksum, and returns how long the detour rests.
func (r *corruption) corrupts() time.Duration {
	r.rest, r.count = 0, r.count+1
	r.now = r.now.Add(time.Second)
	r.tell(path.Measured{Samples: []path.Sample{r.direct}, Complete: true, ChecksumErrors: r.count})
	r.now = r.now.Add(time.Second)
	r.tell(path.Tick{})
	return r.rest
}

func TestRestsOfCorruption(t *testing.T) {
	r := newCorruption()
	for i, step := range []struct {
		well int // seconds with data before it
		want time.Duration
	}{
		{5, 10 * time.Minute},
		{5, 20 * time.Minute},
		{5, 40 * time.Minute},
		{70, 10 * time.Minute}, // the corruption was forgiven
		{40, 20 * time.Minute},
	} {
		for range step.well {
			r.sample()
		}
		if got := r.corrupts(); got != step.want {
			t.Fatalf("corruption %d, after %d s of good data: rests for %v, want %v", i+1, step.well, got, step.want)
		}
		r.now = r.now.Add(step.want)
		r.tell(path.Tick{})
	}
	for range 10 {
		for range 5 {
			r.sample()
		}
		r.now = r.now.Add(r.corrupts())
		r.tell(path.Tick{})
	}
	if r.rest != 24*time.Hour {
		t.Errorf("the longest rest is %v, want a day", r.rest)
	}
}
