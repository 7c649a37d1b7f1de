package testbed

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// text returns a plan as a person reads it.
func (p plan) text() string {
	var b strings.Builder
	for _, h := range p.hosts {
		fmt.Fprintf(&b, "%s\n", h.Name)
		for _, i := range h.ifaces {
			fmt.Fprintf(&b, "  interface %s  %v  %v  mtu %d\n", i.name, i.net4, i.net6, i.mtu)
		}
		for _, r := range h.routes {
			i := h.ifaces[r.iface]
			fmt.Fprintf(&b, "  route %v via %v dev %s\n  route %v via %v dev %s\n",
				r.dst4, i.peer4, i.name, r.dst6, i.peer6, i.name)
		}
	}
	return b.String() + p.etcHosts()
}

// TestPlan compares with testdata/plan.txt. The 2017 topology has the path over link 2 as its default,
// because it was declared before the path over 4 and 5. It also has a host with two links.
func TestPlan(t *testing.T) {
	s := Spec{
		Hosts: []HostSpec{{Name: "client"}, {Name: "R1", Forward: true}, {Name: "R2", Forward: true},
			{Name: "R3", Forward: true}, {Name: "waypoint", Forward: true}, {Name: "server"}, {Name: "island"}},
		Links: []LinkSpec{
			{Name: "1", A: "client", B: "R1"}, {Name: "2", A: "R1", B: "R2"}, {Name: "3", A: "R2", B: "server"},
			{Name: "4", A: "R1", B: "R3"}, {Name: "5", A: "R3", B: "R2"}, {Name: "6", A: "R3", B: "waypoint"},
			{Name: "second", A: "client", B: "R3", Cost: 10, MTU: 1400},
		},
	}
	if err := s.Validate(); err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile("testdata/plan.txt")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), makePlan(s).text()); diff != "" {
		t.Errorf("plan (-want +got):\n%s", diff)
	}
}

func TestIfaceNames(t *testing.T) {
	for link, want := range map[string]string{
		"1": "link4", "7up": "link4", "uplink": "uplink", "a.b": "link4", "lo": "link4", "default": "link4",
		"link9": "link4", "fifteen-letters": "fifteen-letters", "sixteen--letters": "link4",
	} {
		if got := ifaceName(link, 3); got != want {
			t.Errorf("link %q has interface %q, want %q", link, got, want)
		}
	}
}

// TestRoutesArriveAndNeverLoop follows the routes of random networks of
// routers from each host to each address.
func TestRoutesArriveAndNeverLoop(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		hosts := rapid.IntRange(2, 8).Draw(t, "hosts")
		var s Spec
		for i := range hosts {
			s.Hosts = append(s.Hosts, HostSpec{Name: fmt.Sprint("h", i), Forward: true})
		}
		link := func(a, b int) {
			s.Links = append(s.Links, LinkSpec{Name: fmt.Sprint("l", len(s.Links)), A: s.Hosts[a].Name, B: s.Hosts[b].Name,
				Cost: rapid.IntRange(0, 3).Draw(t, "cost")})
		}
		for i := 1; i < hosts; i++ { // a tree, so that all are connected
			link(rapid.IntRange(0, i-1).Draw(t, "parent"), i)
		}
		for range rapid.IntRange(0, 6).Draw(t, "more") {
			a := rapid.IntRange(0, hosts-1).Draw(t, "a")
			b := (a + rapid.IntRange(1, hosts-1).Draw(t, "distance")) % hosts
			link(a, b)
		}
		if err := s.Validate(); err != nil {
			t.Fatal(err)
		}
		p := makePlan(s)
		for from := range p.hosts {
			for target, l := range p.links {
				at := from
				for hops := 0; at != l.a && at != l.b; hops++ {
					if hops > hosts {
						t.Fatalf("from %s to link %s: a loop\n%s", p.hosts[from].Name, l.Name, p.text())
					}
					at = p.nextHop(t, at, target)
				}
			}
		}
	})
}

// nextHop returns where host sends packets to an address on a link.
func (p plan) nextHop(t *rapid.T, host, link int) int {
	for _, r := range p.hosts[host].routes {
		if r.dst4 == p.links[link].net4 || r.dst4.Bits() == 0 {
			via := p.links[p.hosts[host].ifaces[r.iface].link]
			return via.a + via.b - host
		}
	}
	t.Fatalf("%s has no route to link %s\n%s", p.hosts[host].Name, p.links[link].Name, p.text())
	return 0
}

func TestSpecErrorsNameWhatIsWrong(t *testing.T) {
	base := func() Spec { return pair("", LinkParams{}) }
	nat := func(s *Spec, inside string, forwards ...PortForward) {
		s.Hosts = append(s.Hosts, HostSpec{Name: "island"}, HostSpec{Name: "router", Forward: true, NAT: NAT{Forwards: forwards}})
		if inside != "" {
			s.Hosts[3].NAT.Inside = strings.Fields(inside)
		}
		s.Links = append(s.Links, LinkSpec{Name: "lan", A: "left", B: "router"}, LinkSpec{Name: "wan", A: "router", B: "right"})
	}
	tests := []struct {
		change func(*Spec)
		want   string
	}{
		{func(s *Spec) { s.Hosts[0].Name = "no/slash" }, `"no/slash"`},
		{func(s *Spec) { s.Hosts[0].Name = "localhost" }, `"localhost"`},
		{func(s *Spec) { s.Hosts[1].Name = "left" }, `"left" is declared twice`},
		{func(s *Spec) { s.Links = append(s.Links, s.Links[0]) }, `link "line" is declared twice`},
		{func(s *Spec) { s.Links[0].Name = "" }, `link name ""`},
		{func(s *Spec) { s.Links[0].B = "nobody" }, `"nobody" is not declared`},
		{func(s *Spec) { s.Links[0].B = "left" }, `both ends are host "left"`},
		{func(s *Spec) { s.Links[0].Cost = -1 }, "cost -1"},
		{func(s *Spec) { s.Links[0].MTU = 576 }, "MTU 576"},
		{func(s *Spec) { s.Links[0].AtoB.Loss = 2 }, `link "line": loss 2`},
		{func(s *Spec) { s.Backend = "magic" }, `"magic" is unknown`},
		{func(s *Spec) { s.Backend = BackendVeth; s.Links[0].AtoB.Rate = 1 }, "shapes nothing"},
		{func(s *Spec) { s.Hosts[0].Middlebox = DropOptions }, `host "left": only a host that forwards`},
		{func(s *Spec) { s.Hosts[0].NAT.Inside = []string{"line"} }, `host "left": only a host that forwards`},
		{func(s *Spec) { s.Hosts[0].Forward, s.Hosts[0].Middlebox = true, "eat" }, `middlebox "eat" is unknown`},
		{func(s *Spec) { nat(s, "", PortForward{"udp", 1, "left"}) }, "no link is inside"},
		{func(s *Spec) { nat(s, "line") }, `"line" is none of its links`},
		{func(s *Spec) { nat(s, "lan lan") }, `"lan" is inside twice`},
		{func(s *Spec) { nat(s, "lan wan") }, "all its links are inside"},
		{func(s *Spec) { nat(s, "lan", PortForward{"sctp", 1, "left"}) }, `protocol "sctp" is unknown`},
		{func(s *Spec) { nat(s, "lan", PortForward{"udp", 0, "left"}) }, "no port"},
		{func(s *Spec) { nat(s, "lan", PortForward{"udp", 1, "router"}) }, `no link leads to another host "router"`},
		{func(s *Spec) { nat(s, "lan", PortForward{"udp", 1, "island"}) }, `no link leads to another host "island"`},
		{func(s *Spec) { nat(s, "lan", PortForward{"udp", 1, "left"}, PortForward{"udp", 1, "right"}) }, "udp/1 is forwarded twice"},
	}
	if err := base().Validate(); err != nil {
		t.Fatal(err)
	}
	for _, test := range tests {
		s := base()
		test.change(&s)
		if err := s.Validate(); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("error %v, want it to say %q", err, test.want)
		}
	}
}
