package ui

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/api"
)

func TestCongestion(t *testing.T) {
	var b strings.Builder
	err := Congestion(&b, api.Transport{
		Available: []string{"reno", "cubic", "lia_2"}, Default: "cubic", Problem: "it is \"so\"",
		Congestion: []api.Congestion{
			{Use: "lia", Name: "lia_2", Cgroup: "/sys/fs/cgroup/a", Ports: []int{80, 443}, Networks: []string{"10.0.0.0/8"}, Set: 3, Refused: 1},
			{Use: "reno", Name: "reno", AtRunTime: true},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	const want = `available: reno, cubic, lia_2
PROBLEM: it is "so"
lia_2 (lia): connections of programs in /sys/fs/cgroup/a, to port 80, 443, with 10.0.0.0/8; set for 3, refused by the kernel for 1
reno: connections of programs outside these cgroups; set for 0 (until the agent ends, or dcol cc use --reset)
cubic: all other connections
`
	if b.String() != want {
		t.Errorf("got\n%s\nwant\n%s", b.String(), want)
	}
}

func TestOptions(t *testing.T) {
	a, b := netip.MustParseAddrPort("192.0.2.1:1"), netip.MustParseAddrPort("192.0.2.2:2")
	at := time.Date(2026, 11, 23, 12, 0, 0, 0, time.Local)
	all := api.Transport{Options: &api.Options{
		Known:  []api.Option{{Name: "congestion", Asks: "bbr"}, {Name: "user-timeout", Grants: "from 10s to 1m0s"}},
		Counts: []api.OptionCount{{Option: "congestion", Verdict: "sent", Count: 2}, {Option: "congestion", Verdict: "late", Count: 1}},
		Calls:  7,
		Recent: []api.OptionReport{
			{At: at, Local: a, Remote: b, Option: "congestion", Asked: "cubic", Verdict: "granted", Granted: "cubic"},
			{At: at, Local: a, Remote: b, Option: "user-timeout", Asked: "1s", Verdict: "capped", Granted: "10s", Why: "bounds"},
			{At: at, Local: a, Remote: b, Option: "congestion", Asked: "bbr", Verdict: "sent"},
		},
	}}
	const unannounced = `exchanged with all networks; the kernel's program was called 0 times
`
	rest := func(o api.Options) func(*strings.Builder) error {
		return func(w *strings.Builder) error { return OptionList(w, api.Transport{Options: &o}) }
	}
	network := api.Unannounced{Network: netip.MustParsePrefix("203.0.113.0/24"), Until: at.Add(10 * time.Minute)}
	for _, c := range []struct {
		name  string
		write func(*strings.Builder) error
		want  string
	}{
		{"list", func(w *strings.Builder) error { return OptionList(w, all) }, `  OPTION        ASKS  GRANTS            REQUESTS
  congestion    bbr   -                 2 sent, 1 late
  user-timeout  -     from 10s to 1m0s  -
exchanged with all networks; the kernel's program was called 7 times
`},
		{"show", func(w *strings.Builder) error { return OptionReports(w, all, 2) }, `2026-11-23 12:00:00  192.0.2.2:2 asked 192.0.2.1:1 for user-timeout: 1s: capped, 10s (bounds)
2026-11-23 12:00:00  192.0.2.1:1 asked 192.0.2.2:2 for congestion: bbr: sent
`},
		{"a network rests", rest(api.Options{Unannounced: []api.Unannounced{network}}), unannounced +
			`Nothing is announced to 1 network, because a SYN with an announcement was lost there, and the next one, without it, was answered: 203.0.113.0/24 until 23 Nov 12:10:00.
`},
		{"many rest", rest(api.Options{Unannounced: slices.Repeat([]api.Unannounced{network}, 7), UnannouncedInternet: at}), unannounced +
			`Nothing is announced to the Internet until 23 Nov 12:00:00: SYNs with an announcement were lost to several networks in a row. A firewall near this host may drop them.
Nothing is announced to 7 networks, because a SYN with an announcement was lost there, and the next one, without it, was answered: ` +
			strings.Repeat("203.0.113.0/24 until 23 Nov 12:10:00, ", 5) + `and 2 more.
`},
		{"none", func(w *strings.Builder) error { return OptionReports(w, api.Transport{}, 2) }, `This host exchanges no TCP options ([options] in its configuration).
`},
	} {
		var w strings.Builder
		if err := c.write(&w); err != nil {
			t.Fatal(err)
		}
		if w.String() != c.want {
			t.Errorf("%s: got\n%s\nwant\n%s", c.name, w.String(), c.want)
		}
	}
}
