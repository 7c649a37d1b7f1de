package cc

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/kernel/bpf/cgrouptest"
	"github.com/detour-collective/dcol/internal/kernel/netstate"
	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
)

// other returns a congestion control that is not the namespace's default, and that default.
func other(t *testing.T, ns *netnstest.NS) (name, usual string) {
	t.Helper()
	ns.Must(t, func() error {
		c, s, err := pair(t, "127.0.0.1", false)
		if err != nil {
			return err
		}
		usual = congestionOf(t, c)
		c.Close()
		s.Close()
		return nil
	})
	if usual == "reno" {
		return "cubic", usual
	}
	return "reno", usual
}

func chooseOrSkip(t *testing.T, rules ...Rule) (*Chooser, error) {
	t.Helper()
	c, err := Choose(rules)
	if err != nil {
		return nil, err
	}
	var failed []error
	for _, err := range c.Attach() {
		failed = append(failed, err)
	}
	if slices.ContainsFunc(failed, lackingCgroup) {
		c.Close()
		t.Skip(errors.Join(failed...))
	}
	if len(failed) > 0 {
		return nil, errors.Join(append(failed, c.Close())...)
	}
	return c, nil
}

// pair makes a connection to an address of the thread's namespace.
func pair(t *testing.T, address string, mptcp bool) (client, server net.Conn, err error) {
	t.Helper()
	var config net.ListenConfig
	config.SetMultipathTCP(mptcp)
	l, err := config.Listen(context.Background(), "tcp", net.JoinHostPort(address, "0"))
	if err != nil {
		return nil, nil, err
	}
	defer l.Close()
	return dial(t, l, mptcp)
}

func dial(t *testing.T, l net.Listener, mptcp bool) (client, server net.Conn, err error) {
	t.Helper()
	var dialer net.Dialer
	dialer.SetMultipathTCP(mptcp)
	if client, err = dialer.DialContext(t.Context(), "tcp", l.Addr().String()); err != nil {
		return nil, nil, err
	}
	t.Cleanup(func() { client.Close() })
	if server, err = l.Accept(); err != nil {
		return nil, nil, err
	}
	t.Cleanup(func() { server.Close() })
	return client, server, nil
}

// congestionOf returns a connection's congestion control; of an MPTCP connection that of its first subflow.
func congestionOf(t *testing.T, c net.Conn) (name string) {
	t.Helper()
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	e := raw.Control(func(fd uintptr) {
		name, err = unix.GetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION)
	})
	if e != nil || err != nil {
		t.Fatal(e, err)
	}
	return strings.TrimRight(name, "\x00")
}

func TestChoose(t *testing.T) {
	ns := netnstest.New(t)
	want, usual := other(t, ns)
	ns.Must(t, func() error {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		defer l.Close()
		port := netip.MustParseAddrPort(l.Addr().String()).Port()
		for _, c := range []struct {
			name string
			rule Rule
			want string
		}{
			{"host", Rule{}, want},
			{"its port", Rule{Ports: []uint16{1, port}}, want},
			{"another port", Rule{Ports: []uint16{port ^ 1}}, usual},
			{"its network", Rule{Networks: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/9")}}, want},
			{"its address", Rule{Networks: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}}, want},
			{"another network", Rule{Networks: []netip.Prefix{netip.MustParsePrefix("127.128.0.0/9"), netip.MustParsePrefix("::/96")}}, usual},
			{"its port and network", Rule{Ports: []uint16{port}, Networks: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}}, want},
			{"its port in another network", Rule{Ports: []uint16{port}, Networks: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}, usual},
			{"another cgroup", Rule{Cgroup: cgrouptest.New(t)}, usual},
		} {
			c.rule.Name = want
			chooser, err := chooseOrSkip(t, c.rule)
			if err != nil {
				return err
			}
			client, server, err := dial(t, l, false)
			if err != nil {
				return errors.Join(err, chooser.Close())
			}
			if got := congestionOf(t, client); got != c.want {
				t.Errorf("%s: the client has %s, want %s", c.name, got, c.want)
			}
			if got := congestionOf(t, server); got != c.want {
				t.Errorf("%s: the server has %s, want %s", c.name, got, c.want)
			}
			count, err := chooser.Chosen()
			if err := errors.Join(err, chooser.Close()); err != nil {
				return err
			}
			expect := Chosen{}
			if c.want == want {
				expect.Set = 2
			}
			if count[0] != expect {
				t.Errorf("%s: counted %+v, want %+v", c.name, count[0], expect)
			}
		}
		client, _, err := dial(t, l, false)
		if err != nil {
			return err
		}
		if got := congestionOf(t, client); got != usual {
			t.Errorf("after the end a client has %s, want %s", got, usual)
		}
		return nil
	})
}

func TestChooseIPv6(t *testing.T) {
	ns := netnstest.New(t)
	want, usual := other(t, ns)
	ns.Must(t, func() error {
		for _, c := range []struct{ network, want string }{
			{"::1/128", want}, {"::/0", want}, {"fd00::/8", usual}, {"0.0.0.0/0", usual},
		} {
			chooser, err := chooseOrSkip(t, Rule{Name: want, Networks: []netip.Prefix{netip.MustParsePrefix(c.network)}})
			if err != nil {
				return err
			}
			client, _, err := pair(t, "::1", false)
			if err := errors.Join(err, chooser.Close()); err != nil {
				t.Skipf("needs IPv6: %v", err)
			}
			if got := congestionOf(t, client); got != c.want {
				t.Errorf("%s: %s, want %s", c.network, got, c.want)
			}
		}
		return nil
	})
}

// The first rule of a cgroup decides.
func TestFirstRuleDecides(t *testing.T) {
	ns := netnstest.New(t)
	want, usual := other(t, ns)
	ns.Must(t, func() error {
		chooser, err := chooseOrSkip(t, Rule{Name: want}, Rule{Name: usual})
		if err != nil {
			return err
		}
		defer chooser.Close()
		client, _, err := pair(t, "127.0.0.1", false)
		if err != nil {
			return err
		}
		if got := congestionOf(t, client); got != want {
			t.Errorf("%s decided", got)
		}
		return nil
	})
}

// A rule replaces the congestion control of a route. A route that locks its own refuses, and that is counted.
func TestRouteWithCongestionControl(t *testing.T) {
	ns := netnstest.New(t)
	want, usual := other(t, ns)
	ns.Must(t, func() error {
		for locks, c := range map[string]struct {
			congestion string
			counted    Chosen
		}{"congctl": {want, Chosen{Set: 2}}, "congctl lock": {usual, Chosen{Refused: 2}}} {
			route := append(strings.Fields("route replace local 127.0.0.1 dev lo table local"), append(strings.Fields(locks), usual)...)
			if out, err := exec.Command("ip", route...).CombinedOutput(); err != nil {
				return fmt.Errorf("%s: %w", out, err)
			}
			chooser, err := chooseOrSkip(t, Rule{Name: want})
			if err != nil {
				return err
			}
			client, _, err := pair(t, "127.0.0.1", false)
			counts, failed := chooser.Chosen()
			if err := errors.Join(err, failed, chooser.Close()); err != nil {
				return err
			}
			if got := congestionOf(t, client); got != c.congestion || counts[0] != c.counted {
				t.Errorf("%s %s: %s, counted %+v; want %+v", locks, usual, got, counts[0], c)
			}
		}
		return nil
	})
}

// Connections of another network namespace are left alone.
func TestOtherNamespace(t *testing.T) {
	ns, theirs := netnstest.New(t), netnstest.New(t)
	want, _ := other(t, ns)
	var chooser *Chooser
	ns.Must(t, func() (err error) {
		chooser, err = chooseOrSkip(t, Rule{Name: want})
		return err
	})
	defer chooser.Close()
	theirs.Must(t, func() error {
		client, _, err := pair(t, "127.0.0.1", false)
		if err != nil {
			return err
		}
		if got := congestionOf(t, client); got == want {
			t.Errorf("another namespace has %s", got)
		}
		return nil
	})
}

func TestChooseForMPTCP(t *testing.T) {
	r := registered(t, LIA)
	netnstest.New(t).Must(t, func() error {
		chooser, err := chooseOrSkip(t, Rule{Name: r.Name()})
		if err != nil {
			return err
		}
		defer chooser.Close()
		client, server, err := pair(t, "127.0.0.1", true)
		if err != nil {
			t.Skipf("needs MPTCP: %v", err)
		}
		// The MPTCP socket itself keeps its own; the count is of subflows.
		if _, err := client.Write([]byte("x")); err != nil {
			return err
		}
		if _, err := server.Read(make([]byte, 1)); err != nil {
			return err
		}
		count, err := chooser.Chosen()
		if err != nil {
			return err
		}
		if count[0] != (Chosen{Set: 2}) {
			t.Errorf("counted %+v", count[0])
		}
		return nil
	})
}

// Ten thousand MPTCP connections that are open at once have the congestion control of the rule at both ends.
func TestChooseForManyConnections(t *testing.T) {
	const many = 10000
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil || limit.Cur < many+500 {
		t.Skipf("needs %d open files (ulimit -n): %d, %v", many+500, limit.Cur, err)
	}
	r := registered(t, LIA)
	netnstest.New(t).Must(t, func() error {
		chooser, err := chooseOrSkip(t, Rule{Name: r.Name()})
		if err != nil {
			return err
		}
		defer chooser.Close()
		// The servers' ends stay in the backlog, where they need no descriptor.
		if err := netstate.SetSysctl("net/core/somaxconn", strconv.Itoa(many)); err != nil {
			return err
		}
		var config net.ListenConfig
		config.SetMultipathTCP(true)
		l, err := config.Listen(t.Context(), "tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		defer l.Close()
		raw, err := l.(*net.TCPListener).SyscallConn()
		if err != nil {
			return err
		}
		var failed error
		if err := raw.Control(func(fd uintptr) { failed = unix.Listen(int(fd), many) }); err != nil || failed != nil {
			return errors.Join(err, failed)
		}
		var dialer net.Dialer
		dialer.SetMultipathTCP(true)
		var open []net.Conn
		defer func() {
			for _, c := range open {
				c.Close()
			}
		}()
		for range many {
			c, err := dialer.DialContext(t.Context(), "tcp", l.Addr().String())
			if err != nil {
				return err
			}
			open = append(open, c)
			if _, err := c.Write([]byte("x")); err != nil {
				return err
			}
		}
		count, err := chooser.Chosen()
		if err != nil {
			return err
		}
		if count[0] != (Chosen{Set: 2 * many}) {
			t.Errorf("counted %+v", count[0])
		}
		return nil
	})
}

func TestChooseUnknown(t *testing.T) {
	netnstest.New(t).Must(t, func() error {
		_, err := Choose([]Rule{{Name: "no_such_cc"}})
		if e, ok := errors.AsType[*UnavailableError](err); !ok || !strings.Contains(e.Fix, "modprobe") {
			t.Errorf("got %v", err)
		}
		var ports []uint16
		for p := range rulesMax + 1 {
			ports = append(ports, uint16(p+1))
		}
		if _, err := Choose([]Rule{{Name: "reno", Ports: ports}}); err == nil || !strings.Contains(err.Error(), "merge") {
			t.Errorf("got %v", err)
		}
		return nil
	})
}

// Rules of a cgroup that does not exist apply once it is made, and again when it was removed and made again. Those of
// another apply all the time, and keep their counts.
func TestChooseForACgroupThatAppears(t *testing.T) {
	around := cgrouptest.New(t)
	cgroup := filepath.Join(around, "service")
	t.Cleanup(func() { os.Remove(cgroup) })
	ns := netnstest.New(t)
	l := ns.Listen(t, "127.0.0.1:0")
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	connect := func(cgroup string) {
		ns.Output(t, "bash", "-c", `echo $$ >"$0/cgroup.procs" && exec 3<>/dev/tcp/127.0.0.1/$1`, cgroup, port)
	}
	var c *Chooser
	ns.Must(t, func() (err error) {
		c, err = Choose([]Rule{{Name: "reno", Cgroup: cgroup}, {Name: "cubic", Cgroup: around}})
		return err
	})
	defer c.Close()
	for round := range 2 {
		if failed := c.Attach(); len(failed) != 1 || failed[0].Cgroup != cgroup || !errors.Is(failed[0], fs.ErrNotExist) {
			t.Errorf("round %d, without the cgroup: %v", round, failed)
		}
		connect(around)
		if err := os.Mkdir(cgroup, 0o755); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if failed := c.Attach(); failed != nil {
				t.Errorf("round %d, with the cgroup: %v", round, failed)
			}
		}
		connect(cgroup)
		if err := os.Remove(cgroup); err != nil {
			t.Fatal(err)
		}
	}
	counts, err := c.Chosen()
	if err != nil || counts[0].Set != 2 || counts[1].Set != 2 {
		t.Errorf("counted %+v, %v", counts, err)
	}
}

// The packaged service has no more.
func TestChooseWithTwoCapabilities(t *testing.T) {
	netnstest.New(t).Must(t, func() error {
		if err := netnstest.LimitRights(unix.CAP_BPF, unix.CAP_NET_ADMIN); err != nil {
			return err
		}
		c, err := chooseOrSkip(t, Rule{Name: "reno"})
		if err != nil {
			return err
		}
		return c.Close()
	})
}
