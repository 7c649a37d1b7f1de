package config

import (
	"fmt"
	"slices"

	"github.com/detour-collective/dcol/internal/tomlfile"
)

const (
	// mostIncomingPorts bounds the ports of a converter's host at which connections are taken: each has a listener.
	mostIncomingPorts = 64
	// mostIncoming bounds the services of this host for which converters take connections, and mostIncomingEach those of
	// one converter (wire.MostIncoming).
	mostIncoming     = 64
	mostIncomingEach = 8
)

// checkIncoming checks at which ports the converter takes connections for members.
func (w *Waypoint) checkIncoming(p *tomlfile.Problems) {
	const key = "waypoint.converter_incoming"
	n := 0
	for i, r := range w.ConverterIncoming {
		n += r.Len()
		if w.ConverterPort > 0 && r.Has(uint16(w.ConverterPort)) {
			p.At(key, "%v has the converter's own port, %d (waypoint.converter_port): leave it out", r, w.ConverterPort)
		}
		for _, other := range w.ConverterIncoming[:i] {
			if r.First <= other.Last && other.First <= r.Last {
				p.At(key, "%v and %v have ports in common", other, r)
			}
		}
	}
	if n > mostIncomingPorts {
		p.At(key, "has %d ports, at most %d are possible", n, mostIncomingPorts)
	}
	if n > 0 && !w.Gives(Converter) {
		p.At(key, `needs "converter" in waypoint.offers`)
	}
}

// checkIncoming checks for which services of this host converters take connections.
func (c *Config) checkIncoming(p *tomlfile.Problems) {
	const key = "client.converter.incoming"
	convert, each := c.Client.Converter, map[string]int{}
	checkPorts(p, key+"_port", []int{convert.IncomingPort})
	if n := len(convert.Incoming); n > mostIncoming {
		p.At(key, "has %d tables, at most %d are possible", n, mostIncoming)
	}
	if len(convert.Incoming) > 0 && c.Has(RoleWaypoint) && c.Waypoint.Gives(Converter) && convert.IncomingPort == c.Waypoint.ConverterPort {
		p.At(key+"_port", "%d is the port of this host's own converter (waypoint.converter_port): choose another one", convert.IncomingPort)
	}
	for i, x := range convert.Incoming {
		at := fmt.Sprintf("%s[%d]", key, i)
		c.checkIncomingConverter(p, at+".converter", x.Converter)
		checkPorts(p, at+".port", []int{x.Port})
		if slices.ContainsFunc(convert.Incoming[:i], func(other Incoming) bool { return other.Converter == x.Converter && other.Port == x.Port }) {
			p.At(at+".port", "%d of %s is listed twice", x.Port, x.Converter)
		}
		if each[x.Converter]++; each[x.Converter] == mostIncomingEach+1 {
			p.At(at+".converter", "%s takes connections at no more than %d ports for a member", x.Converter, mostIncomingEach)
		}
		if a := x.To.Addr(); x.To.Port() == 0 || a.IsUnspecified() || a.IsMulticast() {
			p.At(at+".to", `must be the address and the port of a service of this host or its LAN, such as "127.0.0.1:80"`)
		}
	}
}

func (c *Config) checkIncomingConverter(p *tomlfile.Problems, key, name string) {
	switch {
	case !label.MatchString(name):
		p.At(key, "%q is not a member's name: lower-case letters, digits and hyphens, as in its certificate", name)
	case name == c.Name:
		p.At(key, "%q is this host itself: name another member, which offers a converter", name)
	case !c.Collective.Joined() && !slices.ContainsFunc(c.Client.Waypoints, func(w Peer) bool { return w.Name == name }):
		p.At(key, "%q is no waypoint of this host: add a table [[client.waypoint]] for it", name)
	}
}
