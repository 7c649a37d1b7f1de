package client

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/agent/relaying"
	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/converter/gateway"
	"github.com/detour-collective/dcol/internal/converter/relay"
	"github.com/detour-collective/dcol/internal/kernel/netstate"
)

// lanGateway keeps the kernel's rules that lead connections of LANs' hosts to the relay, if the configuration names LANs.
type lanGateway struct {
	config  gateway.Config
	open    *gateway.Gateway // nil: nothing is led to the relay
	left    bool             // an earlier agent may have left its rules, and they work on
	problem string           // why it does not work, for the status
	log     *slog.Logger
}

// newGateway removes an earlier agent's rules, unless keep may take them over.
func newGateway(settings *config.Config, log *slog.Logger) lanGateway {
	g := lanGateway{left: true, log: log}
	use := Converting(settings.Client, settings.Waypoint.Marks)
	if use == nil || len(use.Gateway) == 0 {
		if err := gateway.CleanUp(); err != nil {
			log.Warn("rules for a gateway may be left", "err", err)
		}
		g.left = false
	}
	g.configure(settings.Client, settings.Waypoint.Marks)
	return g
}

// configure takes over settings. Only those that a running agent takes over may change while the rules are installed.
func (g *lanGateway) configure(client config.Client, marks uint32) {
	client.Converter.Use = config.ConvertAlways // the user may change the mode, and the other settings hold in every mode
	if use := Converting(client, marks); len(use.Gateway) > 0 {
		g.config = gateway.Config{
			Interfaces: use.Gateway, Exclude: use.Exclude, ExcludePorts: use.ExcludePorts, KeepIPv6: use.KeepIPv6, Marks: marks,
		}
	}
}

// keepGateway makes the kernel lead those connections to the relay that would gain by a converter now.
func (c *Client) keepGateway(now time.Time) {
	g := &c.gateway
	if len(g.config.Interfaces) == 0 {
		return
	}
	if _, used := modes[c.converters.use]; !used {
		g.complain(g.remove(), "")
		return
	}
	standing := c.config.Relay.Standing()
	if standing.Relay == nil && g.open == nil {
		return // an earlier agent's rules may lead to a relay that is not found yet
	}
	g.complain(g.keep(c.converters.taken(now, standing)), missing(g.config.Interfaces, c.host.interfaces()))
}

// taken returns which connections of the LAN's hosts the relay can convert now.
func (c *converters) taken(now time.Time, s relaying.Standing) gateway.Want {
	w := gateway.Want{Mode: modes[c.use], Converters: len(c.confirmed(now, s.Use)) > 0}
	if r := s.Relay; r != nil {
		w.Port4, w.Port6 = listensAt(r.Parts[relay.PartGateway4]), listensAt(r.Parts[relay.PartGateway6])
	}
	return w
}

// removed returns a channel that delivers a value when another program has removed rules; keepGateway is due then.
func (g *lanGateway) removed() <-chan struct{} {
	if g.open == nil {
		return nil
	}
	return g.open.Removed()
}

// keep installs the wanted rules, and restores those that other programs have removed.
func (g *lanGateway) keep(want gateway.Want) (err error) {
	if g.open == nil {
		if g.open, err = gateway.Open(g.config, want); err == nil {
			g.left = false
			g.log.Info("connections of the LAN's hosts are converted", "interfaces", g.config.Interfaces)
		}
		return err
	}
	restored, err := g.open.Check()
	if restored {
		g.log.Warn("the firewall rules for the LAN's connections were removed by another program and have been restored")
	}
	if err != nil {
		return err
	}
	return errors.Join(g.open.Exclude(g.config.Exclude, g.config.ExcludePorts), g.open.Set(want))
}

// remove removes all rules, so that no further connection is led to the relay.
func (g *lanGateway) remove() error {
	if g.open != nil {
		err := g.open.Remove()
		g.open = nil
		return err
	}
	if g.left {
		g.left = false
		return gateway.CleanUp()
	}
	return nil
}

// close leaves the rules as they are: connections continue, and the next agent takes over.
func (g *lanGateway) close() error {
	if g.open == nil {
		return nil
	}
	return g.open.Close()
}

// complain records the problem for the status, if there is one, and logs it once.
func (g *lanGateway) complain(err error, lacks string) {
	problem := ""
	switch {
	case err != nil:
		problem = fmt.Sprintf("connections of the LAN's hosts are not converted ([client.converter] gateway): %v", err)
	case lacks != "":
		problem = fmt.Sprintf("no interface %s is up, whose hosts' connections should be converted: correct gateway in [client.converter]", lacks)
	}
	if problem != "" && problem != g.problem {
		g.log.Warn("a gateway does not work", "problem", problem)
	}
	g.problem = problem
}

// missing returns the first of the names that no interface has; empty: none.
func missing(names []string, up []netstate.Interface) string {
	for _, name := range names {
		if !slices.ContainsFunc(up, func(i netstate.Interface) bool { return i.Name == name }) {
			return name
		}
	}
	return ""
}

// listensAt returns the port of a part; 0: it does not listen.
func listensAt(p *relay.Part) uint16 {
	if p == nil || p.Problem != "" {
		return 0
	}
	at, err := netip.ParseAddrPort(p.Listen)
	if err != nil {
		return 0
	}
	return at.Port()
}
