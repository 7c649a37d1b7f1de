package e2e

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/detour-collective/dcol/internal/api"
)

// TestPolicyPaths: a host with one interface, in a network without waypoints, has a subflow on each of four paths, because
// its agent has found ports that lead there. A second connection to the server uses other ports on the same paths. When a router
// loses a next hop, its transfers go on, and a later connection has the three paths that there are.
func TestPolicyPaths(t *testing.T) {
	const width = 4
	w := &world{T: t, net: balanced(t, width), dir: t.TempDir(), explained: true}
	w.found("collective", "client")
	w.identify("collective", "client")
	w.configure("client", "name = \"client\"\nroles = [\"client\"]\nlog_level = \"debug\"\n"+fmt.Sprintf(identityTable, "client")+
		"[client]\nexclude = []\nselection = \"oldest\"\n[[policy]]\nuse = \"paths\"\nsubflows = 4\n")
	w.serve()
	w.run(server, "ip", "mptcp", "limits", "set", "subflow", "8", "add_addr_accepted", "8")
	client := w.start("client")
	get := func() *transfer {
		return w.transfer("client", program, "run", "--", "curl", "--silent", "--show-error", "--fail", "--no-buffer", w.url())
	}
	first, second := get(), get()
	// A path that failed on a busy machine is tried again after a minute.
	w.within(2*patience, "both connections have four paths", func() error {
		s, err := w.status("client")
		if err != nil {
			return err
		}
		ports := map[uint16]bool{}
		for _, c := range s.Client.Connections {
			names := map[string]bool{}
			for _, sub := range c.Subflows {
				if sub.Kind == "port" && sub.State == api.SubflowUp {
					names[sub.Waypoint], ports[sub.Local.Port()] = true, true
				}
			}
			if len(names) != width {
				return fmt.Errorf("connection %v has the paths %v (%s)", c.Local, names, c.Note)
			}
		}
		return holds(len(ports) == 2*width, "%d connections with the ports %v", len(s.Client.Connections), ports)
	})
	sent := func() (all []uint64) {
		for i := 1; i <= width; i++ {
			out, _, err := w.net.LinkStats(fmt.Sprintf("m%d", i))
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, out.Packets)
		}
		return all
	}
	before := sent()
	w.eventually("all four links carry acknowledgements", func() error {
		first.goesOn()
		var more []uint64
		for i, now := range sent() {
			more = append(more, now-before[i])
		}
		return holds(slices.Min(more) > 50, "packets %v", more)
	})
	w.loses("m1")
	for range 3 {
		first.goesOn()
		second.goesOn()
	}
	// Nothing tells this host of a change far away: it searches again when its own routes change, or after ten minutes.
	w.run("client", "ip", "route", "add", "198.18.0.0/15", "dev", "near")
	early, err := w.status("client")
	if err != nil {
		t.Fatal(err)
	}
	w.eventually("the agent has searched again", func() error {
		first.goesOn()
		log, err := os.ReadFile(client.log)
		if err != nil {
			return err
		}
		searches := strings.Count(string(log), "paths by ports were searched")
		return holds(searches == 2, "%d searches", searches)
	})
	third := get()
	w.within(2*patience, "a later connection has three paths", func() error {
		third.goesOn()
		s, err := w.status("client")
		if err != nil {
			return err
		}
		for _, c := range s.Client.Connections {
			if slices.ContainsFunc(early.Client.Connections, func(old api.Connection) bool { return old.Local == c.Local }) {
				continue
			}
			up := 0
			for _, sub := range c.Subflows {
				if sub.Kind == "port" && sub.State == api.SubflowUp {
					up++
				}
			}
			if up == width-1 {
				return nil
			}
		}
		return fmt.Errorf("connections %+v", s.Client.Connections)
	})
	first.endsWell()
	second.endsWell()
	third.endsWell()
}

// loses removes the next hops of both routers over a link, and the link.
func (w *world) loses(name string) {
	w.Helper()
	for host, link := range map[string]string{"first": name, "second": name + "b"} {
		w.run(host, "ip", "link", "set", link, "down")
	}
}
