package mptcp_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/kernel/mptcp"
	"github.com/detour-collective/dcol/internal/kernel/mptcp/internal/threehosts"
)

const (
	blackholeTimeout = "net/mptcp/blackhole_timeout"
	synRetries       = "net/mptcp/syn_retrans_before_tcp_fallback" // since Linux 6.14
)

// outages is a client whose SYNs are lost now and then.
type outages struct {
	*site
	t    *testing.T
	lose int // so many SYNs that the next one is plain TCP
}

// newOutages makes outages short where the kernel allows it.
func newOutages(t *testing.T) *outages {
	t.Helper()
	o := &outages{site: newSite(t, false), t: t, lose: 3}
	if _, ok := o.sysctl(blackholeTimeout); !ok {
		t.Skip("this kernel does not look for networks that drop MPTCP (Linux 6.12)")
	}
	if _, ok := o.sysctl(synRetries); ok {
		o.Client.Sysctl(t, synRetries, "0")
		o.lose = 1
	}
	return o
}

func (o *outages) sysctl(key string) (value string, ok bool) {
	o.t.Helper()
	o.Client.Do(o.t, func() error {
		content, err := os.ReadFile("/proc/sys/" + key)
		value, ok = strings.TrimSpace(string(content)), err == nil
		return nil
	})
	return value, ok
}

// happens opens a connection whose first SYNs are lost.
func (o *outages) happens() {
	o.t.Helper()
	o.Client.Run(o.t, fmt.Sprintf(`table inet outage {
		chain output { type filter hook output priority 0; tcp flags syn / syn,ack numgen inc mod 1000 < %d drop; }
	}`, o.lose), "nft", "-f", "-")
	if o.dial() {
		o.t.Error("a connection whose SYNs with MPTCP were lost has MPTCP")
	}
	o.Client.Run(o.t, "", "nft", "delete", "table", "inet", "outage")
}

// dial opens a connection and reports whether it has MPTCP.
func (o *outages) dial() bool {
	o.t.Helper()
	c := o.Client.Dial(o.t, o.server)
	threehosts.Echo(o.t, c, "hello")
	has, err := c.(*net.TCPConn).MultipathTCP()
	if err != nil {
		o.t.Fatal(err)
	}
	c.Close()
	return has
}

// plain is what the client finds out about itself.
func (o *outages) plain() (plain bool) {
	o.t.Helper()
	o.Client.Do(o.t, func() (err error) {
		plain, err = mptcp.PlainTCP()
		return err
	})
	return plain
}

// After an outage all new connections are plain TCP, for an hour by default. Writing the sysctl ends that.
func TestOutageTurnsMPTCPOff(t *testing.T) {
	t.Parallel()
	o := newOutages(t)
	client := open(t, o.Client)
	if value, _ := o.sysctl(blackholeTimeout); value != "3600" {
		t.Errorf("the default is %s s", value)
	}
	if o.plain() || !o.dial() {
		t.Fatal("no MPTCP before the outage")
	}
	o.happens()
	if !o.plain() || o.dial() {
		t.Error("MPTCP after the outage")
	}
	key, value, ok, err := client.BlackholeSysctl()
	if err != nil || !ok || key != blackholeTimeout {
		t.Fatalf("sysctl %s=%s, %v, %v", key, value, ok, err)
	}
	o.Client.Sysctl(t, key, value)
	if o.plain() || !o.dial() {
		t.Error("no MPTCP after the fix")
	}
	if key, value, ok, err := client.BlackholeSysctl(); ok || err != nil {
		t.Errorf("a value that somebody has set would become %s=%s, %v", key, value, err)
	}
}

// A connection that fell back shows whether its SYN offered MPTCP. After an outage it did not, and is not listed.
func TestOffered(t *testing.T) {
	t.Parallel()
	o := newOutages(t)
	client := open(t, o.Client)
	o.Server.Sysctl(t, "net/mptcp/enabled", "0")
	plain := netip.AddrPortFrom(o.Server.IP4, 81)
	o.Server.Listen(t, plain)
	for _, want := range []bool{true, false} {
		c := o.Client.Dial(t, plain)
		threehosts.Echo(t, c, "hello")
		local := c.LocalAddr().(*net.TCPAddr).AddrPort()
		o.Client.Do(t, func() error {
			if offered, err := mptcp.Offered(local, plain); offered != want || err != nil {
				t.Errorf("offered MPTCP: %v, %v; want %v", offered, err, want)
			}
			return nil
		})
		listed := false
		err := client.Fallbacks(func(c *mptcp.Connection) bool { listed = listed || c.Local == local; return true })
		if listed != want || err != nil {
			t.Errorf("listed: %v, %v; want %v", listed, err, want)
		}
		c.Close()
		o.happens()
	}
	if offered, err := mptcp.Offered(plain, plain); offered || !errors.Is(err, mptcp.ErrNoSubflow) {
		t.Errorf("no connection offered MPTCP: %v, %v", offered, err)
	}
}

// Without a timeout every connection tries MPTCP.
func TestOutageWithoutTimeout(t *testing.T) {
	t.Parallel()
	o := newOutages(t)
	o.Client.Sysctl(t, blackholeTimeout, "0")
	o.happens()
	if o.plain() || !o.dial() {
		t.Error("no MPTCP after the outage")
	}
}

// The time is doubled by each further outage, until a connection has MPTCP.
func TestOutagesAddUp(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for the kernel")
	}
	t.Parallel()
	o := newOutages(t)
	const timeout = 4 * time.Second
	o.Client.Sysctl(t, blackholeTimeout, "4")
	for _, step := range []struct {
		works bool // a connection before the outage
		want  time.Duration
	}{{true, timeout}, {false, 2 * timeout}, {true, timeout}} {
		if step.works && !o.dial() {
			t.Fatal("no MPTCP before the outage")
		}
		o.happens()
		begin := time.Now()
		for o.plain() {
			if time.Since(begin) > time.Minute {
				t.Fatal("no MPTCP for a minute")
			}
			time.Sleep(50 * time.Millisecond)
		}
		// The kernel counts from when the connection came up. A busy machine may notice the end late.
		if got := time.Since(begin); got < step.want-timeout/2 || got >= 2*step.want-timeout/2 {
			t.Errorf("after a connection that has MPTCP: %v; MPTCP again after %v, want %v", step.works, got, step.want)
		}
	}
}
