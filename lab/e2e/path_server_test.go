package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/paths/topology"
	"github.com/detour-collective/dcol/lab/testbed"
)

// graphOf returns the graph of a balanced network, for a path server.
func graphOf(n *testbed.Network, width, radix int) []byte {
	g := topology.Graph{Attributes: topology.GraphAttributes{Radix: radix}}
	for _, name := range []string{"client", "first", "second", server} {
		g.Nodes = append(g.Nodes, topology.GraphNode{Name: topology.Name(name), Host: name == "client" || name == server})
	}
	link := func(a, b, name string) {
		a4, a6 := n.Host(a).AddrOn(name)
		b4, b6 := n.Host(b).AddrOn(name)
		l := topology.GraphLink{Source: topology.Name(a), Target: topology.Name(b)}
		l.SourceAddresses, l.TargetAddresses = append(l.SourceAddresses, a4, a6), append(l.TargetAddresses, b4, b6)
		g.Links = append(g.Links, l)
	}
	link("client", "first", "near")
	link("second", server, "far")
	for i := 1; i <= width; i++ {
		name := fmt.Sprint("m", i)
		g.Nodes = append(g.Nodes, topology.GraphNode{Name: topology.Name(name)})
		link("first", name, name)
		link(name, "second", name+"b")
	}
	text, _ := json.Marshal(g) // cannot fail
	return text
}

// TestPathServer: an agent asks a path server, whose ports have a download use all four paths between CFLB routers in both
// directions. When the server is gone, the download goes on, and the subflows of the next connection take paths by chance.
func TestPathServer(t *testing.T) {
	const width = 4
	w := &world{T: t, net: balanced(t, width), dir: t.TempDir(), explained: true}
	members := []string{"client", "first", "second", server}
	w.found("collective", members...)
	for _, host := range members {
		w.identify("collective", host)
		role, more := "router", "[router]\nradix = 4\n"
		if host == "client" {
			role, more = "client", "[client]\nexclude = []\nselection = \"oldest\"\n[[policy]]\nuse = \"paths\"\nsubflows = 4\nserver = \""+
				fmt.Sprintf("%s@%v:45674", server, w.addr4(server))+"\"\n"
		}
		w.configure(host, fmt.Sprintf("name = %q\nroles = [%q]\nlog_level = \"debug\"\n", host, role)+fmt.Sprintf(identityTable, host)+more)
		w.write(host, cflbSecret, []byte("secret of the network\n"), 0o600)
	}
	const graph = etc + "graph.json"
	w.write(server, graph, graphOf(w.net, width, 4), 0o644)
	log, err := os.Create(filepath.Join(w.dir, "path-server.log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd := w.host(server).Command(w.life(), program, "paths", "serve", "--secret-file", cflbSecret, graph)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.serve()
	w.run(server, "ip", "mptcp", "limits", "set", "subflow", "8", "add_addr_accepted", "8")
	w.start("first")
	w.start("second")
	for _, host := range []string{"first", "second"} {
		w.eventually(host+" follows its routes", func() error {
			s, err := w.status(host)
			if err != nil {
				return err
			}
			n := 0
			for _, r := range s.Router.Routes {
				if len(r.NextHops) == width && r.Left == "" {
					n++
				}
			}
			return holds(n >= 2, "%d routes", n)
		})
	}
	w.eventually("the path server listens", func() error {
		text, err := os.ReadFile(log.Name())
		return errors.Join(err, holds(strings.Contains(string(text), "45674"), "%s", text))
	})
	w.start("client")
	get := func(port int) *transfer {
		return w.transfer("client", program, "run", "--", "curl", "--silent", "--show-error", "--fail", "--no-buffer", fmt.Sprintf("http://%v:%d/file", w.addr4(server), port))
	}
	first := get(80)
	fourPaths := func(port uint16, chosen bool) error {
		s, err := w.status("client")
		if err != nil {
			return err
		}
		for _, c := range s.Client.Connections {
			n := 0
			for _, sub := range c.Subflows {
				byServer := sub.Local.Port() >= 61000 || sub.Local.Port() < 32768
				if sub.Kind == "port" && sub.State == api.SubflowUp && byServer == chosen {
					n++
				}
			}
			if c.Remote.Port() == port {
				return holds(n == width, "%d of %+v (%s)", n, c.Subflows, c.Note)
			}
		}
		return errors.New("there is no such connection")
	}
	w.eventually("a connection has four paths by the path server", func() error { return fourPaths(80, true) })
	carried := func() (all []uint64) {
		for i := 1; i <= width; i++ {
			out, in, err := w.net.LinkStats(fmt.Sprintf("m%d", i))
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, out.Packets, in.Packets)
		}
		return all
	}
	before := carried()
	w.eventually("all links carry data and acknowledgements", func() error {
		first.goesOn()
		more := carried()
		for i := range more {
			more[i] -= before[i]
		}
		return holds(slices.Min(more) > 50, "packets %v", more)
	})
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	second := get(81)
	w.eventually("without the path server a connection has paths by chance", func() error { return fourPaths(81, false) })
	first.goesOn()
	second.goesOn()
	if err := fourPaths(80, true); err != nil {
		t.Errorf("the first connection: %v", err)
	}
	first.endsWell()
	second.endsWell()
}
