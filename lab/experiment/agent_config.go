package experiment

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/lab/crew"
	"github.com/detour-collective/dcol/lab/scenario"
)

// agentPlan describes the configuration of an agent.
type agentPlan struct {
	// As a client: the number of subflows, their waypoints, and the kinds of detours, preferred first. 0
	// subflows means the agent's default. So do empty kinds and offers if ownKinds is set.
	subflows int
	ownKinds bool
	via      []string
	kinds    []scenario.Detour
	// needs, unless empty, is the kind of detour that must be ready before anything begins.
	needs scenario.Detour
	// offers are the kinds that it offers as a waypoint.
	offers []scenario.Detour
	// converter is the client's setting for converters, which names the servers to use them for. With proxy, its agent
	// has a proxy for programs. With capture, the kernel leads the connections of all programs to the agent.
	converter  scenario.Convert
	converters []string
	proxy      bool
	capture    bool
	// lan lists a gateway's interfaces to the hosts behind it.
	lan []string
	// over overrides settings of the configuration.
	over crew.Settings
	// coordinator is the collective's coordinator, as NAME@ADDRESS:PORT. Without one, members know each other
	// from their configuration.
	coordinator string
}

// checkAgents finds mistakes in the scenario's dcol tables before anything is built. The addresses it uses are
// invented.
func checkAgents(s *scenario.Scenario) error {
	for _, h := range s.Hosts {
		if !h.RunsAgent() {
			continue
		}
		plan := agentPlan{
			subflows: 2, via: s.WithRole(scenario.RoleWaypoint), kinds: scenario.Kinds(), offers: scenario.Kinds(),
			converter: scenario.ConvertAlways, converters: s.WithRole(scenario.RoleConverter), proxy: true,
		}
		if len(h.LAN) > 0 {
			plan.lan = []string{"lan"}
		}
		if name := s.Coordinator(); name != "" {
			plan.coordinator = crew.Coordinator(name, netip.MustParseAddr("192.0.2.1"))
		}
		if err := plan.check(h); err != nil {
			return err
		}
		if h.Name != s.ClientAgent() {
			continue
		}
		for _, p := range s.Procedures {
			plan.over = p.DCol
			if err := plan.check(h); err != nil {
				return fmt.Errorf("procedure %s: %w", p.Name, err)
			}
		}
	}
	return nil
}

// check finds mistakes in the settings by which the scenario overrides an agent's configuration.
func (p agentPlan) check(h scenario.Host) error {
	somewhere := []netip.Addr{netip.MustParseAddr("192.0.2.1")}
	data, err := p.config(h, func(string) []netip.Addr { return somewhere }).TOML(h.Name)
	if err != nil {
		return err
	}
	if _, err := config.Parse(fmt.Sprintf("the agent's configuration of %s", h.Name), data); err != nil {
		return fmt.Errorf("%w\n(the scenario's host.dcol and procedure.dcol are laid over what the lab writes)", err)
	}
	return nil
}

// config returns the configuration of a host's agent.
func (p agentPlan) config(h scenario.Host, addresses func(host string) []netip.Addr) crew.Agent {
	a := crew.Agent{Coordinator: p.coordinator, Over: crew.Overlay(h.DCol, p.over)}
	if h.Has(scenario.RoleClient) {
		waypoints := []crew.Waypoint{}
		for _, name := range p.others(h.Name) {
			waypoints = append(waypoints, crew.Waypoint{Name: name, Addresses: addresses(name)})
		}
		a.Client = crew.Settings{
			"waypoint": waypoints,
			"exclude":  []string{}, // the default excludes private addresses, such as the lab's
		}
		if p.subflows > 0 {
			a.Client["subflows"] = p.subflows
		}
		p.addKinds(a.Client, "kinds", p.kinds)
		if p.converter != "" {
			a.Client["converter"] = p.converting()
		}
	}
	if h.Serves() {
		a.Waypoint = crew.Settings{
			"allow": []string{"10.0.0.0/8", "fd00::/8"}, // the lab's addresses
		}
		p.addOffers(a.Waypoint, h)
	}
	if p.coordinator == "" {
		return a
	}
	if !p.ownKinds {
		a.Collective = crew.Settings{"waypoints": 0} // use only the listed waypoints
	}
	if a.Waypoint != nil {
		a.Waypoint["port_mapping"] = false // the lab's routers do not open ports
	}
	if h.Has(scenario.RoleCoordinator) {
		_, at, _ := strings.Cut(p.coordinator, "@")
		addr, _ := netip.ParseAddrPort(at) // ours
		a.Coordinate = crew.Settings{"addresses": []string{addr.Addr().String()}}
	}
	return a
}

// addKinds adds a list of kinds to settings. An empty list becomes the kind without requirements, because
// a missing list would mean the agent's default.
func (p agentPlan) addKinds(settings crew.Settings, key string, kinds []scenario.Detour) {
	switch {
	case len(kinds) > 0:
		settings[key] = kinds
	case !p.ownKinds:
		settings[key] = []scenario.Detour{scenario.Mapped}
	}
}

// addOffers adds the offers of a waypoint or a converter.
func (p agentPlan) addOffers(settings crew.Settings, h scenario.Host) {
	if h.Has(scenario.RoleWaypoint) {
		p.addKinds(settings, "offers", p.offers)
	}
	if h.Has(scenario.RoleConverter) {
		kinds, _ := settings["offers"].([]scenario.Detour)
		settings["offers"] = append(slices.Clone(kinds), converterKind)
	}
}

// converting returns a client's settings for the use of converters.
func (p agentPlan) converting() crew.Settings {
	settings := crew.Settings{"use": p.converter}
	if p.proxy {
		settings["proxy"] = proxyAddress
	}
	if p.capture {
		settings["capture"] = config.CaptureHost
	}
	if len(p.lan) > 0 {
		settings["gateway"] = p.lan
	}
	return settings
}

// converterKind is the word for a converter among a waypoint's offers.
const converterKind scenario.Detour = "converter"

// proxyAddress is the address of the proxy of a client's agent.
const proxyAddress = "127.0.0.1:1080"

// others returns the other members that a client's configuration lists.
func (p agentPlan) others(self string) []string {
	names := p.listed()
	for _, name := range p.converters {
		if !slices.Contains(names, name) {
			names = append(slices.Clone(names), name)
		}
	}
	return without(names, self)
}

// listed returns the waypoints in a client's configuration. A client that chooses its own has those of the
// directory, if there is a coordinator.
func (p agentPlan) listed() []string {
	if p.coordinator != "" && p.ownKinds {
		return nil
	}
	return p.via
}

// kindsNeeded returns the kinds that must be ready before anything begins.
func (p agentPlan) kindsNeeded() []string {
	switch p.needs {
	case "", scenario.NoDetour:
		return nil
	case scenario.DefaultDetour:
		return []string{crew.AnyKind}
	}
	return []string{string(p.needs)}
}

// without returns a list of names without one.
func without(names []string, name string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(n string) bool { return n == name })
}
