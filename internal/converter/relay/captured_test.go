package relay

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/converter/choice"
	"github.com/detour-collective/dcol/internal/converter/cookie"
	"github.com/detour-collective/dcol/internal/kernel/bpf/cgrouptest"
	"github.com/detour-collective/dcol/internal/kernel/bpf/connect"
	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
)

// talkTo is a program that sends each line to an echo server, and prints with what comes back who the peer is.
func talkTo(address string) error {
	var d net.Dialer
	d.SetMultipathTCP(false)
	c, err := d.Dial("tcp", address)
	if err != nil {
		return err
	}
	defer c.Close()
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		return err
	}
	in, back := bufio.NewReader(os.Stdin), bufio.NewReader(c)
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			return nil
		}
		if _, err := io.WriteString(c, line); err != nil {
			return err
		}
		line, err = back.ReadString('\n')
		if err != nil {
			return err
		}
		var peer netip.AddrPort
		if err := raw.Control(func(fd uintptr) { peer = peerOf(int(fd)) }); err != nil {
			return err
		}
		fmt.Printf("%v %s", peer, line)
	}
}

func peerOf(fd int) netip.AddrPort {
	switch sa, _ := unix.Getpeername(fd); a := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(a.Addr), uint16(a.Port))
	}
	return netip.AddrPort{}
}

// talker is a running talkTo.
type talker struct {
	server string
	in     io.WriteCloser
	out    *bufio.Reader
}

func newTalker(t *testing.T, ns *netnstest.NS, cgroup, server string) *talker {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", "talk", server)
	cmd.Stderr = t.Output()
	in, out := ns.Start(t, cmd, cgroup)
	return &talker{server, in, bufio.NewReader(out)}
}

// says checks that a line comes back, and that the program sees the server as its peer.
func (x *talker) says(t *testing.T, line string) {
	t.Helper()
	fmt.Fprintln(x.in, line)
	if got, err := x.out.ReadString('\n'); err != nil || got != x.server+" "+line+"\n" {
		t.Errorf("%q came back as %q: %v", line, got, err)
	}
}

// Programs of a cgroup are led to the converter. They do not notice when a second relay takes over, when the agent
// leaves (after which connections go directly), or when the relay is killed.
func TestCapture(t *testing.T) {
	t.Parallel()
	group := cgrouptest.New(t)
	spared, later := cgrouptest.In(t, group), filepath.Join(group, "later")
	host, server := netnstest.New(t), netnstest.New(t)
	netnstest.Veth(t,
		netnstest.End{NS: host, Name: "eth0", Addresses: []string{"10.2.0.1/24", "fd02::1/64"}},
		netnstest.End{NS: server, Name: "eth0", Addresses: []string{"10.2.0.2/24", "10.2.0.3/24", "fd02::2/64"}})
	var listener net.Listener
	server.Must(t, func() (err error) {
		var plain net.ListenConfig
		plain.SetMultipathTCP(false)
		listener, err = plain.Listen(context.Background(), "tcp", ":80")
		return err
	})
	netnstest.Serve(t, listener, netnstest.Echo)
	converter, _ := started(t, server, t.TempDir(), "1")
	if _, err := converter.Set(State{Serve: &Serve{Port: port, Key: key}}); err != nil {
		t.Fatal(err)
	}
	converted := func() int64 {
		t.Helper()
		s, err := converter.Status()
		if err != nil {
			t.Fatal(err)
		}
		return s.Parts[PartServe].Counters.Accepted
	}
	const site, site6 = "10.2.0.2:80", "[fd02::2]:80"
	proof := key.Seal(cookie.Claim{Mark: 1, Client: netip.MustParseAddr("10.2.0.1"), Expires: time.Now().Add(time.Hour)})
	id, err := connect.ProcessID()
	if err != nil {
		t.Fatal(err)
	}
	state := State{Use: &Use{
		Mode: choice.Always, Capture: &Capture{Cgroup: group, Exclude: []string{spared, later}, Agent: id},
		Converters: []Converter{{Name: "bob", At: netip.MustParseAddrPort("10.2.0.3:5124"), Cookie: proof}},
	}}
	dir := t.TempDir()
	first, firstEnded := started(t, host, dir, "1")
	set := func(c *Conn) {
		t.Helper()
		if s, err := c.Set(state); err != nil || s.Capture != "" {
			t.Fatalf("%+v, %v", s, err)
		}
	}
	set(first)
	// becomes waits until programs' connections are converted, or are not.
	becomes := func(cgroup string, want bool) {
		t.Helper()
		for began := time.Now(); time.Since(began) < 10*time.Second; time.Sleep(5 * time.Millisecond) {
			before := converted()
			newTalker(t, host, cgroup, site).says(t, "is it?")
			if (converted() > before) == want {
				return
			}
		}
		t.Fatalf("connections do not become converted: %v", want)
	}
	goes := func(cgroup, server string, through bool) *talker {
		t.Helper()
		before := converted()
		x := newTalker(t, host, cgroup, server)
		x.says(t, "hello")
		if (converted() > before) != through {
			t.Errorf("to %s: %d connections were converted before, %d after", server, before, converted())
		}
		return x
	}
	becomes(group, true)
	old := goes(group, site, true)
	goes(group, site6, true)
	goes(spared, site, false)
	if err := os.Mkdir(later, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.Remove(later); err != nil {
			t.Error(err)
		}
	})
	becomes(later, false)
	before := converted()
	if c, err := host.Dial(t.Context(), netip.MustParseAddrPort(site)); err != nil || talk(c, "mine") != nil {
		t.Error(err)
	}
	if converted() != before {
		t.Error("a connection from outside of the cgroup is converted")
	}

	second, secondEnded := started(t, host, dir, "2")
	set(second)
	becomes(group, true)
	old.says(t, "after the handover")
	goes(group, site6, true)
	select {
	case err := <-firstEnded:
		t.Fatalf("the first relay ended before its connection: %v", err)
	default:
	}

	late := goes(group, site, true)
	if err := second.Close(); err != nil { // as if the agent was killed
		t.Fatal(err)
	}
	becomes(group, false)
	late.says(t, "without an agent")
	old.says(t, "without an agent")
	again, err := Dial(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	set(again)
	becomes(group, true)
	if _, err := again.Set(State{Use: &Use{Mode: choice.Always, Converters: state.Use.Converters}}); err != nil {
		t.Fatal(err)
	}
	goes(group, site, false) // at once
	set(again)
	becomes(group, true)
	status, err := again.Status()
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(status.PID, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-secondEnded // while its listener closes, connections may be reset
	becomes(group, false)
	goes(group, site6, false)
	old.says(t, "the old relay lives")
}

// Who calls the listener itself gets no further.
func TestListenerOfPrograms(t *testing.T) {
	t.Parallel()
	group := cgrouptest.New(t)
	host := netnstest.New(t)
	c, _ := started(t, host, t.TempDir(), "1")
	s, err := c.Set(State{Use: &Use{Mode: choice.Always, Capture: &Capture{Cgroup: group}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{PartPrograms4, PartPrograms6} {
		own, err := host.Dial(t.Context(), netip.MustParseAddrPort(s.Parts[name].Listen))
		if err == nil {
			err = talk(own, "hello")
			own.Close()
		}
		// It depends on what comes first: the word or the end.
		if !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE) && !errors.Is(err, io.EOF) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A cgroup that cannot be used is reported, and the rest works.
func TestCaptureFails(t *testing.T) {
	t.Parallel()
	c, _ := started(t, netnstest.New(t), t.TempDir(), "1")
	for range 2 {
		s, err := c.Set(State{Use: &Use{Mode: choice.Always, Capture: &Capture{Cgroup: t.TempDir()}}})
		if err != nil || !strings.Contains(s.Capture, "cgroup2") || s.Parts[PartPrograms4].Listen == "" {
			t.Fatalf("%+v, %v", s, err)
		}
	}
	if s, err := c.Set(State{Use: &Use{Mode: choice.Always}}); err != nil || s.Capture != "" {
		t.Fatalf("%+v, %v", s, err)
	}
	group := cgrouptest.New(t)
	if _, err := c.Set(State{Use: &Use{Mode: choice.Always, Capture: &Capture{Cgroup: group, Exclude: []string{t.TempDir()}}}}); err != nil {
		t.Fatal(err)
	}
	for began := time.Now(); ; time.Sleep(5 * time.Millisecond) {
		s, err := c.Status()
		if err != nil || time.Since(began) > 10*time.Second {
			t.Fatalf("what is excluded is no cgroup: %+v, %v", s, err)
		}
		if strings.Contains(s.Capture, "cgroup2") {
			break
		}
	}
}
