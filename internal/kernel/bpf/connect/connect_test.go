package connect

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/kernel/bpf/cgrouptest"
	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
)

var (
	server4 = netip.MustParseAddrPort("10.9.0.2:80")
	server6 = netip.MustParseAddrPort("[fd09::2]:80")
	mapped  = netip.MustParseAddrPort("[::ffff:10.9.0.2]:80")
	other4  = netip.MustParseAddrPort("10.9.0.2:81")
)

const directly = "server"

// world is a host with listeners to which connections are redirected, a server, and a cgroup for programs.
type world struct {
	testing.TB
	host, server *netnstest.NS
	cgroup       string
	at4, at6     net.Listener
	hook         atomic.Pointer[Hook]
	using        sync.Mutex // a hook, which is not closed meanwhile
}

func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{TB: t, host: netnstest.New(t), server: netnstest.New(t), cgroup: cgrouptest.New(t)}
	netnstest.Veth(t,
		netnstest.End{NS: w.host, Name: "eth0", Addresses: []string{"10.9.0.1/24", "10.9.0.3/24", "fd09::1/64"}},
		netnstest.End{NS: w.server, Name: "eth0", Addresses: []string{"10.9.0.2/24", "fd09::2/64"}})
	for _, port := range []string{":80", ":81"} {
		w.answer(w.server.Listen(t, port), func(netip.AddrPort) string { return directly })
	}
	w.at4, w.at6 = w.host.Listen(t, "127.0.0.1:0"), w.host.Listen(t, "[::1]:0")
	for _, l := range []net.Listener{w.at4, w.at6} {
		w.answer(l, func(from netip.AddrPort) string {
			w.using.Lock()
			defer w.using.Unlock()
			server, ok := w.hook.Load().Take(from)
			if !ok {
				return "nobody said which server"
			}
			if _, ok := w.hook.Load().Take(from); ok {
				return "said twice"
			}
			return server.String()
		})
	}
	return w
}

// answer sends each connection a line.
func (w *world) answer(l net.Listener, line func(from netip.AddrPort) string) {
	w.Helper()
	netnstest.Serve(w, l, func(c *net.TCPConn) {
		from := netip.MustParseAddrPort(c.RemoteAddr().String())
		fmt.Fprint(c, line(netip.AddrPortFrom(from.Addr().Unmap(), from.Port())))
		_, _ = c.Read(make([]byte, 100)) // until the client is done
	})
}

// open attaches the programs.
func (w *world) open(r Rules) *Hook {
	w.Helper()
	h := w.openWith(nil, r)
	w.hook.Store(h)
	return h
}

func (w *world) openWith(before *Hook, r Rules) (h *Hook) {
	w.Helper()
	w.host.Must(w, func() (err error) {
		if before == nil {
			h, err = Open(w.cgroup, nil)
		} else {
			h, err = Open(w.cgroup, before.Sources())
		}
		return err
	})
	w.Cleanup(func() {
		w.using.Lock()
		defer w.using.Unlock()
		_ = h.Close()
	})
	w.set(h, r)
	return h
}

func (w *world) set(h *Hook, r Rules) {
	w.Helper()
	r.Port4, r.Port6 = uint16(w.at4.Addr().(*net.TCPAddr).Port), uint16(w.at6.Addr().(*net.TCPAddr).Port)
	if err := errors.Join(h.Set(r), h.Renew(time.Hour)); err != nil {
		w.Fatal(err)
	}
}

func set[K comparable](list ...K) map[K]struct{} {
	s := make(map[K]struct{})
	for _, k := range list {
		s[k] = struct{}{}
	}
	return s
}

// expect checks how a connection ends: redirected, or directly. In both cases the program sees its server.
func (c *client) expect(t testing.TB, name string, x try, redirected bool) {
	t.Helper()
	want := outcome{Peer: x.To, Heard: directly}
	switch {
	case redirected:
		want.Heard = netip.AddrPortFrom(x.To.Addr().Unmap(), x.To.Port()).String()
	case x.Datagram:
		want.Heard = ""
	}
	if got := c.try(t, x); got != want {
		t.Errorf("%s: %+v, want %+v", name, got, want)
	}
}

func TestRedirects(t *testing.T) {
	w := newWorld(t)
	c := newClient(t, w.host, w.cgroup)
	w.open(Rules{Servers: set(server4, server6)})
	for name, x := range map[string]try{
		"IPv4":                     {To: server4},
		"IPv6":                     {To: server6},
		"IPv4-mapped":              {To: mapped},
		"IPv4, not blocking":       {To: server4, NonBlocking: true},
		"IPv6, not blocking":       {To: server6, NonBlocking: true},
		"mapped, not blocking":     {To: mapped, NonBlocking: true},
		"fast open":                {To: server4, FastOpen: true},
		"fast open, IPv6":          {To: server6, FastOpen: true},
		"after a refusal":          {To: server4, First: netip.MustParseAddrPort("10.9.0.2:9")},
		"after a refusal, IPv6":    {To: server6, First: netip.MustParseAddrPort("[fd09::2]:9")},
		"to IPv4 after IPv6":       {To: mapped, First: netip.MustParseAddrPort("[fd09::2]:9")},
		"bound to nothing":         {To: server6, From: netip.MustParseAddrPort("[::]:0")},
		"TCP by name":              {To: server4, Protocol: unix.IPPROTO_TCP},
		"again, because of ports":  {To: server4},
		"a third time, as it goes": {To: server6},
	} {
		c.expect(t, name, x, name != "bound to nothing")
	}
}

func TestLeavesAlone(t *testing.T) {
	w := newWorld(t)
	c := newClient(t, w.host, w.cgroup)
	outside, elsewhere := newClient(t, w.host, ""), newClient(t, w.server, w.cgroup)
	w.open(Rules{Others: true})
	c.expect(t, "an ordinary one", try{To: server4}, true)
	for name, x := range map[string]try{
		"UDP":                {To: server4, Datagram: true},
		"UDP, IPv6":          {To: server6, Datagram: true},
		"MPTCP":              {To: server4, Protocol: unix.IPPROTO_MPTCP},
		"MPTCP, IPv6":        {To: server6, Protocol: unix.IPPROTO_MPTCP},
		"marked":             {To: server4, Mark: 5},
		"of a device":        {To: server4, Device: "eth0"},
		"of an address":      {To: server4, From: netip.MustParseAddrPort("10.9.0.3:0")},
		"of an IPv6 address": {To: server6, From: netip.MustParseAddrPort("[fd09::1]:0")},
		"of a port":          {To: server4, From: netip.MustParseAddrPort("0.0.0.0:7777")},
	} {
		c.expect(t, name, x, false)
	}
	outside.expect(t, "outside of the cgroup", try{To: server4}, false)
	elsewhere.expect(t, "in another namespace", try{To: server4}, false)
}

// Subflows that the kernel opens are sockets of its own.
func TestJoinsAreLeftAlone(t *testing.T) {
	w := newWorld(t)
	c := newClient(t, w.host, w.cgroup)
	w.open(Rules{Others: true})
	w.host.Output(t, "ip", "mptcp", "endpoint", "add", "10.9.0.3", "subflow")
	c.expect(t, "with a join", try{To: server4, Protocol: unix.IPPROTO_MPTCP, Joins: true}, false)
}

func TestRules(t *testing.T) {
	w := newWorld(t)
	below := cgrouptest.In(t, w.cgroup)
	inside := newClient(t, w.host, below)
	c := newClient(t, w.host, w.cgroup)
	contained := newClientWith(t, w.host, w.cgroup, unix.CLONE_NEWPID)
	h := w.open(Rules{})
	group := func(path string) uint64 {
		id, err := CgroupID(path)
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	all := Rules{Others: true}
	for _, r := range []struct {
		name   string
		rules  Rules
		client *client
		to     netip.AddrPort
		want   bool
	}{
		{"none", Rules{}, c, server4, false},
		{"all", all, c, server4, true},
		{"all, IPv6", all, c, server6, true},
		{"all but one", Rules{Others: true, Servers: set(server4)}, c, server4, false},
		{"all but another", Rules{Others: true, Servers: set(server4)}, c, other4, true},
		{"one", Rules{Servers: set(server4)}, c, server4, true},
		{"another", Rules{Servers: set(other4)}, c, server4, false},
		{"a network", Rules{Others: true, Networks: set(netip.MustParsePrefix("10.0.0.0/8"))}, c, server4, false},
		{"a network, mapped", Rules{Others: true, Networks: set(netip.MustParsePrefix("10.0.0.0/8"))}, c, mapped, false},
		{"an IPv6 network", Rules{Others: true, Networks: set(netip.MustParsePrefix("fd09::/64"))}, c, server6, false},
		{"an IPv6 network, IPv4", Rules{Others: true, Networks: set(netip.MustParsePrefix("::/1"))}, c, server6, true},
		{"one address", Rules{Others: true, Networks: set(netip.MustParsePrefix("10.9.0.2/32"))}, c, server4, false},
		{"the address beside", Rules{Others: true, Networks: set(netip.MustParsePrefix("10.9.0.3/32"))}, c, server4, true},
		{"a port", Rules{Others: true, Ports: set[uint16](80)}, c, server4, false},
		{"another port", Rules{Others: true, Ports: set[uint16](81, 0x5000)}, c, server4, true},
		{"its cgroup", Rules{Others: true, Cgroups: set(group(w.cgroup))}, c, server4, false},
		{"a cgroup above", Rules{Others: true, Cgroups: set(group(w.cgroup))}, inside, server4, false},
		{"a cgroup below", Rules{Others: true, Cgroups: set(group(below))}, c, server4, true},
		{"the cgroup below", Rules{Others: true, Cgroups: set(group(below))}, inside, server4, false},
		{"a process", Rules{Others: true, Processes: set(c.processID)}, c, server4, false},
		{"another process", Rules{Others: true, Processes: set(c.processID)}, inside, server4, true},
		{"a process in a container", Rules{Others: true, Processes: set(contained.processID)}, contained, server4, false},
		{"a number in a container", Rules{Others: true, Processes: set[uint32](1)}, contained, server4, true},
		{"all again", all, c, server4, true},
	} {
		w.set(h, r.rules)
		r.client.expect(t, r.name, try{To: r.to}, r.want)
	}
}

// A socket that has been redirected once may connect again, directly or redirected.
func TestConnectsAgain(t *testing.T) {
	w := newWorld(t)
	c := newClient(t, w.host, w.cgroup)
	w.open(Rules{Servers: set(server4, server6)})
	other6 := netip.MustParseAddrPort("[fd09::2]:81")
	c.expect(t, "directly", try{To: other4, Before: server4}, false)
	c.expect(t, "redirected", try{To: server4, Before: other4}, true)
	c.expect(t, "IPv6, directly", try{To: other6, Before: server6}, false)
	c.expect(t, "IPv6, redirected", try{To: server6, Before: other6}, true)
	c.expect(t, "IPv4-mapped, redirected", try{To: mapped, Before: server6}, true)
}

// Without a listener, after Pause, after the time, and when its process is killed, connections go to their servers.
func TestFailsTowardsTheServer(t *testing.T) {
	w := newWorld(t)
	c := newClient(t, w.host, w.cgroup)
	h := w.open(Rules{Others: true})
	c.expect(t, "redirected", try{To: server4}, true)
	if err := h.Pause(); err != nil {
		t.Fatal(err)
	}
	c.expect(t, "paused", try{To: server4}, false)
	if err := h.Renew(time.Hour); err != nil {
		t.Fatal(err)
	}
	c.expect(t, "renewed", try{To: server4}, true)
	if err := h.Renew(-time.Millisecond); err != nil {
		t.Fatal(err)
	}
	c.expect(t, "out of time", try{To: server4}, false)
	w.set(h, Rules{Others: true})
	if err := h.Set(Rules{Others: true}); err != nil {
		t.Fatal(err)
	}
	c.expect(t, "without ports", try{To: server4}, false)
	w.set(h, Rules{Others: true})
	w.at4.Close()
	c.expect(t, "nobody listens", try{To: server4}, false)
	c.expect(t, "nobody listens for IPv4-mapped", try{To: mapped}, false)
	c.expect(t, "somebody listens for IPv6", try{To: server6}, true)
	w.at6.Close()
	c.expect(t, "nobody listens for IPv6", try{To: server6}, false)
	if err := h.Close(); err != nil {
		t.Error(err)
	}
	c.expect(t, "closed", try{To: server4}, false)
}

// The holder has a hook and its listener. It is killed at any moment, while clients connect: no connection is refused.
func TestKilled(t *testing.T) {
	w := newWorld(t)
	c := newClient(t, w.host, w.cgroup)
	holder := start(t, w.host, "", 0, "holder", w.cgroup)
	_, out := holder.pipes()
	if line, err := out.ReadString('\n'); err != nil {
		t.Fatalf("the holder ended: %q %v", line, err)
	}
	if got := c.try(t, try{To: server4}); got.Heard != "holder" || got.Peer != server4 {
		t.Fatalf("before: %+v", got)
	}
	time.AfterFunc(20*time.Millisecond, func() { _ = holder.cmd.Process.Kill() })
	for deadline := time.Now().Add(10 * time.Second); ; {
		got := c.try(t, try{To: server4})
		if got.Heard == directly {
			break
		}
		// What the holder has not accepted is reset. A connection must not be refused.
		if strings.Contains(got.Error, "connect:") || time.Now().After(deadline) {
			t.Fatalf("%+v", got)
		}
	}
	c.expect(t, "after", try{To: server4}, false)
}

// holderProgram redirects all connections to itself until it is killed.
func holderProgram(cgroup string) int {
	fail := func(err error) int {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return fail(err)
	}
	h, err := Open(cgroup, nil)
	if err != nil {
		return fail(err)
	}
	port := uint16(l.Addr().(*net.TCPAddr).Port)
	if err := errors.Join(h.Set(Rules{Others: true, Port4: port}), h.Renew(time.Hour)); err != nil {
		return fail(err)
	}
	_ = json.NewEncoder(os.Stdout).Encode("ready")
	for {
		c, err := l.Accept()
		if err != nil {
			return fail(err)
		}
		fmt.Fprint(c, "holder")
		c.Close()
	}
}

// A hook that takes over from another finds that one's connections, and that one answers getpeername() on.
func TestTakeOver(t *testing.T) {
	w := newWorld(t)
	c := newClient(t, w.host, w.cgroup)
	first := w.open(Rules{Others: true})
	second := w.openWith(first, Rules{})
	w.hook.Store(second)
	c.expect(t, "by the second what the first has redirected", try{To: server4}, true)
	c.expect(t, "IPv6", try{To: server6}, true)
	if err := first.Pause(); err != nil {
		t.Fatal(err)
	}
	c.expect(t, "by neither", try{To: server4}, false)
	w.set(second, Rules{Others: true})
	c.expect(t, "by the second", try{To: server4}, true)
}

// The agent's unit has no more.
func TestTwoCapabilitiesAreEnough(t *testing.T) {
	cgroup := cgrouptest.New(t)
	netnstest.New(t).Must(t, func() (err error) {
		defer func() {
			if rejected, ok := errors.AsType[*ebpf.VerifierError](err); ok {
				t.Log(strings.Join(rejected.Log[max(0, len(rejected.Log)-30):], "\n"))
			}
		}()
		if err := netnstest.LimitRights(unix.CAP_BPF, unix.CAP_NET_ADMIN); err != nil {
			return err
		}
		if _, err := ProcessID(); err != nil {
			return err
		}
		h, err := Open(cgroup, nil)
		if err != nil {
			return err
		}
		return h.Close()
	})
}

func TestLackingCapabilityIsNamed(t *testing.T) {
	for has, want := range map[int]string{unix.CAP_BPF: "CAP_NET_ADMIN", unix.CAP_NET_ADMIN: "CAP_BPF"} {
		cgroup := cgrouptest.New(t)
		netnstest.New(t).Must(t, func() error {
			if err := netnstest.LimitRights(has); err != nil {
				return err
			}
			_, err := Open(cgroup, nil)
			if u, ok := errors.AsType[*UnavailableError](err); !ok || !strings.Contains(u.Fix, want) {
				t.Errorf("without %s: %v", want, err)
			}
			return nil
		})
	}
}

func TestCgroupThatIsNone(t *testing.T) {
	netnstest.New(t).Must(t, func() error {
		_, err := Open(t.TempDir(), nil)
		if u, ok := errors.AsType[*UnavailableError](err); !ok || u.Fix == "" {
			t.Errorf("got %v", err)
		}
		return nil
	})
}
