package path_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/path"
	"github.com/detour-collective/dcol/internal/path/policy"
)

// TestBackupTakesOver plays a host that only receives. The carrying uplink goes silent, and the server sends on the
// backup. The backup is promoted, and demoted again when the first uplink answers probes.
func TestBackupTakesOver(t *testing.T) {
	m := path.New(path.Config{ByWorth: true, Policy: policy.Detours{Subflows: 1}, Rules: []path.Rule{{Policy: policy.Mesh{Mode: policy.BackupMode}}}})
	now, server := birth, netip.AddrPortFrom(ip("web"), 80)
	wifi, other := netip.AddrPortFrom(ip("me"), 5000), netip.AddrPortFrom(ip("me2"), 5001)
	backup := map[netip.AddrPort]bool{}
	probing := false
	tell := func(ev path.Event) {
		for _, a := range m.Handle(ev, now) {
			switch a := a.(type) {
			case path.SetBackup:
				backup[a.Local] = a.Backup
			case path.Probe:
				probing = a.On
			}
		}
	}
	tell(path.LocalAddrs{Addrs: []netip.Addr{wifi.Addr(), other.Addr()}})
	tell(path.DetourOffered{Detour: path.Detour{ID: "g", Kind: path.Uplink, Waypoint: "wwan0", Local: other.Addr()}})
	tell(path.ConnEstablished{Token: 1, Local: wifi, Remote: server})
	tell(path.SubflowRequested{Token: 1, LocalID: 1, Local: other})
	tell(path.SubflowEstablished{Token: 1, LocalID: 1, Local: other, Remote: server})
	backup[other] = true
	one := path.Sample{Token: 1, Local: wifi, Remote: server, MinRTT: time.Millisecond, SegsIn: 1, LastSent: time.Hour}
	two := path.Sample{Token: 1, Local: other, Remote: server, MinRTT: time.Millisecond, LastSent: time.Hour, SegsIn: 1, LastData: time.Hour, LastAnswer: time.Hour}
	upTo := uint64(0)
	for i := range 200 { // for 20 s: 5 s on Wi-Fi, then on the other
		now = now.Add(100 * time.Millisecond)
		tell(path.Tick{})
		carries, idle := &one, &two
		if i >= 50 && i < 150 {
			carries, idle = &two, &one
			if probing {
				one.Probes = max(0, int((one.LastAnswer-time.Second)/time.Second))
			}
		} else if i == 150 {
			one.Probes = 0
		}
		bulkOver(carries, idle)
		upTo += 14000
		tell(path.Measured{Samples: []path.Sample{one, two}, Complete: i%10 == 0, Progress: []path.Progress{{Token: 1, Received: upTo}}})
		switch i {
		case 49, 199:
			if backup[wifi] || !backup[other] {
				t.Errorf("after %d: the first uplink is to carry: %v", i, backup)
			}
		case 80:
			if !backup[wifi] || backup[other] {
				t.Errorf("after %d: the second uplink is to carry: %v, probing %v", i, backup, probing)
			}
		}
	}
}

// bulkOver lets a tenth of a second pass in which one subflow receives 10 segments, and the other nothing.
func bulkOver(carries, idle *path.Sample) {
	carries.BytesReceived += 14000
	carries.DataSegsIn += 10
	carries.SegsIn += 10
	carries.LastData, carries.LastAnswer = 0, 0
	idle.LastData += 100 * time.Millisecond
	idle.LastAnswer += 100 * time.Millisecond
}
