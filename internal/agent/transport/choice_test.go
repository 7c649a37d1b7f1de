package transport

import (
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
)

// used asks for a congestion control, or skips the test on a kernel that cannot.
func used(t *testing.T, tr *Transport, r api.CongestionRequest) (api.Transport, error) {
	t.Helper()
	s, err := tr.Use(r)
	if err != nil && lacking(t, err.Error()) {
		t.Skip(err)
	}
	return s, err
}

// What is asked at run time counts before the tables, and a reset ends it, with what was registered for it.
func TestUse(t *testing.T) {
	netnstest.New(t).Must(t, func() error {
		tr, err := Open(&config.Config{Congestion: []config.Congestion{{Use: "reno"}}}, quiet)
		if err != nil {
			return err
		}
		defer tr.Close()
		if _, err := used(t, tr, api.CongestionRequest{Use: "cubic", Ports: []int{1}}); err != nil {
			return err
		}
		s, err := used(t, tr, api.CongestionRequest{Use: "balia", Networks: []string{"127.0.0.2"}})
		if err != nil {
			return err
		}
		if len(s.Congestion) != 3 || s.Congestion[0].Use != "balia" || !s.Congestion[1].AtRunTime || s.Congestion[2].AtRunTime {
			t.Errorf("now %+v", s.Congestion)
		}
		name := s.Congestion[0].Name
		if !slices.Contains(s.Available, name) {
			t.Errorf("the kernel has %v", s.Available)
		}
		for _, address := range []string{"127.0.0.2", "127.0.0.1"} {
			if err := connect(address); err != nil {
				return err
			}
		}
		if s, err = tr.Status(); err != nil || s.Congestion[0].Set != 1 || s.Congestion[2].Set != 3 {
			t.Errorf("counted %+v, %v", s.Congestion, err)
		}
		// Of the same connections, the last request counts.
		if s, err = used(t, tr, api.CongestionRequest{Use: "cubic", Networks: []string{"127.0.0.2/32"}}); err != nil {
			return err
		}
		if len(s.Congestion) != 3 || s.Congestion[0].Use != "cubic" || slices.Contains(s.Available, name) {
			t.Errorf("now %+v, the kernel has %v", s.Congestion, s.Available)
		}
		if s, err = tr.Use(api.CongestionRequest{Reset: true}); err != nil || len(s.Congestion) != 1 || s.Congestion[0].Use != "reno" {
			t.Errorf("after the reset %+v, %v", s.Congestion, err)
		}
		return nil
	})
}

// A request that cannot be met changes nothing, and leaves nothing registered.
func TestUseRefused(t *testing.T) {
	netnstest.New(t).Must(t, func() error {
		tr, err := Open(&config.Config{}, quiet)
		if err != nil {
			return err
		}
		defer tr.Close()
		if _, err := used(t, tr, api.CongestionRequest{Use: "reno"}); err != nil {
			return err
		}
		before, err := tr.Status()
		if err != nil {
			return err
		}
		for _, c := range []struct {
			r    api.CongestionRequest
			want string
		}{
			{api.CongestionRequest{Use: "no_such_cc"}, "modprobe"},
			{api.CongestionRequest{Use: "lia", Cgroup: t.TempDir()}, "cgroup v2"},
			{api.CongestionRequest{Use: "LIA"}, `"lia"`},
			{api.CongestionRequest{Use: "lia", Ports: []int{0}}, "port"},
			{api.CongestionRequest{Use: "lia", Networks: []string{"10.0.0.1/8"}}, "10.0.0.0/8"},
			{api.CongestionRequest{Use: "lia", Networks: []string{"example.org"}}, "no network"},
			{api.CongestionRequest{Use: "lia", Cgroup: "here"}, "absolute"},
		} {
			_, err := tr.Use(c.r)
			if err == nil || !strings.Contains(err.Error(), c.want) && !lacking(t, err.Error()) {
				t.Errorf("%+v: %v", c.r, err)
			}
		}
		after, err := tr.Status()
		if err != nil {
			return err
		}
		if !slices.Equal(after.Available, before.Available) || len(after.Congestion) != 1 || after.Problem != "" {
			t.Errorf("before %+v, after %+v", before, after)
		}
		return nil
	})
}

// A table whose algorithm this host cannot have does not apply. The others do, also beside requests at run time.
func TestTableThatCannotApply(t *testing.T) {
	netnstest.New(t).Must(t, func() error {
		if err := netnstest.LimitRights(unix.CAP_BPF, unix.CAP_NET_ADMIN); err != nil {
			return err
		}
		tr, err := Open(&config.Config{Congestion: []config.Congestion{{Use: "lia"}, {Use: "no_such_cc"}, {Use: "reno"}}}, quiet)
		if err != nil {
			return err
		}
		defer tr.Close()
		problems := tr.Problems()
		if len(problems) > 0 && lacking(t, problems[len(problems)-1]) {
			t.Skip(problems)
		}
		if len(problems) != 2 || !strings.Contains(problems[0], "lia") || !strings.Contains(problems[1], "no_such_cc") {
			t.Errorf("problems %q", problems)
		}
		if err := connect("127.0.0.1"); err != nil {
			return err
		}
		s, err := tr.Status()
		if err != nil {
			return err
		}
		if len(s.Congestion) != 1 || s.Congestion[0].Use != "reno" || s.Congestion[0].Set != 2 || !strings.Contains(s.Problem, "no_such_cc") {
			t.Errorf("now %+v, problem %q", s.Congestion, s.Problem)
		}
		if s, err = tr.Use(api.CongestionRequest{Use: "cubic", Ports: []int{1}}); err != nil {
			return err
		}
		if len(s.Congestion) != 2 || len(tr.Problems()) != 2 {
			t.Errorf("after a request %+v, problems %q", s.Congestion, tr.Problems())
		}
		return nil
	})
}

// Without the rights that struct_ops needs, the request is refused in words.
func TestUseWithoutRights(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	netnstest.New(t).Must(t, func() error {
		if err := netnstest.LimitRights(unix.CAP_BPF, unix.CAP_NET_ADMIN); err != nil {
			return err
		}
		tr, err := Open(&config.Config{}, quiet)
		if err != nil {
			return err
		}
		_, err = tr.Use(api.CongestionRequest{Use: "lia"})
		if err == nil || !strings.Contains(err.Error(), "needs") {
			t.Errorf("got %v", err)
		}
		return tr.Close()
	})
}
