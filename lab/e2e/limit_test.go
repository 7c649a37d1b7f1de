package e2e

import (
	"fmt"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/lab/testbed"
)

// A policy limits the subflows over the second of two paths of 20 Mbit/s and 40 ms to 4 Mbit/s, as in V.-H. Tran's thesis (2019,
// figure 6.11). The first carries as much as without the limit.
func TestPolicyLimit(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		iperf           []string
		ecn, congestion string
		settles         time.Duration
	}{
		"what this host sends":                       {nil, "2", "", 2 * time.Second},
		"what it receives":                           {[]string{"-R"}, "2", "", 2 * time.Second},
		"what it receives with ECN, which has marks": {[]string{"-R"}, "1", "", 2 * time.Second},
		"marks that the server ignores":              {[]string{"-R"}, "1", "bbr", 6 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			w := withUplinksOf(t, testbed.BackendEmulator, "\n[[policy]]\nuse = \"fullmesh\"\nlimit = { MOBILE = \"4mbit\" }\n")
			w.sysctl(alice, "net.ipv4.tcp_ecn", c.ecn)
			line := testbed.LinkParams{Rate: 20e6, Delay: 20 * time.Millisecond, Queue: 100e3}
			for _, link := range []string{alice, mobile} {
				if err := w.net.SetLink(link, line, line); err != nil {
					t.Fatal(err)
				}
			}
			for _, host := range []string{alice, server} {
				w.sysctl(host, "net.ipv4.tcp_rmem", "4096 131072 6291456")
				w.sysctl(host, "net.ipv4.tcp_wmem", "4096 16384 4194304")
			}
			if c.congestion != "" {
				if err := w.host(server).SetCongestionControl(c.congestion); err != nil {
					t.Skip(err) // modules that are not loaded
				}
			}
			w.host(server).Command(w.life(), program, "run", "--", "iperf3", "-s").Start()
			w.eventually("iperf3 listens", func() error {
				if w.run(server, "ss", "-Htln", "sport = :5201") == "" {
					return fmt.Errorf("nothing listens")
				}
				return nil
			})
			args := append([]string{"run", "--", "iperf3", "-t", "300", "-c", w.addr4(server).String()}, c.iperf...)
			w.host(alice).Command(w.life(), program, args...).Start()
			var first, second float64
			w.eventually("the second subflow carries", func() error {
				if first, second = w.carriedOver(time.Second); second < 0.2 {
					return fmt.Errorf("%.1f Mbit/s", second)
				}
				return nil
			})
			wait(t.Context(), c.settles)
			first, second = w.carriedOver(8 * time.Second)
			t.Logf("%.1f and %.1f Mbit/s", first, second)
			if second > 1.15*4 || second < 1 || first < 2*second {
				t.Errorf("%.1f and %.1f Mbit/s", first, second)
			}
		})
	}
}

// carriedOver returns what the first and the second subflow of the busiest connection carried in a time, in Mbit/s.
func (w *world) carriedOver(over time.Duration) (first, second float64) {
	w.Helper()
	of := func(c api.Connection, i int) uint64 {
		if i >= len(c.Subflows) {
			return 0
		}
		return c.Subflows[i].BytesReceived + c.Subflows[i].BytesSent
	}
	busiest := func() (c api.Connection) {
		for _, x := range w.mustStatus(alice).Client.Connections {
			if len(c.Subflows) == 0 || of(x, 0) > of(c, 0) {
				c = x
			}
		}
		return c
	}
	before, began := busiest(), time.Now()
	wait(w.Context(), over)
	after, took := busiest(), time.Since(began).Seconds()
	rate := func(i int) float64 {
		if of(after, i) < of(before, i) {
			return 0
		}
		return 8 * float64(of(after, i)-of(before, i)) / took / 1e6
	}
	return rate(0), rate(1)
}
