package path_test

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/detour-collective/dcol/internal/path"
	"github.com/detour-collective/dcol/internal/path/policy"
)

// config reads "policy SUBFLOWS [order KIND,…] [tls PORT] [exclude PREFIX] [worth]", or "policy mesh|ports", see rule.
func (p *player) config(words []string) path.Config {
	if words[1] == "mesh" || words[1] == "ports" || words[1] == "paths" {
		return p.rule(words)
	}
	detours := policy.Detours{Subflows: p.number(words[1])}
	if order := after(words, "order"); order != "" {
		for word := range strings.SplitSeq(order, ",") {
			detours.Order = append(detours.Order, p.kind(word))
		}
	}
	cfg := path.Config{Policy: detours}
	if port := after(words, "tls"); port != "" {
		cfg.TLSPorts = []uint16{uint16(p.number(port))}
	}
	if prefix := after(words, "exclude"); prefix != "" {
		cfg.Exclude = []netip.Prefix{netip.MustParsePrefix(prefix)}
	}
	return cfg
}

// event lets the manager handle what one line tells.
func (p *player) event(words []string) {
	verb, args := words[0], words[1:]
	has := func(word string) bool { return slices.Contains(args, word) }
	switch verb {
	case "established": // CONN LOCAL > REMOTE [server-side] [deny-initial]
		ev := path.ConnEstablished{
			Token: path.Token(p.number(args[0])), Local: p.addrPort(args[1]), Remote: p.addrPort(args[3]),
			ServerSide: has("server-side"), DenyJoinInitial: has("deny-initial"),
		}
		p.conns[ev.Token] = ev
		p.handle(ev)
	case "closed":
		p.handle(path.ConnClosed{Token: path.Token(p.number(args[0]))})
	case "up": // CONN/ID [LOCAL > REMOTE]
		token, id := p.subflow(args[0])
		local, remote := p.addrs(args)
		p.handle(path.SubflowEstablished{Token: token, LocalID: id, Local: local, Remote: remote})
	case "down": // CONN/ID [LOCAL > REMOTE] [quietly|corrupt]
		token, id := p.subflow(args[0])
		local, remote := p.addrs(args)
		ev := path.SubflowClosed{Token: token, LocalID: id, Local: local, Remote: remote, Corrupt: has("corrupt")}
		if !has("quietly") {
			ev.Err = errors.New("reset")
		}
		p.handle(ev)
	case "announced":
		p.handle(path.AddrAnnounced{Token: path.Token(p.number(args[0])), Remote: p.addrPort(args[1])})
	case "offer": // ID KIND WAYPOINT [at HOST:PORT] [from HOST] [over HOST] [for SERVER]
		p.handle(path.DetourOffered{Detour: p.detour(args)})
	case "withdraw":
		p.handle(path.DetourWithdrawn{ID: path.DetourID(args[0])})
	case "moved":
		p.handle(path.DetourMoved{ID: path.DetourID(args[0])})
	case "ready":
		p.handle(path.WaypointReady{Waypoint: args[0]})
	case "unready": // WAYPOINT KIND [WORD…]; the words are the reason; none: it is ready
		kind, _ := policy.ParseKind(args[1])
		ev := path.KindUnready{Waypoint: args[0], Kind: kind}
		if len(args) > 2 {
			ev.Err = errors.New(strings.Join(args[2:], " "))
		}
		p.handle(ev)
	case "lost":
		p.handle(path.WaypointLost{Waypoint: args[0], Addr: p.addr(args[0])})
	case "left":
		p.handle(path.WaypointLeft{Waypoint: args[0], Addr: p.addr(args[0])})
	case "steer": // use|only|avoid WAYPOINT,…
		var s path.Steering
		switch names := strings.Split(args[1], ","); args[0] {
		case "use":
			s.Use = names
		case "only":
			s.Use, s.Only = names, true
		case "avoid":
			s.Avoid = names
		}
		p.handle(path.Steered{Steering: s})
	case "refused": // WAYPOINT SERVER
		p.handle(path.ServerRefused{
			Waypoint: args[0], Addr: p.addr(args[0]), Server: p.addrPort(args[1]), Err: errors.New("forbidden"), For: 30 * time.Second,
		})
	case "addresses": // HOST… [tunnels HOST…] [behind HOST…]
		var ev path.LocalAddrs
		var behind []netip.Addr
		list := &ev.Addrs
		for _, name := range args {
			switch name {
			case "tunnels":
				list = &ev.Tunnels
				continue
			case "behind":
				list = &behind
				continue
			}
			*list = append(*list, p.addr(name))
		}
		ev.Addrs = append(ev.Addrs, ev.Tunnels...)
		for _, a := range behind {
			ev.Behind = append(ev.Behind, netip.PrefixFrom(a, a.BitLen()))
		}
		p.handle(ev)
	case "all": // [errors N] {CONN/ID …} ;…: a complete sample
		rest, count := args, 0
		if args[0] == "errors" {
			rest, count = args[2:], p.number(args[1])
		}
		ev := p.samples(strings.Join(rest, " "))
		ev.Complete, ev.ChecksumErrors = true, uint64(count)
		p.handle(ev)
	case "missing": // CONN/ID [errors N]: the kernel has no such subflow
		token, _ := p.subflow(args[0])
		local, remote := p.addrs(args)
		ev := path.SubflowMissing{Token: token, Local: local, Remote: remote}
		if count := after(args, "errors"); count != "" {
			ev.ChecksumErrors = uint64(p.number(count))
		}
		p.handle(ev)
	case "sample": // {CONN/ID [received N] [acked N] [backoff N] [rtt MS] [silent MS] [probes N] [unanswered MS]} ;…
		p.handle(p.samples(strings.Join(args, " ")))
	case "live": // CONN LOCAL > REMOTE, or CONN/ID [LOCAL > REMOTE] [backup]
		p.listLive(args)
	case "resync":
		p.handle(path.Resync{Conns: p.live})
		p.live = nil
	case "kernel": // refuses WHY, or accepts
		p.refuses = strings.Join(args[1:], " ")
	case "status":
		p.status()
	case "why": // SERVER
		p.why(p.addrPort(args[0]))
	case "end":
	default:
		p.t.Fatalf("a story does not know %q", verb)
	}
}

func (p *player) subflow(name string) (path.Token, uint8) {
	conn, id, ok := strings.Cut(name, "/")
	if !ok {
		p.t.Fatalf("%q is not CONN/ID", name)
	}
	return path.Token(p.number(conn)), uint8(p.number(id))
}

// addrs returns the addresses of the line, or else those of the subflow that was created, or the connection's first.
func (p *player) addrs(args []string) (local, remote netip.AddrPort) {
	if i := slices.Index(args, ">"); i > 0 {
		return p.addrPort(args[i-1]), p.addrPort(args[i+1])
	}
	if token, id := p.subflow(args[0]); id == 0 {
		return p.conns[token].Local, p.conns[token].Remote
	}
	if _, ok := p.subflows[args[0]]; !ok {
		p.t.Fatalf("no subflow %s was created", args[0])
	}
	return p.subflows[args[0]].Local, p.remotes[args[0]]
}

func (p *player) detour(args []string) path.Detour {
	d := path.Detour{ID: path.DetourID(args[0]), Kind: p.kind(args[1]), Waypoint: args[2]}
	if at := after(args, "at"); at != "" {
		if !strings.Contains(at, ":") {
			at += ":0"
		}
		d.Remote = p.addrPort(at)
	}
	if from := after(args, "from"); from != "" {
		d.Local = p.addr(from)
	}
	if over := after(args, "over"); over != "" {
		d.Endpoint = p.addr(over)
	}
	if server := after(args, "for"); server != "" {
		d.Server = p.addrPort(server)
	}
	return d
}

func (p *player) kind(word string) path.Kind {
	k, ok := policy.ParseKind(word)
	if !ok {
		p.t.Fatalf("no kind is called %q", word)
	}
	return k
}

func (p *player) samples(text string) path.Measured {
	var ev path.Measured
	for one := range strings.SplitSeq(text, ";") {
		words := strings.Fields(one)
		token, _ := p.subflow(words[0])
		local, remote := p.addrs(words)
		s := path.Sample{Token: token, Local: local, Remote: remote}
		for key, set := range map[string]func(int){
			"received": func(n int) { s.BytesReceived = uint64(n) },
			"acked":    func(n int) { s.BytesAcked = uint64(n) },
			"backoff":  func(n int) { s.Backoff = n },
			"rtt":      func(n int) { s.RTT = time.Duration(n) * time.Millisecond },
			"silent":   func(n int) { s.LastData, s.LastAnswer = time.Hour, time.Duration(n)*time.Millisecond },
			"probes":   func(n int) { s.Probes = n },
			"unanswered": func(n int) { // sent data waits, and the last answer is that old
				s.Unacked, s.LastData, s.LastAnswer = 1, time.Hour, time.Duration(n)*time.Millisecond
			},
		} {
			if n := after(words, key); n != "" {
				set(p.number(n))
			}
		}
		ev.Samples = append(ev.Samples, s)
	}
	return ev
}

func (p *player) listLive(args []string) {
	if !strings.Contains(args[0], "/") {
		token := path.Token(p.number(args[0]))
		local, remote := p.addrs(append([]string{args[0] + "/0"}, args[1:]...))
		p.conns[token] = path.ConnEstablished{Token: token, Local: local, Remote: remote}
		p.live = append(p.live, path.LiveConn{Token: token, Local: local, Remote: remote})
		return
	}
	_, id := p.subflow(args[0])
	local, remote := p.addrs(args)
	p.subflows[args[0]], p.remotes[args[0]] = path.SubflowRequested{Local: local}, remote
	c := &p.live[len(p.live)-1]
	c.Subflows = append(c.Subflows, path.LiveSubflow{
		LocalID: id, Local: local, Remote: remote, Backup: slices.Contains(args, "backup"),
	})
}

// status prints what a person would be shown.
func (p *player) status() {
	snap := p.m.Snapshot(p.now)
	for _, c := range snap.Conns {
		p.say("\t%d %s > %s %s", c.Token, p.ends(c.Local), p.ends(c.Remote), c.Note.Text)
		for _, s := range c.Subflows {
			p.say("\t  %d %s > %s %s %s %s", s.LocalID, p.ends(s.Local), p.ends(s.Remote), s.State, s.Kind, s.Waypoint)
			if s.Why != "" {
				p.say("\t    %s", s.Why)
			}
		}
		for _, d := range c.Left {
			is := "became a backup"
			if d.Ended {
				is = "ended"
			}
			p.say("\t  left %s %s at %v: %s, because %s", d.Kind, d.Waypoint, d.At.Sub(p.start), is, d.Why())
		}
	}
	for _, d := range snap.Detours {
		p.say("\t%s %s via %s", d.ID, d.Kind, d.Waypoint)
		if d.Why != "" {
			p.say("\t  %s", d.Why)
		}
		if d.Failures > 0 {
			p.say("\t  %d failures, again at %v: %v", d.Failures, d.RetryAt.Sub(p.start), d.Err)
		}
	}
}

// why prints the explanation for a server. Connections start at the host's first address.
func (p *player) why(server netip.AddrPort) {
	var from netip.Addr
	if server.Addr().Is4() {
		from = p.addr("me")
	}
	x := p.m.Explain(server, from, p.now)
	for _, c := range x.Conns {
		p.say("\tconnection %d", c.Token)
	}
	for _, c := range x.Closed {
		p.say("\tconnection %d ended %v ago, with %d subflows", c.Token, p.now.Sub(c.Ended), len(c.Subflows))
	}
	for _, c := range x.Candidates {
		is := "not"
		if c.Taken {
			is = "would be"
		}
		line := fmt.Sprintf("\t%s, %v: %s taken: %s", c.Waypoint, c.Kind, is, c.Why())
		if !c.Until.IsZero() {
			line += fmt.Sprintf("; for %v", c.Until.Sub(p.now))
		}
		if change := c.Change(); change != "" {
			line += "; " + change
		}
		p.say("%s", line)
	}
	if x.Note.Text != "" {
		p.say("\t%s", x.Note.Text)
	}
}
