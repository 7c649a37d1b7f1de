package relay

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/converter/choice"
	"github.com/detour-collective/dcol/internal/converter/cookie"
	"github.com/detour-collective/dcol/internal/converter/gateway"
	"github.com/detour-collective/dcol/internal/kernel/bpf/cgrouptest"
	"github.com/detour-collective/dcol/internal/kernel/bpf/connect"
	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
)

// Ports of the server, by what happens to connections.
const (
	refusesPort = 81
	resetsPort  = 82 // as soon as they are accepted
	silentPort  = 83 // nothing answers
)

// failing is a router with a relay, which uses a converter, and beyond it a server that fails.
type failing struct {
	host, router *netnstest.NS // host is in the LAN
	cgroup       string        // whose programs on the router are captured
	proxy        netip.AddrPort
}

func newFailing(t *testing.T) *failing {
	t.Helper()
	host, router, server := behindRouter(t)
	f := &failing{host: host, router: router, cgroup: cgrouptest.New(t)}
	server.Output(t, "ip", "addr", "add", "10.2.0.3/24", "dev", "eth0")
	server.Output(t, "nft", fmt.Sprintf("add table inet t; add chain inet t in { type filter hook input priority 0; }; add rule inet t in tcp dport %d drop", silentPort))
	router.Output(t, "sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1")
	server.Output(t, "ip", "route", "add", "10.1.0.0/24", "via", "10.2.0.1")
	server.Output(t, "ip", "-6", "route", "add", "fd01::/64", "via", "fd02::1")
	for _, ns := range []*netnstest.NS{host, router, server} {
		ns.Output(t, "sysctl", "-qw", "net.ipv4.tcp_syn_retries=1") // the kernel gives up after three seconds
	}
	netnstest.Serve(t, server.Listen(t, fmt.Sprintf(":%d", resetsPort)), func(c *net.TCPConn) { _ = c.SetLinger(0) })
	converter, _ := started(t, server, t.TempDir(), "1")
	if _, err := converter.Set(State{Serve: &Serve{Port: port, Key: key}}); err != nil {
		t.Fatal(err)
	}
	agent, err := connect.ProcessID()
	if err != nil {
		t.Fatal(err)
	}
	proof := key.Seal(cookie.Claim{Mark: 1, Client: netip.MustParseAddr("10.2.0.1"), Expires: time.Now().Add(time.Hour)})
	r, _ := started(t, router, t.TempDir(), "1")
	status, err := r.Set(State{Use: &Use{
		Mode: choice.Always, Gateway: []string{"lan0"}, UnreachedMark: gateway.UnreachedMark(gatewayMarks), Proxy: "127.0.0.1:0", Capture: &Capture{Cgroup: f.cgroup, Agent: agent},
		Converters: []Converter{{Name: "bob", At: netip.MustParseAddrPort(fmt.Sprintf("10.2.0.3:%d", port)), Cookie: proof}},
	}})
	if err != nil || status.Capture != "" {
		t.Fatalf("%+v, %v", status, err)
	}
	lead(t, router, status, gateway.Config{})
	f.proxy = netip.MustParseAddrPort(status.Parts[PartProxy].Listen)
	return f
}

// A server that refuses, resets or does not answer connections, or is unreachable, does so for each way in which
// connections come to the relay, over IPv4 and IPv6. A captured program, or a LAN's host, that tries again gets the
// server's own error.
func TestServerFailsEachWay(t *testing.T) {
	t.Parallel()
	f := newFailing(t)
	for _, server := range []struct {
		name, at      string
		socks, status []string // the answers that the proxy may give
		own           syscall.Errno
	}{
		{"refuses", fmt.Sprintf("10.2.0.2:%d", refusesPort), []string{"5"}, []string{"502"}, syscall.ECONNREFUSED},
		{"resets", fmt.Sprintf("10.2.0.2:%d", resetsPort), []string{"0", "1", "5"}, []string{"200", "502"}, syscall.ECONNRESET}, // before or after the proxy knows it
		{"never answers", fmt.Sprintf("10.2.0.2:%d", silentPort), []string{"4"}, []string{"504"}, syscall.ETIMEDOUT},
		{"is unreachable", "198.51.100.1:80", []string{"3"}, []string{"502"}, syscall.ENETUNREACH},
		{"refuses over IPv6", fmt.Sprintf("[fd02::2]:%d", refusesPort), []string{"5"}, []string{"502"}, syscall.ECONNREFUSED},
		{"resets over IPv6", fmt.Sprintf("[fd02::2]:%d", resetsPort), []string{"0", "1", "5"}, []string{"200", "502"}, syscall.ECONNRESET},
		{"never answers over IPv6", fmt.Sprintf("[fd02::2]:%d", silentPort), []string{"4"}, []string{"504"}, syscall.ETIMEDOUT},
		{"is unreachable over IPv6", "[2001:db8::1]:80", []string{"3"}, []string{"502"}, syscall.ENETUNREACH},
	} {
		at := netip.MustParseAddrPort(server.at)
		for way, try := range map[string]func(*testing.T) error{
			"gateway": func(t *testing.T) error {
				c, err := f.host.Dial(t.Context(), at)
				if server.name == "is unreachable over IPv6" && errors.Is(err, syscall.ENETUNREACH) {
					return nil // not taken, and the router says so
				}
				if err := ends(c, err); err != nil || server.own == syscall.ECONNRESET {
					return err
				}
				if c, err = f.host.Dial(t.Context(), at); err == nil {
					return errors.Join(errors.New("the next attempt is taken, too"), c.Close())
				}
				if !errors.Is(err, server.own) {
					return fmt.Errorf("the next attempt: %w, want %w", err, server.own)
				}
				return nil
			},
			"capture": func(t *testing.T) error { return f.captured(t, at, server.own) },
			"SOCKS5": func(t *testing.T) error {
				request := binary.BigEndian.AppendUint16(append([]byte{5, 1, 0, 5, 1, 0, socksType(at.Addr())}, at.Addr().AsSlice()...), at.Port())
				return f.proxied(t, string(request), 12, func(b []byte) bool { return slices.Contains(server.socks, string(b[3]+'0')) })
			},
			"HTTP CONNECT": func(t *testing.T) error {
				return f.proxied(t, fmt.Sprintf("CONNECT %v HTTP/1.1\r\n\r\n", at), 12, func(b []byte) bool { return slices.Contains(server.status, string(b[9:])) })
			},
		} {
			t.Run(server.name+", "+way, func(t *testing.T) {
				t.Parallel()
				if err := try(t); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// socksType is the type of an address in a request of SOCKS5 (RFC 1928, section 5).
func socksType(a netip.Addr) byte {
	if a.Is4() {
		return 1
	}
	return 4
}

// ends expects a connection to be reset, at the latest when it is read.
func ends(c net.Conn, err error) error {
	if err == nil {
		defer c.Close()
		_ = c.SetReadDeadline(time.Now().Add(30 * time.Second))
		_, err = io.ReadAll(c)
	}
	if !errors.Is(err, syscall.ECONNRESET) {
		return fmt.Errorf("the connection is not reset: %w", err)
	}
	return nil
}

// captured expects a reset of a connection that a program of the cgroup makes, or the server's own error, and the latter
// from one that is made soon after another.
func (f *failing) captured(t *testing.T, to netip.AddrPort, own syscall.Errno) error {
	for range 10 {
		said, err := f.say(t, to)
		switch {
		case err != nil:
			return err
		case strings.Contains(said, own.Error()):
			return nil
		case !strings.Contains(said, syscall.ECONNRESET.Error()):
			return fmt.Errorf("the program says %q, not that its connection was reset", said)
		}
		time.Sleep(200 * time.Millisecond) // the kernel's rules are renewed
	}
	return fmt.Errorf("the program is reset each time, and never sees %w", own)
}

// say returns the error that a program of the cgroup gets when it connects to a server.
func (f *failing) say(t *testing.T, to netip.AddrPort) (string, error) {
	said, stderr, err := os.Pipe()
	if err != nil {
		return "", err
	}
	defer said.Close()
	cmd := exec.Command("/proc/self/exe", "talk", to.String())
	cmd.Stderr = stderr
	in, _ := f.router.Start(t, cmd, f.cgroup)
	stderr.Close()
	if _, err := io.WriteString(in, "hello\n"); err != nil {
		return "", err
	}
	_ = said.SetReadDeadline(time.Now().Add(30 * time.Second))
	b, err := io.ReadAll(said)
	return string(b), err
}

// proxied sends a request to the proxy, and expects an answer of a length.
func (f *failing) proxied(t *testing.T, request string, length int, want func(answer []byte) bool) error {
	c, err := f.router.Dial(t.Context(), f.proxy)
	if err != nil {
		return err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(30 * time.Second))
	if _, err := io.WriteString(c, request); err != nil {
		return err
	}
	answer := make([]byte, length)
	n, err := io.ReadFull(c, answer)
	if err != nil || !want(answer) {
		return errors.Join(fmt.Errorf("the proxy answers %q", answer[:n]), err)
	}
	return nil
}
