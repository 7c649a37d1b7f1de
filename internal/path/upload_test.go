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
// the send buffer.
func (u *upload) send(long time.Duration, bytes uint64, full bool) {
	for end := u.now.Add(long); u.now.Before(end); {
		u.now = u.now.Add(dt)
		u.sample.BytesAcked += bytes
		u.m.Handle(path.Measured{
			Complete: true, Samples: []path.Sample{u.sample}, Progress: []path.Progress{{Token: 1, Acked: u.sample.BytesAcked, SendFull: full}},
		}, u.now)
	}
}

func (u *upload) kind() string { return u.m.Snapshot(u.now).Conns[0].Traffic }

// An upload stays bulk while its data waits in the connection's own buffer, because data before it is late. Then no subflow
// has anything to send. If the program has little to send, that looks the same on the subflows, but the buffer is not full.
func TestHeldUpUploadStaysBulk(t *testing.T) {
	for _, held := range []bool{true, false} {
		u := newUpload()
		u.sample.Limited = true
		u.send(4*time.Second, 50_000, true)
		if k := u.kind(); k != "bulk" {
			t.Fatalf("it is %s at first", k)
		}
		u.sample.Limited = false
		u.send(7*time.Second, 1500, held)
		want := map[bool]string{true: "bulk", false: "messages"}[held]
		if k := u.kind(); k != want {
			t.Errorf("with a full buffer %v: it becomes %s", held, k)
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
