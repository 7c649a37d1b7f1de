package relay

import (
	"errors"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/converter/cookie"
	"github.com/detour-collective/dcol/internal/converter/server"
	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
)

// A host that is a converter and a member at once: its own relay takes connections at port 8080 for a member, and brings
// them to itself, where they lead to an echo server.
const receivePort = 5125

// atHome is the address of that host. No message has a loopback address.
var atHome = netip.MustParseAddr("192.0.2.1")

func incomingFor(member string, lasts time.Duration) Incoming {
	proof := key.Seal(cookie.Claim{Mark: 1, Client: atHome, Expires: time.Now().Add(time.Hour)})
	return Incoming{Port: 8080, Member: member, Mark: 3, Ways: []server.Way{{At: netip.AddrPortFrom(atHome, receivePort), Cookie: proof, Expires: time.Now().Add(lasts)}}}
}

func listeningState(t *testing.T, ns *netnstest.NS, list ...Incoming) State {
	t.Helper()
	ns.Output(t, "ip", "addr", "add", atHome.String()+"/32", "dev", "lo")
	ns.Output(t, "ip", "link", "set", "lo", "up")
	netnstest.Serve(t, ns.Listen(t, "127.0.0.1:7"), netnstest.Echo)
	return State{
		Serve:   &Serve{Port: port, Key: key, Incoming: list},
		Receive: &Receive{Port: receivePort, Key: key, Services: []Service{{Number: 1, To: netip.MustParseAddrPort("127.0.0.1:7")}}},
	}
}

// with returns the State with other ports.
func (s State) with(list []Incoming) State {
	serve := *s.Serve
	serve.Incoming = list
	s.Serve = &serve
	return s
}

// call connects to the converter's port as anybody may.
func call(t *testing.T, ns *netnstest.NS) (net.Conn, error) {
	t.Helper()
	c, err := ns.Dial(t.Context(), netip.AddrPortFrom(atHome, 8080))
	if err == nil {
		t.Cleanup(func() { c.Close() })
		err = talk(c, "hello")
	}
	return c, err
}

func incomingParts(s Status) (names []string) {
	for name := range maps.Keys(s.Parts) {
		if strings.HasPrefix(name, partIncoming) {
			names = append(names, name)
		}
	}
	return slices.Sorted(slices.Values(names))
}

// A relay that takes over also has the listeners for members' services, even while its agent does not know the ports
// yet. Connections continue.
func TestIncomingHandover(t *testing.T) {
	t.Parallel()
	ns, dir := netnstest.New(t), t.TempDir()
	state := listeningState(t, ns, incomingFor("alice", time.Hour))
	first, _ := started(t, ns, dir, "1")
	if s, err := first.Set(state); err != nil || !slices.Equal(incomingParts(s), []string{"incoming at 8080 for alice"}) {
		t.Fatalf("%+v, %v", s, err)
	}
	old, err := call(t, ns)
	if err != nil {
		t.Fatal(err)
	}
	second, _ := started(t, ns, dir, "2")
	if _, err := second.Set(state.with(nil)); err != nil {
		t.Fatal(err)
	}
	waiting := make(chan error, 1)
	go func() {
		_, err := call(t, ns)
		waiting <- err
	}()
	time.Sleep(50 * time.Millisecond)
	if s, err := second.Set(state); err != nil || s.Parts["incoming at 8080 for alice"].Problem != "" {
		t.Fatalf("%+v, %v", s, err)
	}
	if err := <-waiting; err != nil {
		t.Errorf("in between: %v", err)
	}
	if err := talk(old, "still there"); err != nil {
		t.Errorf("the old connection: %v", err)
	}
}

// A new list of ports takes effect. A port that is not in it is closed, and its connections continue. Connections of an
// expelled member end, and another member gets the port.
func TestIncomingChanges(t *testing.T) {
	t.Parallel()
	ns := netnstest.New(t)
	state := listeningState(t, ns)
	r, _ := started(t, ns, t.TempDir(), "1")
	set := func(what string, list []Incoming, parts ...string) {
		t.Helper()
		if s, err := r.Set(state.with(list)); err != nil || !slices.Equal(incomingParts(s), parts) {
			t.Fatalf("%s: %+v, %v", what, s, err)
		}
	}
	refused := func(what string) {
		t.Helper()
		if _, err := call(t, ns); !errors.Is(err, syscall.ECONNREFUSED) && !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("%s: %v", what, err)
		}
	}
	alice := []Incoming{incomingFor("alice", time.Hour)}
	set("none", []Incoming{})
	refused("nobody has the port")
	set("alice's", alice, "incoming at 8080 for alice")
	c, err := call(t, ns)
	if err != nil {
		t.Fatal(err)
	}
	set("as before", nil, "incoming at 8080 for alice")
	set("none", []Incoming{})
	refused("she has it no longer")
	if err := talk(c, "goes on"); err != nil {
		t.Errorf("a connection of hers: %v", err)
	}
	set("hers again", alice, "incoming at 8080 for alice")
	if c, err = call(t, ns); err != nil {
		t.Fatal(err)
	}
	expelled := alice[0]
	expelled.Expelled = true
	set("bob's after her expulsion", []Incoming{expelled, incomingFor("bob", time.Hour)}, "incoming at 8080 for bob")
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("a connection of an expelled member: %v", err)
	}
	if _, err := call(t, ns); err != nil {
		t.Errorf("bob's: %v", err)
	}
	set("bob's lease is over", []Incoming{incomingFor("bob", -time.Second)}, "incoming at 8080 for bob")
	refused("and nobody says so")
	if s, err := r.Set(State{Receive: state.Receive}); err != nil || len(incomingParts(s)) > 0 {
		t.Errorf("no converter any more: %+v, %v", s, err)
	}
	if _, err := r.Set(State{}); err != nil {
		t.Error(err)
	}
}
