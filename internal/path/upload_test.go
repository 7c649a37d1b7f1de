package path_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/path"
	"github.com/detour-collective/dcol/internal/path/policy"
)

// upload is a connection on which this host sends, over the direct path alone.
type upload struct {
	m      *path.Manager
	now    time.Time
	sample path.Sample
	acked  uint64 // of the connection's data
}

func newUpload() *upload {
	u := &upload{m: path.New(path.Config{Policy: policy.Detours{Subflows: 2}, ByWorth: true}), now: birth}
	first := path.ConnEstablished{Token: 1, Local: netip.AddrPortFrom(ip("me"), 1000), Remote: netip.AddrPortFrom(ip("web"), 80)}
	u.m.Handle(path.LocalAddrs{Addrs: []netip.Addr{ip("me")}}, u.now)
	u.m.Handle(first, u.now)
	u.sample = path.Sample{
		Token: 1, Local: first.Local, Remote: first.Remote, BytesAcked: 1, MinRTT: rtt, RTT: rtt, LastData: time.Hour, LastSent: 20 * time.Millisecond,
	}
	return u
}

// send lets time pass in which the peer acknowledges this many bytes every 100 ms. full is set if the program has filled
// the send buffer, kept if the peer keeps what arrives, because data before it is missing.
func (u *upload) send(long time.Duration, bytes uint64, full, kept bool) {
	for end := u.now.Add(long); u.now.Before(end); {
		u.now = u.now.Add(dt)
		u.sample.BytesAcked += bytes
		if !kept {
			u.acked += bytes
		}
		u.m.Handle(path.Measured{
			Complete: true, Samples: []path.Sample{u.sample}, Progress: []path.Progress{{Token: 1, Acked: u.acked, SendFull: full}},
		}, u.now)
	}
}

func (u *upload) kind() string { return u.m.Snapshot(u.now).Conns[0].Traffic }

// An upload stays bulk while its data waits in the connection's own buffer, because data before it is late. Then no subflow
// has anything to send. It looks the same on the subflows if the program has little to send, or if the buffer is full because
// the peer's program reads slowly. An upload over a slow line is bulk, too.
func TestHeldUpUploadStaysBulk(t *testing.T) {
	for name, tc := range map[string]struct {
		full, kept, limited bool
		want                string
	}{
		"held up":     {full: true, kept: true, want: "bulk"},
		"slow line":   {full: true, limited: true, want: "bulk"},
		"slow reader": {full: true, want: "messages"},
		"little":      {want: "messages"},
		"late":        {kept: true, want: "messages"},
	} {
		u := newUpload()
		u.sample.Limited = true
		u.send(4*time.Second, 50_000, true, false)
		if k := u.kind(); k != "bulk" {
			t.Fatalf("it is %s at first", k)
		}
		u.sample.Limited = tc.limited
		u.send(7*time.Second, 1500, tc.full, tc.kept)
		if k := u.kind(); k != tc.want {
			t.Errorf("%s: it becomes %s", name, k)
		}
	}
}

// What the peer has received beyond missing data counts once: when it arrives, not when the missing data has come. The
// estimate of it may fall.
func TestSelectivelyAcknowledgedBytesCountOnce(t *testing.T) {
	u := newUpload()
	for i, step := range []struct {
		acked, sacked uint64
		want          float64 // bits a second
	}{{1_000_001, 0, 8e6}, {1_000_001, 500_000, 4e6}, {1_000_001, 300_000, 0}, {1_600_001, 0, 0.8e6}, {1_700_001, 0, 0.8e6}} {
		u.now = u.now.Add(time.Second)
		u.sample.BytesAcked, u.sample.BytesSacked = step.acked, step.sacked
		u.m.Handle(path.Measured{Complete: true, Samples: []path.Sample{u.sample}}, u.now)
		if s := u.m.Snapshot(u.now).Conns[0].Subflows[0]; i > 0 && s.SendRate != step.want {
			t.Errorf("step %d: %v bit/s, want %v", i, s.SendRate, step.want)
		}
	}
}
