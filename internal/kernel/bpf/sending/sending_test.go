package sending

import (
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/kernel/bpf/cgrouptest"
	"github.com/detour-collective/dcol/internal/kernel/mptcp"
	"github.com/detour-collective/dcol/internal/kernel/mptcp/mptcptest"
)

func TestMain(m *testing.M) {
	if os.Getenv(holder) != "" {
		if err := hold(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

func openAlone(cgroup string) (*Setter, error) { return Open(cgroup, nil) }

func open(t *testing.T, p *mptcptest.Pair) *Setter {
	t.Helper()
	s := cgrouptest.Open(t, p.Client, openAlone)
	t.Cleanup(func() { s.Close() })
	return s
}

// taken waits until so many settings were taken.
func taken(t *testing.T, s *Setter, want uint64) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		got, refused, err := s.Counts()
		if err != nil || refused > 0 || time.Now().After(deadline) {
			t.Fatalf("%d settings were taken, %d refused, want %d: %v", got, refused, want, err)
		}
		if got == want {
			return
		}
	}
}

// A subflow sends no more than its rate, and the other as much as before; without a bound it does again.
func TestRate(t *testing.T) {
	for name, at := range map[string][2]string{"IPv4": {"10.0.1.2", "10.0.1.1"}, "IPv6": {"2001:db8::2", "2001:db8::1"}} {
		t.Run(name, func(t *testing.T) {
			p := mptcptest.NewPair(t, at[0], at[1])
			s := open(t, p)
			p.Connect(t, at[1])
			const rate = 4e6 // bits a second
			if err := s.Set(p.Join.Local, p.Join.Remote, Setting{Rate: rate}); err != nil {
				t.Fatal(err)
			}
			p.Nudge(t, p.Join)
			taken(t, s, 1)
			go func() { // until the connection is closed
				for data := make([]byte, 1<<16); ; {
					if _, err := p.Conn.Write(data); err != nil {
						return
					}
				}
			}()
			go func() {
				for data := make([]byte, 1<<16); ; {
					if _, err := p.Conn.Read(data); err != nil {
						return
					}
				}
			}()
			// sent returns what a subflow delivered until it was 200 kB, at least, and in which time.
			sent := func(of mptcptest.Ends) (bytes float64, over time.Duration) {
				before, began := p.Metrics(t, of).BytesAcked, time.Now()
				p.Eventually(t, of, "data is delivered", func(m mptcp.Metrics) bool { return m.BytesAcked >= before+200_000 })
				over = time.Since(began)
				return float64(p.Metrics(t, of).BytesAcked - before), over
			}
			sent(p.Join) // a first window was on its way at once
			bytes, over := sent(p.Join)
			if got := 8 * bytes / over.Seconds(); got > 1.3*rate {
				t.Errorf("%.1f Mbit/s over the bounded subflow", got/1e6)
			}
			bytes, over = sent(p.First)
			if got := 8 * bytes / over.Seconds(); got < 2*rate {
				t.Errorf("%.1f Mbit/s over the other", got/1e6)
			}
			if err := s.Set(p.Join.Local, p.Join.Remote, Setting{}); err != nil {
				t.Fatal(err)
			}
			taken(t, s, 2)
			for deadline := time.Now().Add(time.Minute); ; {
				if bytes, over = sent(p.Join); 8*bytes/over.Seconds() > 2*rate {
					break
				}
				if time.Now().After(deadline) {
					t.Fatalf("%.1f Mbit/s without a bound", 8*bytes/over.Seconds()/1e6)
				}
			}
			p.Conn.Close()
		})
	}
}

// A subflow whose data stays unacknowledged ends after its user timeout, and the connection lives on.
func TestUserTimeout(t *testing.T) {
	p := mptcptest.NewPair(t, "10.0.1.2", "10.0.1.1")
	s := open(t, p)
	p.Connect(t, "10.0.1.1")
	const timeout = time.Second
	if err := s.Set(p.Join.Local, p.Join.Remote, Setting{UserTimeout: timeout}); err != nil {
		t.Fatal(err)
	}
	p.Nudge(t, p.Join)
	taken(t, s, 1)
	if err := p.Kernel.SetBackup(p.Token, p.First.Local, p.First.Remote, true); err != nil {
		t.Fatal(err)
	}
	p.Swallow(t, p.Join)
	began := time.Now()
	answered := make(chan error, 1)
	go func() {
		_, err := p.Conn.Write([]byte("again"))
		if err == nil {
			_, err = p.Conn.Read(make([]byte, 5))
		}
		answered <- err
	}()
	for errors.Is(present(p, p.Join), nil) {
		if time.Since(began) > time.Minute {
			t.Fatal("the subflow lives on")
		}
		time.Sleep(20 * time.Millisecond)
	}
	if after := time.Since(began); after < timeout {
		t.Errorf("it ended after %v", after)
	}
	select {
	case err := <-answered:
		if err != nil {
			t.Errorf("the connection: %v", err)
		}
	case <-time.After(time.Minute):
		t.Error("the connection has stopped")
	}
}

func present(p *mptcptest.Pair, e mptcptest.Ends) error {
	_, err := p.Kernel.Subflow(e.Local, e.Remote)
	return err
}

// The first subflow of an IPv6 socket to an IPv4 address is found by its IPv4 addresses.
func TestMappedAddress(t *testing.T) {
	p := mptcptest.NewPair(t, "10.0.1.2", "10.0.1.1")
	s := open(t, p)
	p.Server.Must(t, func() error {
		var lc net.ListenConfig
		lc.SetMultipathTCP(true)
		l, err := lc.Listen(t.Context(), "tcp", "10.0.1.1:80")
		if err == nil {
			t.Cleanup(func() { l.Close() })
		}
		return err
	})
	p.Client.Must(t, func() error {
		fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_MPTCP)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		local, remote := netip.MustParseAddrPort("10.0.1.2:5000"), netip.MustParseAddrPort("10.0.1.1:80")
		at := func(a netip.AddrPort) unix.Sockaddr {
			return &unix.SockaddrInet6{Addr: a.Addr().As16(), Port: int(a.Port())}
		}
		err = errors.Join(s.Set(local, remote, Setting{Rate: 1e6}), unix.Bind(fd, at(local)), unix.Connect(fd, at(remote)))
		if err == nil {
			_, err = unix.Write(fd, []byte("x"))
		}
		taken(t, s, 1)
		return err
	})
}

// A setting for a subflow that there is not is kept until it is forgotten, and so many may be kept as fit.
func TestSettingsOfNoSubflow(t *testing.T) {
	p := mptcptest.NewPair(t, "10.0.1.2", "10.0.1.1")
	s := open(t, p)
	at, to := netip.MustParseAddrPort("10.0.1.2:1"), netip.MustParseAddrPort("10.0.1.1:80")
	err := errors.Join(s.Set(at, to, Setting{Rate: math.Inf(1), UserTimeout: math.MaxInt64}), s.Set(at, to, Setting{Rate: 1, UserTimeout: -1}),
		s.Forget(at, to), s.Forget(at, to))
	if err != nil {
		t.Error(err)
	}
	for i := range 65537 {
		err = s.Set(netip.AddrPortFrom(at.Addr(), uint16(i)), netip.AddrPortFrom(to.Addr(), uint16(80+i>>16)), Setting{})
	}
	if !errors.Is(err, unix.E2BIG) {
		t.Errorf("one too many: %v", err)
	}
}

// The agent's unit has no more.
func TestTwoCapabilitiesAreEnough(t *testing.T) { cgrouptest.TwoCapabilitiesAreEnough(t, openAlone) }
