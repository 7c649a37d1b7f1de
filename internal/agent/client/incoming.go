package client

import (
	"cmp"
	"errors"
	"fmt"
	"hash/fnv"
	"net/netip"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/collective"
	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/converter/cookie"
	"github.com/detour-collective/dcol/internal/converter/relay"
	"github.com/detour-collective/dcol/internal/detour"
	"github.com/detour-collective/dcol/internal/session/wire"
)

// incomingCookie is the time for which a converter may bring connections with one cookie. It is longer than any lease.
const incomingCookie = 25 * time.Hour

// Receiving returns the relay's orders for the services of this host for which converters take connections; nil: there are
// none.
func Receiving(c config.Client, id *collective.Identity) *relay.Receive {
	if len(c.Converter.Incoming) == 0 {
		return nil
	}
	out := &relay.Receive{Port: uint16(c.Converter.IncomingPort), Key: incomingKey(id)}
	for _, x := range c.Converter.Incoming {
		out.Services = append(out.Services, relay.Service{Number: serviceNumber(x), To: x.To})
	}
	return out
}

// incomingKey seals the cookies that converters get. It is derived, so that they stay valid after a restart.
func incomingKey(id *collective.Identity) cookie.Key { return cookie.Key(id.Derive("incoming")) }

// serviceNumber returns the number by which a cookie names a service. It is a hash of the whole service: so a cookie from before a
// change of the configuration leads to the service for which it was sealed, or to none.
func serviceNumber(x config.Incoming) uint32 {
	h := fnv.New32a()
	fmt.Fprintf(h, "%s %d %v", x.Converter, x.Port, x.To)
	return max(h.Sum32(), 1)
}

// incoming are the ports to ask one converter for.
type incoming struct {
	services []config.Incoming
	listens  uint16 // the port of this host's relay
	key      cookie.Key
}

// incomingAt returns the ports to ask a converter for.
func incomingAt(converter string, settings config.Client, id *collective.Identity) incoming {
	in := incoming{listens: uint16(settings.Converter.IncomingPort)}
	for _, x := range settings.Converter.Incoming {
		if x.Converter == converter {
			in.services = append(in.services, x)
		}
	}
	if len(in.services) > 0 {
		in.key = incomingKey(id)
	}
	return in
}

// request adds the ports to a request to the converter at an address. Their cookies are valid from that address only.
func (in incoming) request(r *wire.TunnelRequest, converter netip.Addr, now time.Time) {
	if len(in.services) == 0 {
		return
	}
	r.Port = in.listens
	for _, x := range in.services {
		proof := in.key.Seal(cookie.Claim{Mark: serviceNumber(x), Client: converter, Expires: now.Add(incomingCookie)})
		r.Incoming = append(r.Incoming, wire.Incoming{Port: uint16(x.Port), Cookie: proof})
	}
}

var errNoIncoming = errors.New("the converter accepts no connections for members: its dcol is too old, and its operator must update it")

// granted returns for each service whether the converter takes connections for it, by its answer or its error.
func (in incoming) granted(via detour.Via, g wire.TunnelGrant, err error) []api.Incoming {
	var list []api.Incoming
	for _, x := range in.services {
		out := api.Incoming{Converter: x.Converter, Port: uint16(x.Port), Addr: via.Addr, To: x.To, Granted: true}
		if why := refusedPort(uint16(x.Port), g, err); why != nil {
			out.Granted, out.Why = false, why.Error()
		}
		list = append(list, out)
	}
	return list
}

// refusedPort returns why a converter takes no connections at a port; nil: it does.
func refusedPort(port uint16, g wire.TunnelGrant, err error) error {
	if err != nil {
		return err
	}
	i := slices.IndexFunc(g.Incoming, func(x wire.IncomingGrant) bool { return x.Port == port })
	switch {
	case i < 0:
		return errNoIncoming
	case g.Incoming[i].Refused != 0:
		return &wire.Refusal{Code: g.Incoming[i].Refused}
	}
	return nil
}

const noConverter = "this host has no session with it, or it offers no converter"

// describeIncoming returns for which services converters take connections, or why not.
func (c *converters) describeIncoming() []api.Incoming {
	var list []api.Incoming
	for _, known := range c.incoming {
		list = append(list, known...)
	}
	for _, x := range c.settings.Client.Converter.Incoming {
		is := func(known api.Incoming) bool { return known.Converter == x.Converter && int(known.Port) == x.Port }
		if !slices.ContainsFunc(list, is) {
			list = append(list, api.Incoming{Converter: x.Converter, Port: uint16(x.Port), To: x.To, Why: noConverter})
		}
	}
	slices.SortFunc(list, func(a, b api.Incoming) int {
		return cmp.Or(cmp.Compare(a.Converter, b.Converter), cmp.Compare(a.Port, b.Port), a.Addr.Compare(b.Addr))
	})
	return list
}
