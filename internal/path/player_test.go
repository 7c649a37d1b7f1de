package path_test

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/path"
)

// hosts lists the addresses that stories use by name.
var hosts = map[string]string{
	"me": "10.0.0.1", "me2": "10.7.0.1", "me3": "10.8.0.1", "me6": "2001:db8::1", "tun": "10.99.0.2",
	"web": "203.0.113.80", "web2": "203.0.113.81", "web6": "2001:db8:80::80",
	"bob": "192.0.2.2", "bob6": "2001:db8:2::2", "carol": "192.0.2.3", "dave": "192.0.2.4", "eve": "192.0.2.5",
	"tun2": "10.98.0.2", "tun3": "10.97.0.2", "tun4": "10.99.0.3", "web3": "203.0.113.83", "web4": "203.0.113.84",
	"far": "198.51.100.80", "farther": "198.18.0.80", "lo": "127.0.0.1",
}

// player plays one story. It is also the executor: it grants each CreateSubflow a local port, unless the story has the
// kernel refuse.
type player struct {
	t       *testing.T
	m       *path.Manager
	start   time.Time
	now     time.Time
	out     strings.Builder
	refuses string // why the kernel refuses creates; empty: it does not

	conns    map[path.Token]path.ConnEstablished
	subflows map[string]path.SubflowRequested // by "CONN/ID"
	remotes  map[string]netip.AddrPort
	nextPort uint16
	depth    int             // answers to answers
	live     []path.LiveConn // reported since the last resync
}

func play(t *testing.T, story string) string {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	p := &player{
		t: t, start: start, now: start, nextPort: 50001,
		conns:    make(map[path.Token]path.ConnEstablished),
		subflows: make(map[string]path.SubflowRequested),
		remotes:  make(map[string]netip.AddrPort),
	}
	for line := range strings.Lines(strings.TrimRight(story, "\n") + "\n") {
		line = strings.TrimRight(line, "\n")
		switch {
		case strings.HasPrefix(line, "\t"), strings.HasSuffix(line, "tick"): // output of the last run
		case line == "", strings.HasPrefix(line, "#"):
			p.say("%s", line)
		case strings.HasPrefix(line, "policy "):
			p.say("%s", line)
			p.m = path.New(p.config(strings.Fields(line)))
		default:
			at, what, _ := strings.Cut(line, " ")
			p.until(p.start.Add(p.duration(at)))
			p.say("%s", line)
			p.event(strings.Fields(what))
		}
	}
	return p.out.String()
}

func (p *player) say(format string, args ...any) { fmt.Fprintf(&p.out, format+"\n", args...) }

// until lets time pass, with the ticks the manager asked for.
func (p *player) until(at time.Time) {
	for {
		next, ok := p.m.Next()
		if !ok || next.After(at) {
			break
		}
		if next.Before(p.now) {
			p.t.Fatalf("Next is %v before now", p.now.Sub(next))
		}
		p.now = next
		if actions := slices.Clone(p.m.Handle(path.Tick{}, p.now)); len(actions) > 0 {
			p.say("%-7v tick", p.now.Sub(p.start))
			p.act(actions)
		}
	}
	p.now = at
}

func (p *player) handle(ev path.Event) {
	if p.depth++; p.depth > 20 {
		p.t.Fatalf("at once again and again:\n%s", &p.out)
	}
	p.act(slices.Clone(p.m.Handle(ev, p.now)))
	p.depth--
}

// act prints actions and answers them.
func (p *player) act(actions []path.Action) {
	for _, a := range actions {
		p.say("\t%s", p.text(a))
	}
	for _, a := range actions {
		a, ok := a.(path.CreateSubflow)
		if !ok {
			continue
		}
		if p.refuses != "" {
			p.handle(path.CreateFailed{
				Token: a.Token, LocalID: a.LocalID, Err: errors.New(p.refuses), Gone: p.refuses == "gone", HalfClosed: p.refuses == "half-closed",
			})
			continue
		}
		from := a.Local
		if !from.IsValid() {
			from = p.addr("me2") // as routed
		}
		ev := path.SubflowRequested{Token: a.Token, LocalID: a.LocalID, Local: netip.AddrPortFrom(from, p.nextPort)}
		p.nextPort++
		name := fmt.Sprintf("%d/%d", a.Token, a.LocalID)
		p.subflows[name], p.remotes[name] = ev, a.Remote
		p.handle(ev)
	}
}

func (p *player) text(a path.Action) string {
	switch a := a.(type) {
	case path.CreateSubflow:
		from := "as routed"
		if a.Local.IsValid() {
			from = p.name(a.Local)
		}
		words := []string{fmt.Sprintf("create %d/%d %s > %s", a.Token, a.LocalID, from, p.ends(a.Remote))}
		if !a.Direct {
			words = append(words, "by", a.Kind.String())
		}
		if a.Backup {
			words = append(words, "backup")
		}
		return strings.Join(words, " ")
	case path.DestroySubflow:
		return fmt.Sprintf("destroy %d %s > %s%s", a.Token, p.ends(a.Local), p.ends(a.Remote), map[bool]string{true: " if open"}[a.IfOpen])
	case path.RemoveAddr:
		return fmt.Sprintf("remove %d/%d", a.Token, a.LocalID)
	case path.SetBackup:
		return fmt.Sprintf("%s %d %s > %s", map[bool]string{false: "promote", true: "demote"}[a.Backup], a.Token, p.ends(a.Local), p.ends(a.Remote))
	case path.RequestDetours:
		return "request " + p.ends(a.Server)
	case path.Probe:
		return fmt.Sprintf("probe %d %s > %s %v", a.Token, p.ends(a.Local), p.ends(a.Remote), a.On)
	case path.Blame:
		to, kinds := "all servers", a.Kind.String()
		if a.Server.IsValid() {
			to = p.ends(a.Server)
		}
		if a.AllKinds {
			kinds = "all kinds"
		}
		return fmt.Sprintf("blame %s, %s, towards %s until %v: %v", a.Waypoint, kinds, to, a.Until.Sub(p.start), a.Err)
	case path.ReadAddrs:
		return "read addresses"
	case path.LookUp:
		return fmt.Sprintf("look up %d", a.Token)
	case path.Measure:
		return fmt.Sprintf("measure %d %s > %s", a.Token, p.ends(a.Local), p.ends(a.Remote))
	}
	p.t.Fatalf("unknown action %T", a)
	return ""
}

func (p *player) name(a netip.Addr) string {
	for name, addr := range hosts {
		if addr == a.String() {
			return name
		}
	}
	return a.String()
}

func (p *player) ends(a netip.AddrPort) string {
	return p.name(a.Addr()) + ":" + strconv.Itoa(int(a.Port()))
}

func (p *player) addr(name string) netip.Addr {
	a, err := netip.ParseAddr(hosts[name])
	if err != nil {
		p.t.Fatalf("no host is called %q", name)
	}
	return a
}

func (p *player) addrPort(s string) netip.AddrPort {
	host, port, _ := strings.Cut(s, ":")
	return netip.AddrPortFrom(p.addr(host), uint16(p.number(port)))
}

func (p *player) number(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		p.t.Fatalf("%q is not a number", s)
	}
	return n
}

func (p *player) duration(s string) time.Duration {
	d, err := time.ParseDuration(s)
	if err != nil {
		p.t.Fatalf("%q is not a time", s)
	}
	return d
}

// after returns the word that follows key, or "".
func after(words []string, key string) string {
	if i := slices.Index(words, key); i >= 0 && i+1 < len(words) {
		return words[i+1]
	}
	return ""
}
