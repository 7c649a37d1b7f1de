package relay

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/converter/ask"
	"github.com/detour-collective/dcol/internal/converter/choice"
	"github.com/detour-collective/dcol/internal/converter/cookie"
	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
)

// The relay knows for which server each of its connections to a converter is, until another has the same ends. So does the
// relay that takes over.
func TestServersOfConnections(t *testing.T) {
	t.Parallel()
	ns := netnstest.New(t)
	bob := netip.MustParseAddrPort("192.0.2.1:5124")
	ns.Output(t, "ip", "addr", "add", "192.0.2.1/32", "dev", "lo")
	var servers []netip.AddrPort
	for i := range 2 {
		server := netip.MustParseAddrPort(fmt.Sprintf("203.0.113.%d:80", i+1))
		ns.Output(t, "ip", "addr", "add", server.Addr().String()+"/32", "dev", "lo")
		netnstest.Serve(t, ns.Listen(t, server.String()), netnstest.Echo)
		servers = append(servers, server)
	}
	dir := t.TempDir()
	r, _ := started(t, ns, dir, "1")
	proof := key.Seal(cookie.Claim{Mark: 1, Client: bob.Addr(), Expires: time.Now().Add(time.Hour)})
	use := Use{Mode: choice.Always, Proxy: "127.0.0.1:1080", Converters: []Converter{{Name: "bob", At: bob, Cookie: proof}}}
	state := State{Serve: &Serve{Port: bob.Port(), Key: key}, Use: &use}
	if _, err := r.Set(state); err != nil {
		t.Fatal(err)
	}
	for _, server := range servers {
		socks(t, ns, use.Proxy, server)
	}
	// All ports are asked about, so that the test needs no other way to find the connections' ends.
	var ends []Ends
	for port := 1024; port < 1<<16; port++ {
		ends = append(ends, Ends{netip.AddrPortFrom(bob.Addr(), uint16(port)), bob})
	}
	named := func(r *Conn) {
		t.Helper()
		got, err := r.Servers(ends)
		if err != nil || len(got) != len(ends) {
			t.Fatalf("%d servers of %d connections, %v", len(got), len(ends), err)
		}
		got = slices.DeleteFunc(got, func(s netip.AddrPort) bool { return !s.IsValid() })
		slices.SortFunc(got, netip.AddrPort.Compare)
		if !slices.Equal(got, servers) {
			t.Errorf("the servers are %v, want %v", got, servers)
		}
	}
	named(r)
	for _, version := range []string{"2", "3"} {
		next, _ := started(t, ns, dir, version)
		if _, err := next.Set(state); err != nil {
			t.Fatal(err)
		}
		named(next)
		r = next
	}
	if err := r.Kill(); err != nil {
		t.Fatal(err)
	}
	r, _ = started(t, ns, dir, "4")
	named(r)
	if err := r.End(); err != nil {
		t.Fatal(err)
	}
	if err := Forget(dir); err != nil {
		t.Fatal(err)
	}
	r, _ = started(t, ns, dir, "5")
	if got, err := r.Servers(ends); err != nil || slices.ContainsFunc(got, netip.AddrPort.IsValid) {
		t.Errorf("after the relay was ended, %v", err)
	}
}

// A relay knows the connections of those before it, and those that one before it is still making. The notes are bounded, and the
// latest are kept.
func TestLedIsInherited(t *testing.T) {
	dir, at := t.TempDir(), netip.MustParseAddrPort
	conv := at("192.0.2.1:5124")
	ends := func(i int) Ends { return Ends{netip.AddrPortFrom(netip.MustParseAddr("192.0.2.9"), uint16(i)), conv} }
	server := func(i int) netip.AddrPort { return netip.AddrPortFrom(netip.MustParseAddr("203.0.113.1"), uint16(i)) }
	chain := []*led{openedLed(t, dir)}
	for i := range 3 {
		l := chain[i]
		l.note(ends(10*i+1).Local, conv, server(10*i+1))
		chain = append(chain, openedLed(t, dir))
		l.note(ends(10*i+2).Local, conv, server(10*i+2)) // was being made
	}
	for j := range 30 {
		want := server(j)
		if j%10 != 1 && j%10 != 2 {
			want = netip.AddrPort{}
		}
		if got := chain[3].find([]Ends{ends(j)})[0]; got != want {
			t.Errorf("connection %d is for %v, want %v", j, got, want)
		}
	}
	// A file that is full gives way to the next one, whichever of two relays fills it.
	for i := range 2 * ledMost {
		chain[2+i%2].note(ends(i).Local, conv, server(i))
	}
	all := int64(0)
	for _, name := range []string{ledFile, ledFileBefore} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		all += info.Size()
	}
	if all > 2*ledFileMost+1000 {
		t.Errorf("the files have %d bytes", all)
	}
	last := openedLed(t, dir)
	for i, want := range map[int]netip.AddrPort{1: {}, 2*ledMost - 1: server(2*ledMost - 1), 2*ledMost - 5000: server(2*ledMost - 5000)} {
		if got := last.find([]Ends{ends(i)})[0]; got != want {
			t.Errorf("connection %d is for %v, want %v", i, got, want)
		}
	}
}

func openedLed(t *testing.T, dir string) *led {
	t.Helper()
	l, err := openLed(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.close)
	return l
}

// carry connects to a converter as the user of this process, and reports servers of this connection and of another one.
func carry(socket, converter, other string) error {
	var d net.Dialer
	d.SetMultipathTCP(true)
	c, err := d.Dial("tcp", converter)
	if err != nil {
		return err
	}
	defer c.Close()
	to, own := netip.MustParseAddrPort(converter), netip.MustParseAddrPort(c.LocalAddr().String())
	r := ask.NewClient(socket, 10*time.Second)
	defer r.Close()
	r.Carried(own, to, meant, 1, 1)
	r.Carried(netip.MustParseAddrPort(other), to, forged, 1, 1)
	if a := r.Ask(meant); a.Convert == nil && a.KeepFor == 0 {
		return errors.New("the relay does not answer")
	}
	fmt.Println(own)
	_, _ = os.Stdin.Read(make([]byte, 1))
	return nil
}

// meant is the server of the connections that carry makes.
var meant = netip.MustParseAddrPort("203.0.113.9:443")

// A program's own connection to a converter has a name, too. Only its user and root can give it one.
func TestServersOfPrograms(t *testing.T) {
	t.Parallel()
	ns, dir := netnstest.New(t), t.TempDir()
	bob := netip.MustParseAddrPort("192.0.2.1:5124")
	ns.Output(t, "ip", "addr", "add", "192.0.2.1/32", "dev", "lo")
	ns.Listen(t, bob.String())
	r, _ := started(t, ns, dir, "1")
	if _, err := r.Set(State{Use: &Use{Mode: choice.Always, Converters: []Converter{{Name: "bob", At: bob, Cookie: []byte{1}}}}}); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, ask.SocketName)
	for _, folder := range []string{filepath.Dir(dir), dir} { // as /run/dcol, they are open to all users
		if err := os.Chmod(folder, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	conn, err := ns.Dial(t.Context(), bob)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	roots := netip.MustParseAddrPort(conn.LocalAddr().String())
	begin := func(uid uint32, other netip.AddrPort) (own netip.AddrPort) {
		t.Helper()
		cmd := exec.Command("/proc/self/exe", "carry", socket, bob.String(), other.String())
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		cmd.Stderr = t.Output()
		_, out := ns.Start(t, cmd, "")
		line, err := bufio.NewReader(out).ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		return netip.MustParseAddrPort(strings.TrimSpace(line))
	}
	first := begin(65534, roots)
	second := begin(65533, first)
	nobodys := netip.AddrPortFrom(bob.Addr(), 1)
	root := ask.NewClient(socket, 10*time.Second)
	defer root.Close()
	expect := func(what string, want ...netip.AddrPort) {
		t.Helper()
		root.Ask(meant) // after its answer, the relay has read what came before
		got, err := r.Servers([]Ends{{first, bob}, {second, bob}, {roots, bob}, {nobodys, bob}})
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %v, %v, want %v", what, got, err, want)
		}
	}
	expect("after users' reports", meant, meant, netip.AddrPort{}, netip.AddrPort{})
	other := netip.MustParseAddrPort("203.0.113.8:443")
	root.Carried(roots, bob, other, 1, 1)
	root.Carried(second, bob, other, 1, 1)
	root.Carried(nobodys, bob, other, 1, 1)
	expect("after root's", meant, other, other, netip.AddrPort{})
}

func TestLed(t *testing.T) {
	l, at := openedLed(t, t.TempDir()), netip.MustParseAddrPort
	local, conv := at("192.0.2.9:40001"), at("192.0.2.1:5124")
	l.note(local, conv, at("203.0.113.1:80"))
	l.note(at("[::ffff:192.0.2.9]:40001"), conv, at("[::ffff:203.0.113.2]:80")) // the same ends later
	l.note(netip.AddrPort{}, conv, at("203.0.113.3:80"))
	got := l.find([]Ends{{local, conv}, {local, at("192.0.2.2:5124")}, {at("192.0.2.9:40002"), conv}})
	if want := []netip.AddrPort{at("203.0.113.2:80"), {}, {}}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
