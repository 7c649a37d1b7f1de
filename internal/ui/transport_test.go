package ui

import (
	"strings"
	"testing"

	"github.com/detour-collective/dcol/internal/api"
)

func TestCongestion(t *testing.T) {
	var b strings.Builder
	err := Congestion(&b, api.Transport{
		Available: []string{"reno", "cubic", "lia_2"}, Default: "cubic", Problem: "it is \"so\"",
		Congestion: []api.Congestion{
			{Use: "lia", Name: "lia_2", Cgroup: "/sys/fs/cgroup/a", Ports: []int{80, 443}, Networks: []string{"10.0.0.0/8"}, Set: 3, Refused: 1},
			{Use: "reno", Name: "reno"},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	const want = `available: reno, cubic, lia_2
PROBLEM: it is "so"
lia_2 (lia): connections of programs in /sys/fs/cgroup/a, to port 80, 443, with 10.0.0.0/8; set for 3, refused by the kernel for 1
reno: all connections; set for 0
cubic: all other connections
`
	if b.String() != want {
		t.Errorf("got\n%s\nwant\n%s", b.String(), want)
	}
}
