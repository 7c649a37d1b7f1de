package tunnel

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.uber.org/goleak"

	"github.com/detour-collective/dcol/internal/detour"
	"github.com/detour-collective/dcol/internal/path"
	"github.com/detour-collective/dcol/internal/session"
	"github.com/detour-collective/dcol/internal/session/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	bob    = detour.Via{Waypoint: "bob", Addr: netip.MustParseAddr("192.0.2.7")}
	bob2   = detour.Via{Waypoint: "bob", Addr: netip.MustParseAddr("192.0.2.8")}
	inside = netip.MustParseAddr("10.1.2.3")
)

// fakeSession grants for ten minutes by default.
type fakeSession struct {
	mu    sync.Mutex
	state session.State
	fail  error
	lease time.Duration // of its grants
	port  uint16        // of its end of the tunnel
	asked []time.Time
}

func newSession() *fakeSession {
	return &fakeSession{lease: 9 * time.Minute, state: session.State{
		Up: true, Sessions: 1, Addr: netip.MustParseAddrPort("192.0.2.7:4500"), RTT: 30 * time.Millisecond, Observed: netip.MustParseAddrPort("198.51.100.1:5000"), Offers: []wire.Kind{wire.WireGuard, wire.InBand},
	}}
}

func (f *fakeSession) Tunnel(context.Context, wire.TunnelRequest) (wire.TunnelGrant, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = append(f.asked, time.Now())
	return wire.TunnelGrant{Lease: f.lease, Port: f.port}, f.fail
}

func (f *fakeSession) State() session.State {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.state
}

func (f *fakeSession) set(change func(*fakeSession)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(f)
}

// fakeEnd is up once it is set, by default.
type fakeEnd struct {
	mu     sync.Mutex
	keeps  bool // the result of lasting
	at     netip.Addr
	places []place // the arguments of set
	dead   string
	refuse error
	drops  int
	inUse  error // the conflict that check returns
	others bool  // whether addresses stay in spite of it
	checks int
}

func (f *fakeEnd) request() (wire.TunnelRequest, error) { return wire.TunnelRequest{}, nil }
func (f *fakeEnd) set(_ context.Context, to place, _ wire.TunnelGrant) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.at, f.places = to.at.Addr(), append(f.places, to)
	return f.refuse
}
func (f *fakeEnd) tunnels(context.Context) ([]detour.Tunnel, string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.dead != "" {
		return nil, f.dead
	}
	return []detour.Tunnel{{Kind: path.WireGuard, Local: inside}}, ""
}
func (f *fakeEnd) check() (conflict error, left bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.checks++
	return f.inUse, f.others || f.inUse == nil, nil
}
func (f *fakeEnd) drop() error { f.drops++; return nil }
func (f *fakeEnd) lasting() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.keeps
}
func (f *fakeEnd) dies(why string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.dead = why
}

type keeping struct {
	*Keeper
	end   *fakeEnd
	start time.Time

	mu   sync.Mutex
	told []Standing
}

// keep runs a Keeper in virtual time.
func keep(t *testing.T, e *fakeEnd, test func(k *keeping), sessions ...*fakeSession) {
	synctest.Test(t, func(t *testing.T) {
		var leads []Lead
		for i, s := range sessions {
			leads = append(leads, Lead{[]detour.Via{bob, bob2}[i], s})
		}
		k := &keeping{end: e, start: time.Now()}
		k.Keeper = newKeeper(path.WireGuard, leads, e, k.hears, slog.New(slog.DiscardHandler))
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { k.Run(ctx); close(ended) }()
		synctest.Wait()
		test(k)
		stop()
		<-ended
		if e.drops == 0 {
			t.Error("the tunnel was not taken down in the end")
		}
	})
}

func (k *keeping) poke() { k.Poke(); synctest.Wait() }

func (k *keeping) hears(s Standing) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.told = append(k.told, s)
}

// tells checks the Standings that were reported since the last call.
func (k *keeping) tells(t *testing.T, want ...Standing) {
	t.Helper()
	synctest.Wait()
	k.mu.Lock()
	defer k.mu.Unlock()
	if d := cmp.Diff(want, k.told, cmpopts.EquateComparable(netip.Addr{}), cmpopts.EquateEmpty(), cmpopts.IgnoreFields(Standing{}, "Remote")); d != "" {
		t.Errorf("told (-want +got):\n%s", d)
	}
	k.told = nil
}

func up(v detour.Via) Standing {
	return Standing{Via: v, Kind: path.WireGuard, Tunnels: []detour.Tunnel{{Kind: path.WireGuard, Local: inside}}}
}

func down(v detour.Via, why string) Standing { return Standing{Via: v, Kind: path.WireGuard, Why: why} }

func (f *fakeSession) times(t *testing.T, start time.Time, want ...time.Duration) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	var got []time.Duration
	for _, at := range f.asked {
		got = append(got, at.Sub(start))
	}
	if !slices.Equal(got, want) {
		t.Errorf("asked at %v, want %v", got, want)
	}
}

func TestGrantIsRenewedBeforeItEnds(t *testing.T) {
	s := newSession()
	keep(t, &fakeEnd{keeps: true}, func(k *keeping) {
		k.tells(t, up(bob))
		time.Sleep(13 * time.Minute)
		s.times(t, k.start, 0, 6*time.Minute, 12*time.Minute)
		k.tells(t)
	}, s)
}

// A waypoint whose grants have no lease does not make its client ask all the time.
func TestLeasesAreBounded(t *testing.T) {
	for granted, want := range map[time.Duration]time.Duration{0: 10 * time.Second, 365 * 24 * time.Hour: 24 * time.Hour} {
		for _, lasting := range []bool{false, true} {
			s := newSession()
			s.lease = granted
			keep(t, &fakeEnd{keeps: lasting}, func(k *keeping) {
				time.Sleep(want*2/3 + time.Millisecond)
				s.times(t, k.start, 0, want*2/3)
			}, s)
		}
	}
}

// A refused renewal is tried again. The tunnel stays until its lease is over.
func TestRefusedRenewalLeavesTheTunnel(t *testing.T) {
	for _, lasting := range []bool{false, true} {
		s := newSession()
		keep(t, &fakeEnd{keeps: lasting}, func(k *keeping) {
			k.tells(t, up(bob))
			s.set(func(f *fakeSession) { f.fail = &wire.Refusal{Code: wire.Busy, RetryAfter: time.Minute} })
			time.Sleep(9*time.Minute - time.Second)
			s.times(t, k.start, 0, 6*time.Minute, 7*time.Minute, 8*time.Minute)
			if k.end.drops != 0 {
				t.Error("the tunnel is taken down")
			}
			s.set(func(f *fakeSession) { f.fail = nil })
			time.Sleep(2 * time.Second)
			s.times(t, k.start, 0, 6*time.Minute, 7*time.Minute, 8*time.Minute, 9*time.Minute)
			if k.end.drops != 0 {
				t.Error("the tunnel is taken down, though it was renewed in the end")
			}
		}, s)
	}
}

// A tunnel whose address this host now uses elsewhere is given up at once, and another one is requested.
func TestAddressInUse(t *testing.T) {
	s := newSession()
	keep(t, &fakeEnd{keeps: true}, func(k *keeping) {
		k.tells(t, up(bob))
		time.Sleep(time.Minute)
		if k.end.checks > 1 {
			t.Errorf("though nothing has changed it was checked %d times", k.end.checks)
		}
		k.poke()
		k.tells(t, up(bob))
		s.times(t, k.start, 0)
		inUse := errors.New("10.1.2.3 is in use on this host")
		k.end.mu.Lock()
		k.end.inUse, k.end.refuse = inUse, inUse
		k.end.mu.Unlock()
		time.Sleep(time.Minute)
		k.poke()
		k.tells(t, down(bob, inUse.Error()))
		s.times(t, k.start, 0, 2*time.Minute)
		if k.end.drops != 1 {
			t.Errorf("dropped %d times", k.end.drops)
		}
		k.end.mu.Lock()
		k.end.inUse, k.end.refuse = nil, nil
		k.end.mu.Unlock()
		time.Sleep(retryLater)
		k.tells(t, up(bob))
	}, s)
}

// If one family's address is in use elsewhere, another one is requested. The tunnel stays for the other family.
func TestOtherFamilyStays(t *testing.T) {
	s := newSession()
	keep(t, &fakeEnd{keeps: true}, func(k *keeping) {
		k.tells(t, up(bob))
		time.Sleep(time.Minute)
		k.end.mu.Lock()
		k.end.inUse, k.end.others = errors.New("10.1.2.3 is in use on this host"), true
		k.end.mu.Unlock()
		k.poke()
		k.tells(t, up(bob))
		s.times(t, k.start, 0, time.Minute)
		if k.end.drops != 0 {
			t.Errorf("dropped %d times", k.end.drops)
		}
	}, s)
}

// However often the network changes, routes are read only once a second.
func TestChecksAreBounded(t *testing.T) {
	keep(t, &fakeEnd{keeps: true}, func(k *keeping) {
		for range 1000 {
			k.poke()
			time.Sleep(10 * time.Millisecond)
		}
		if n := k.end.checks; n < 9 || n > 12 {
			t.Errorf("checked %d times in 10 s", n)
		}
	}, newSession())
}

func TestRefusalsAreNotPressed(t *testing.T) {
	for _, test := range []struct {
		name string
		err  error
		want time.Duration
	}{
		{"its own time", &wire.Refusal{Code: wire.Busy, RetryAfter: time.Minute}, time.Minute},
		{"its own time, too short", &wire.Refusal{Code: wire.Busy, RetryAfter: time.Millisecond}, time.Second},
		{"its own time, too long", &wire.Refusal{Code: wire.Busy, RetryAfter: 365 * 24 * time.Hour}, time.Hour},
		{"no time", &wire.Refusal{Code: wire.NotOffered}, retryLater},
		{"closed", &wire.Refusal{Code: wire.OutsideHours, RetryAfter: 8 * time.Hour}, retryLater},
		{"unanswered", context.DeadlineExceeded, askAgain},
		{"session down", &session.DownError{Waypoint: "bob", Problem: &session.Problem{Code: session.Lost}}, askAgain},
		{"other", errors.New("strange"), retryLater},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newSession()
			s.fail = test.err
			keep(t, &fakeEnd{}, func(k *keeping) {
				time.Sleep(test.want + time.Millisecond)
				s.times(t, k.start, 0, test.want)
				k.tells(t, down(bob, "ask for a tunnel: "+test.err.Error()))
				s.set(func(f *fakeSession) { f.fail = nil })
				time.Sleep(test.want)
				k.tells(t, up(bob))
			}, s)
		})
	}
}

func TestWhatCannotBeSetUpSaysWhy(t *testing.T) {
	keep(t, &fakeEnd{refuse: errors.New("there is no /dev/net/tun")}, func(k *keeping) {
		k.tells(t, down(bob, "there is no /dev/net/tun"))
	}, newSession())
}

// When a session ends, in-band admission ends with it. Other tunnels stay until their lease is over.
func TestSessionIsLost(t *testing.T) {
	for _, lasting := range []bool{false, true} {
		s := newSession()
		keep(t, &fakeEnd{keeps: lasting}, func(k *keeping) {
			k.tells(t, up(bob))
			s.set(func(f *fakeSession) { f.state.Up = false })
			k.poke()
			if lasting {
				k.tells(t, up(bob)) // reported again, because the loop may have noticed the session's end already
				time.Sleep(10 * time.Minute)
			}
			k.tells(t, down(bob, ""))
			if k.end.drops != 1 {
				t.Errorf("dropped %d times", k.end.drops)
			}
			s.set(func(f *fakeSession) { f.state.Up = true; f.state.Sessions++ })
			k.poke()
			k.tells(t, up(bob))
		}, s)
	}
}

// An expelled member's tunnel is not used any more, whatever its end reports.
func TestMembersPart(t *testing.T) {
	s := newSession()
	keep(t, &fakeEnd{keeps: true}, func(k *keeping) {
		k.tells(t, up(bob))
		s.set(func(f *fakeSession) { f.state.Up, f.state.Problem = false, &session.Problem{Code: session.RefusedUs} })
		k.poke()
		k.tells(t, down(bob, ""))
	}, s)
}

// A closed waypoint gets no requests for new tunnels. An existing tunnel is renewed for the connections in it, but not
// offered; in-band admission ends. When the waypoint opens, both are offered at once.
func TestWaypointCloses(t *testing.T) {
	for _, lasting := range []bool{false, true} {
		s := newSession()
		keep(t, &fakeEnd{keeps: lasting}, func(k *keeping) {
			k.tells(t, up(bob))
			s.set(func(f *fakeSession) { f.state.Closed = &session.Closed{Code: wire.OutsideHours} })
			k.poke()
			k.tells(t, down(bob, ""))
			time.Sleep(7*time.Minute + lookEvery/2) // between two steps
			if lasting {
				s.times(t, k.start, 0, 6*time.Minute)
			} else {
				s.times(t, k.start, 0)
			}
			if dropped := k.end.drops > 0; dropped == lasting {
				t.Errorf("lasting: %v, dropped: %v", lasting, dropped)
			}
			s.set(func(f *fakeSession) { f.state.Closed = nil })
			k.poke()
			k.tells(t, up(bob))
		}, s)
	}
}

// What was refused because the waypoint was closed is requested when it opens, and not before.
func TestWaypointOpens(t *testing.T) {
	s := newSession()
	s.state.Closed = &session.Closed{Code: wire.SwitchedOff}
	keep(t, &fakeEnd{keeps: true}, func(k *keeping) {
		time.Sleep(time.Hour)
		s.times(t, k.start)
		k.tells(t, down(bob, ""))
		s.set(func(f *fakeSession) { f.state.Closed = nil })
		k.poke()
		s.times(t, k.start, time.Hour)
		k.tells(t, up(bob))
	}, s)
}

func TestOtherOccasionsNeedOtherGrants(t *testing.T) {
	s := newSession()
	keep(t, &fakeEnd{keeps: true}, func(k *keeping) {
		k.poke()
		s.times(t, k.start, 0)
		time.Sleep(time.Second)
		s.set(func(f *fakeSession) { f.state.Observed = netip.MustParseAddrPort("198.51.100.9:5000") })
		k.poke()
		s.times(t, k.start, 0, time.Second)
		time.Sleep(time.Second)
		s.set(func(f *fakeSession) { f.state.Sessions++ })
		k.poke()
		s.times(t, k.start, 0, time.Second, 2*time.Second)
	}, s)
}

// The end learns where the session is reached, and which grant is the first of a session, even after a failed request.
func TestEndsAreToldOfNewSessions(t *testing.T) {
	s := newSession()
	at, rtt := netip.AddrPortFrom(bob.Addr, 4500), 30*time.Millisecond
	keep(t, &fakeEnd{keeps: true}, func(k *keeping) {
		time.Sleep(7 * time.Minute)
		s.set(func(f *fakeSession) { f.state.Sessions++; f.fail = context.DeadlineExceeded })
		k.poke()
		s.set(func(f *fakeSession) { f.fail = nil })
		time.Sleep(askAgain)
		synctest.Wait()
		s.set(func(f *fakeSession) { f.state.Observed = netip.MustParseAddrPort("198.51.100.9:5000") })
		k.poke()
		want := []place{{at, rtt, true}, {at, rtt, false}, {at, rtt, true}, {at, rtt, false}}
		if !slices.Equal(k.end.places, want) {
			t.Errorf("set to %v, want %v", k.end.places, want)
		}
	}, s)
}

func TestAnotherAddressOfTheWaypointTakesOver(t *testing.T) {
	first, second := newSession(), newSession()
	keep(t, &fakeEnd{keeps: true}, func(k *keeping) {
		k.tells(t, up(bob))
		first.set(func(f *fakeSession) { f.state.Up = false })
		k.poke()
		k.tells(t, down(bob, ""), up(bob2))
		if k.end.at != bob2.Addr {
			t.Errorf("the tunnel leads to %v", k.end.at)
		}
		first.set(func(f *fakeSession) { f.state.Up = true })
		k.poke()
		k.tells(t, up(bob2)) // it stays where it is
	}, first, second)
}

func TestDeathOfATunnelIsNoticed(t *testing.T) {
	e, s := &fakeEnd{keeps: true}, newSession()
	keep(t, e, func(k *keeping) {
		k.tells(t, up(bob))
		e.dies("no handshake")
		time.Sleep(lookEvery)
		k.tells(t, down(bob, "no handshake"))
		e.dies("")
		time.Sleep(lookEvery)
		k.tells(t, up(bob))
		s.times(t, k.start, 0)
		// The waypoint may have ended the tunnel. If a refusal names a time for the next request, that time counts.
		s.set(func(f *fakeSession) { f.fail = &wire.Refusal{Code: wire.QuotaTunnels, RetryAfter: 5 * time.Minute} })
		e.dies("no handshake")
		time.Sleep(retryLater + lookEvery)
		s.times(t, k.start, 0, retryLater)
		time.Sleep(5 * time.Minute)
		s.times(t, k.start, 0, retryLater, retryLater+5*time.Minute)
	}, s)
}

// When a waypoint withdraws a kind, as it does when a member's servers become limited, the tunnel ends at once. It comes back
// with the offer.
func TestWithdrawnOfferEndsTheTunnel(t *testing.T) {
	for _, lasting := range []bool{false, true} {
		s := newSession()
		keep(t, &fakeEnd{keeps: lasting}, func(k *keeping) {
			k.tells(t, up(bob))
			s.set(func(f *fakeSession) { f.state.Offers = []wire.Kind{wire.Mapped} })
			k.poke()
			k.tells(t, down(bob, ""))
			if k.end.drops == 0 {
				t.Error("the tunnel stays")
			}
			s.set(func(f *fakeSession) { f.state.Offers = []wire.Kind{wire.Mapped, wire.WireGuard} })
			time.Sleep(time.Second)
			k.poke()
			k.tells(t, up(bob))
			s.times(t, k.start, 0, time.Second)
		}, s)
	}
}

// A tunnel outlasts the loss of its session, also if the last greeting lacked its kind: only a usable session can withdraw it.
func TestOnlyAUsableSessionWithdraws(t *testing.T) {
	s := newSession()
	keep(t, &fakeEnd{keeps: true}, func(k *keeping) {
		k.tells(t, up(bob))
		s.set(func(f *fakeSession) { f.state.Up, f.state.Offers = false, nil })
		k.poke()
		k.tells(t, up(bob))
	}, s)
}

func TestWhatIsNotOfferedIsNotAskedFor(t *testing.T) {
	s := newSession()
	s.state.Offers = []wire.Kind{wire.Mapped}
	keep(t, &fakeEnd{}, func(k *keeping) {
		time.Sleep(time.Hour)
		s.times(t, k.start)
		k.tells(t, down(bob, ""))
	}, s)
}

// The address to which a VPN sends its packets is known from the grant, even if no tunnel comes up.
func TestRemoteOfTheTunnel(t *testing.T) {
	for port, want := range map[uint16]string{0: "192.0.2.7:4500", 1194: "192.0.2.7:1194"} {
		s, e := newSession(), &fakeEnd{keeps: true, dead: "no handshake"}
		s.port = port
		keep(t, e, func(k *keeping) {
			k.mu.Lock()
			defer k.mu.Unlock()
			if last := k.told[len(k.told)-1]; last.Why != "no handshake" || last.Remote != netip.MustParseAddrPort(want) {
				t.Errorf("port %d: told %+v, want %s", port, last, want)
			}
			k.told = nil
		}, s)
	}
	s, e := newSession(), &fakeEnd{keeps: true}
	s.fail = &wire.Refusal{}
	keep(t, e, func(k *keeping) {
		k.mu.Lock()
		defer k.mu.Unlock()
		if last := k.told[len(k.told)-1]; last.Remote.IsValid() {
			t.Errorf("without a grant, told %+v", last)
		}
		k.told = nil
		e.drops++
	}, s)
}
