package lease

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/session/wire"
	"github.com/detour-collective/dcol/internal/waypoint/egress"
	"github.com/detour-collective/dcol/internal/waypoint/giving"
	"github.com/detour-collective/dcol/internal/waypoint/rules"
)

// public returns an address to which the converter may connect.
func public(n byte) netip.Addr { return netip.AddrFrom4([4]byte{8, 0, 1, n}) }

// listener asks for ports as a member's agent does, and renews its admission to the converter.
func (l *Leases) listener(t testing.TB, r Request, under Conditions, ports ...uint16) (refused []wire.Code) {
	t.Helper()
	if _, _, refusal := l.AdmitConverter(r, under); refusal != nil {
		t.Fatal(refusal)
	}
	ask := PortsRequest{Request: r, Listens: 5125}
	for _, port := range ports {
		ask.Ports = append(ask.Ports, wire.Incoming{Port: port, Cookie: []byte(r.Name)})
	}
	for i, a := range l.TakePorts(ask, under) {
		if a.Port != ports[i] {
			t.Fatalf("answered %d in place of %d", a.Port, ports[i])
		}
		refused = append(refused, a.Refused)
	}
	return refused
}

// told returns the ports that are told, with their members. Those of expelled members are negative.
func (l *Leases) told() map[int]string {
	out := make(map[int]string)
	for _, p := range l.Ports() {
		if port := int(p.Port); p.Expelled {
			out[-port] = p.Member
		} else {
			out[port] = p.Member
		}
	}
	return out
}

func listenTerms() Terms {
	x := terms()
	for port := uint16(8000); port < 8020; port++ {
		x.Incoming = append(x.Incoming, port)
	}
	return x
}

func expectCodes(t *testing.T, what string, got []wire.Code, want ...wire.Code) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: refused with %v, want %v", what, got, want)
	}
}

func expectTold(t *testing.T, what string, l *Leases, want map[int]string) {
	t.Helper()
	got := l.told()
	if len(got) != len(want) {
		t.Errorf("%s: told %v, want %v", what, got, want)
		return
	}
	for port, member := range want {
		if got[port] != member {
			t.Errorf("%s: told %v, want %v", what, got, want)
		}
	}
}

// Each reason for which a member does not get a port.
func TestPortsAreRefused(t *testing.T) {
	l := New(listenTerms())
	alice, bob := from("alice", public(1), 1), from("bob", public(2), 2)
	under := conditions(t, begin)
	expectCodes(t, "hers", l.listener(t, alice, under, 8000, 8001), 0, 0)
	expectCodes(t, "not allowed", l.listener(t, bob, under, 7999, 22), wire.PortForbidden, wire.PortForbidden)
	expectCodes(t, "another member's", l.listener(t, bob, under, 8001, 8002), wire.PortTaken, 0)
	busy := under
	busy.PortTaken = func(port uint16) bool { return port == 8003 || port == 8002 }
	expectCodes(t, "a program's, but not the relay's own", l.listener(t, bob, busy, 8002, 8003), 0, wire.PortTaken)
	elsewhere := from("carol", netip.MustParseAddr("8.9.0.1"), 3)
	expectCodes(t, "of a member to whom nobody may connect", l.listener(t, elsewhere, under, 8004), wire.DestinationForbidden)
	private := from("carol", netip.MustParseAddr("192.168.1.1"), 3)
	expectCodes(t, "of a member in a private network", l.listener(t, private, under, 8004), wire.DestinationForbidden)
	many := []uint16{8010, 8011, 8012, 8013, 8014, 8015, 8016, 8017}
	expectCodes(t, "as many as may be", l.listener(t, from("dave", public(4), 4), under, many...), 0, 0, 0, 0, 0, 0, 0, 0)
	expectCodes(t, "one more, from another address", l.listener(t, from("dave", public(5), 5), under, 8018), wire.QuotaPorts)
	fails := under
	fails.PortUnusable = func(port uint16, member string) bool { return port == 8005 && member == "erin" }
	erin := from("erin", public(6), 6)
	expectCodes(t, "at which the converter cannot listen", l.listener(t, erin, fails, 8005, 8006), wire.PortUnusable, 0)
	expectTold(t, "which is tried again", l, map[int]string{
		8000: "alice", 8001: "alice", 8002: "bob", 8005: "erin", 8006: "erin",
		8010: "dave", 8011: "dave", 8012: "dave", 8013: "dave", 8014: "dave", 8015: "dave", 8016: "dave", 8017: "dave",
	})
	expectCodes(t, "at which it can listen now", l.listener(t, erin, under, 8005), 0)
	expectCodes(t, "of one who wants none any more", l.listener(t, erin, under))
	expectTold(t, "at the end", l, map[int]string{
		8000: "alice", 8001: "alice", 8002: "bob",
		8010: "dave", 8011: "dave", 8012: "dave", 8013: "dave", 8014: "dave", 8015: "dave", 8016: "dave", 8017: "dave",
	})
}

// A port lasts as long as it is asked for, from any address. The newest way is the first to try.
func TestPortsEnd(t *testing.T) {
	l := New(listenTerms())
	home, away := from("alice", public(1), 1), from("alice", public(2), 2)
	now := begin
	l.listener(t, home, conditions(t, now), 8000, 8001)
	now = now.Add(time.Minute)
	l.listener(t, away, conditions(t, now), 8001)
	ports := l.Ports()
	if len(ports) != 2 || len(ports[1].Ways) != 2 || ports[1].Ways[0].At != netip.AddrPortFrom(away.Client, 5125) || ports[1].Ways[1].At != netip.AddrPortFrom(home.Client, 5125) {
		t.Errorf("%+v", ports)
	}
	l.listener(t, home, conditions(t, now), 8001)
	expectTold(t, "one is not asked for any more", l, map[int]string{8001: "alice"})
	l.Expire(begin.Add(10*time.Minute + 30*time.Second))
	expectTold(t, "renewed", l, map[int]string{8001: "alice"})
	l.Expire(now.Add(10 * time.Minute))
	expectTold(t, "the lease is over", l, nil)
	expectCodes(t, "for somebody else", l.listener(t, from("bob", public(3), 3), conditions(t, now.Add(10*time.Minute)), 8001), 0)
}

// The ports of an expelled member are told as such until the lease is over, unless another member gets them. They end with
// what forbids them otherwise, too.
func TestPortsOfExpelledMembers(t *testing.T) {
	l := New(listenTerms())
	alice := from("alice", public(1), 1)
	l.listener(t, alice, conditions(t, begin), 8000, 8001)
	l.Expel(l.Known("alice"), begin)
	expectTold(t, "expelled", l, map[int]string{-8000: "alice", -8001: "alice"})
	expectCodes(t, "for another", l.listener(t, from("bob", public(2), 2), conditions(t, begin), 8001), 0)
	expectTold(t, "another has one", l, map[int]string{-8000: "alice", 8001: "bob"})
	expectCodes(t, "admitted again", l.listener(t, alice, conditions(t, begin), 8000), 0)
	expectTold(t, "admitted again", l, map[int]string{8000: "alice", 8001: "bob"})
	l.Expel(l.Known("alice"), begin)
	l.Expire(begin.Add(10 * time.Minute))
	expectTold(t, "the lease would be over", l, nil)

	l.listener(t, alice, conditions(t, begin), 8000)
	policy, err := egress.New(nil, []netip.Prefix{netip.PrefixFrom(alice.Client, 32)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	l.EndForbidden(policy.Around(egress.Surroundings{}), func(string) egress.Narrowing { return egress.Narrowing{} }, begin)
	expectTold(t, "nobody may connect to her any more", l, nil)
}

// The ports that an earlier agent has saved are taken over, but for those of members who are not admitted any more.
func TestPortsAreAdopted(t *testing.T) {
	before := New(listenTerms())
	before.listener(t, from("alice", public(1), 1), conditions(t, begin), 8000, 8001)
	before.listener(t, from("bob", public(2), 2), conditions(t, begin), 8002)
	state := before.State(begin)
	saved := before.Ports()

	x := listenTerms()
	x.Incoming = slices.DeleteFunc(x.Incoming, func(port uint16) bool { return port == 8001 })
	l := New(x)
	state.Admissions = slices.DeleteFunc(state.Admissions, func(a rules.Admission) bool { return a.Member == before.Known("bob").ID })
	l.Adopt(state, nil, begin)
	l.AdoptPorts(saved, begin)
	expectTold(t, "taken over", l, map[int]string{8000: "alice"})
	if got := l.Ports(); !EqualPorts(got, saved[:1]) {
		t.Errorf("%+v, want %+v", got, saved[:1])
	}
	l = New(x)
	l.Adopt(state, nil, begin)
	l.AdoptPorts(saved, begin.Add(time.Hour))
	expectTold(t, "too late", l, nil)
}

// While the waypoint is closed, nobody is admitted to the converter, and so gets no port.
func TestPortsWhileClosed(t *testing.T) {
	l, under := New(listenTerms()), conditions(t, begin)
	under.Giving = giving.Standing{Cause: giving.SwitchedOff}
	if _, _, refusal := l.AdmitConverter(from("alice", public(1), 1), under); refusal == nil {
		t.Error("admitted")
	}
}
