package path_test

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/path"
	"github.com/detour-collective/dcol/internal/path/policy"
)

// restricted plays a connection over wlan0 and wwan0 with a rule.
type restricted struct {
	t             *testing.T
	m             *path.Manager
	now           time.Time
	wlan, wwan    path.Sample
	rates         map[netip.AddrPort]path.Restrict // by local address
	backup, ended map[netip.AddrPort]bool
	opened        []path.CreateSubflow
	measures      int
}

func newRestricted(t *testing.T, r path.Rule) *restricted {
	second := ip("me2")
	if _, ports := r.Policy.(policy.Ports); ports {
		second = ip("me") // over wlan0, too
	} else {
		r.Policy = policy.Mesh{}
	}
	server := netip.AddrPortFrom(ip("web"), 80)
	l := &restricted{
		t: t, m: path.New(path.Config{Policy: policy.Detours{Subflows: 1}, Rules: []path.Rule{r}}), now: birth,
		wlan:  path.Sample{Token: 1, Local: netip.AddrPortFrom(ip("me"), 5000), Remote: server, MinRTT: time.Millisecond},
		wwan:  path.Sample{Token: 1, Local: netip.AddrPortFrom(second, 5001), Remote: server, MinRTT: time.Millisecond},
		rates: make(map[netip.AddrPort]path.Restrict), backup: make(map[netip.AddrPort]bool), ended: make(map[netip.AddrPort]bool),
	}
	l.tell(path.LocalAddrs{Addrs: []netip.Addr{ip("me"), ip("me2")}})
	l.tell(path.DetourOffered{Detour: path.Detour{ID: "f", Kind: path.Uplink, Waypoint: "wlan0", Local: ip("me")}})
	l.tell(path.DetourOffered{Detour: path.Detour{ID: "g", Kind: path.Uplink, Waypoint: "wwan0", Local: ip("me2")}})
	l.tell(path.ConnEstablished{Token: 1, Local: l.wlan.Local, Remote: server})
	l.tell(path.SubflowRequested{Token: 1, LocalID: 1, Local: l.wwan.Local})
	l.tell(path.SubflowEstablished{Token: 1, LocalID: 1, Local: l.wwan.Local, Remote: server})
	return l
}

func (l *restricted) tell(ev path.Event) {
	for _, a := range l.m.Handle(ev, l.now) {
		switch a := a.(type) {
		case path.Restrict:
			if l.rates[a.Ends.Local] = a; a.Gone {
				delete(l.rates, a.Ends.Local)
			}
		case path.SetBackup:
			l.backup[a.Local] = a.Backup
		case path.DestroySubflow:
			l.ended[a.Local] = true
		case path.CreateSubflow:
			l.opened = append(l.opened, a)
		case path.Measure:
			l.measures++
		}
	}
	if err := l.m.Sound(); err != nil {
		l.t.Fatal(err)
	}
}

// run lets a second pass in which the paths carry this many bytes.
func (l *restricted) run(wlan, wwan uint64) {
	for range 10 {
		l.now = l.now.Add(100 * time.Millisecond)
		l.tell(path.Tick{})
	}
	receive(&l.wlan, wlan)
	receive(&l.wwan, wwan)
	l.tell(path.Measured{Samples: []path.Sample{l.wlan, l.wwan}, Complete: true})
}

// receive makes the sample one of a second later, in which the subflow received this many bytes.
func receive(s *path.Sample, bytes uint64) {
	s.BytesReceived += bytes
	if s.LastData += time.Second; bytes > 0 {
		s.LastData = 0
	}
}

func (l *restricted) wants(what string, wlan, wwan float64) {
	l.t.Helper()
	if a, b := l.rates[l.wlan.Local].Rate, l.rates[l.wwan.Local].Rate; a != wlan || b != wwan {
		l.t.Errorf("%s: the limits are %v and %v, want %v and %v", what, a, b, wlan, wwan)
	}
}

// A path's limit holds only for its subflows. The user timeout holds for all. Both end with the connection.
func TestRateLimit(t *testing.T) {
	l := newRestricted(t, path.Rule{Limits: map[string]path.RateLimit{"wwan0": {On: true, Rate: 4e6}}, UserTimeout: 3 * time.Second})
	l.wants("at first", 0, 4e6)
	for _, s := range []path.Sample{l.wlan, l.wwan} {
		if got := l.rates[s.Local].UserTimeout; got != 3*time.Second {
			t.Errorf("%v: a user timeout of %v", s.Local, got)
		}
	}
	subflows := l.m.Snapshot(l.now).Conns[0].Subflows
	if first, second := subflows[0].Why, subflows[1].Why; first != "" || !strings.HasSuffix(second, "; limited to 4.0 Mbit/s by its policy") {
		t.Errorf("it is shown as %q and %q", first, second)
	}
	l.tell(path.ConnClosed{Token: 1})
	if len(l.rates) > 0 {
		t.Errorf("at the end: %v", l.rates)
	}
}

// nearQuota limits wwan0 to 1 Mbit/s from 800 of 1000 bytes on.
func nearQuota() path.Rule {
	return path.Rule{
		Quota: map[string]uint64{"wwan0": 1000}, QuotaEvery: time.Minute, NearQuota: path.RateLimit{On: true, Rate: 1e6},
		Limits: map[string]path.RateLimit{"wwan0": {On: true, Rate: 4e6}},
	}
}

// From four fifths of its quota on, a path is limited until the quota is full again. The limit begins with a new subflow, once
// the earlier one has delivered what was queued on it.
func TestNearQuota(t *testing.T) {
	l := newRestricted(t, nearQuota())
	l.run(5000, 799)
	l.wants("near", 0, 4e6)
	if l.backup[l.wwan.Local] {
		t.Fatal("it is a backup before four fifths")
	}
	l.run(5000, 1)
	l.wants("at four fifths", 0, 4e6)
	if !l.backup[l.wwan.Local] || l.ended[l.wwan.Local] {
		t.Fatalf("it is to become a backup first: %v, %v", l.backup, l.ended)
	}
	l.opened = nil
	l.run(5000, 50)
	if l.ended[l.wwan.Local] || len(l.opened) > 0 {
		t.Fatalf("data came: ended %v, opened %v", l.ended, l.opened)
	}
	if l.measures == 0 {
		t.Error("it is sampled no more often while it empties")
	}
	l.run(5000, 0)
	if !l.ended[l.wwan.Local] || l.ended[l.wlan.Local] {
		t.Fatalf("ended: %v", l.ended)
	}
	l.run(5000, 0)
	if len(l.opened) != 1 || l.opened[0].Local != l.wwan.Local.Addr() {
		t.Fatalf("opened in its place: %+v", l.opened)
	}
	l.wwan.Local, l.wwan.BytesReceived = netip.AddrPortFrom(l.wwan.Local.Addr(), 5002), 0
	l.tell(path.SubflowRequested{Token: 1, LocalID: l.opened[0].LocalID, Local: l.wwan.Local})
	l.tell(path.SubflowEstablished{Token: 1, LocalID: l.opened[0].LocalID, Local: l.wwan.Local, Remote: l.wwan.Remote})
	l.wants("from the start of the new one", 0, 1e6)
	l.run(5000, 50)
	if l.backup[l.wwan.Local] {
		t.Error("the new one is a backup")
	}
	l.run(5000, 100)
	if !l.backup[l.wwan.Local] {
		t.Error("the quota is used up, but it is no backup")
	}
	for range 60 {
		l.run(5000, 0)
	}
	l.wants("in the next minute", 0, 4e6)
	if l.backup[l.wwan.Local] || l.ended[l.wwan.Local] {
		t.Error("it does not carry in the next minute")
	}
}

// A subflow whose quota is used up before its queue has drained stays as a backup. Its limit begins then.
func TestNearQuotaPassed(t *testing.T) {
	l := newRestricted(t, nearQuota())
	l.run(5000, 1500)
	l.wants("at once", 0, 4e6)
	l.run(5000, 100)
	l.run(5000, 0)
	l.wants("drained", 0, 1e6)
	if !l.backup[l.wwan.Local] || l.ended[l.wwan.Local] {
		t.Errorf("it is no backup: %v, %v", l.backup, l.ended)
	}
}

// A peer that goes on sending on the backup gets the limit there after some seconds.
func TestNearQuotaIgnored(t *testing.T) {
	l := newRestricted(t, nearQuota())
	l.run(5000, 800)
	for range 5 {
		l.wwan.DataSegsIn++
		l.run(5000, 10)
	}
	l.wants("for some seconds", 0, 4e6)
	for range 5 {
		l.wwan.DataSegsIn++
		l.run(5000, 10)
	}
	l.wants("later", 0, 1e6)
	if l.backup[l.wwan.Local] || l.ended[l.wwan.Local] {
		t.Errorf("backup %v, ended %v", l.backup, l.ended)
	}
}

// The direct subflow is replaced, too.
func TestNearQuotaDirect(t *testing.T) {
	l := newRestricted(t, path.Rule{Quota: map[string]uint64{"wlan0": 1000}, NearQuota: path.RateLimit{On: true, Rate: 1e6}})
	l.run(800, 5000)
	if !l.backup[l.wlan.Local] {
		t.Fatal("it is to become a backup first")
	}
	l.run(0, 5000)
	l.run(0, 5000)
	if !l.ended[l.wlan.Local] || l.ended[l.wwan.Local] {
		t.Fatalf("ended: %v", l.ended)
	}
	if last := l.opened[len(l.opened)-1]; !last.Direct || last.Local != l.wlan.Local.Addr() {
		t.Fatalf("opened in its place: %+v", l.opened)
	}
}

// A limit begins at once on a path that carries alone.
func TestNearQuotaAlone(t *testing.T) {
	l := newRestricted(t, nearQuota())
	l.run(5000, 100)
	l.tell(path.SubflowClosed{Token: 1, Local: l.wlan.Local, Remote: l.wlan.Remote})
	l.wwan.BytesReceived += 700
	l.tell(path.Measured{Samples: []path.Sample{l.wwan}, Complete: true})
	if got := l.rates[l.wwan.Local].Rate; got != 1e6 || l.backup[l.wwan.Local] {
		t.Errorf("its limit is %v, backup %v", got, l.backup)
	}
}

// Several subflows on the only path empty and are replaced one after another, and the connection always has one that carries.
func TestNearQuotaOfPorts(t *testing.T) {
	l := newRestricted(t, path.Rule{
		Policy: policy.Ports{Subflows: 2}, Quota: map[string]uint64{"wlan0": 1000}, NearQuota: path.RateLimit{On: true, Rate: 1e6},
	})
	// The samples are those of the two subflows that the connection has now.
	samples := []*path.Sample{&l.wlan, &l.wwan}
	l.run(400, 400)
	for i, s := range samples {
		other := samples[1-i]
		old := s.Local
		if !l.backup[old] || l.backup[other.Local] {
			t.Fatalf("subflow %d is to become a backup, the other one carries: %v", i, l.backup)
		}
		if got := l.rates[other.Local].Rate; got != 0 && i == 0 {
			t.Fatalf("the other one has the limit %v although it carried before", got)
		}
		l.opened = nil
		l.run(0, 0)
		l.run(0, 0)
		if !l.ended[old] || l.ended[other.Local] || len(l.opened) != 1 {
			t.Fatalf("subflow %d: ended %v, opened %+v", i, l.ended, l.opened)
		}
		s.Local, s.BytesReceived = netip.AddrPortFrom(old.Addr(), 6000+uint16(i)), 0
		l.tell(path.SubflowRequested{Token: 1, LocalID: l.opened[0].LocalID, Local: s.Local})
		if got := l.rates[other.Local].Rate; got != 0 && i == 0 {
			t.Fatalf("the other one got the limit %v before the new one is up", got)
		}
		l.tell(path.SubflowEstablished{Token: 1, LocalID: l.opened[0].LocalID, Local: s.Local, Remote: s.Remote})
		if got := l.rates[s.Local].Rate; got != 1e6 {
			t.Fatalf("the new one has the limit %v", got)
		}
		if got := l.rates[other.Local].Rate; got != 0 && i == 0 {
			t.Fatalf("the other one got the limit %v before the new one is known to stay", got)
		}
		l.run(1, 1) // it stays
	}
	l.wants("at the end", 1e6, 1e6)
}

// A limit of 0 ends a subflow once the peer's queue there has arrived, and none is opened in its place.
func TestLimitOfZero(t *testing.T) {
	l := newRestricted(t, path.Rule{Quota: map[string]uint64{"wwan0": 1000}, NearQuota: path.RateLimit{On: true}})
	l.run(5000, 100)
	if l.backup[l.wwan.Local] || l.ended[l.wwan.Local] {
		t.Fatal("it is not in use")
	}
	l.run(5000, 700)
	if !l.backup[l.wwan.Local] || l.ended[l.wwan.Local] {
		t.Fatalf("it is to become a backup first: %v, %v", l.backup, l.ended)
	}
	l.run(5000, 50)
	if l.ended[l.wwan.Local] {
		t.Fatal("it ended while data came")
	}
	l.run(5000, 0)
	l.run(5000, 0)
	if !l.ended[l.wwan.Local] || l.ended[l.wlan.Local] {
		t.Fatalf("ended: %v", l.ended)
	}
	if _, ok := l.rates[l.wwan.Local]; ok {
		t.Error("it still has a limit")
	}
}

// A limit of 0 does not end a subflow that has not delivered what this host sent.
func TestLimitOfZeroWhileSending(t *testing.T) {
	l := newRestricted(t, path.Rule{Limits: map[string]path.RateLimit{"wwan0": {On: true}}})
	l.wwan.Unacked = 1
	for range 3 {
		l.run(5000, 0)
	}
	if l.ended[l.wwan.Local] {
		t.Fatal("it ended while data was under way")
	}
	l.wwan.Unacked = 0
	l.run(5000, 0)
	if !l.ended[l.wwan.Local] {
		t.Error("it did not end")
	}
}

// A limit of 0 does not end the only subflow of a connection.
func TestLimitOfZeroAlone(t *testing.T) {
	l := newRestricted(t, path.Rule{Limits: map[string]path.RateLimit{"wlan0": {On: true}, "wwan0": {On: true}}})
	for range 5 {
		l.run(5000, 0)
	}
	if l.ended[l.wlan.Local] {
		t.Error("it ended")
	}
}

// If a path is missing because its limit is 0, the connection's note says so.
func TestLimitOfZeroIsTheReason(t *testing.T) {
	m := path.New(path.Config{Policy: policy.Detours{Subflows: 1}, Rules: []path.Rule{
		{Name: "cheap", Policy: policy.Mesh{}, Limits: map[string]path.RateLimit{"wwan0": {On: true}}},
	}})
	m.Handle(path.LocalAddrs{Addrs: []netip.Addr{ip("me"), ip("me2")}}, birth)
	m.Handle(path.DetourOffered{Detour: path.Detour{ID: "f", Kind: path.Uplink, Waypoint: "wlan0", Local: ip("me")}}, birth)
	m.Handle(path.DetourOffered{Detour: path.Detour{ID: "g", Kind: path.Uplink, Waypoint: "wwan0", Local: ip("me2")}}, birth)
	m.Handle(path.ConnEstablished{Token: 1, Local: netip.AddrPortFrom(ip("me"), 5000), Remote: netip.AddrPortFrom(ip("web"), 80)}, birth)
	if note := m.Snapshot(birth.Add(10 * time.Second)).Conns[0].Note.Text; note != "the policy limits wwan0 to 0" {
		t.Errorf("the note is %q", note)
	}
}
