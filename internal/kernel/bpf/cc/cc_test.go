package cc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
)

// lacking reports whether the registration of an algorithm failed for want of rights, or of a newer kernel.
func lacking(t *testing.T, err error) bool {
	e, ok := errors.AsType[*UnavailableError](err)
	return ok && (e.Fix == FixRights || e.Fix == fixKernel && netnstest.KernelBefore(t, 6, 4))
}

// lackingCgroup reports whether an error is for want of a cgroup. All kernels that are tested have the rest of what choosing
// needs.
func lackingCgroup(err error) bool {
	e, ok := errors.AsType[*UnavailableError](err)
	return ok && strings.Contains(e.Fix, "cgroup2")
}

// registered makes an algorithm known until the test ends. It skips the test on a kernel that cannot.
func registered(t *testing.T, a Algorithm) *Registration {
	t.Helper()
	r, err := Register(a)
	if lacking(t, err) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

func available(t *testing.T) []string {
	t.Helper()
	data, err := os.ReadFile("/proc/sys/net/ipv4/tcp_available_congestion_control")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(string(data))
}

func TestRegister(t *testing.T) {
	for _, a := range Algorithms {
		t.Run(string(a), func(t *testing.T) {
			first, second := registered(t, a), registered(t, a)
			if first.Name() == second.Name() || !strings.HasPrefix(second.Name(), string(a)) {
				t.Errorf("they are called %q and %q", first.Name(), second.Name())
			}
			for _, r := range []*Registration{first, second} {
				if !slices.Contains(available(t), r.Name()) {
					t.Errorf("the kernel does not list %s", r.Name())
				}
			}
		})
	}
}

func TestRegistrationEnds(t *testing.T) {
	registered(t, LIA) // or skips
	spec, err := loadLia()
	if err != nil {
		t.Fatal(err)
	}
	name := fmt.Sprintf("lia_t%d", os.Getpid()) // no other process has it
	r, err := register(spec, LIA, name)
	if err != nil {
		t.Fatal(err)
	}
	netnstest.New(t).Must(t, func() error {
		if err := Available(name); err != nil {
			t.Errorf("it cannot be chosen: %v", err)
		}
		if err := r.Close(); err != nil {
			return err
		}
		if err := Available(name); err == nil {
			t.Error("it can be chosen after the end")
		}
		return nil
	})
}

func TestUnknownAlgorithm(t *testing.T) {
	if _, err := Register("cubic"); err == nil || !strings.Contains(err.Error(), "lia") {
		t.Errorf("got %v", err)
	}
}

// The service that is packaged lacks CAP_PERFMON, and is told.
func TestRefusedWithoutRights(t *testing.T) {
	if netnstest.KernelBefore(t, 6, 4) {
		t.Skip("no rights would suffice")
	}
	netnstest.New(t).Must(t, func() error {
		if err := netnstest.LimitRights(unix.CAP_BPF, unix.CAP_NET_ADMIN); err != nil {
			return err
		}
		_, err := Register(LIA)
		if e, ok := errors.AsType[*UnavailableError](err); !ok || !strings.Contains(e.Fix, "CAP_PERFMON") {
			t.Errorf("got %v", err)
		}
		return nil
	})
}

func TestRightsThatSuffice(t *testing.T) {
	registered(t, LIA) // or skips
	netnstest.New(t).Must(t, func() error {
		if err := netnstest.LimitRights(unix.CAP_BPF, unix.CAP_PERFMON, unix.CAP_NET_ADMIN); err != nil {
			return err
		}
		r, err := Register(OLIA)
		if err != nil {
			return err
		}
		return r.Close()
	})
}

func TestAcknowledged(t *testing.T) {
	stats, err := ebpf.EnableStats(unix.BPF_STATS_RUN_TIME)
	if err != nil {
		t.Skipf("needs the kernel's statistics of programs: %v", err)
	}
	defer stats.Close()
	r := registered(t, LIA)
	netnstest.New(t).Must(t, func() error { return carry(t, r.Name(), true) })
	if calls, spent, err := r.Acknowledged(); err != nil || calls == 0 || spent == 0 {
		t.Errorf("%d calls, %v, %v", calls, spent, err)
	}
}

// Each algorithm carries data, on MPTCP and TCP sockets.
func TestCarries(t *testing.T) {
	for _, a := range Algorithms {
		for _, mptcp := range []bool{true, false} {
			name := string(a) + "/tcp"
			if mptcp {
				name = string(a) + "/mptcp"
			}
			t.Run(name, func(t *testing.T) {
				r := registered(t, a)
				netnstest.New(t).Must(t, func() error { return carry(t, r.Name(), mptcp) })
			})
		}
	}
}

// carry sends some megabytes over the loopback interface, by a congestion control.
func carry(t *testing.T, name string, mptcp bool) error {
	var config net.ListenConfig
	config.SetMultipathTCP(mptcp)
	l, err := config.Listen(context.Background(), "tcp4", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer l.Close()
	var dialer net.Dialer
	dialer.SetMultipathTCP(mptcp)
	c, err := dialer.DialContext(t.Context(), "tcp4", l.Addr().String())
	if err != nil {
		return err
	}
	defer c.Close()
	s, err := l.Accept()
	if err != nil {
		return err
	}
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		return err
	}
	var got string
	control := func(fd uintptr) {
		if err = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, name); err == nil {
			got, err = unix.GetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION)
		}
	}
	if e := raw.Control(control); e != nil || err != nil {
		return errors.Join(e, err)
	}
	if got = strings.TrimRight(got, "\x00"); got != name {
		t.Errorf("the socket has %q", got)
	}
	received := make(chan int64, 1)
	go func() {
		n, _ := io.Copy(io.Discard, s)
		s.Close()
		received <- n
	}()
	const size = 8 << 20
	_, err = c.Write(make([]byte, size))
	c.Close()
	if n := <-received; n != size {
		t.Errorf("%d bytes arrived of %d", n, size)
	}
	return err
}
