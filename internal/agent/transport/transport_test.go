package transport

import (
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var quiet = slog.New(slog.DiscardHandler)

func TestNothingConfigured(t *testing.T) {
	tr, err := Open(&config.Config{}, quiet)
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	s, err := tr.Status()
	if err != nil || len(s.Congestion) != 0 || s.Default == "" || len(s.Available) == 0 || tr.Problems() != nil {
		t.Errorf("%+v, %v, problems %q", s, err, tr.Problems())
	}
}

func TestTables(t *testing.T) {
	netnstest.New(t).Must(t, func() error {
		tr, err := Open(&config.Config{Congestion: []config.Congestion{
			{Use: "olia", Networks: []netip.Prefix{netip.MustParsePrefix("127.0.0.2/32")}},
			{Use: "reno", Networks: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}},
			{Use: "olia", Ports: []int{443}},
		}}, quiet)
		if err != nil {
			return err
		}
		defer tr.Close()
		if p := tr.Problems(); p != nil {
			if strings.Contains(p[0], "needs Linux") || strings.Contains(p[0], "cgroup") {
				t.Skip(p)
			}
			return errors.New(p[0])
		}
		for _, address := range []string{"127.0.0.2", "127.0.0.1"} {
			if err := connect(address); err != nil {
				return err
			}
		}
		s, err := tr.Status()
		if err != nil {
			return err
		}
		// Each end of a connection is one of this namespace. The client of 127.0.0.2 comes from 127.0.0.1.
		olia, reno := s.Congestion[0], s.Congestion[1]
		if olia.Set != 1 || reno.Set != 3 || s.Congestion[2].Set != 0 {
			t.Errorf("counted %+v", s.Congestion)
		}
		if !strings.HasPrefix(olia.Name, "olia") || s.Congestion[2].Name != olia.Name || reno.Name != "reno" {
			t.Errorf("names %+v", s.Congestion)
		}
		return nil
	})
}

func connect(address string) error {
	l, err := net.Listen("tcp", address+":0")
	if err != nil {
		return err
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		return err
	}
	defer c.Close()
	s, err := l.Accept()
	if err != nil {
		return err
	}
	return s.Close()
}

// What the kernel lacks is named, and nothing is left in force.
func TestUnavailable(t *testing.T) {
	netnstest.New(t).Must(t, func() error {
		tr, err := Open(&config.Config{Congestion: []config.Congestion{{Use: "reno"}, {Use: "no_such_cc"}}}, quiet)
		if err != nil {
			return err
		}
		defer tr.Close()
		if p := tr.Problems(); len(p) != 1 || !strings.Contains(p[0], "modprobe") {
			t.Errorf("problems: %q", p)
		}
		s, err := tr.Status()
		if err != nil {
			return err
		}
		if len(s.Congestion) != 2 || s.Congestion[0].Set != 0 || s.Problem == "" {
			t.Errorf("status: %+v", s)
		}
		return nil
	})
}
