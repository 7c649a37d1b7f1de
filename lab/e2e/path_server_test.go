package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/cflb"
	"github.com/detour-collective/dcol/internal/packet"
	"github.com/detour-collective/dcol/internal/paths/known"
	"github.com/detour-collective/dcol/internal/paths/topology"
	"github.com/detour-collective/dcol/lab/testbed"
)

// graphOf returns the graph of a balanced network, for a path server. Links that are drained are marked as down.
func graphOf(n *testbed.Network, width, radix int, drained ...string) []byte {
	links := []testbed.LinkSpec{{Name: "near", A: "client", B: "first"}, {Name: "far", A: "second", B: server}}
	for i := 1; i <= width; i++ {
		name := fmt.Sprint("m", i)
		links = append(links, testbed.LinkSpec{Name: name, A: "first", B: name}, testbed.LinkSpec{Name: name + "b", A: name, B: "second"})
	}
	g := graphOfLinks(n, links, radix, "client", server)
	for i, l := range links {
		g.Links[i].Down = slices.Contains(drained, l.Name)
	}
	text, _ := json.Marshal(g) // cannot fail
	return text
}

// graphOfLinks returns the graph of a network with such links, of which hosts are ends.
func graphOfLinks(n *testbed.Network, links []testbed.LinkSpec, radix int, hosts ...string) (g topology.Graph) {
	g.Attributes.Radix = radix
	known := map[string]bool{}
	for _, l := range links {
		for _, name := range []string{l.A, l.B} {
			if !known[name] {
				known[name] = true
				g.Nodes = append(g.Nodes, topology.GraphNode{Name: topology.Name(name), Host: slices.Contains(hosts, name)})
			}
		}
		a4, a6 := n.Host(l.A).AddrOn(l.Name)
		b4, b6 := n.Host(l.B).AddrOn(l.Name)
		g.Links = append(g.Links, topology.GraphLink{
			Source: topology.Name(l.A), Target: topology.Name(l.B),
			SourceAddresses: []netip.Addr{a4, a6}, TargetAddresses: []netip.Addr{b4, b6},
		})
	}
	return g
}

// graphFile is the path server's file on its host.
const graphFile = etc + "graph.json"

// servePaths runs a path server on the server's host, and returns a function that ends it.
func (w *world) servePaths(graph []byte) (end func()) {
	w.Helper()
	w.write(server, graphFile, graph, 0o644)
	log, err := os.Create(filepath.Join(w.dir, "path-server.log"))
	if err != nil {
		w.Fatal(err)
	}
	defer log.Close()
	cmd := w.host(server).Command(w.life(), program, "paths", "serve", "--secret-file", cflbSecret, graphFile)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		w.Fatal(err)
	}
	w.eventually("the path server listens", func() error {
		text, err := os.ReadFile(log.Name())
		return errors.Join(err, holds(strings.Contains(string(text), "45674"), "%s", text))
	})
	return func() {
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			w.Fatal(err)
		}
		_ = cmd.Wait()
	}
}

// balances waits until a router's agent follows so many routes with several next hops.
func (w *world) balances(host string, routes int) {
	w.Helper()
	w.eventually(host+" follows its routes", func() error {
		s, err := w.status(host)
		if err != nil {
			return err
		}
		n := 0
		for _, r := range s.Router.Routes {
			if len(r.NextHops) > 1 && r.Left == "" {
				n++
			}
		}
		return holds(n >= routes, "%d routes", n)
	})
}

// pathServerWorld is a network of CFLB routers with a path server, which the client's agent asks for paths, so many for each
// connection. It returns a function that ends the path server.
func pathServerWorld(t *testing.T, width, subflows int) (w *world, client *agent, end func()) {
	t.Helper()
	w = &world{T: t, net: balanced(t, width), dir: t.TempDir(), explained: true}
	members := []string{"client", "first", "second", server}
	w.found("collective", members...)
	for _, host := range members {
		w.identify("collective", host)
		role, more := "router", "[router]\nradix = 4\n"
		if host == "client" {
			role, more = "client", fmt.Sprintf("[client]\nexclude = []\nselection = \"oldest\"\n[[policy]]\nuse = \"paths\"\nsubflows = %d\nserver = %q\n",
				subflows, w.pathServer())
		}
		w.configure(host, fmt.Sprintf("name = %q\nroles = [%q]\nlog_level = \"debug\"\n", host, role)+fmt.Sprintf(identityTable, host)+more)
		w.write(host, cflbSecret, []byte("secret of the network\n"), 0o600)
	}
	end = w.servePaths(graphOf(w.net, width, 4))
	w.serve()
	w.run(server, "ip", "mptcp", "limits", "set", "subflow", "8", "add_addr_accepted", "8")
	w.start("first")
	w.start("second")
	w.balances("first", 2)
	w.balances("second", 2)
	client = w.start("client")
	return w, client, end
}

// pathServer returns the path server as NAME@HOST:PORT.
func (w *world) pathServer() string { return fmt.Sprintf("%s@%v:45674", server, w.addr4(server)) }

// fetch begins a download by the client from a port of the server.
func (w *world) fetch(port int) *transfer {
	w.Helper()
	return w.transfer("client", program, "run", "--", "curl", "--silent", "--show-error", "--fail", "--no-buffer", fmt.Sprintf("http://%v:%d/file", w.addr4(server), port))
}

// TestPathServer: an agent asks a path server, whose ports have a download use all four paths between CFLB routers in both
// directions. When the server is gone, the download goes on, and the subflows of the next connection take paths by chance.
func TestPathServer(t *testing.T) {
	const width = 4
	w, _, end := pathServerWorld(t, width, width)
	first := w.fetch(80)
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
	local := netip.AddrPortFrom(w.addr4("client"), 61000)
	if said := w.dcol("client", "paths", "flow", "--server", w.pathServer(),
		local.String(), netip.AddrPortFrom(w.addr4(server), 80).String()); !strings.Contains(said, "there  client first m") ||
		!strings.Contains(said, "back   "+server+" second m") {
		t.Errorf("a connection's path:\n%s", said)
	}
	end()
	second := w.fetch(81)
	w.eventually("without the path server a connection has paths by chance", func() error { return fourPaths(81, false) })
	first.goesOn()
	second.goesOn()
	if err := fourPaths(80, true); err != nil {
		t.Errorf("the first connection: %v", err)
	}
	first.endsWell()
	second.endsWell()
}

// TestPathServerMovesSubflow: a link fails, and the path server's graph says so. The routers hash its flow, so that it goes on along a
// path that nobody chose. The path server tells the agent, whose subflow is replaced by one on a path that the server chooses. The
// download goes on, without a wrong or missing byte.
func TestPathServerMovesSubflow(t *testing.T) {
	const width, subflows = 4, 3
	const failed = "m1" // the routers' last next hop, so that the others keep their numbers
	w, client, _ := pathServerWorld(t, width, subflows)
	ports := func() (all []netip.AddrPort) {
		for _, c := range w.mustStatus("client").Client.Connections {
			for _, sub := range c.Subflows {
				if sub.Kind == "port" && sub.State == api.SubflowUp {
					all = append(all, sub.Local)
				}
			}
		}
		return all
	}
	leads := func(local netip.AddrPort) string {
		return w.dcol("client", "paths", "flow", "--server", w.pathServer(), local.String(), netip.AddrPortFrom(w.addr4(server), 80).String())
	}
	download := w.fetch(80)
	w.eventually("the connection has its paths", func() error {
		return holds(len(ports()) == subflows, "ports %v", ports())
	})
	i := slices.IndexFunc(ports(), func(p netip.AddrPort) bool { return strings.Contains(leads(p), failed) })
	if i < 0 {
		t.Fatalf("none of the ports %v leads over %s", ports(), failed)
	}
	old := ports()[i]
	w.loses(failed)
	w.write(server, graphFile, graphOf(w.net, width, 4, failed, failed+"b"), 0o644)
	w.eventually("the path server has read its file again", func() error {
		said := leads(old)
		return holds(!strings.Contains(said, failed), "%s", said)
	})
	// The path server chooses paths that go and come over one link first.
	if links := regexp.MustCompile(`m\d`).FindAllString(leads(old), -1); len(links) != 2 || links[0] == links[1] {
		t.Fatalf("port %v leads over %v, where its subflow may stay: the test needs another port of the server", old, links)
	}
	w.eventually("the agent is told", func() error {
		log, err := os.ReadFile(client.log)
		told := fmt.Sprintf("moved=[%v:80]", w.addr4(server))
		return errors.Join(err, holds(strings.Contains(string(log), told), "the agent's log has no %q", told))
	})
	w.eventually("the subflow is replaced", func() error {
		download.goesOn()
		now := ports()
		return holds(len(now) == subflows && !slices.Contains(now, old), "ports %v", now)
	})
	taken := map[string]bool{}
	for _, p := range ports() {
		taken[leads(p)] = true
	}
	if len(taken) != subflows {
		t.Errorf("%d subflows on the paths %v", subflows, taken)
	}
	download.endsWell()
}

// legsWorld is a network in which routers choose among two links to alice's waypoint, x1 and x2, and behind it to the server, y1 and y2.
func legsWorld(t *testing.T) (w *world, spec testbed.Spec) {
	t.Helper()
	t.Parallel()
	if cannot != "" {
		t.Skip(cannot)
	}
	spec = testbed.Spec{
		Hosts: []testbed.HostSpec{{Name: alice}, {Name: bob}, {Name: server}},
		Links: []testbed.LinkSpec{{Name: "near", A: alice, B: "r1"}, {Name: "aside", A: bob, B: "r2"}, {Name: "far", A: "r3", B: server}},
	}
	for _, name := range []string{"r1", "r2", "r3", "x1", "x2", "y1", "y2"} {
		spec.Hosts = append(spec.Hosts, testbed.HostSpec{Name: name, Forward: true, Balance: true})
	}
	for _, name := range []string{"x1", "x2", "y1", "y2"} {
		from, to := "r1", "r2"
		if name[0] == 'y' {
			from, to = "r2", "r3"
		}
		spec.Links = append(spec.Links, testbed.LinkSpec{Name: name, A: from, B: name}, testbed.LinkSpec{Name: name + "b", A: name, B: to})
	}
	n, err := testbed.Build(t.Context(), spec, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	w = &world{T: t, net: n, dir: t.TempDir()}
	t.Cleanup(func() {
		w.explain()
		if err := n.Close(); err != nil {
			t.Error(err)
		}
		w.checkRaces()
	})
	return w, spec
}

// TestPathServerLegs: a path server chooses the ports of detours, so that two connections through one waypoint share no link on
// which routers choose: neither before the waypoint nor behind it, neither there nor back.
//
// It does not run beside other tests: an agent waits for a path server for a second.
func TestPathServerLegs(t *testing.T) {
	for _, kind := range []string{"mapped", "wireguard"} {
		t.Run(kind, func(t *testing.T) { placedLegs(t, kind) })
	}
}

func placedLegs(t *testing.T, kind string) {
	w, spec := legsWorld(t)
	n := w.net
	routers := []string{"r1", "r2", "r3"}
	w.found("collective", append([]string{alice, bob, server}, routers...)...)
	for _, host := range append([]string{alice, bob, server}, routers...) {
		w.identify("collective", host)
		w.write(host, cflbSecret, []byte("secret of the network\n"), 0o600)
	}
	for _, host := range routers {
		w.configure(host, fmt.Sprintf("name = %q\nroles = [\"router\"]\n", host)+fmt.Sprintf(identityTable, host)+"[router]\nradix = 2\n")
	}
	w.configure(server, fmt.Sprintf("name = %q\nroles = [\"router\"]\n", server)+fmt.Sprintf(identityTable, server)+"[router]\nradix = 2\n")
	w.useKinds(kind)
	w.configure(alice, clientOfAll(kindsLine(kind), w.addr4(bob).String())+
		fmt.Sprintf("[[policy]]\nuse = \"detours\"\nserver = \"%s@%v:45674\"\n", server, w.addr4(server)))
	text, _ := json.Marshal(graphOfLinks(n, spec.Links, 2, alice, bob, server)) // cannot fail
	w.servePaths(text)
	w.serve()
	for _, host := range routers {
		w.start(host)
		w.balances(host, 2)
	}
	w.startBoth()
	permutation, err := cflb.NewPermutation(cflb.Speck, cflb.PortsOnly.Bits(), []byte("secret of the network"))
	if err != nil {
		t.Fatal(err)
	}
	scheme, err := cflb.New(2, permutation)
	if err != nil {
		t.Fatal(err)
	}
	graph, err := topology.ReadGraph(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	network, err := known.New(graph, scheme)
	if err != nil {
		t.Fatal(err)
	}
	get := func() *transfer { return w.curl(fmt.Sprintf("http://%v:80/file", w.addr4(server))) }
	seen := map[netip.AddrPort]bool{}
	// lead waits for the detour of a connection that was not seen yet, and returns the links of its path on which routers choose.
	lead := func() (there, back []string) {
		w.eventually("a further connection has a detour", func() error {
			for _, c := range w.mustStatus(alice).Client.Connections {
				for _, sub := range c.Subflows {
					if seen[c.Local] || sub.Kind != kind || sub.State != api.SubflowUp {
						continue
					}
					d := known.Detour{Legs: []known.Flow{{Source: netip.AddrPortFrom(w.addr4(bob), 0), Destination: c.Remote, Protocol: packet.ProtocolTCP}}, Tunnelled: true}
					if kind == "mapped" {
						d.Tunnelled = false
						d.Legs = append([]known.Flow{{Source: sub.Local, Destination: sub.Remote, Protocol: packet.ProtocolTCP}}, d.Legs...)
					}
					ways, err := network.WaysVia(d, []uint16{sub.Local.Port()})
					if err != nil {
						return err
					}
					name := func(links []int) (names []string) {
						for _, l := range links {
							if link := spec.Links[l/2].Name; len(link) == 2 {
								names = append(names, link)
							}
						}
						return names
					}
					there, back = name(ways[0].There.Links), name(ways[0].Back.Links)
					seen[c.Local] = true
					return nil
				}
			}
			return errors.New("none has")
		})
		return there, back
	}
	first := get()
	there, back := lead()
	second := get() // to the same port, so the path server is asked once about both
	otherThere, otherBack := lead()
	for _, l := range append(there, otherThere...) {
		if slices.Contains(there, l) && slices.Contains(otherThere, l) {
			t.Errorf("the connections go by %v and by %v", there, otherThere)
		}
	}
	for _, l := range back {
		if slices.Contains(otherBack, l) {
			t.Errorf("the connections come by %v and by %v", back, otherBack)
		}
	}
	second.endsWell()
	// What the first connection really does shows when its direct path is dead.
	w.run("r3", "nft", "table inet cut { chain c { type filter hook forward priority 0; ip saddr "+w.addr4(alice).String()+" drop; ip daddr "+w.addr4(alice).String()+" drop; }; }")
	carried := func() map[string][2]uint64 {
		all := map[string][2]uint64{}
		for _, name := range []string{"x1", "x2", "y1", "y2"} {
			out, in, err := n.LinkStats(name)
			if err != nil {
				t.Fatal(err)
			}
			all[name] = [2]uint64{out.Packets, in.Packets}
		}
		return all
	}
	w.eventually(fmt.Sprintf("the detour goes by %v and comes by %v", there, back), func() error {
		before := carried()
		first.goesOn()
		after := carried()
		for name, now := range after {
			went, came := now[0]-before[name][0], now[1]-before[name][1]
			if kind == "wireguard" && name[0] == 'x' {
				continue // the tunnel's own packets
			}
			if goes, comes := slices.Contains(there, name), slices.Contains(back, name); goes != (went > 40) || comes != (came > 40) {
				return fmt.Errorf("%s carried %d and %d packets", name, went, came)
			}
		}
		return nil
	})
	first.endsWell()
}

// TestFirstLeg: without a path server, the agent finds ports that lead along distinct paths to a waypoint, and connections through it
// take turns on them.
func TestFirstLeg(t *testing.T) {
	w, _ := legsWorld(t)
	w.found("collective", alice, bob)
	w.identify("collective", alice)
	w.identify("collective", bob)
	w.useKinds("in-band")
	w.configure(alice, clientOfAll(kindsLine("in-band"), w.addr4(bob).String())+"[[policy]]\nuse = \"paths\"\ndetours = true\n")
	w.serve()
	w.run(server, "ip", "mptcp", "limits", "set", "subflow", "8", "add_addr_accepted", "8")
	ofAlice, _ := w.startBoth()
	get := func() *transfer { return w.curl(fmt.Sprintf("http://%v:80/file", w.addr4(server))) }
	first := get()
	var found []string // ports by path
	w.eventually("ports to the waypoint are found", func() error {
		log, err := os.ReadFile(ofAlice.log)
		if m := regexp.MustCompile(`first leg of a detour".* ports="?\[\[([\d ]+)\] \[([\d ]+)\]\]`).FindSubmatch(log); m != nil {
			found = []string{string(m[1]), string(m[2])}
		}
		return errors.Join(err, holds(len(found) == 2, "not in the log"))
	})
	pathOf := func(port uint16) int {
		return slices.IndexFunc(found, func(ports string) bool { return slices.Contains(strings.Fields(ports), fmt.Sprint(port)) })
	}
	second, third := get(), get()
	w.eventually("two further connections have detours on different paths", func() error {
		used := map[int]bool{}
		for _, c := range w.mustStatus(alice).Client.Connections {
			for _, sub := range c.Subflows {
				if i := pathOf(sub.Local.Port()); sub.Kind == "in-band" && sub.State == api.SubflowUp && i >= 0 {
					used[i] = true
				}
			}
		}
		return holds(len(used) == 2, "on %v of %v", used, found)
	})
	first.goesOn()
	second.goesOn()
	third.endsWell()
}
