package relay

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/converter/cookie"
	"github.com/detour-collective/dcol/internal/converter/rfc8803"
	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
	"github.com/detour-collective/dcol/lab/testbed"
)

var key = cookie.Key{7}

const port = 5124

// TestMain runs the relay of a test. As outside of tests, the relay has its own process.
func TestMain(m *testing.M) {
	testbed.Stage()
	if len(os.Args) == 4 && os.Args[1] == "relay" {
		if err := Run(context.Background(), Config{Dir: os.Args[2], Version: os.Args[3], Log: slog.New(slog.NewTextHandler(os.Stderr, nil))}); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if len(os.Args) == 3 && os.Args[1] == "talk" {
		if err := talkTo(os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if len(os.Args) == 3 && os.Args[1] == "forge" {
		if err := forge(os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if len(os.Args) == 5 && os.Args[1] == "carry" {
		if err := carry(os.Args[2], os.Args[3], os.Args[4]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// started runs a relay in a namespace, and returns a connection to it and how it ended.
func started(t *testing.T, ns *netnstest.NS, dir, version string) (*Conn, <-chan error) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", "relay", dir, version)
	cmd.Stderr = t.Output()
	ns.Must(t, cmd.Start)
	ended := make(chan error, 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		ended <- cmd.Wait()
	}()
	t.Cleanup(func() { _ = cmd.Process.Kill(); <-done })
	for began := time.Now(); time.Since(began) < 10*time.Second; time.Sleep(5 * time.Millisecond) {
		c, err := Dial(dir)
		if errors.Is(err, ErrNone) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if s, err := c.Status(); err == nil && s.Version == version {
			t.Cleanup(func() { c.Close() })
			return c, ended
		}
		c.Close()
	}
	t.Fatal("the relay does not answer")
	return nil, nil
}

// converted connects to an echo server through the converter.
func converted(t *testing.T, ns *netnstest.NS, server netip.AddrPort) (net.Conn, error) {
	t.Helper()
	c, err := ns.Dial(t.Context(), netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port))
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { c.Close() })
	proof := key.Seal(cookie.Claim{Mark: 1, Client: netip.MustParseAddr("127.0.0.1"), Expires: time.Now().Add(time.Minute)})
	hello, err := rfc8803.Message{Connect: &rfc8803.Connect{Server: server}, Cookie: proof}.Append(nil)
	if err != nil {
		t.Fatal(err)
	}
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := c.Write(hello); err != nil {
		return nil, err
	}
	head := make([]byte, rfc8803.HeaderLen)
	if _, err := io.ReadFull(c, head); err != nil {
		return nil, err
	}
	n, err := rfc8803.Len(head)
	if err != nil {
		return nil, err
	}
	rest := make([]byte, n-len(head))
	if _, err := io.ReadFull(c, rest); err != nil {
		return nil, err
	}
	m, _, err := rfc8803.Decode(append(head, rest...))
	if err == nil && m.Error != nil {
		err = m.Error
	}
	return c, err
}

func talk(c net.Conn, text string) error {
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := fmt.Fprintln(c, text); err != nil { // the kernel reports a reset once
		return err
	}
	line, err := bufio.NewReader(c).ReadString('\n')
	if err == nil && line != text+"\n" {
		err = fmt.Errorf("%q came back as %q", text, line)
	}
	return err
}

func echo(t *testing.T, ns *netnstest.NS) netip.AddrPort {
	t.Helper()
	// No member may name a server on the loopback interface.
	ns.Output(t, "ip", "addr", "add", "192.0.2.1/32", "dev", "lo")
	netnstest.Serve(t, ns.Listen(t, "192.0.2.1:8080"), netnstest.Echo)
	return netip.MustParseAddrPort("192.0.2.1:8080")
}

// A new version of the relay takes over the listener. The old one relays its connections until they end, and
// connections are accepted at every moment.
func TestHandover(t *testing.T) {
	t.Parallel()
	ns, dir := netnstest.New(t), t.TempDir()
	server := echo(t, ns)
	first, firstEnded := started(t, ns, dir, "1")
	state := State{Serve: &Serve{Port: port, Key: key}}
	if s, err := first.Set(state); err != nil || s.Parts[PartServe].Problem != "" {
		t.Fatalf("%+v, %v", s, err)
	}
	old, err := converted(t, ns, server)
	if err != nil {
		t.Fatal(err)
	}
	// A connection that comes in between waits in the listener's queue.
	waiting := make(chan error, 1)
	second, secondEnded := started(t, ns, dir, "2")
	go func() {
		c, err := converted(t, ns, server)
		if err == nil {
			err = talk(c, "between")
		}
		waiting <- err
	}()
	time.Sleep(50 * time.Millisecond)
	if s, err := second.Set(state); err != nil || s.Parts[PartServe].Problem != "" {
		t.Fatalf("%+v, %v", s, err)
	}
	if err := <-waiting; err != nil {
		t.Errorf("in between: %v", err)
	}
	if err := talk(old, "still there"); err != nil {
		t.Errorf("the old connection: %v", err)
	}
	select {
	case err := <-firstEnded:
		t.Fatalf("the first relay ended before its connection: %v", err)
	default:
	}
	old.Close()
	select {
	case err := <-firstEnded:
		if err != nil {
			t.Errorf("the first relay: %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Error("the first relay does not end")
	}
	last, err := converted(t, ns, server)
	if err != nil {
		t.Fatal(err)
	}
	if err := second.End(); err != nil {
		t.Error(err)
	}
	if err := <-secondEnded; err != nil {
		t.Errorf("the second relay: %v", err)
	}
	if err := talk(last, "gone"); err == nil {
		t.Error("the connection goes on after the relay has ended")
	}
	if _, err := Dial(dir); !errors.Is(err, ErrNone) {
		t.Errorf("after the end: %v", err)
	}
}

// SIGHUP ends neither the relay nor its connections.
func TestHangup(t *testing.T) {
	t.Parallel()
	ns, dir := netnstest.New(t), t.TempDir()
	server := echo(t, ns)
	r, ended := started(t, ns, dir, "1")
	s, err := r.Set(State{Serve: &Serve{Port: port, Key: key}})
	if err != nil || s.Parts[PartServe].Problem != "" {
		t.Fatalf("%+v, %v", s, err)
	}
	c, err := converted(t, ns, server)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(s.PID, syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ended:
		t.Fatalf("the relay ended: %v", err)
	case <-time.After(200 * time.Millisecond):
	}
	if err := talk(c, "still there"); err != nil {
		t.Error(err)
	}
}

// A relay whose port is taken reports that. A relay that has nothing to serve accepts nothing.
func TestPortTaken(t *testing.T) {
	t.Parallel()
	ns, dir := netnstest.New(t), t.TempDir()
	other := ns.Listen(t, fmt.Sprintf(":%d", port))
	c, _ := started(t, ns, dir, "1")
	state := State{Serve: &Serve{Port: port, Key: key}}
	if s, err := c.Set(state); err != nil || s.Parts[PartServe].Problem == "" {
		t.Fatalf("%+v, %v", s, err)
	}
	other.Close()
	// A program that another test starts at this moment keeps the listener open until it executes.
	for began := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		s, err := c.Set(state)
		if err == nil && s.Parts[PartServe].Problem == "" {
			break
		}
		if time.Since(began) > 10*time.Second {
			t.Fatalf("once the port is free: %+v, %v", s, err)
		}
	}
	if s, err := c.Set(State{}); err != nil || len(s.Parts) != 0 {
		t.Fatalf("%+v, %v", s, err)
	}
	if conn, err := converted(t, ns, netip.MustParseAddrPort("192.0.2.1:8080")); err == nil {
		conn.Close()
		t.Error("it accepts connections although it is told to do nothing")
	}
}

// Servers that the configuration forbids are refused, although no nftables rules forbid them: another program may have
// removed these. Changed lists take effect at once.
func TestForbiddenServers(t *testing.T) {
	t.Parallel()
	ns := netnstest.New(t)
	// At addresses for documentation, forbidden by default.
	server4 := echo(t, ns)
	server6 := netip.MustParseAddrPort("[2001:db8::1]:8080")
	ns.Output(t, "ip", "addr", "add", "2001:db8::1/128", "dev", "lo", "nodad")
	netnstest.Serve(t, ns.Listen(t, server6.String()), netnstest.Echo)
	here := []netip.Prefix{netip.PrefixFrom(server4.Addr(), 32), netip.PrefixFrom(server6.Addr(), 128)}
	around := []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("2001:db8::/64")}
	c, _ := started(t, ns, t.TempDir(), "v1")
	for _, step := range []struct {
		name    string
		servers Servers
		allowed bool
	}{
		{"by default", Servers{}, false},
		{"that the operator allows", Servers{Allow: here}, true},
		{"at a denied port", Servers{Allow: here, DenyPorts: []uint16{server4.Port()}}, false},
		{"that the operator denies", Servers{Allow: around, Deny: here}, false},
	} {
		if _, err := c.Set(State{Serve: &Serve{Port: port, Key: key, Servers: &step.servers}}); err != nil {
			t.Fatal(err)
		}
		for _, server := range []netip.AddrPort{server4, server6} {
			_, err := converted(t, ns, server)
			var refusal *rfc8803.Error
			if step.allowed != (err == nil) || err != nil && (!errors.As(err, &refusal) || refusal.Code != rfc8803.DestinationUnreachable) {
				t.Errorf("a server %s, %v: %v", step.name, server, err)
			}
		}
	}
}

// ICMP errors while the converter connects to a server are reported to the client, with the code of Linux' errno. On an open
// connection they are soft: it goes on when they end.
func TestUnreachableServers(t *testing.T) {
	t.Parallel()
	ns := netnstest.New(t)
	server := echo(t, ns)
	c, _ := started(t, ns, t.TempDir(), "v1")
	servers := Servers{Allow: []netip.Prefix{netip.PrefixFrom(server.Addr(), 32)}}
	if _, err := c.Set(State{Serve: &Serve{Port: port, Key: key, Servers: &servers}}); err != nil {
		t.Fatal(err)
	}
	open, err := converted(t, ns, server)
	if err == nil {
		err = talk(open, "before")
	}
	if err != nil {
		t.Fatal(err)
	}
	rejected := func() (packets int) {
		_, counter, _ := strings.Cut(ns.Output(t, "nft", "list", "table", "ip", "unreachable"), "counter packets ")
		_, _ = fmt.Sscan(counter, &packets)
		return packets
	}
	for with, code := range map[string][]byte{
		"net-unreachable":  {}, // 0, which looks like padding
		"host-unreachable": {1},
		"admin-prohibited": {1}, // Linux makes it EHOSTUNREACH
	} {
		ns.Output(t, "nft", fmt.Sprintf(`table ip unreachable {
			chain out { type filter hook output priority 0;
				ip daddr %v tcp dport %d counter reject with icmp %s
			}
		}`, server.Addr(), server.Port(), with))
		_, err := converted(t, ns, server)
		var refusal *rfc8803.Error
		if !errors.As(err, &refusal) {
			t.Fatalf("%s: %v", with, err)
		}
		if refusal.Code != rfc8803.DestinationUnreachable || !bytes.Equal(refusal.Value, code) {
			t.Errorf("%s: error %d, %d; want the ICMP code %d", with, refusal.Code, refusal.Value, code)
		}
		connecting, meanwhile := rejected(), make(chan error, 1)
		go func() { meanwhile <- talk(open, with) }()
		for deadline := time.Now().Add(10 * time.Second); rejected() == connecting; time.Sleep(5 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%s: no packet of the open connection was rejected", with)
			}
		}
		ns.Output(t, "nft", "delete", "table", "ip", "unreachable")
		if err := <-meanwhile; err != nil {
			t.Errorf("%s, on an open connection: %v", with, err)
		}
	}
}
